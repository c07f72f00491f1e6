"""The data about masks: the mask in a value, the groups of nodes that masks connect, and the groups of a whole model.

``mask_groups`` finds them.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import cached_property
from math import inf, isfinite

from mixlist.graph.model import Node
from mixlist.ops.low_precision import FINITE_MAX

LARGEST_SCORE = 16000.0  # the largest magnitude of the scores that are added to a mask (Rule S4.37)

SlotLimits = dict[int, float]  # by input slot


@dataclass(frozen=True)
class MaskFlow:
    """The mask in a value: the sum of its constants' magnitudes, and how often the changed constant is added up.

    ``total``: infinite if the magnitude is not followed, which counts as out of range and as finite. ``scores``: the
    largest magnitude of the values that were added to it; infinite if their number is not known.
    """

    total: float
    weight: float = 1.0
    scores: float = 0.0

    def exceeds(self, low: int) -> bool:
        """Return whether the low type cannot hold the values."""
        return self.total + self.scores > FINITE_MAX[low]

    def scaled(self, factor: float) -> MaskFlow:
        """Return the mask times a factor."""
        return MaskFlow(_product(self.total, factor), self.weight * max(factor, 1.0), _product(self.scores, factor))

    def multiplied(self, other: MaskFlow) -> MaskFlow:
        """Return the product of two masks."""
        scores = max(_product(self.scores, other.total), _product(other.scores, self.total))
        return MaskFlow(_product(self.total, other.total), max(self.weight, other.weight), scores)


UNKNOWN_MASK = MaskFlow(inf)


def _product(one: float, other: float) -> float:
    """Return a product; zero times infinity is zero, because an infinity stands for an unknown finite magnitude."""
    return one * other if one and other else 0.0


@dataclass(frozen=True)
class CallMasks:
    """The kind of a call: the masks in its arguments, and which of its results lead to a softmax.

    ``computed``: from which of its results, which are constants, the caller computes a mask.
    """

    arguments: tuple[MaskFlow | None, ...] = ()
    wanted: tuple[bool, ...] = ()
    computed: tuple[bool, ...] = ()


@dataclass(eq=False)
class MaskGroup:
    """The nodes that masks connect; at least one of them reads or makes a mask that the low type does not hold.

    ``exceeding``: these nodes, softmaxes included. ``limits``: by node the slots that read a constant of the mask, with
    the largest magnitude that the constant keeps if a softmax is low precision. ``reducible``: whether all masks come
    from such constants. ``total``: the largest magnitude. ``source``: the first constant or node of the mask.
    ``destination``: the first softmax, or the call whose function has it. ``misfit``: of a node that a mask is computed
    with, why it must not be low precision.
    """

    softmaxes: list[Node] = field(default_factory=list)
    exceeding: list[Node] = field(default_factory=list)
    limits: dict[Node, SlotLimits] = field(default_factory=dict)
    reducible: bool = True
    source: str = ""
    destination: str = ""
    total: float = 0.0
    limit: float = 0.0
    misfit: str = ""

    @property
    def size(self) -> str:
        """Return the largest magnitude in words."""
        return f"magnitude {self.total:.6g}" if isfinite(self.total) else "unknown magnitude"

    @property
    def effect(self) -> Hashable:
        """Return everything that decisions depend on, without the words that explain them."""
        read = self.limits.items()
        limits = tuple([(node, *sorted(slots.items())) for node, slots in read]) if self.reducible else (*self.limits,)
        return (*self.softmaxes,), (*self.exceeding,), limits, self.reducible


@dataclass(eq=False)
class MaskPlan:
    """The mask groups of one graph, in order, for one kind of call if it is the body of a function.

    ``calls``: the plans of the functions, by the id of the calling node.
    """

    groups: tuple[MaskGroup, ...] = ()
    calls: dict[int, MaskPlan] = field(default_factory=dict)

    @property
    def effect(self) -> Hashable:
        """Return everything that decisions depend on; plans of one effect are one plan."""
        calls = [(node_id, plan) for node_id, plan in sorted(self.calls.items()) if not plan.is_empty]
        return tuple([group.effect for group in self.groups]), tuple(calls)

    @cached_property
    def is_empty(self) -> bool:
        """Return whether no mask leaves the range in the graph and in the functions that it calls."""
        return not self.groups and all(plan.is_empty for plan in self.calls.values())

    def of_call(self, node: Node) -> MaskPlan | None:
        """Return the plan of the function that a node calls; None if it is empty."""
        plan = self.calls.get(node.id)
        return None if plan is None or plan.is_empty else plan
