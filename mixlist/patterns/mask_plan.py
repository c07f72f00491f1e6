"""The data about masks: the mask in a value, the groups of nodes that masks connect, and the groups of a whole model.

``mask_groups`` finds them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from math import frexp

from mixlist.graph.model import Node
from mixlist.ops.low_precision import FINITE_MAX

SCORES = 16000.0  # the largest magnitude of the scores that are added to a mask (Rule S4.37)

Limits = dict[int, float]  # by input slot


@dataclass(frozen=True)
class MaskFlow:
    """The mask in a value: the sum of its constants' magnitudes, and how often the changed constant is added up.

    ``scores``: the largest magnitude of the values that were added to it; infinite if their number is not known.
    """

    total: float
    weight: float = 1.0
    scores: float = 0.0

    def exceeds(self, low: int) -> bool:
        """Return whether the low type cannot hold the values."""
        return self.total + self.scores > FINITE_MAX[low]

    def coarse(self, low: int) -> MaskFlow:
        """Return the mask, with a rounded magnitude if it is out of range.

        All nodes that such a mask passes stay as authored, whatever its magnitude.
        """
        return MaskFlow(2.0 ** (frexp(self.total)[1] - 1), scores=self.scores) if self.exceeds(low) else self

    def scaled(self, factor: float) -> MaskFlow:
        """Return the mask times a factor."""
        return MaskFlow(self.total * factor, self.weight * max(factor, 1.0), self.scores * factor)

    def multiplied(self, other: MaskFlow) -> MaskFlow:
        """Return the product of two masks."""
        scores = max(self.scores * other.total, other.scores * self.total)
        return MaskFlow(self.total * other.total, max(self.weight, other.weight), scores)


@dataclass(frozen=True)
class CallMasks:
    """The kind of a call: the masks in its arguments, and which of its results lead to a softmax."""

    arguments: tuple[MaskFlow | None, ...] = ()
    wanted: tuple[bool, ...] = ()


@dataclass(eq=False)
class MaskGroup:
    """The nodes that masks connect; at least one of them reads or makes a mask that the low type does not hold.

    ``exceeding``: these nodes, softmaxes included. ``limits``: by node the slots that read a constant of the mask, with
    the largest magnitude that the constant keeps if a softmax is low precision. ``reducible``: whether all masks come
    from such constants. ``total``: the largest magnitude. ``source``: the first constant or node of the mask.
    ``destination``: the first softmax, or the call whose function has it.
    """

    softmaxes: list[Node] = field(default_factory=list)
    exceeding: list[Node] = field(default_factory=list)
    limits: dict[Node, Limits] = field(default_factory=dict)
    reducible: bool = True
    source: str = ""
    destination: str = ""
    total: float = 0.0
    limit: float = 0.0


@dataclass(eq=False)
class MaskPlan:
    """The mask groups of one graph, in order, for one kind of call if it is the body of a function.

    ``calls``: the plans of the functions, by the id of the calling node.
    """

    groups: tuple[MaskGroup, ...] = ()
    calls: dict[int, MaskPlan] = field(default_factory=dict)

    @cached_property
    def is_empty(self) -> bool:
        """Return whether no mask leaves the range in the graph and in the functions that it calls."""
        return not self.groups and all(plan.is_empty for plan in self.calls.values())

    def of_call(self, node: Node) -> MaskPlan | None:
        """Return the plan of the function that a node calls; None if it is empty."""
        plan = self.calls.get(node.id)
        return None if plan is None or plan.is_empty else plan
