"""Find the overflows that ranges do not show, because a mask or an infinity in the same tensor hides them (Rule S8.12).

Both models run once more with counts, but only on a batch whose ranges may hide an overflow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from mixlist.checker.conversions import Conversion
from mixlist.checker.finding_rules import BatchRanges, converted_ranges
from mixlist.checker.instrument import Statistic
from mixlist.checker.intended_infinities import HarmlessValues, Mask, MaskLevels, find_harmless_values, find_masks
from mixlist.checker.model_pair import ObservedModel
from mixlist.checker.observer import ObservedRange
from mixlist.checker.value_counts import FINITE, CountingSession, Totals, count_beyond
from mixlist.model import dtypes
from mixlist.model.graph import Graph
from mixlist.model.low_precision import overflow_bound
from mixlist.model.naming import TensorRef

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mixlist.run.session import Feed

_SIGNS = (-1, 1)
BeyondCounts: TypeAlias = Callable[[float], float]  # the number of a tensor's values at or beyond a bound


class HiddenValueCounter:
    """A counter of the finite values of tensors, and of their values beyond bounds, in one model.

    One session counts for all tensors and bounds of the batches so far. If a batch needs other ones, a new session with
    these too replaces it, because to load a session takes longer than to count a few tensors more.
    """

    def __init__(self, model: ObservedModel) -> None:
        self._model = model
        self._wanted: dict[TensorRef, set[Statistic]] = {}
        self._session: CountingSession | None = None
        self._last_counts: tuple[Feed, Totals] | None = None  # the last batch of the session, and its counts

    def count(self, feed: Feed, bounds: Iterable[tuple[TensorRef, _TensorBounds]]) -> Totals:
        """Return the numbers of finite values (``FINITE``) and of values beyond the bounds of tensors in one batch.

        ``count_beyond`` gives the names of the latter. The model runs only if it did not run on this batch before.
        """
        has_all = self._session is not None
        for tensor, tensor_bounds in bounds:
            wanted = self._wanted.setdefault(tensor, set())
            statistics = {FINITE, *map(count_beyond, tensor_bounds.counted)}
            has_all &= statistics <= wanted
            wanted |= statistics  # the next batch mostly asks for the same tensors
        if self._session is None or not has_all:
            self.close()
            self._session = CountingSession(self._model, self._wanted)
            self._last_counts = None
        # The steps of ``add_hidden_overflows`` ask up to three times about one batch. They share one run, unless a step
        # needs a new session.
        if self._last_counts is None or self._last_counts[0] is not feed:
            self._last_counts = feed, self._session.count(feed)
        return self._last_counts[1]

    def close(self) -> None:
        """Release the session."""
        if self._session is not None:
            self._session.close()


@dataclass(frozen=True)
class _TensorBounds:
    """The bounds of a tensor's values: the least magnitude that overflows, and the levels of its masks."""

    overflow_bound: float
    levels: MaskLevels

    @property
    def counted(self) -> set[float]:
        """Return all bounds of which ``mask_counts``, ``any_overflows`` and ``overflows_without_mask`` need counts."""
        # A count of values beyond a bound includes the infinities. They are counted too, to be subtracted: the
        # infinities of the reference are no overflow.
        return {
            sign * size for sign in _SIGNS for size in (self.overflow_bound, self.levels.for_sign_of(sign), math.inf)
        }

    def mask_counts(self, count_of: BeyondCounts) -> list[float]:
        """Return the numbers of finite values that belong to a mask, on the negative and on the positive side."""
        return [count_of(sign * self.levels.for_sign_of(sign)) - count_of(sign * math.inf) for sign in _SIGNS]

    def any_overflows(self, count_of: BeyondCounts) -> bool:
        """Return True if a finite value overflows, a value of a mask too."""
        return any(count_of(sign * self.overflow_bound) > count_of(sign * math.inf) for sign in _SIGNS)

    def overflows_without_mask(self, count_of: BeyondCounts) -> bool:
        """Return True if a finite value overflows that does not belong to a mask."""
        # Example: of [-1e9, -8e4, 3.0] with a mask of -1e9, two values are beyond -65520, but only one is beyond the
        # level of the mask, -5e8. So one value overflows without the mask. Rule S8.11: masks are on one side only. If
        # there are large values on both sides, none of them belongs to a mask, and only the infinities are subtracted.
        on_both_sides = all(self.mask_counts(count_of))
        for sign in _SIGNS:
            mask_bound = math.inf if on_both_sides else self.levels.for_sign_of(sign)
            if count_of(sign * self.overflow_bound) > count_of(sign * mask_bound):
                return True
        return False


