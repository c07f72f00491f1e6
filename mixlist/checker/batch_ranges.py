"""Hold the ranges of one batch in both models, and find the tensors whose ranges may hide an overflow.

A *mask* is a large constant, such as -1e9, that is added to scores so that a softmax makes zero of them. In float16 it
is infinite by design. Its *level* is the magnitude from which on a value belongs to the mask and not to the scores
(``mixlist/patterns/proven_masks.py``, Rule S8.12).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mixlist.checker.result import ValueCounts
from mixlist.emulation.conversions import Conversion
from mixlist.emulation.observed_range import ObservedRange
from mixlist.graph.refs import TensorRef
from mixlist.ops.low_precision import FINITE_MAX, overflow_bound
from mixlist.patterns.proven_masks import Mask, MaskLevels

if TYPE_CHECKING:
    from mixlist.emulation.observer import Ranges


@dataclass(frozen=True)
class BatchRanges:
    """The ranges of one batch in both models, and the facts about its values that ranges do not show.

    ``low_type_of``: the low type of each tensor that the mixed model holds in low precision. ``saturate``: values out
    of range become the largest finite value. ``conversion_ranges``: each conversion with the range of its tensor before
    it.

    ``HiddenOverflowFinder`` fills in the next fields. ``masks``: the tensors that carry a mask to a softmax.
    ``clipped``: the tensors that only Clips read (Rule S8.30).
    ``input_ranges``: the ranges of the graph inputs on which masks depend. ``hidden_overflows``: tensors with a
    finite value in the reference that overflows in the low type and belongs to no mask. ``lossy_conversions``:
    conversions that lose a finite value, although their range does not show the loss. ``overflowing_conversions``:
    the lossy conversions whose lost value belongs to no mask. Of the tensors that are not finite in the reference,
    ``fewer_finite`` have fewer finite values in the mixed model. ``unexplained_nonfinite`` have more NaN there, or
    lack more finite values than masks explain.

    With full statistics, ``counts`` are those of every low tensor and ``conversion_counts`` those of every conversion.
    """

    index: int
    reference: Ranges
    mixed: Ranges
    low_type_of: Mapping[TensorRef, int]
    saturate: bool
    conversion_ranges: Sequence[tuple[Conversion, ObservedRange]] = ()
    masks: Mapping[TensorRef, Mask] = field(default_factory=dict)
    clipped: AbstractSet[TensorRef] = frozenset()
    input_ranges: Ranges = field(default_factory=dict)
    hidden_overflows: AbstractSet[TensorRef] = frozenset()
    lossy_conversions: AbstractSet[Conversion] = frozenset()
    overflowing_conversions: AbstractSet[Conversion] = frozenset()
    fewer_finite: AbstractSet[TensorRef] = frozenset()
    unexplained_nonfinite: AbstractSet[TensorRef] = frozenset()
    counts: Mapping[TensorRef, ValueCounts] = field(default_factory=dict)
    conversion_counts: Mapping[Conversion, ValueCounts] = field(default_factory=dict)

    def mask_levels(self, tensor: TensorRef, low: int) -> MaskLevels:
        """Return the magnitudes from which on a value of a tensor belongs to a mask in this batch, by its sign."""
        mask = self.masks.get(tensor)
        return MaskLevels() if mask is None else mask.levels_in(self._ranges_of_operands(mask), overflow_bound(low))

    def only_mask_overflows(self, tensor: TensorRef, low: int) -> bool:
        """Return True if a tensor carries a mask, and nothing else in the tensor can overflow."""
        mask = self.masks.get(tensor)
        return mask is not None and mask.explains_every_overflow(self._ranges_of_operands(mask), overflow_bound(low))

    def _ranges_of_operands(self, mask: Mask) -> Ranges:
        """Return the ranges in the reference of the tensors that are joined to a mask, or that multiply it."""
        tensors = mask.joined | mask.factors
        return {t: ranges[t] for ranges in (self.input_ranges, self.reference) for t in tensors if t in ranges}

    def has_more_nonfinite(self, tensor: TensorRef) -> bool:
        """Return True if more values of a tensor are infinite or NaN in the mixed model than in the reference."""
        reference, mixed = self.reference.get(tensor), self.mixed.get(tensor)
        if reference is None or mixed is None or mixed.finite:
            return False
        # If the reference has infinities too, only counts tell whether there are more of them.
        return reference.finite or tensor in self.fewer_finite

    def low_tensors_at_limit(self) -> Iterable[tuple[TensorRef, int, ObservedRange]]:
        """Yield the low tensors with an infinity or NaN; with ``saturate``, also those at the largest finite value.

        Each comes with its low type and its range in the mixed model.
        """
        for tensor, low in self.low_type_of.items():
            mixed = self.mixed.get(tensor)
            if mixed is None or not mixed.ran:
                continue
            if not mixed.finite or (self.saturate and mixed.magnitude >= FINITE_MAX[low]):
                yield tensor, low, mixed

    def ambiguous_tensors(self) -> dict[TensorRef, MaskLevels]:
        """Return the tensors whose infinities may hide an overflow, and the levels of their masks.

        Example: scores and a mask of -1e9 are [-1e9, -8e4, 3.0] in float32 and [-inf, -inf, 3.0] in float16. The score
        -8e4 overflows, but the range [-inf, 3.0] does not show this, because the mask alone makes the same range.
        """
        ambiguous = {}
        for tensor, low, mixed in self.low_tensors_at_limit():
            reference = self.reference.get(tensor)
            if reference is None or self.only_mask_overflows(tensor, low):
                continue  # nothing to compare with, or nothing to hide
            levels = self.mask_levels(tensor, low)
            if not reference.finite:
                # An infinity of the reference hides every overflow with the same sign.
                ambiguous[tensor] = levels
                continue
            # If a mask's level is above the overflow bound, a smaller value may overflow and not belong to the mask.
            limit = FINITE_MAX[low] if self.saturate else math.inf
            # Example: a mask of -1e9 has the level 5e8. A score between 65520 and 5e8 overflows, too.
            may_hide = any(
                levels.for_sign_of(end) > overflow_bound(low) for end in endpoints(reference) if levels.cover(end)
            )
            if may_hide and only_masks_reach(limit, reference, mixed, levels):
                ambiguous[tensor] = levels
        return ambiguous


def endpoints(observed_range: ObservedRange) -> tuple[float, float]:
    """Return the smallest and the largest value."""
    return observed_range.minimum, observed_range.maximum


def only_masks_reach(limit: float, reference: ObservedRange, mixed: ObservedRange, levels: MaskLevels) -> bool:
    """Return True if the ends that reach ``limit`` in the mixed model are values of a mask, on one side only."""
    # Rule S8.11: masks are on one side only. If both ends of the reference are as large as a mask, neither is one.
    is_positive = {end > 0 for end in endpoints(reference) if levels.cover(end)}
    ends = zip(endpoints(reference), endpoints(mixed), strict=True)
    return (
        not mixed.nan
        and len(is_positive) == 1
        and all(is_same_mask(before, after, levels) for before, after in ends if abs(after) >= limit)
    )


def is_same_mask(before: float, after: float, levels: MaskLevels) -> bool:
    """Return True if a value of the reference belongs to a mask, and has the same sign in the mixed model."""
    return levels.cover(before) and (before > 0) == (after > 0)
