"""Find the overflows that ranges do not show: values that a mask or an infinity of the same tensor hides (Rule S8.12).

Both models run once more with counts, but only on a batch whose ranges call for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from mixlist.checker.counting_sessions import CountingSession
from mixlist.checker.finding_rules import BatchRanges
from mixlist.checker.model_pair import ObservedModel
from mixlist.checker.operand_rules import converted_ranges
from mixlist.checker.value_counts import FINITE, Totals, count_beyond, count_beyond_name, count_finite
from mixlist.emulation.conversions import Conversion
from mixlist.emulation.observed_range import ObservedRange
from mixlist.graph.dataflow import DataflowNode
from mixlist.graph.refs import TensorRef
from mixlist.ops import types
from mixlist.ops.low_precision import overflow_bound
from mixlist.patterns.masks import Mask, MaskLevels, find_masks

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mixlist.runtime.session import Feed

_SIGNS = (-1, 1)


class HiddenValueCounter:
    """Counts, in one model, the finite values of tensors and the values beyond bounds.

    A session counts the tensors and bounds of all batches so far; a batch that needs others makes a new session.
    """

    def __init__(self, model: ObservedModel) -> None:
        self._model = model
        self._tensors: set[TensorRef] = set()
        self._bounds: set[float] = set()
        self._session: CountingSession | None = None
        self._counted: tuple[Feed, Totals] | None = None  # the last batch of the session

    def count(self, feed: Feed, tensors: AbstractSet[TensorRef], bounds: AbstractSet[float]) -> Totals:
        """Return the numbers of finite values (``FINITE``) and of values beyond each bound in one batch.

        The latter have the names that ``beyond_name`` gives. The model runs if it did not run on this batch before.
        """
        if self._session is None or not (tensors <= self._tensors and bounds <= self._bounds):
            self.close()
            self._tensors |= tensors  # the next batch mostly asks for the same
            self._bounds |= bounds
            statistics = (count_finite(), *(count_beyond(bound) for bound in sorted(self._bounds)))
            self._session = CountingSession(self._model, statistics, self._tensors)
            self._counted = None
        if self._counted is None or self._counted[0] is not feed:
            self._counted = feed, self._session.count(feed)
        return self._counted[1]

    def tensor(self, ref: TensorRef) -> TensorRef:
        """Return the name by which a tensor of the model is counted."""
        return self._model.in_original(ref)

    def close(self) -> None:
        """Release the session."""
        if self._session is not None:
            self._session.close()


@dataclass(frozen=True)
class _Limits:
    """The limits of a tensor's values: ``bound``, the least magnitude that overflows, and the masks' levels."""

    bound: float
    levels: MaskLevels

    @property
    def all(self) -> set[float]:
        """All bounds that ``masks``, ``loses_any`` and ``loses`` need counts of."""
        return {sign * size for sign in _SIGNS for size in (self.bound, self.levels.of(sign), math.inf)}

    def masks(self, counts: Callable[[float], float]) -> list[float]:
        """Return the numbers of finite values that are a mask's, on the negative and on the positive side."""
        return [counts(sign * self.levels.of(sign)) - counts(sign * math.inf) for sign in _SIGNS]

    def loses_any(self, counts: Callable[[float], float]) -> bool:
        """Return True if a finite value overflows."""
        return any(counts(sign * self.bound) > counts(sign * math.inf) for sign in _SIGNS)

    def loses(self, counts: Callable[[float], float]) -> bool:
        """Return True if a finite value overflows that is no mask's: masks are on one side only (Rule S8.11)."""
        on_both_sides = all(self.masks(counts))
        return any(
            counts(sign * self.bound) > counts(sign * (math.inf if on_both_sides else self.levels.of(sign)))
            for sign in _SIGNS
        )