class HiddenOverflowFinder:
    """The search for values that overflow in tensors with masks or infinities (Rule S8.12).

    ``low_types``: those of the mixed model. Without ``mixed``, only values of the reference are counted, and
    ``add_hidden_overflows`` takes the counts of the mixed model as an argument.
    """

    def __init__(
        self,
        graph: Graph,
        low_types: AbstractSet[int],
        reference: ObservedModel,
        mixed: ObservedModel | None = None,
    ) -> None:
        self._graph, self._low_types = graph, low_types
        self._reference_counter = HiddenValueCounter(reference)
        self._mixed_counter = HiddenValueCounter(mixed) if mixed is not None else None
        self._masks: dict[TensorRef, Mask] | None = None
        self._harmless: dict[TensorRef, HarmlessValues] = {}

    def add_hidden_overflows(self, feed: Feed, batch: BatchRanges, mixed_counts: Totals | None = None) -> BatchRanges:
        """Return the batch with its masks, and with the overflows that its ranges do not show.

        ``mixed_counts``: the numbers of finite and infinite values in the mixed model, if this object has no mixed
        model. A batch whose ranges hide nothing is returned as it is.
        """
        # Most batches end here: nothing is infinite, at the limit, or out of the range of a conversion.
        is_nonfinite = any(not mixed.finite for mixed in batch.mixed.values())
        reaches_limit = is_nonfinite or any(batch.low_tensors_at_limit())
        if not reaches_limit and not any(converted.ends_out_of_range for converted in converted_ranges(batch)):
            return batch
        # The masks of the graph are found once, if ever. Which of them a batch proves depends on its ranges. Only
        # float16 is too narrow for the usual masks.
        if self._masks is None:
            self._masks = find_masks(self._graph) if dtypes.FLOAT16 in self._low_types else {}
            bound = min(map(overflow_bound, self._low_types), default=0.0)
            self._harmless = find_harmless_values(self._graph, bound)
        # Each step needs the fields that the steps before it fill in: masks decide which ranges may hide an overflow,
        # and the overflows found so far decide which tensors with infinities are compared by counts.
        input_ranges = self._mask_input_ranges(feed, batch)
        batch = replace(batch, masks=self._masks, harmless=self._harmless, input_ranges=input_ranges)
        overflowing, lossy = self._find_lossy_conversions(feed, batch)
        batch = replace(batch, overflowing_conversions=overflowing, lossy_conversions=lossy)
        batch = replace(batch, hidden_overflows=self._find_hidden_overflows(feed, batch))
        unexplained, fewer_finite = self._compare_nonfinite_tensors(feed, batch, mixed_counts)
        return replace(batch, unexplained_nonfinite=unexplained, fewer_finite=fewer_finite)

    def _mask_input_ranges(self, feed: Feed, batch: BatchRanges) -> dict[TensorRef, ObservedRange]:
        """Return the ranges of the graph inputs that masks depend on, if no probe observes them."""
        operands = {tensor for mask in (self._masks or {}).values() for tensor in mask.joined | mask.factors}
        # A check observes the float inputs. A trial of ``tune`` observes few tensors, so these values come from the
        # feed.
        slots = {tensor: tensor.slot for tensor in operands - batch.reference.keys() if _is_graph_input(tensor)}
        inputs = self._graph.root.inputs
        arrays = {tensor: feed.get(inputs[slot].name) for tensor, slot in slots.items()}
        return {
            tensor: _range_of(array)
            for tensor, array in arrays.items()
            if isinstance(array, np.ndarray) and array.dtype.kind == "f"
        }

    def _find_hidden_overflows(self, feed: Feed, batch: BatchRanges) -> set[TensorRef]:
        """Return the tensors with a hidden value that overflows and does not belong to a mask."""
        # Only low tensors may hide an overflow, so each of them has a low type.
        bounds_of = {
            tensor: _TensorBounds(overflow_bound(batch.low_type_of[tensor]), levels)
            for tensor, levels in batch.tensors_that_may_hide_overflow().items()
        }
        if not bounds_of:
            return set()
        # In the reference the values have not overflowed, so counts there separate values of masks from other values.
        totals = self._reference_counter.count(feed, bounds_of.items())
        return {t for t, bounds in bounds_of.items() if bounds.overflows_without_mask(_beyond_counts(totals, t))}

    def _find_lossy_conversions(self, feed: Feed, batch: BatchRanges) -> tuple[set[Conversion], set[Conversion]]:
        """Return the conversions that lose a hidden value of no mask, and those that lose any hidden value (Rule S8.4).

        A value is hidden if an infinity, or a larger value of a mask, is at the same end of the range.
        """
        overflowing, lossy = set[Conversion](), set[Conversion]()
        bounds_of = {
            converted.conversion: _TensorBounds(converted.bound, converted.levels)
            for converted in converted_ranges(batch)
            if converted.may_hide_loss
        }
        # A conversion reads a tensor of the mixed model. If that model is not counted, count the reference instead.
        in_mixed = {
            conversion: conversion.observed_ref
            for conversion in bounds_of
            if self._mixed_counter is not None and not conversion.in_reference
        }
        in_reference = {c: c.reference_ref for c in bounds_of if c not in in_mixed and c.reference_ref is not None}
        for counter, tensors in ((self._mixed_counter, in_mixed), (self._reference_counter, in_reference)):
            if counter is None or not tensors:
                continue
            totals = counter.count(feed, [(tensor, bounds_of[c]) for c, tensor in tensors.items()])
            for conversion, tensor in tensors.items():
                bounds, count_of = bounds_of[conversion], _beyond_counts(totals, tensor)
                if bounds.overflows_without_mask(count_of):
                    overflowing.add(conversion)
                if bounds.any_overflows(count_of):
                    lossy.add(conversion)
        return overflowing, lossy

    def _compare_nonfinite_tensors(
        self, feed: Feed, batch: BatchRanges, mixed_counts: Totals | None
    ) -> tuple[set[TensorRef], set[TensorRef]]:
        """Compare the tensors that are finite in neither model.

        Return ``unexplained_nonfinite`` and ``fewer_finite`` of BatchRanges.
        """
        bounds_of = self._nonfinite_bounds(batch)
        if mixed_counts is not None:
            bounds_of = {t: bounds for t, bounds in bounds_of.items() if (t, FINITE.name) in mixed_counts}
        if not bounds_of:
            return set(), set()
        reference = self._reference_counter.count(feed, bounds_of.items())
        if self._mixed_counter is not None:
            mixed_counts = self._mixed_counter.count(feed, bounds_of.items())
        assert mixed_counts is not None
        # Unless shapes depend on values, both models have equally many values: fewer that are not NaN means more NaN.
        unexplained, fewer_finite = set(), set()
        for tensor, bounds in bounds_of.items():
            reference_finite, mixed_finite = (
                totals.get((tensor, FINITE.name), 0.0) for totals in (reference, mixed_counts)
            )
            has_more_nan = _count_without_nan(mixed_counts, tensor) < _count_without_nan(reference, tensor)
            # The values of masks may become infinite by design, so up to ``mask_values`` finite values may be missing.
            mask_values = sum(bounds.mask_counts(_beyond_counts(reference, tensor)))
            if has_more_nan or mixed_finite < reference_finite - mask_values:
                unexplained.add(tensor)
            if mixed_finite < reference_finite:
                fewer_finite.add(tensor)
        return unexplained, fewer_finite

    def _nonfinite_bounds(self, batch: BatchRanges) -> dict[TensorRef, _TensorBounds]:
        """Return the bounds of the tensors that are finite in neither model, and may have new infinities."""
        # Once a tensor overflows, its infinities may reach every tensor that comes later. The ranges are in order of
        # computation.
        overflow_spreads = bool(
            batch.hidden_overflows
            or batch.overflowing_conversions
            or any(converted.loses_end for converted in converted_ranges(batch))
        )
        bounds_of = {}
        for tensor, mixed in batch.mixed.items():
            reference, low = batch.reference.get(tensor), batch.low_type_of.get(tensor, dtypes.FLOAT16)
            if reference is None or mixed.finite:
                continue
            # This tensor may be the first that overflows: it is finite in the reference and not in the mixed model.
            overflow_spreads = overflow_spreads or reference.finite
            if not reference.finite and (overflow_spreads or not batch.only_mask_overflows(tensor, low)):
                bounds_of[tensor] = _TensorBounds(overflow_bound(low), batch.mask_levels(tensor, low))
        return bounds_of

    def close(self) -> None:
        """Release the sessions."""
        self._reference_counter.close()
        if self._mixed_counter is not None:
            self._mixed_counter.close()


