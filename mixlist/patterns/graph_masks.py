"""The data about masks: the mask in a tensor, the groups of nodes that masks connect, and the groups of a whole model.

``mask_finder`` follows the masks of one graph, ``mask_groups`` makes the groups, and ``mask_calls`` does both for a
whole model.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import cached_property
from math import inf, isfinite

from mixlist.graph.model import Node
from mixlist.ops.low_precision import FINITE_MAX

# The largest magnitude of the scores that are added to a mask (Rule S4.37).
LARGEST_SCORE = 16000.0

SlotLimits = dict[int, float]  # by input slot


@dataclass(frozen=True)
class CarriedMask:
    """The mask in a tensor, as bounds of its elements.

    ``magnitude``: the sum of the magnitudes of the mask constants that were added up. It is infinite if the magnitude
    is unknown: such a mask counts as finite, but out of range. ``summed_masks``: the number of masks that are added up
    in the tensor; once the constants are reduced, each of them may have the magnitude of the limit. A factor counts,
    too: ``Mul(m, 2)`` is two masks. ``scores``: the largest magnitude of all other tensors that were added; infinite if
    the number of additions is unknown.
    """

    magnitude: float
    summed_masks: float = 1.0
    scores: float = 0.0

    def exceeds(self, low: int) -> bool:
        """Return whether the low type cannot hold the values."""
        return self.magnitude + self.scores > FINITE_MAX[low]

    def scaled(self, factor: float) -> CarriedMask:
        """Return the mask times a factor of this magnitude."""
        # A factor below 1 does not count in summed_masks: the limit must also hold before the multiplication.
        summed_masks = self.summed_masks * max(factor, 1.0)
        return CarriedMask(_product(self.magnitude, factor), summed_masks, _product(self.scores, factor))

    def multiplied(self, second: CarriedMask) -> CarriedMask:
        """Return the product of two masks. Its node is unreducible, so the product of both scores does not count."""
        # (m + s) * (n + t) = m * n + m * t + s * n + s * t, with masks m and n and scores s and t.
        scores = max(_product(self.scores, second.magnitude), _product(second.scores, self.magnitude))
        summed_masks = max(self.summed_masks, second.summed_masks)
        return CarriedMask(_product(self.magnitude, second.magnitude), summed_masks, scores)


UNKNOWN_MASK = CarriedMask(inf)


def _product(first: float, second: float) -> float:
    """Return a product. Zero times infinity is zero here, because infinity means a finite number that is unknown."""
    return first * second if first and second else 0.0


@dataclass(frozen=True)
class CallMasks:
    """The kind of a call, for masks: calls of one kind share the decisions inside the function.

    ``arguments``: the mask in each argument. ``reach_softmax``: for each result, whether it leads to a softmax in the
    caller. ``compute_mask``: for each result, whether it is a constant from which the caller computes a mask. An empty
    tuple means None or False for all.
    """

    arguments: tuple[CarriedMask | None, ...] = ()
    reach_softmax: tuple[bool, ...] = ()
    compute_mask: tuple[bool, ...] = ()


@dataclass(eq=False)
class MaskGroup:
    """The nodes that masks connect; at least one of them reads or makes a mask that the low type cannot hold.

    ``softmaxes``: the softmaxes that the masks reach. ``exceeding_nodes``: the nodes that must not be low precision as
    long as the mask is not reduced, softmaxes included. ``limit``: the largest magnitude of a reduced constant.
    ``limits``: by node, the slots that read a constant to be reduced, each with ``limit``. ``reducible``: whether all
    masks come from such constants. ``magnitude``: the largest magnitude of the masks. ``source``: the first constant or
    node that makes a mask. ``destination``: the first softmax, or the call whose function has it. ``misfit``: for a
    group of one node, which computes a mask from other constants: why this node must not be low precision; else empty.
    """

    softmaxes: list[Node] = field(default_factory=list)
    exceeding_nodes: list[Node] = field(default_factory=list)
    limits: dict[Node, SlotLimits] = field(default_factory=dict)
    reducible: bool = True
    source: str = ""
    destination: str = ""
    magnitude: float = 0.0
    limit: float = 0.0
    misfit: str = ""

    @property
    def magnitude_text(self) -> str:
        """Return the largest magnitude for messages."""
        return f"magnitude {self.magnitude:.6g}" if isfinite(self.magnitude) else "unknown magnitude"

    @property
    def effect(self) -> Hashable:
        """Return everything that decisions depend on, without the text that explains them."""
        # The limits matter only if the constants are reduced; else only the nodes do.
        items = self.limits.items()
        limits = tuple([(node, *sorted(slots.items())) for node, slots in items]) if self.reducible else (*self.limits,)
        return (*self.softmaxes,), (*self.exceeding_nodes,), limits, self.reducible


@dataclass(eq=False)
class GraphMasks:
    """The mask groups of one graph, in the order of their first node; of a function's body, for one kind of call.

    ``calls``: the masks of the functions that the graph calls, by the id of the calling node.
    """

    groups: tuple[MaskGroup, ...] = ()
    calls: dict[int, GraphMasks] = field(default_factory=dict)

    @property
    def effect(self) -> Hashable:
        """Return everything that decisions depend on. GraphMasks of one graph with equal effects become one object."""
        # GraphMasks compare by identity, which is enough here: MaskFinders has already made those of one function with
        # equal effects one object.
        calls = [(node_id, masks) for node_id, masks in sorted(self.calls.items()) if not masks.is_empty]
        return tuple([group.effect for group in self.groups]), tuple(calls)

    @cached_property
    def is_empty(self) -> bool:
        """Return whether no mask leaves the range in the graph and in the functions that it calls."""
        return not self.groups and all(masks.is_empty for masks in self.calls.values())

    def of_call(self, node: Node) -> GraphMasks | None:
        """Return the masks of the function that a node calls; None if no mask leaves the range there."""
        masks = self.calls.get(node.id)
        return None if masks is None or masks.is_empty else masks
