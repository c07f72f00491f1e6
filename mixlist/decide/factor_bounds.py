"""Bound the factors that scale a mask.

A score is an element of the attention scores, to which a mask is added.

Rule S4.36: A factor is no score if only arithmetic and value movers compute it, from constants, integers and booleans
alone. Integers and booleans count as 0 or 1, and interval arithmetic gives the range of a computed factor:
``1 - Cast(mask)`` is in [0, 1].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite

from mixlist.decide.constant_ranges import ConstantRange
from mixlist.model import dtypes
from mixlist.model.graph import Node, Value, float_values
from mixlist.model.low_precision import round_unless_lost
from mixlist.model.traits import Trait, operators

_MOVERS = operators(Trait.MOVES_VALUES)
_FILLERS = operators(Trait.FILLS)
_INDICATOR_TYPES = dtypes.INTEGERS | {dtypes.BOOL}
# A factor may be computed from at most this many values. The number also limits the depth of the recursion.
_MOST_VALUES = 100


@dataclass(frozen=True)
class Interval:
    """All numbers from ``smallest`` to ``largest``, which are finite."""

    smallest: float
    largest: float

    @property
    def magnitude(self) -> float:
        """Return the largest magnitude."""
        return max(-self.smallest, self.largest)

    def union(self, second: Interval) -> Interval:
        """Return the smallest interval that contains both."""
        return Interval(min(self.smallest, second.smallest), max(self.largest, second.largest))


_ZERO, _ZERO_TO_ONE = Interval(0.0, 0.0), Interval(0.0, 1.0)
IntervalFunction = Callable[[Interval, Interval], Interval | None]
RangeOf = Callable[[Value], ConstantRange | None]  # the range of a constant; None if its value is unknown


def factor_bounds(factor: Value, range_of: RangeOf, low: int) -> Interval | None:
    """Return an interval that contains all values of a factor; None if it may be a score, or may be infinite.

    Constants count as ``low`` rounds them, so that a rewritten model has the same bounds.
    """
    return _FactorBounds(range_of, low).bounds_of(factor)


class _FactorBounds:
    """The bounds of one factor, and of the values from which it is computed."""

    def __init__(self, range_of: RangeOf, low: int) -> None:
        self.range_of, self.low = range_of, low
        self.intervals: dict[Value, Interval | None] = {}

    def bounds_of(self, value: Value) -> Interval | None:
        """Return the interval of a value; None if it has none, or if too many values were visited."""
        if value not in self.intervals:
            if len(self.intervals) >= _MOST_VALUES:
                return None
            self.intervals[value] = None  # marks the value as visited while its inputs are visited
            self.intervals[value] = self._of_constant(value) if value.is_constant else self._of_computed(value)
        return self.intervals[value]

    def _of_constant(self, value: Value) -> Interval | None:
        constant_range = self.range_of(value)
        if constant_range is None:
            return None
        smallest, largest = constant_range.smallest, constant_range.largest
        if not (isfinite(smallest) and isfinite(largest)):
            # An infinity or NaN of the author: only the rest is bounded.
            smallest, largest = -constant_range.max_abs, constant_range.max_abs
        return Interval(round_unless_lost(smallest, self.low), round_unless_lost(largest, self.low))

    def _of_computed(self, value: Value) -> Interval | None:
        node = value.producer
        if node is None or not node.is_plain:
            return None
        # The Cast of an attention mask: its integers count as 0 or 1 (Rule S4.36).
        if node.op_type == "Cast" and not float_values(node.inputs):
            is_indicator = all(source is not None and source.type in _INDICATOR_TYPES for source in node.inputs)
            return _ZERO_TO_ONE if is_indicator else None
        if node.op_type in ("Add", "Sub", "Mul", "Div", "Neg", "Cast", "Min", "Max") or node.op_type in _MOVERS:
            return self._of_result(node)
        # Any other operator, such as a MatMul, may compute a score.
        return None

    def _of_result(self, node: Node) -> Interval | None:
        """Return the interval of a node's result, computed from the intervals of its float inputs."""
        input_intervals = [self.bounds_of(value) for value in float_values(node.inputs)]
        bounds = [interval for interval in input_intervals if interval is not None]
        if len(bounds) < len(input_intervals) or not bounds:
            return None
        # Start with the first input. Operators with several inputs then combine it with each of the others.
        result: Interval | None = bounds[0]
        if node.op_type in _MOVERS and node.op_type in _FILLERS:
            bounds.append(_ZERO)  # Pad and Trilu may put zeros into their output
        if node.op_type == "Neg":
            result = _negated(bounds[0])
        for interval in bounds[1:]:  # a value mover has the union of its inputs
            result = _BINARY.get(node.op_type, Interval.union)(result, interval) if result is not None else None
        return result if result is not None and isfinite(result.smallest) and isfinite(result.largest) else None


def reciprocal(divisor: Interval) -> Interval | None:
    """Return the interval of one over a divisor; None if the divisor may be zero."""
    if divisor.smallest <= 0 <= divisor.largest:
        return None
    # Of divisors with one sign, the larger one gives the smaller reciprocal.
    return Interval(1 / divisor.largest, 1 / divisor.smallest)


def _negated(a: Interval) -> Interval:
    return Interval(-a.largest, -a.smallest)


def _sum(a: Interval, b: Interval) -> Interval:
    return Interval(a.smallest + b.smallest, a.largest + b.largest)


def _product(a: Interval, b: Interval) -> Interval:
    # The signs decide which pair of ends gives the smallest product, and which the largest.
    products = [x * y for x in (a.smallest, a.largest) for y in (b.smallest, b.largest)]
    return Interval(min(products), max(products))


def _quotient(a: Interval, b: Interval) -> Interval | None:
    inverse = reciprocal(b)
    return _product(a, inverse) if inverse is not None else None


_BINARY: dict[str, IntervalFunction] = {
    "Add": _sum,
    "Sub": lambda a, b: _sum(a, _negated(b)),
    "Mul": _product,
    "Div": _quotient,
    "Min": lambda a, b: Interval(min(a.smallest, b.smallest), min(a.largest, b.largest)),
    "Max": lambda a, b: Interval(max(a.smallest, b.smallest), max(a.largest, b.largest)),
}