class HiddenOverflowFinder:
    """Finds values that overflow in tensors with masks or infinities (Rule S8.12).

    The values of a batch are counted only if a range may hide one. ``lows``: the low types of the mixed model. Without
    ``mixed``, only the reference is counted, and ``complete`` takes the counts of the mixed model.
    """

    def __init__(
        self,
        nodes: list[DataflowNode],
        lows: AbstractSet[int],
        reference: ObservedModel,
        mixed: ObservedModel | None = None,
    ) -> None:
        self._nodes, self._lows = nodes, lows
        self._reference = HiddenValueCounter(reference)
        self._mixed = HiddenValueCounter(mixed) if mixed is not None else None
        self._masks: dict[TensorRef, Mask] | None = None

    def add_hidden_overflows(self, feed: Feed, batch: BatchRanges, counted: Totals | None = None) -> BatchRanges:
        """Return the batch with its masks, and with the overflows that its ranges do not show.

        ``counted``: the numbers of finite and infinite values in the mixed model, if this object does not count there.
        """
        infinite = any(not mixed.finite for mixed in batch.mixed.values())
        if not infinite and not any(batch.at_limit()) and not any(found.beyond for found in converted_ranges(batch)):
            return batch
        if self._masks is None:  # only float16 is too narrow for the usual masks
            self._masks = find_masks(self._nodes) if types.FLOAT16 in self._lows else {}
        batch = replace(batch, masks=self._masks, inputs=self._input_ranges(feed, batch))
        lost_operands, masked_operands = self._hidden_operands(feed, batch)
        batch = replace(batch, lost_operands=lost_operands, masked_operands=masked_operands)
        batch = replace(batch, lost=self._lost(feed, batch))
        changed, more_infinite = self._changed(feed, batch, counted)
        return replace(batch, changed=changed, more_infinite=more_infinite)

    def _input_ranges(self, feed: Feed, batch: BatchRanges) -> dict[TensorRef, ObservedRange]:
        """Return the ranges of the graph inputs that masks depend on, and that the batch has no range of."""
        around = {t for mask in (self._masks or {}).values() for t in mask.joined | mask.factors}
        slots = {t: t.slot for t in around - batch.reference.keys() if not t.node and t.slot >= 0}
        root = next((node.graph.root for node in self._nodes if not node.graph.path), None)
        if root is None:
            return {}
        arrays = {t: feed.get(root.inputs[slot].name) for t, slot in slots.items()}
        return {
            t: _range_of(array)
            for t, array in arrays.items()
            if isinstance(array, np.ndarray) and array.dtype.kind == "f"
        }

    def _lost(self, feed: Feed, batch: BatchRanges) -> set[TensorRef]:
        """Return the tensors with a value that overflows and is not a mask's."""
        limits = {t: _Limits(overflow_bound(batch.low_type_of[t]), levels) for t, levels in batch.ambiguous().items()}
        if not limits:
            return set()
        totals = self._reference.count(feed, limits.keys(), _bounds(limits.values()))
        return {tensor for tensor, each in limits.items() if each.loses(_counts(totals, tensor))}

    def _hidden_operands(self, feed: Feed, batch: BatchRanges) -> tuple[set[Conversion], set[Conversion]]:
        """Return the conversions that lose a hidden value which is no mask's, and those that lose any (Rule S8.4)."""
        lost, masked = set[Conversion](), set[Conversion]()
        hidden = {r.conversion: _Limits(r.bound, r.levels) for r in converted_ranges(batch) if r.may_hide}
        in_mixed = {c: self._mixed.tensor(c.probe) for c in hidden if self._mixed is not None and not c.in_reference}
        of_reference = {c: c.source for c in hidden if c not in in_mixed and c.source is not None}
        for model, tensors in ((self._mixed, in_mixed), (self._reference, of_reference)):
            if model is None or not tensors:
                continue
            totals = model.count(feed, set(tensors.values()), _bounds(hidden[c] for c in tensors))
            lost |= {c for c, tensor in tensors.items() if hidden[c].loses(_counts(totals, tensor))}
            masked |= {c for c, tensor in tensors.items() if hidden[c].loses_any(_counts(totals, tensor))}
        return lost, masked

    def _changed(self, feed: Feed, batch: BatchRanges, counted: Totals | None) -> tuple[set[TensorRef], set[TensorRef]]:
        """Compare the tensors that are finite in neither model; return ``changed`` and ``more_infinite``."""
        spreads = batch.lost or batch.lost_operands or any(found.loses for found in converted_ranges(batch))
        limits = {}
        for tensor, mixed in batch.mixed.items():
            span, low = batch.reference.get(tensor), batch.low_type_of.get(tensor, types.FLOAT16)
            if span is None or mixed.finite:
                continue
            spreads = spreads or span.finite
            if not span.finite and (spreads or not batch.hides_nothing(tensor, low)):
                limits[tensor] = _Limits(overflow_bound(low), batch.mask_levels(tensor, low))
        if counted is not None:
            limits = {tensor: each for tensor, each in limits.items() if (tensor, FINITE) in counted}
        if not limits:
            return set(), set()
        bounds = _bounds(limits.values())
        before = self._reference.count(feed, limits.keys(), bounds)
        after = counted if self._mixed is None else self._mixed.count(feed, limits.keys(), bounds)
        assert after is not None
        changed, fewer = set(), set()
        for tensor, each in limits.items():
            finite_before, finite_after = (totals.get((tensor, FINITE), 0.0) for totals in (before, after))
            more_nan = _numbers(after, tensor) < _numbers(before, tensor)
            if more_nan or finite_after < finite_before - sum(each.masks(_counts(before, tensor))):
                changed.add(tensor)
            if finite_after < finite_before:
                fewer.add(tensor)
        return changed, fewer

    def close(self) -> None:
        """Release the sessions."""
        self._reference.close()
        if self._mixed is not None:
            self._mixed.close()


def _bounds(limits: Iterable[_Limits]) -> set[float]:
    return set[float]().union(*(each.all for each in limits))


def _counts(totals: Totals, tensor: TensorRef) -> Callable[[float], float]:
    return lambda bound: totals.get((tensor, count_beyond_name(bound)), 0.0)


def _numbers(totals: Totals, tensor: TensorRef) -> float:
    """Return the number of values that are not NaN."""
    return totals.get((tensor, FINITE), 0.0) + sum(map(_counts(totals, tensor), (-math.inf, math.inf)))


def _range_of(array: NDArray[np.generic]) -> ObservedRange:
    """Return the range of an array of floats; NaN is left out of the ends."""
    wide = array.astype(np.float64)
    numbers = wide[~np.isnan(wide)]
    if not wide.size:
        return ObservedRange(0.0, 0.0, nan=False, ran=False)
    least, most = (float(end) for end in (numbers.min(initial=np.inf), numbers.max(initial=-np.inf)))
    nan = numbers.size < wide.size
    return ObservedRange(least, most, nan, True, 0 if nan or math.isinf(least) or math.isinf(most) else None)