def _is_graph_input(tensor: TensorRef) -> bool:
    # The slot of a tensor that no run observes, such as an input of a body, is -1.
    return not tensor.node and tensor.slot >= 0


def _beyond_counts(totals: Totals, tensor: TensorRef) -> BeyondCounts:
    """Return a function that gives the number of a tensor's values at or beyond a bound."""
    return lambda bound: totals.get((tensor, count_beyond(bound).name), 0.0)


def _count_without_nan(totals: Totals, tensor: TensorRef) -> float:
    """Return the number of values that are not NaN."""
    count_of = _beyond_counts(totals, tensor)
    return totals.get((tensor, FINITE.name), 0.0) + count_of(-math.inf) + count_of(math.inf)


def _range_of(array: NDArray[np.generic]) -> ObservedRange:
    """Return the range of an array of floats; its ends leave NaN out."""
    doubles = array.astype(np.float64)
    numbers = doubles[~np.isnan(doubles)]
    if not doubles.size:
        return ObservedRange(0.0, 0.0, nan=False, ran=False)
    # Of NaN alone the minimum is inf and the maximum -inf. The magnitude of any range with a NaN is infinite.
    minimum, maximum = float(numbers.min(initial=np.inf)), float(numbers.max(initial=-np.inf))
    has_nan = numbers.size < doubles.size
    is_nonfinite = has_nan or math.isinf(minimum) or math.isinf(maximum)
    return ObservedRange(minimum, maximum, has_nan, True, 0 if is_nonfinite else None)
