"""Count the values of a tensor that are not finite, became zero, are subnormal or near the limit: exact at any size.

The values are counted inside the graph, like the ranges. The sums are float64: 0s and 1s add up exactly to 2^53 there,
to 2^24 in float32. (Not int64, which ONNX Runtime's CUDA provider sums in float32.)

A check takes only ranges. Where a range calls for it, or everywhere with full statistics, both models run with these
statistics too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from mixlist.checker.finding_rules import NEAR, SENTINEL
from mixlist.checker.result import FindingKind, ValueCounts
from mixlist.emulation.graph_statistics import Statistic
from mixlist.graph.naming import NameGenerator
from mixlist.graph.refs import TensorRef
from mixlist.ops import types
from mixlist.ops.low_precision import FINITE_MAX, SMALLEST_NORMAL, flush_bound, overflow_bound

if TYPE_CHECKING:
    from onnx import NodeProto

Totals = Mapping[tuple[TensorRef, str], float]  # by tensor and statistic
_FLOAT32_LOWEST_SUBNORMAL = 2.0**-149
SMALLEST, FINITE, LARGEST = "smallest", "finite", "largest"
NO_LARGEST = -1.0  # of a tensor that holds nothing but NaN
NO_SMALLEST = float.fromhex("0x1.fffffep127")  # float32's largest


def mixed_statistics(low: int) -> tuple[Statistic, ...]:
    """Return the statistics of the mixed model: numbers of all values, and of those with a magnitude below a bound."""
    limit = FINITE_MAX[low]
    return (
        Statistic("values", 0.0, "ReduceSum", _size, types.DOUBLE),
        count_below("zero", _FLOAT32_LOWEST_SUBNORMAL),
        count_below("small", SMALLEST_NORMAL[low]),
        count_below("far", NEAR * limit),
        count_below("inside", limit),
        count_finite(),
    )


def reference_statistics(low: int) -> tuple[Statistic, ...]:
    """Return the statistics of the reference: numbers of zeros, of finite values, and of those that are no mask's."""
    zero = count_below("zero", _FLOAT32_LOWEST_SUBNORMAL)
    return zero, count_below("known", _known(low)), count_finite()


def _known(low: int) -> float:
    """Return the bound of the values that are neither infinite nor a mask's."""
    return SENTINEL if overflow_bound(low) < SENTINEL else math.inf


def conversion_statistics(low: int) -> tuple[Statistic, ...]:
    """Return the statistics of a tensor before its conversion: numbers of all values, and of those below a bound."""
    return (
        Statistic("values", 0.0, "ReduceSum", _size, types.DOUBLE),
        count_below("zero", _FLOAT32_LOWEST_SUBNORMAL),
        count_below("flushed", float(np.nextafter(np.float32(flush_bound(low)), np.float32(1)))),
        count_below("small", SMALLEST_NORMAL[low]),
        count_below("far", NEAR * FINITE_MAX[low]),
        count_below("held", overflow_bound(low)),
        count_below("known", _known(low)),
    )


def converted_counts(tensor: TensorRef, totals: Totals) -> ValueCounts:
    """Return the counts of a converted tensor in one batch; ``nonfinite`` are values out of range, without masks."""
    names = ("values", "zero", "flushed", "small", "far", "held", "known")
    values, zero, flushed, small, far, held, known = (int(totals.get((tensor, name), 0.0)) for name in names)
    return ValueCounts(
        values=values,
        nonzero=values - zero,
        nonfinite=known - held,
        flushed=flushed - zero,
        subnormal=small - flushed,
        near_limit=held - far,
    )


def value_counts(tensor: TensorRef, mixed: Totals, reference: Totals) -> ValueCounts:
    """Return the counts of one tensor in one batch."""
    values, finite, zero = (int(mixed.get((tensor, name), 0.0)) for name in ("values", "finite", "zero"))
    zero_before = int(reference.get((tensor, "zero"), 0.0))
    return ValueCounts(
        values=values,
        nonzero=values - zero_before,
        nonfinite=values - finite,
        flushed=max(0, zero - zero_before),
        subnormal=int(mixed.get((tensor, "small"), 0.0)) - zero,
        near_limit=finite - int(mixed.get((tensor, "far"), 0.0)),
    )


def finding_count(kind: FindingKind, tensor: TensorRef, mixed: Totals, reference: Totals) -> int:
    """Return how many values of the tensor a finding concerns, in one batch."""
    counts = value_counts(tensor, mixed, reference)
    if kind == "underflow":
        return counts.flushed or counts.subnormal
    if kind == "near-limit":
        return counts.near_limit
    if kind == "saturated":
        return counts.values - int(mixed.get((tensor, "inside"), 0.0))
    if kind == "overflow":  # without the infinities of a mask in the same tensor
        of_mask = counts.values - int(reference.get((tensor, "known"), counts.values))
        return max(1, counts.nonfinite - of_mask)
    before = counts.values - int(reference.get((tensor, "finite"), counts.values))  # not finite in the reference
    if kind == "preexisting":
        return before
    return max(0, counts.nonfinite - before) if kind == "propagated" else counts.nonfinite


def count_below(name: str, bound: float) -> Statistic:
    """Return the statistic of how many values have a magnitude below ``bound``; NaN is never below."""

    def build(tensor: str, out: str, _: int, names: NameGenerator) -> list[NodeProto]:
        nodes, size = _magnitude(tensor, out, names)
        edge = names.make_name(f"{out}_bound")
        return [*nodes, names.make_constant(edge, types.FLOAT, [], [bound]), *_count_less(size, edge, out, names)]

    return Statistic(name, 0.0, "ReduceSum", build, types.DOUBLE)


