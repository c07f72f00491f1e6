"""Count the values of tensors: what their ranges cannot show.

It counts values that are not finite, became zero, are subnormal or near the limit (Rule S8.3).

- *Statistics* are computed inside the graph, as ranges are. Each count is a sum of 0s and 1s in float64, which is exact
  up to 2^53. In float32 it would be exact only up to 2^24, and ONNX Runtime's CUDA provider sums int64 in float32.
- A ``CountingSession`` runs one of the two models with the statistics that each tensor needs.
- A check needs only ranges at first. ``take_second_look`` runs both models once more, with the statistics of all
  findings together, on the first batch of each finding. ``hidden_overflow.py`` counts where a mask or an infinity may
  hide an overflow.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import cache
from itertools import chain, islice
from operator import attrgetter
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from mixlist.checker.conversions import Conversion
from mixlist.checker.finding_rules import NEAR_LIMIT_SHARE, FindingRecord
from mixlist.checker.instrument import Instrumenter, Probe, Statistic
from mixlist.checker.intended_infinities import SENTINEL
from mixlist.checker.model_pair import ModelPair, ObservedModel
from mixlist.checker.result import FindingKind
from mixlist.model import dtypes
from mixlist.model.low_precision import FINITE_MAX, SMALLEST_NORMAL, flush_bound, overflow_bound
from mixlist.model.naming import NameGenerator, TensorRef

if TYPE_CHECKING:
    from onnx import NodeProto

    from mixlist.run.feeds import Batches
    from mixlist.run.session import Feed

Totals = Mapping[tuple[TensorRef, str], float]  # by tensor and name of the statistic
Wanted: TypeAlias = dict[TensorRef, set[Statistic]]  # the statistics of each tensor
_ZERO = 2.0**-149  # the smallest subnormal number of float32: a magnitude below it is zero
# The count of an intended finding would only show how many values belong to masks. This is not worth two more runs.
# A refused run has no values.
_UNCOUNTED_KINDS: tuple[FindingKind, ...] = ("intended", "refused")


# --- what is counted of a tensor ---
# The values of the mixed model are rounded already, so the next value above the largest finite one is infinity. No
# count below the overflow bound, which lies between the two, is needed there.


def _output_statistics(kind: FindingKind, low: int) -> tuple[set[Statistic], set[Statistic]]:
    """Return the statistics that ``_output_value_count`` needs, in the reference and in the mixed model."""
    if kind == "underflow":
        return {count_below(_ZERO)}, {COUNT, count_below(_ZERO), count_below(SMALLEST_NORMAL[low])}
    if kind == "near-limit":
        return set(), {COUNT, FINITE, count_below(NEAR_LIMIT_SHARE * FINITE_MAX[low])}
    if kind == "overflow":
        return {count_below(_mask_bound(low))}, {COUNT, FINITE}
    if kind == "saturated":
        return {count_below(_mask_bound(low))}, {COUNT, FINITE, count_below(FINITE_MAX[low])}
    return {FINITE}, {COUNT, FINITE}


def _mask_bound(low: int) -> float:
    """Return the magnitude from which on a value counts as a mask: ``SENTINEL``, infinity for bfloat16.

    bfloat16 holds values beyond ``SENTINEL``, so they need not be lost there.
    """
    return SENTINEL if overflow_bound(low) < SENTINEL else math.inf


def _conversion_bounds(low: int) -> tuple[float, ...]:
    """Return the bounds of a low type below which the values of a tensor before its conversion are counted.

    The counts before the conversion show what it does to the values. Each includes those of a smaller bound: values
    that are zero, that become zero, become subnormal, leave the range, and belong to masks.
    """
    # A value of exactly the flush bound becomes zero too, so count the values below the next float32 number.
    above_flush_bound = float(np.nextafter(np.float32(flush_bound(low)), np.float32(1)))
    return _ZERO, above_flush_bound, SMALLEST_NORMAL[low], overflow_bound(low), _mask_bound(low)


def _conversion_value_count(kind: FindingKind, conversion: Conversion, totals: Totals) -> int | None:
    """Return the number of values that a finding of this kind of a converted input concerns, in one batch.

    It is None for a tensor in the body of a SequenceMap or of a custom operator, which has no statistics, because these
    operators can have no further outputs.
    """
    tensor = conversion.observed_ref
    if (tensor, count_below(_ZERO).name) not in totals:
        return None
    zero, flushed, below_normal, in_range, below_masks = (
        _count_of(totals, tensor, count_below(bound)) for bound in _conversion_bounds(conversion.elem)
    )
    if kind == "underflow":
        return flushed - zero or below_normal - flushed
    # The values that become infinite or are clamped, without those of masks.
    return max(1, below_masks - in_range)


def _count_of(totals: Totals, tensor: TensorRef, statistic: Statistic) -> int:
    return int(totals.get((tensor, statistic.name), 0.0))


def _output_value_count(kind: FindingKind, tensor: TensorRef, low: int, mixed: Totals, reference: Totals) -> int | None:
    """Return the number of values that a finding of this kind of a node output concerns, in one batch.

    It is None for a tensor without statistics in the mixed model.
    """
    if (tensor, COUNT.name) not in mixed:
        return None
    values, finite = _count_of(mixed, tensor, COUNT), _count_of(mixed, tensor, FINITE)
    if kind == "underflow":
        # Which zeros are new is not known, only how many. A zero of the reference need not be a zero of the mixed
        # model, so the difference may be negative.
        zero = _count_of(mixed, tensor, count_below(_ZERO))
        flushed = max(0, zero - _count_of(reference, tensor, count_below(_ZERO)))
        # A tensor whose largest magnitude is subnormal may have no value that became zero: then its subnormal values
        # count.
        return flushed or _count_of(mixed, tensor, count_below(SMALLEST_NORMAL[low])) - zero
    if kind == "near-limit":
        return finite - _count_of(mixed, tensor, count_below(NEAR_LIMIT_SHARE * FINITE_MAX[low]))
    # Values of masks do not count. Nor do the infinities and NaN of the reference, which are below no bound.
    below_masks = int(reference.get((tensor, count_below(_mask_bound(low)).name), values))
    if kind == "saturated":
        # A NaN is not finite in the mixed model. An infinity of the reference is: it became the largest finite value.
        return max(1, min(finite, below_masks) - _count_of(mixed, tensor, count_below(FINITE_MAX[low])))
    if kind == "overflow":
        # The finding proves that at least one value overflows.
        return max(1, below_masks - finite)
    # Without a count of the reference, all of its values are assumed to be finite.
    reference_finite = int(reference.get((tensor, FINITE.name), values))
    return values - reference_finite if kind == "preexisting" else max(0, reference_finite - finite)


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


# All values; those that are finite in float32.
COUNT = Statistic("values", 0.0, "ReduceSum", _count_all, dtypes.DOUBLE)
FINITE = Statistic("finite", 0.0, "ReduceSum", _count_finite, dtypes.DOUBLE, of_magnitudes=True)
# Finite values, negative infinities, and positive infinities.
FINITE_AND_INFINITE = (FINITE, count_beyond(-math.inf), count_beyond(math.inf))


# --- sessions that count ---


class CountingSession:
    """A session of one of the two models with statistics of some tensors.

    ``wanted``: the statistics of each tensor. Here and in the results of ``count``, a tensor has the identity of
    the original model.
    """

    def __init__(self, model: ObservedModel, wanted: Mapping[TensorRef, Iterable[Statistic]]) -> None:
        # x -> Transpose -> y: y has the same values as its source x, so y is not counted itself. It gets the counts of
        # x.
        self._source_of = {probe.ref: probe.source for probe in model.probes if probe.source is not None}
        counted: Wanted = {}
        for tensor, statistics in wanted.items():
            counted.setdefault(self._source_of.get(tensor, tensor), set()).update(statistics)

        def statistics_of(probe: Probe) -> Sequence[Statistic]:
            return sorted(counted.get(probe.ref, ()), key=attrgetter("name"))

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

    def count(self, feed: Feed) -> Totals:
        """Run one batch; return the statistics by tensor and name.

        All iterations of a loop count together.
        """
        totals = {key: float(values.sum()) for key, values in self._observer.read_statistics(feed).items()}
        # Without the statistics of the source, which may not be counted, the tensor has none either.
        names = {name for _, name in totals}
        for tensor, source in self._source_of.items():
            totals.update({(tensor, name): totals[source, name] for name in names if (source, name) in totals})
        return totals

    def close(self) -> None:
        """Release the session."""
        self._observer.close()


# --- the second look ---


def take_second_look(pair: ModelPair, batches: Batches, records: Iterable[FindingRecord]) -> None:
    """Count the values that findings concern. Each is examined in its first batch, in one run of each model."""
    # By the index of the first batch of a finding; a record may have findings of several kinds.
    findings: dict[int, list[tuple[FindingRecord, FindingKind]]] = {}
    for record in records:
        for kind, indices in record.batches.items():
            if kind not in _UNCOUNTED_KINDS:
                findings.setdefault(indices[0], []).append((record, kind))
    if not findings:
        return
    # The low type of a tensor gives the bounds of its counts. Tensors that are not low are counted with the bounds of
    # the first low type of the mixed model.
    first_type = next(iter(pair.low_types), dtypes.FLOAT16)
    wanted: tuple[Wanted, Wanted] = ({}, {})  # in the reference, and in the mixed model
    for record, kind in chain.from_iterable(findings.values()):
        conversion = record.conversion
        if conversion is not None:
            counted = map(count_below, _conversion_bounds(conversion.elem))
            wanted[0 if conversion.in_reference else 1].setdefault(conversion.observed_ref, set()).update(counted)
            continue
        needed = _output_statistics(kind, pair.low_type_of.get(record.tensor, first_type))
        for wanted_of_model, statistics in zip(wanted, needed, strict=True):
            if statistics:
                wanted_of_model.setdefault(record.tensor, set()).update(statistics)
    with ExitStack() as stack:
        sessions = [
            stack.enter_context(closing(CountingSession(model, statistics))) if statistics else None
            for model, statistics in zip((pair.reference, pair.mixed), wanted, strict=True)
        ]
        # No batch after the last of these first batches has to be read.
        for index, feed in enumerate(islice(batches, max(findings) + 1)):
            if index not in findings:
                continue
            reference, mixed = (session.count(feed) if session is not None else {} for session in sessions)
            for record, kind in findings[index]:
                conversion = record.conversion
                if conversion is not None:
                    totals = reference if conversion.in_reference else mixed
                    count = _conversion_value_count(kind, conversion, totals)
                else:
                    low = pair.low_type_of.get(record.tensor, first_type)
                    count = _output_value_count(kind, record.tensor, low, mixed, reference)
                if count is not None:
                    record.counts[kind] = count
