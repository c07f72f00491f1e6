"""Count the values of tensors: what their ranges cannot show.

It counts values that are not finite, became zero, are subnormal or near the limit (Rule S8.3).

- *Statistics* are computed inside the graph, as ranges are. Each count is a sum of 0s and 1s in float64, which is exact
  up to 2^53. In float32 it would be exact only up to 2^24, and ONNX Runtime's CUDA provider sums int64 in float32.
- A ``CountingSession`` runs one of the two models with the statistics that each tensor needs.
- A check needs only ranges at first. ``take_second_look`` runs both models once more, with the statistics of all
  findings together, on the first batch of each finding. With ``--full-statistics`` every tensor is counted in every
  batch (``FullStatistics``). ``hidden_overflow.py`` counts where a mask or an infinity may hide an overflow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import cache
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from mixlist.checker.conversions import Conversion
from mixlist.checker.finding_rules import (
    NEAR_LIMIT_SHARE,
    FindingRecord,
    OperandKey,
    OperandRecord,
    operand_value_count,
)
from mixlist.checker.instrument import Instrumenter, Probe, Statistic
from mixlist.checker.intended_infinities import SENTINEL
from mixlist.checker.model_pair import ModelPair, ObservedModel
from mixlist.checker.result import FindingKind, ValueCounts
from mixlist.model import dtypes
from mixlist.model.low_precision import FINITE_MAX, SMALLEST_NORMAL, flush_bound, overflow_bound
from mixlist.model.naming import NameGenerator, TensorRef

if TYPE_CHECKING:
    from onnx import NodeProto

    from mixlist.run.feeds import Batches
    from mixlist.run.session import Feed

    PendingStatistics: TypeAlias = Callable[[], dict[tuple[TensorRef, str], NDArray[np.float64]]]

Key = TypeVar("Key")
Totals = Mapping[tuple[TensorRef, str], float]  # by tensor and name of the statistic
Wanted: TypeAlias = dict[TensorRef, set[Statistic]]  # the statistics of each tensor
_ZERO = 2.0**-149  # the smallest subnormal number of float32: a magnitude below it is zero
NO_SMALLEST = float.fromhex("0x1.fffffep127")  # the smallest magnitude of a tensor of zeros: float32's largest value
# The count of an intended finding would only show how many values belong to masks. This is not worth two more runs.
# A refused run has no values.
_UNCOUNTED_KINDS: tuple[FindingKind, ...] = ("intended", "refused")


# --- what is counted of a tensor ---
# The values of the mixed model are rounded already, so the next value above the largest finite one is infinity. No
# count below the overflow bound, which lies between the two, is needed there.


def mixed_statistics(low: int) -> tuple[Statistic, ...]:
    """Return the statistics of a tensor of low type in the mixed model: all values, and those below some bounds."""
    bounds = (_ZERO, SMALLEST_NORMAL[low], NEAR_LIMIT_SHARE * FINITE_MAX[low], FINITE_MAX[low])
    return (COUNT, FINITE, *map(count_below, bounds))


def reference_statistics(low: int) -> tuple[Statistic, ...]:
    """Return the statistics of a tensor in the reference: zeros, values below those of masks, and finite values.

    ``low`` is the type that the tensor has in the mixed model.
    """
    return count_below(_ZERO), count_below(_mask_bound(low)), FINITE


def finding_statistics(kinds: Iterable[FindingKind], low: int) -> tuple[set[Statistic], set[Statistic]]:
    """Return the statistics that ``finding_value_count`` needs, in the reference and in the mixed model."""
    reference, mixed = set[Statistic](), {COUNT, FINITE}
    for kind in kinds:
        if kind == "underflow":
            reference.add(count_below(_ZERO))
            mixed |= {count_below(_ZERO), count_below(SMALLEST_NORMAL[low])}
        elif kind == "near-limit":
            mixed.add(count_below(NEAR_LIMIT_SHARE * FINITE_MAX[low]))
        elif kind in ("overflow", "saturated"):
            reference.add(count_below(_mask_bound(low)))
            mixed |= {count_below(FINITE_MAX[low])} if kind == "saturated" else set()
        else:
            reference.add(FINITE)
    return reference, mixed


def _mask_bound(low: int) -> float:
    """Return the magnitude from which on a value counts as a mask: ``SENTINEL``, infinity for bfloat16.

    bfloat16 holds values beyond ``SENTINEL``, so they need not be lost there.
    """
    return SENTINEL if overflow_bound(low) < SENTINEL else math.inf


def _conversion_bounds(low: int) -> tuple[float, ...]:
    """Return the bounds of a low type below which the values of a tensor before its conversion are counted.

    The counts before the conversion show what it does to the values. Each includes those of a smaller bound: values
    that are zero, that become zero, become subnormal, come near the limit, leave the range, and belong to masks.
    """
    # A value of exactly the flush bound becomes zero too, so count the values below the next float32 number.
    above_flush_bound = float(np.nextafter(np.float32(flush_bound(low)), np.float32(1)))
    near_limit = NEAR_LIMIT_SHARE * FINITE_MAX[low]
    return _ZERO, above_flush_bound, SMALLEST_NORMAL[low], near_limit, overflow_bound(low), _mask_bound(low)


def conversion_statistics(low: int) -> tuple[Statistic, ...]:
    """Return the statistics of a tensor before its conversion to a low type: all values, and those below its bounds."""
    return (COUNT, *map(count_below, _conversion_bounds(low)))


def _count_of(totals: Totals, tensor: TensorRef, statistic: Statistic) -> int:
    return int(totals.get((tensor, statistic.name), 0.0))


def conversion_counts(tensor: TensorRef, low: int, totals: Totals) -> ValueCounts:
    """Return the counts of a converted tensor in one batch from its statistics before the conversion.

    ``nonfinite`` are the values that the conversion makes infinite or clamps, without those of masks.
    """
    values = _count_of(totals, tensor, COUNT)
    zero, flushed, below_normal, below_near_limit, in_range, below_masks = (
        _count_of(totals, tensor, count_below(bound)) for bound in _conversion_bounds(low)
    )
    return ValueCounts(
        values=values,
        nonzero=values - zero,
        nonfinite=below_masks - in_range,
        flushed=flushed - zero,
        subnormal=below_normal - flushed,
        near_limit=in_range - below_near_limit,
    )


def value_counts(tensor: TensorRef, low: int, mixed: Totals, reference: Totals) -> ValueCounts:
    """Return the counts of a low tensor in one batch from the statistics of both models."""
    values, finite, zero, below_normal, below_near_limit = (
        _count_of(mixed, tensor, statistic)
        for statistic in (
            COUNT,
            FINITE,
            count_below(_ZERO),
            count_below(SMALLEST_NORMAL[low]),
            count_below(NEAR_LIMIT_SHARE * FINITE_MAX[low]),
        )
    )
    # Which zeros are new is not known, only how many. A zero of the reference need not be a zero of the mixed model, so
    # the difference may be negative.
    reference_zero = _count_of(reference, tensor, count_below(_ZERO))
    return ValueCounts(
        values=values,
        nonzero=values - reference_zero,
        nonfinite=values - finite,
        flushed=max(0, zero - reference_zero),
        subnormal=below_normal - zero,
        near_limit=finite - below_near_limit,
    )


def finding_value_count(kind: FindingKind, tensor: TensorRef, low: int, mixed: Totals, reference: Totals) -> int:
    """Return the number of values that a finding of this kind concerns, in one batch."""
    counts = value_counts(tensor, low, mixed, reference)
    # A tensor whose largest magnitude is subnormal may have no value that became zero: then its subnormal values count.
    if kind == "underflow":
        return counts.flushed or counts.subnormal
    if kind == "near-limit":
        return counts.near_limit
    # Values of masks do not count. Nor do the infinities and NaN of the reference, which are below no bound.
    below_masks = int(reference.get((tensor, count_below(_mask_bound(low)).name), counts.values))
    if kind == "saturated":
        # A NaN is not finite in the mixed model. An infinity of the reference is: it became the largest finite value.
        finite = _count_of(mixed, tensor, FINITE)
        return max(1, min(finite, below_masks) - _count_of(mixed, tensor, count_below(FINITE_MAX[low])))
    if kind == "overflow":
        # The finding proves that at least one value overflows.
        return max(1, counts.nonfinite - (counts.values - below_masks))
    # Without a count of the reference, all of its values are assumed to be finite.
    reference_nonfinite = counts.values - int(reference.get((tensor, FINITE.name), counts.values))
    if kind == "preexisting":
        return reference_nonfinite
    return max(0, counts.nonfinite - reference_nonfinite) if kind == "propagated" else counts.nonfinite


# --- the statistics ---


@cache
def count_below(bound: float) -> Statistic:
    """Return the statistic of the number of values with a magnitude below ``bound``; NaN is never below."""

    def build(magnitudes: str, out: str, _: int, names: NameGenerator) -> list[NodeProto]:
        bound_name = names.make_name(f"{out}_bound")
        # magnitudes -> Less than the bound -> Cast to float64 -> ReduceSum -> out
        return [
            names.make_constant(bound_name, dtypes.FLOAT, [], [bound]),
            *_count_less(magnitudes, bound_name, out, names),
        ]

    return Statistic(f"below_{bound!r}", 0.0, "ReduceSum", build, dtypes.DOUBLE, of_magnitudes=True)


def _count_finite(magnitudes: str, out: str, _: int, names: NameGenerator) -> list[NodeProto]:
    """Return nodes that count the values that are finite in float32, also of a float64 tensor."""
    half, bound_name, halved = (names.make_name(f"{out}_{part}") for part in ("half", "bound", "less"))
    # Every finite float32 number is below 2^128, which float32 cannot hold as a constant. Half of the number is below
    # 2^127, which float32 holds.
    return [
        names.make_constant(half, dtypes.FLOAT, [], [0.5]),
        names.make_constant(bound_name, dtypes.FLOAT, [], [2.0**127]),
        names.make_node("Mul", [magnitudes, half], halved),
        *_count_less(halved, bound_name, out, names),
    ]


@cache
def count_beyond(bound: float) -> Statistic:
    """Return the statistic of the number of values at or beyond a bound other than 0.

    For a positive bound these are the values >= ``bound``, for a negative one the values <= ``bound``. The bound may be
    an infinity. NaN is never beyond.
    """
    # Less is strict, so the comparison is with the next float32 number towards 0. Below an infinity that is float32's
    # largest finite number.
    next_to_bound = float(np.nextafter(np.float32(bound), np.float32(0)))

    def build(tensor: str, out: str, _: int, names: NameGenerator) -> list[NodeProto]:
        float32, bound_name = (names.make_name(f"{out}_{part}") for part in ("wide", "bound"))
        # Not the magnitude, as in the other counts: the sign tells on which side of 0 a value is.
        smaller, larger = (bound_name, float32) if bound > 0 else (float32, bound_name)
        return [
            names.make_cast(tensor, float32, dtypes.FLOAT),
            names.make_constant(bound_name, dtypes.FLOAT, [], [next_to_bound]),
            *_count_less(smaller, larger, out, names),
        ]

    return Statistic(f"beyond_{bound!r}", 0.0, "ReduceSum", build, dtypes.DOUBLE)


def _smallest_nonzero(magnitudes: str, out: str, _: int, names: NameGenerator) -> list[NodeProto]:
    """Return nodes that compute the smallest magnitude that is not zero, ``NO_SMALLEST`` for none; NaN is left out."""
    bound_name, largest_name = names.make_name(f"{out}_bound"), names.make_name(f"{out}_most")
    parts = ("is_zero", "zero_as_one", "added", "raised")
    is_zero, zero_as_one, added, raised = (names.make_name(f"{out}_{part}") for part in parts)
    # magnitude + (1 if it is zero else 0) * NO_SMALLEST: a zero becomes NO_SMALLEST and cannot be the minimum,
    # and any other value keeps its magnitude. Where would do the same, but it is new in opset 9.
    return [
        names.make_constant(bound_name, dtypes.FLOAT, [], [_ZERO]),
        names.make_constant(largest_name, dtypes.FLOAT, [], [NO_SMALLEST]),
        names.make_node("Less", [magnitudes, bound_name], is_zero),
        names.make_cast(is_zero, zero_as_one, dtypes.FLOAT),
        names.make_node("Mul", [zero_as_one, largest_name], added),
        names.make_node("Add", [magnitudes, added], raised),
        names.make_node("ReduceMin", [raised], out, keepdims=0),
    ]


def _count_all(tensor: str, out: str, _: int, names: NameGenerator) -> list[NodeProto]:
    """Return nodes that count all values of a tensor, as float64 like the other counts."""
    size = names.make_name(f"{out}_int64")
    return [names.make_node("Size", [tensor], size), names.make_cast(size, out, dtypes.DOUBLE)]


def _count_less(smaller: str, larger: str, out: str, names: NameGenerator) -> list[NodeProto]:
    """Return nodes that count the values of ``smaller`` below those of ``larger``; a comparison with NaN is false."""
    is_less, ones = names.make_name(f"{out}_yes"), names.make_name(f"{out}_one")
    return [
        names.make_node("Less", [smaller, larger], is_less),
        names.make_cast(is_less, ones, dtypes.DOUBLE),
        names.make_node("ReduceSum", [ones], out, keepdims=0),
    ]


# All values; those that are finite in float32; the smallest magnitude that is not zero.
COUNT = Statistic("values", 0.0, "ReduceSum", _count_all, dtypes.DOUBLE)
FINITE = Statistic("finite", 0.0, "ReduceSum", _count_finite, dtypes.DOUBLE, of_magnitudes=True)
SMALLEST = Statistic("smallest", math.inf, "ReduceMin", _smallest_nonzero, dtypes.FLOAT, of_magnitudes=True)
# Finite values, negative infinities, and positive infinities.
FINITE_AND_INFINITE = (FINITE, count_beyond(-math.inf), count_beyond(math.inf))


# --- sessions that count ---


class CountingSession:
    """A session of one of the two models with statistics of some tensors.

    ``wanted``: the statistics of each tensor. Here and in the results of ``count``, a tensor has the identity of
    the original model. ``all_others``: the statistics of every tensor that is not in ``wanted``.
    """

    def __init__(
        self,
        model: ObservedModel,
        wanted: Mapping[TensorRef, Iterable[Statistic]],
        all_others: Sequence[Statistic] = (),
    ) -> None:
        # x -> Transpose -> y: y has the same values as its source x, so y is not counted itself. It gets the counts of
        # x.
        self._source_of = {probe.ref: probe.source for probe in model.probes if probe.source is not None}
        counted: Wanted = {}
        for tensor, statistics in wanted.items():
            counted.setdefault(self._source_of.get(tensor, tensor), set()).update(statistics)

        def statistics_of(probe: Probe) -> Sequence[Statistic]:
            return sorted(counted[probe.ref], key=attrgetter("name")) if probe.ref in counted else all_others

        self._observer = model.open_observer(
            model.loaded,
            Instrumenter(
                model.loaded.proto,
                statistics_of,
                safe_reductions=model.safe_reductions,
                extra_probes=model.extra_probes,
                built_graph=model.graph,
            ).run(),
            [],
        )
        self._started: dict[int, PendingStatistics] = {}  # by the id of a feed, its run that was started

    def start_ahead(self, feeds: Iterable[Feed]) -> None:
        """Start to run batches early; ``count`` reads these runs. The caller holds the feeds until then.

        A session that runs in segments loads each segment once for all of them.
        """
        # Runs that nobody counted are forgotten: their batches were refused, or are not judged.
        self._started = {id(feed): self._observer.start_statistics(feed) for feed in feeds}

    def count(self, feed: Feed) -> Totals:
        """Run one batch; return the statistics by tensor and name.

        All iterations of a loop count together.
        """
        totals: dict[tuple[TensorRef, str], float] = {}
        started = self._started.pop(id(feed), None)
        statistics = self._observer.read_statistics(feed) if started is None else started()
        for (tensor, name), values in statistics.items():
            key = tensor, name
            # ``values`` has one entry for each iteration. A scope that did not run has the neutral element of
            # the statistic: inf for SMALLEST, which ``initial`` limits to NO_SMALLEST. ReduceMin may return NaN for a
            # tensor with a NaN; ``nanmin`` leaves it out, so that it does not hide the other iterations.
            if name == SMALLEST.name:
                smallest = float(np.nanmin(values, initial=NO_SMALLEST))
                totals[key] = min(smallest, totals.get(key, NO_SMALLEST))
            else:
                totals[key] = totals.get(key, 0.0) + float(values.sum())
        # Without the statistics of the source, which may not be counted, the tensor has none either.
        names = {name for _, name in totals}
        for tensor, source in self._source_of.items():
            totals.update({(tensor, name): totals[source, name] for name in names if (source, name) in totals})
        return totals

    def close(self) -> None:
        """Release the session."""
        self._observer.close()


def _want(wanted: Wanted, tensor: TensorRef, statistics: Collection[Statistic]) -> None:
    if statistics:
        wanted.setdefault(tensor, set()).update(statistics)


def _counts_of_conversion(conversion: Conversion, totals: Totals) -> ValueCounts | None:
    """Return the counts of the tensor that a conversion reads.

    A tensor in the body of a SequenceMap or of a custom operator has no statistics, because these operators can have no
    further outputs.
    """
    tensor = conversion.observed_ref
    return conversion_counts(tensor, conversion.elem, totals) if (tensor, COUNT.name) in totals else None


class _PairCounter:
    """The counting sessions of both models. The low type of a tensor gives the bounds of its counts.

    Tensors that are not low are counted with the bounds of the first low type of the mixed model.
    """

    def __init__(self, pair: ModelPair) -> None:
        self._pair = pair
        self._first_type = next(iter(pair.low_types), dtypes.FLOAT16)
        self.wanted: tuple[Wanted, Wanted] = ({}, {})  # in the reference, and in the mixed model

    def low_type(self, tensor: TensorRef) -> int:
        """Return the low type whose bounds the counts of a tensor have."""
        return self._pair.low_type_of.get(tensor, self._first_type)

    def want_output(self, tensor: TensorRef, kinds: Iterable[FindingKind] | None = None) -> None:
        """Count the values of a node output in both models: for findings of these kinds, or everything."""
        low = self.low_type(tensor)
        statistics = reference_statistics(low), mixed_statistics(low)
        for wanted, needed in zip(self.wanted, finding_statistics(kinds, low) if kinds else statistics, strict=True):
            _want(wanted, tensor, needed)

    def want_conversion(self, conversion: Conversion, statistics: Collection[Statistic] = ()) -> None:
        """Count the values of a tensor before its conversion, in the model that observes it."""
        wanted = self.wanted[0 if conversion.in_reference else 1]
        _want(wanted, conversion.observed_ref, statistics or conversion_statistics(conversion.elem))

    def open_sessions(self, all_others: Sequence[Statistic] = ()) -> list[CountingSession | None]:
        """Open the sessions of the reference and of the mixed model; None for a model in which nothing is wanted.

        ``all_others``: the statistics of all other tensors of the reference.
        """
        pair = self._pair
        reference, mixed = self.wanted
        return [
            CountingSession(pair.reference, reference, all_others) if reference or all_others else None,
            CountingSession(pair.mixed, mixed) if mixed else None,
        ]


# --- full statistics ---


class FullStatistics:
    """The counts of the values of every low tensor, and the smallest magnitude of every tensor (full statistics).

    ``totals`` and ``smallest`` are over all batches so far; ``conversion_counts`` are those of the last batch.
    """

    def __init__(self, pair: ModelPair) -> None:
        self._pair = pair
        self._counter = _PairCounter(pair)
        self._sessions: list[CountingSession | None] = []  # empty before the first batch
        self._mixed: Totals = {}
        self._reference: Totals = {}
        self.conversion_counts: dict[Conversion, ValueCounts] = {}
        self.totals: dict[TensorRef, ValueCounts] = {}
        self.smallest: dict[TensorRef, float] = {}

    def add(self, feed: Feed) -> dict[TensorRef, ValueCounts]:
        """Count the values of one batch; return the counts of each low tensor."""
        pair = self._pair
        self._reference, self._mixed = _count(self._open_sessions(), feed)
        for conversion in pair.conversions:
            totals = self._reference if conversion.in_reference else self._mixed
            counts = _counts_of_conversion(conversion, totals)
            if counts is not None:
                self.conversion_counts[conversion] = counts
        # A tensor of zeros has NO_SMALLEST, which is not below NO_SMALLEST. So it gets no entry, and the report None.
        for (tensor, name), value in self._reference.items():
            if name == SMALLEST.name and value < self.smallest.get(tensor, NO_SMALLEST):
                self.smallest[tensor] = value
        batch_counts = {
            tensor: value_counts(tensor, low, self._mixed, self._reference) for tensor, low in pair.low_type_of.items()
        }
        for tensor, counts in batch_counts.items():
            self.totals[tensor] = self.totals[tensor] + counts if tensor in self.totals else counts
        return batch_counts

    def start_ahead(self, feeds: Sequence[Feed]) -> None:
        """Start to run the batches of a group early, so that sessions in segments load each segment once."""
        for session in self._open_sessions():
            if session is not None:
                session.start_ahead(feeds)

    def _open_sessions(self) -> list[CountingSession | None]:
        # The sessions are loaded at the first batch that is judged: a check without such a batch needs none.
        if not self._sessions:
            counter = self._counter
            for tensor in self._pair.low_type_of:
                counter.want_output(tensor)
                _want(counter.wanted[0], tensor, [SMALLEST])
            for conversion in self._pair.conversions:
                counter.want_conversion(conversion)
                if conversion.in_reference:
                    _want(counter.wanted[0], conversion.observed_ref, [SMALLEST])
            self._sessions = counter.open_sessions([SMALLEST])
        return self._sessions

    def count_findings(
        self,
        index: int,
        records: Mapping[TensorRef, FindingRecord],
        operand_records: Mapping[OperandKey, OperandRecord],
    ) -> None:
        """Add the counts of the last batch, which has this index, to the records with a finding in that batch."""
        for tensor, record in records.items():
            for kind, batches in record.batches.items():
                # The batches are in ascending order: a kind that the last batch has ends with its index. High tensors
                # are not counted.
                low = self._pair.low_type_of.get(tensor)
                if batches[-1] == index and low is not None and (tensor, COUNT.name) in self._mixed:
                    record.add_count(kind, finding_value_count(kind, tensor, low, self._mixed, self._reference))
        for operand_record in operand_records.values():
            counts = self.conversion_counts.get(operand_record.conversion)
            for kind, batches in operand_record.batches.items():
                if batches[-1] == index and counts is not None:
                    operand_record.add_count(kind, operand_value_count(kind, counts))

    def close(self) -> None:
        """Release the sessions."""
        for session in self._sessions:
            if session is not None:
                session.close()


def _count(sessions: Iterable[CountingSession | None], feed: Feed) -> list[Totals]:
    """Run one batch in the sessions; return the totals of each model."""
    return [session.count(feed) if session is not None else {} for session in sessions]


# --- the second look ---


def take_second_look(
    pair: ModelPair,
    batches: Batches,
    records: Mapping[TensorRef, FindingRecord],
    operand_records: Mapping[OperandKey, OperandRecord],
) -> None:
    """Count the values that findings concern. Each is examined in its first batch, in one run of each model."""
    outputs, operands = _keys_by_first_batch(records), _keys_by_first_batch(operand_records)
    if not outputs and not operands:
        return
    counter = _PairCounter(pair)
    for tensor in set[TensorRef]().union(*outputs.values()):
        counter.want_output(tensor, [kind for kind in records[tensor].batches if kind not in _UNCOUNTED_KINDS])
    for operand in set[OperandKey]().union(*operands.values()):
        counter.want_conversion(operand_records[operand].conversion)
    with ExitStack() as stack:
        sessions = counter.open_sessions()
        for session in sessions:
            if session is not None:
                stack.enter_context(closing(session))
        # No batch after the last of these first batches has to be read.
        for index, feed in enumerate(islice(batches, max((*outputs, *operands)) + 1)):
            if index not in outputs and index not in operands:
                continue
            reference, mixed = _count(sessions, feed)
            for tensor in outputs.get(index, ()):
                _examine_output(records[tensor], index, counter.low_type(tensor), reference, mixed)
            for operand in operands.get(index, ()):
                record = operand_records[operand]
                _examine_operand(record, index, reference if record.conversion.in_reference else mixed)


def _examine_output(record: FindingRecord, index: int, low: int, reference: Totals, mixed: Totals) -> None:
    """Add the counts of one batch to the record of a node output."""
    # In the first batch of one kind, a tensor may also have a finding of another kind, whose first batch came earlier.
    # That finding is counted again, and ``add_count`` keeps the larger count.
    tensor = record.tensor
    for kind, indices in record.batches.items() if (tensor, COUNT.name) in mixed else ():
        if index in indices and kind not in _UNCOUNTED_KINDS:
            record.add_count(kind, finding_value_count(kind, tensor, low, mixed, reference))


def _examine_operand(record: OperandRecord, index: int, totals: Totals) -> None:
    """Add the counts of one batch to the record of a converted input."""
    counts = _counts_of_conversion(record.conversion, totals)
    for kind, indices in record.batches.items():
        if index in indices and kind not in _UNCOUNTED_KINDS and counts is not None:
            record.add_count(kind, operand_value_count(kind, counts))


def _keys_by_first_batch(records: Mapping[Key, FindingRecord]) -> dict[int, set[Key]]:
    """Return the keys of the records whose findings begin in a batch, by the index of the batch.

    A record with findings of several kinds has several first batches, one for each kind. Kinds that are not counted are
    left out.
    """
    keys_by_batch: dict[int, set[Key]] = {}
    for key, record in records.items():
        for kind, indices in record.batches.items():
            if kind not in _UNCOUNTED_KINDS:
                keys_by_batch.setdefault(indices[0], set()).add(key)
    return keys_by_batch