def count_finite() -> Statistic:
    """Return the statistic of how many values are finite in float32, also of a float64 tensor."""

    def build(tensor: str, out: str, _: int, names: NameGenerator) -> list[NodeProto]:
        nodes, size = _magnitude(tensor, out, names)
        half, edge, less = (names.make_name(f"{out}_{part}") for part in ("half", "bound", "less"))
        return [  # float32 has no least number that is too large, but half of it is 2^127
            *nodes,
            names.make_constant(half, types.FLOAT, [], [0.5]),
            names.make_constant(edge, types.FLOAT, [], [2.0**127]),
            names.make_node("Mul", [size, half], less),
            *_count_less(less, edge, out, names),
        ]

    return Statistic(FINITE, 0.0, "ReduceSum", build, types.DOUBLE)


def finite_and_infinite_counts() -> tuple[Statistic, ...]:
    """Return the statistics of how many values are finite, and how many are an infinity of each sign."""
    return count_finite(), count_beyond(-math.inf), count_beyond(math.inf)


def count_beyond_name(bound: float) -> str:
    """Return the name of the statistic ``beyond`` of a bound."""
    return f"beyond_{bound:.9g}"


def count_beyond(bound: float) -> Statistic:
    """Return the statistic of how many values are at least ``bound``, or at most ``bound`` if it is negative.

    An infinity may be beyond; NaN never is.
    """
    inner = float(np.nextafter(np.float32(bound), np.float32(0)))

    def build(tensor: str, out: str, _: int, names: NameGenerator) -> list[NodeProto]:
        wide, edge = (names.make_name(f"{out}_{part}") for part in ("wide", "bound"))
        return [
            names.make_cast(tensor, wide, types.FLOAT),
            names.make_constant(edge, types.FLOAT, [], [inner]),
            *(_count_less(edge, wide, out, names) if bound > 0 else _count_less(wide, edge, out, names)),
        ]

    return Statistic(count_beyond_name(bound), 0.0, "ReduceSum", build, types.DOUBLE)


def smallest_nonzero() -> Statistic:
    """Return the statistic of the smallest magnitude that is not zero, ``NO_SMALLEST`` for none; NaN is left out."""

    def build(tensor: str, out: str, _: int, names: NameGenerator) -> list[NodeProto]:
        nodes, size = _magnitude(tensor, out, names)
        edge, most = names.make_name(f"{out}_bound"), names.make_name(f"{out}_most")
        yes, one, far, rest = (names.make_name(f"{out}_{part}") for part in ("yes", "one", "far", "rest"))
        return [  # a zero becomes the largest number, and another value stays what it is (Where is new in opset 9)
            *nodes,
            names.make_constant(edge, types.FLOAT, [], [_FLOAT32_LOWEST_SUBNORMAL]),
            names.make_constant(most, types.FLOAT, [], [NO_SMALLEST]),
            names.make_node("Less", [size, edge], yes),
            names.make_cast(yes, one, types.FLOAT),
            names.make_node("Mul", [one, most], far),
            names.make_node("Add", [size, far], rest),
            names.make_node("ReduceMin", [rest], out, keepdims=0),
        ]

    return Statistic(SMALLEST, math.inf, "ReduceMin", build, types.FLOAT)


def largest_magnitude() -> Statistic:
    """Return the statistic of the largest magnitude, ``NO_LARGEST`` for none; NaN is left out. Needs opset 9."""

    def build(tensor: str, out: str, _: int, names: NameGenerator) -> list[NodeProto]:
        nodes, size = _magnitude(tensor, out, names)
        nan, least, rest = (names.make_name(f"{out}_{part}") for part in ("nan", "least", "rest"))
        return [
            *nodes,
            names.make_node("IsNaN", [size], nan),
            names.make_constant(least, types.FLOAT, [], [NO_LARGEST]),
            names.make_node("Where", [nan, least, size], rest),
            names.make_node("ReduceMax", [rest], out, keepdims=0),
        ]

    return Statistic(LARGEST, NO_LARGEST, "ReduceMax", build, types.FLOAT)


def _size(tensor: str, out: str, _: int, names: NameGenerator) -> list[NodeProto]:
    count = names.make_name(f"{out}_int64")
    return [names.make_node("Size", [tensor], count), names.make_cast(count, out, types.DOUBLE)]


def _count_less(one: str, other: str, out: str, names: NameGenerator) -> list[NodeProto]:
    """Return nodes that count the values of ``one`` that are less than those of ``other``; a NaN is not."""
    less, number = names.make_name(f"{out}_yes"), names.make_name(f"{out}_one")
    return [
        names.make_node("Less", [one, other], less),
        names.make_cast(less, number, types.DOUBLE),
        names.make_node("ReduceSum", [number], out, keepdims=0),
    ]


def _magnitude(tensor: str, out: str, names: NameGenerator) -> tuple[list[NodeProto], str]:
    """Return nodes that compute the magnitudes in float32, and their tensor; ONNX Runtime merges equal ones."""
    wide, size = names.make_name(f"{out}_wide"), names.make_name(f"{out}_abs")
    return [names.make_cast(tensor, wide, types.FLOAT), names.make_node("Abs", [wide], size)], size
