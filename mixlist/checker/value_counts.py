"""Count the values of a tensor that are not finite, became zero, are subnormal or near the limit, at any tensor size.

The values are counted inside the graph, as ranges are computed there. Each count is a sum of 0s and 1s in float64,
which is exact up to 2^53. In float32 it would be exact only up to 2^24, and ONNX Runtime's CUDA provider sums int64 in
float32.

A check needs only ranges at first. If a range shows a finding, or with ``--full-statistics`` for every tensor, both
models run once more with these statistics.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from mixlist.checker.finding_rules import NEAR_LIMIT_SHARE
from mixlist.checker.result import FindingKind, ValueCounts
from mixlist.emulation.graph_statistics import Statistic
from mixlist.graph.naming import NameGenerator
from mixlist.graph.refs import TensorRef
from mixlist.ops import dtypes
from mixlist.ops.low_precision import FINITE_MAX, SMALLEST_NORMAL, flush_bound, overflow_bound
from mixlist.patterns.proven_masks import SENTINEL

if TYPE_CHECKING:
    from onnx import NodeProto

Totals = Mapping[tuple[TensorRef, str], float]  # by tensor and name of the statistic
_FLOAT32_SMALLEST_SUBNORMAL = 2.0**-149

# Names of statistics. The "below" ones are numbers of values with a magnitude below a bound; NaN is below none.
VALUES, FINITE, SMALLEST, LARGEST = "values", "finite", "smallest", "largest"
_ZERO, _FLUSHED, _BELOW_NORMAL = "zero", "flushed", "below_normal"
# Below half of the largest finite value, and below the largest finite value.
_BELOW_NEAR_LIMIT, _BELOW_MAX = "below_near_limit", "below_max"
# Below the overflow bound, and below the values of masks.
_IN_RANGE, _BELOW_MASKS = "in_range", "below_masks"

NO_LARGEST = -1.0  # the largest magnitude of a tensor that has no values, or holds nothing but NaN
NO_SMALLEST = float.fromhex("0x1.fffffep127")  # the smallest magnitude of a tensor of zeros: float32's largest value


def mixed_statistics(low: int) -> tuple[Statistic, ...]:
    """Return the statistics of a tensor of low type in the mixed model: all values, and those below some bounds."""
    # The values are rounded already, so the next value above the largest finite one is infinity. No count below the
    # overflow bound, which lies between the two, is needed.
    largest_finite = FINITE_MAX[low]
    return (
        Statistic(VALUES, 0.0, "ReduceSum", _count_all, dtypes.DOUBLE),
        count_below(_ZERO, _FLOAT32_SMALLEST_SUBNORMAL),
        count_below(_BELOW_NORMAL, SMALLEST_NORMAL[low]),
        count_below(_BELOW_NEAR_LIMIT, NEAR_LIMIT_SHARE * largest_finite),
        count_below(_BELOW_MAX, largest_finite),
        count_finite(),
    )


def reference_statistics(low: int) -> tuple[Statistic, ...]:
    """Return the statistics of a tensor in the reference: zeros, values below those of masks, and finite values.

    ``low`` is the type that the tensor has in the mixed model.
    """
    zero = count_below(_ZERO, _FLOAT32_SMALLEST_SUBNORMAL)
    return zero, count_below(_BELOW_MASKS, _mask_bound(low)), count_finite()


def _mask_bound(low: int) -> float:
    """Return the magnitude from which on a value counts as a mask: ``SENTINEL``, infinity for bfloat16.

    bfloat16 holds values beyond ``SENTINEL``, so they need not be lost there.
    """
    return SENTINEL if overflow_bound(low) < SENTINEL else math.inf


def conversion_statistics(low: int) -> tuple[Statistic, ...]:
    """Return the statistics of a tensor before its conversion to a low type: all values, and those below some bounds.

    The bounds are those of the low type, so the counts before the conversion show what it does to the values.
    """
    # A value of exactly the flush bound becomes zero too, so count the values below the next float32 number.
    above_flush_bound = float(np.nextafter(np.float32(flush_bound(low)), np.float32(1)))
    return (
        Statistic(VALUES, 0.0, "ReduceSum", _count_all, dtypes.DOUBLE),
        count_below(_ZERO, _FLOAT32_SMALLEST_SUBNORMAL),
        count_below(_FLUSHED, above_flush_bound),
        count_below(_BELOW_NORMAL, SMALLEST_NORMAL[low]),
        count_below(_BELOW_NEAR_LIMIT, NEAR_LIMIT_SHARE * FINITE_MAX[low]),
        count_below(_IN_RANGE, overflow_bound(low)),
        count_below(_BELOW_MASKS, _mask_bound(low)),
    )


def conversion_counts(tensor: TensorRef, totals: Totals) -> ValueCounts:
    """Return the counts of a converted tensor in one batch from its statistics before the conversion.

    ``nonfinite`` are the values that the conversion makes infinite or clamps, without those of masks.
    """
    names = (VALUES, _ZERO, _FLUSHED, _BELOW_NORMAL, _BELOW_NEAR_LIMIT, _IN_RANGE, _BELOW_MASKS)
    values, zero, flushed, below_normal, below_near_limit, in_range, below_masks = (
        int(totals.get((tensor, name), 0.0)) for name in names
    )
    # Each count includes those with a smaller bound: zero <= flushed <= below_normal <= ... <= below_masks.
    return ValueCounts(
        values=values,
        nonzero=values - zero,
        nonfinite=below_masks - in_range,
        flushed=flushed - zero,
        subnormal=below_normal - flushed,
        near_limit=in_range - below_near_limit,
    )


def value_counts(tensor: TensorRef, mixed: Totals, reference: Totals) -> ValueCounts:
    """Return the counts of a low tensor in one batch from the statistics of both models."""
    # Which zeros are new is not known, only how many. A zero of the reference need not be a zero of the mixed model, so
    # the difference may be negative.
    values, finite, zero = (int(mixed.get((tensor, name), 0.0)) for name in (VALUES, FINITE, _ZERO))
    reference_zero = int(reference.get((tensor, _ZERO), 0.0))
    return ValueCounts(
        values=values,
        nonzero=values - reference_zero,
        nonfinite=values - finite,
        flushed=max(0, zero - reference_zero),
        subnormal=int(mixed.get((tensor, _BELOW_NORMAL), 0.0)) - zero,
        near_limit=finite - int(mixed.get((tensor, _BELOW_NEAR_LIMIT), 0.0)),
    )


def finding_value_count(kind: FindingKind, tensor: TensorRef, mixed: Totals, reference: Totals) -> int:
    """Return the number of values that a finding of this kind concerns, in one batch."""
    counts = value_counts(tensor, mixed, reference)
    # A tensor whose largest magnitude is subnormal may have no value that became zero: then its subnormal values count.
    if kind == "underflow":
        return counts.flushed or counts.subnormal
    if kind == "near-limit":
        return counts.near_limit
    if kind == "saturated":
        return counts.values - int(mixed.get((tensor, _BELOW_MAX), 0.0))
    if kind == "overflow":
        # The infinities of a mask in the same tensor are no overflow. ``mask_values`` includes the infinities and NaN
        # of the reference, which are below no bound: they are no overflow either. The finding proves that at least one
        # value overflows.
        mask_values = counts.values - int(reference.get((tensor, _BELOW_MASKS), counts.values))
        return max(1, counts.nonfinite - mask_values)
    # Without a count of the reference, all of its values are assumed to be finite.
    reference_nonfinite = counts.values - int(reference.get((tensor, FINITE), counts.values))
    if kind == "preexisting":
        return reference_nonfinite
    return max(0, counts.nonfinite - reference_nonfinite) if kind == "propagated" else counts.nonfinite


def count_below(name: str, bound: float) -> Statistic:
    """Return the statistic of the number of values with a magnitude below ``bound``; NaN is never below."""

    def build(tensor: str, out: str, _: int, names: NameGenerator) -> list[NodeProto]:
        nodes, magnitude = _magnitude(tensor, out, names)
        bound_name = names.make_name(f"{out}_bound")
        # tensor -> Cast -> Abs -> Less than the bound -> Cast to float64 -> ReduceSum -> out
        return [
            *nodes,
            names.make_constant(bound_name, dtypes.FLOAT, [], [bound]),
            *_count_less(magnitude, bound_name, out, names),
        ]

    return Statistic(name, 0.0, "ReduceSum", build, dtypes.DOUBLE)


def count_finite() -> Statistic:
    """Return the statistic of the number of values that are finite in float32, also of a float64 tensor."""

    def build(tensor: str, out: str, _: int, names: NameGenerator) -> list[NodeProto]:
        nodes, magnitude = _magnitude(tensor, out, names)
        half, bound_name, halved = (names.make_name(f"{out}_{part}") for part in ("half", "bound", "less"))
        # Every finite float32 number is below 2^128, which float32 cannot hold as a constant. Half of the number is
        # below 2^127, which float32 holds.
        return [
            *nodes,
            names.make_constant(half, dtypes.FLOAT, [], [0.5]),
            names.make_constant(bound_name, dtypes.FLOAT, [], [2.0**127]),
            names.make_node("Mul", [magnitude, half], halved),
            *_count_less(halved, bound_name, out, names),
        ]

    return Statistic(FINITE, 0.0, "ReduceSum", build, dtypes.DOUBLE)


def finite_and_infinite_counts() -> tuple[Statistic, ...]:
    """Return the statistics of the numbers of finite values, of negative infinities and of positive infinities."""
    return count_finite(), count_beyond(-math.inf), count_beyond(math.inf)


def count_beyond_name(bound: float) -> str:
    """Return the name of the statistic that ``count_beyond`` returns for a bound."""
    return f"beyond_{bound:.9g}"


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

    return Statistic(count_beyond_name(bound), 0.0, "ReduceSum", build, dtypes.DOUBLE)


def smallest_nonzero() -> Statistic:
    """Return the statistic of the smallest magnitude that is not zero, ``NO_SMALLEST`` for none; NaN is left out."""

    def build(tensor: str, out: str, _: int, names: NameGenerator) -> list[NodeProto]:
        nodes, magnitude = _magnitude(tensor, out, names)
        bound_name, largest_name = names.make_name(f"{out}_bound"), names.make_name(f"{out}_most")
        parts = ("is_zero", "zero_as_one", "added", "raised")
        is_zero, zero_as_one, added, raised = (names.make_name(f"{out}_{part}") for part in parts)
        # magnitude + (1 if it is zero else 0) * NO_SMALLEST: a zero becomes NO_SMALLEST and cannot be the minimum,
        # and any other value keeps its magnitude. Where would do the same, but it is new in opset 9.
        return [
            *nodes,
            names.make_constant(bound_name, dtypes.FLOAT, [], [_FLOAT32_SMALLEST_SUBNORMAL]),
            names.make_constant(largest_name, dtypes.FLOAT, [], [NO_SMALLEST]),
            names.make_node("Less", [magnitude, bound_name], is_zero),
            names.make_cast(is_zero, zero_as_one, dtypes.FLOAT),
            names.make_node("Mul", [zero_as_one, largest_name], added),
            names.make_node("Add", [magnitude, added], raised),
            names.make_node("ReduceMin", [raised], out, keepdims=0),
        ]

    return Statistic(SMALLEST, math.inf, "ReduceMin", build, dtypes.FLOAT)


def largest_magnitude() -> Statistic:
    """Return the statistic of the largest magnitude without NaN, ``NO_LARGEST`` for none. Needs opset 9 (Where)."""

    def build(tensor: str, out: str, _: int, names: NameGenerator) -> list[NodeProto]:
        nodes, magnitude = _magnitude(tensor, out, names)
        # Every magnitude is larger than NO_LARGEST, so it is the maximum only if it replaces every value.
        is_nan, replacement, without_nan = (names.make_name(f"{out}_{part}") for part in ("nan", "least", "rest"))
        return [
            *nodes,
            names.make_node("IsNaN", [magnitude], is_nan),
            names.make_constant(replacement, dtypes.FLOAT, [], [NO_LARGEST]),
            names.make_node("Where", [is_nan, replacement, magnitude], without_nan),
            names.make_node("ReduceMax", [without_nan], out, keepdims=0),
        ]

    return Statistic(LARGEST, NO_LARGEST, "ReduceMax", build, dtypes.FLOAT)


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


def _magnitude(tensor: str, out: str, names: NameGenerator) -> tuple[list[NodeProto], str]:
    """Return nodes that compute the magnitudes of a tensor in float32, and the name of their result.

    Each statistic of a tensor has its own nodes; ONNX Runtime merges the equal ones.
    """
    float32, magnitude = names.make_name(f"{out}_wide"), names.make_name(f"{out}_abs")
    return [names.make_cast(tensor, float32, dtypes.FLOAT), names.make_node("Abs", [float32], magnitude)], magnitude
