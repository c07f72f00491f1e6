"""The data about masks: the mask in a tensor, and the groups of nodes that masks connect.

``mask_finder`` follows the masks of a model, and ``mask_groups`` makes the groups.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite

from mixlist.model.graph import Node
from mixlist.model.low_precision import FINITE_MAX

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


def _product(first: float, second: float) -> float:
    """Return a product. Zero times infinity is zero here, because infinity means a finite number that is unknown."""
    return first * second if first and second else 0.0


@dataclass(eq=False)
class MaskGroup:
    """The nodes that masks connect; at least one of them reads or makes a mask that the low type cannot hold.

    ``softmaxes``: the softmaxes that the masks reach. ``exceeding_nodes``: the nodes that must not be low precision as
    long as the mask is not reduced, softmaxes included. ``limit``: the largest magnitude of a reduced constant.
    ``limits``: by node, the slots that read a constant to be reduced, each with ``limit``. ``reducible``: whether all
    masks come from such constants. ``magnitude``: the largest magnitude of the masks. ``source``: the first constant or
    node that makes a mask. ``destination``: the first softmax. ``misfit``: for a group of one node, which computes a
    mask from other constants: why this node must not be low precision; else empty.
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
