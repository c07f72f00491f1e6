"""Bound the factors that scale a mask.

Rule S4.36: A factor that some operators compute from constants, integers and booleans alone is no score. Integers and
booleans count as 0 or 1, and interval arithmetic gives the range of a computed factor, such as ``1 - mask``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite

from mixlist.graph.model import Node, Value, float_values
from mixlist.ops import types
from mixlist.ops.low_precision import round_unless_lost
from mixlist.ops.traits import Trait, operators
from mixlist.patterns.constants import ConstantRange

_MOVERS = operators(Trait.MOVES_VALUES)
_FILLERS = operators(Trait.FILLS)
_INDICATORS = types.INTEGERS | {types.BOOL}
_MOST_VALUES = 100  # that a factor may be computed from


@dataclass(frozen=True)
class Interval:
    """All numbers from ``smallest`` to ``largest``, which are finite."""

    smallest: float
    largest: float

    @property
    def magnitude(self) -> float:
        """Return the largest magnitude."""
        return max(-self.smallest, self.largest)

    def union(self, other: Interval) -> Interval:
        """Return the smallest interval that has both."""
        return Interval(min(self.smallest, other.smallest), max(self.largest, other.largest))


_ZERO, _ZERO_TO_ONE = Interval(0.0, 0.0), Interval(0.0, 1.0)
Operator = Callable[[Interval, Interval], Interval | None]
RangeOf = Callable[[Value], ConstantRange | None]  # of a constant whose value is known


def factor_bounds(factor: Value, range_of: RangeOf, low: int) -> Interval | None:
    """Return an interval that has all values of a factor; None if it may be a score, or infinite.

    Constants count as ``low`` rounds them, so that a rewritten model has the same bounds.
    """
    return _Bounds(range_of, low).of(factor)


class _Bounds:
    """Bounds one factor and the values that it is computed from."""

    def __init__(self, range_of: RangeOf, low: int) -> None:
        self.range_of, self.low = range_of, low
        self.known: dict[Value, Interval | None] = {}

    def of(self, value: Value) -> Interval | None:
        if value not in self.known:
            if len(self.known) >= _MOST_VALUES:
                return None
            self.known[value] = None
            self.known[value] = self._constant(value) if value.is_constant else self._computed(value)
        return self.known[value]

    def _constant(self, value: Value) -> Interval | None:
        known = self.range_of(value)
        return self._of_range(known) if known is not None else None

    def _of_range(self, known: ConstantRange) -> Interval:
        """Return the interval of a constant's finite elements."""
        if not (isfinite(known.smallest) and isfinite(known.largest)):
            magnitude = round_unless_lost(known.max_abs, self.low)
            return Interval(-magnitude, magnitude)
        return Interval(round_unless_lost(known.smallest, self.low), round_unless_lost(known.largest, self.low))

    def _computed(self, value: Value) -> Interval | None:
        node = value.producer
        if node is None or not node.is_plain:
            return None
        if node.op_type == "Cast" and not float_values(node.inputs):
            return _ZERO_TO_ONE if all(v is not None and v.type in _INDICATORS for v in node.inputs) else None
        if node.op_type in ("Add", "Sub", "Mul", "Div", "Neg", "Cast", "Min", "Max") or node.op_type in _MOVERS:
            return self._result(node)
        return None

    def _result(self, node: Node) -> Interval | None:
        """Return the interval of a node's result from those of its float inputs."""
        read = [self.of(value) for value in float_values(node.inputs)]
        bounds = [interval for interval in read if interval is not None]
        if len(bounds) < len(read) or not bounds:
            return None
        result: Interval | None = bounds[0]
        if node.op_type in _MOVERS and node.op_type in _FILLERS:
            bounds.append(_ZERO)
        if node.op_type == "Neg":
            result = _negated(bounds[0])
        for interval in bounds[1:]:
            result = _BINARY.get(node.op_type, Interval.union)(result, interval) if result is not None else None
        return result if result is not None and isfinite(result.smallest) and isfinite(result.largest) else None


def reciprocal(divisor: Interval) -> Interval | None:
    """Return the interval of one over a divisor; None if the divisor may be zero."""
    if divisor.smallest <= 0 <= divisor.largest:
        return None
    return Interval(1 / divisor.largest, 1 / divisor.smallest)


def _negated(one: Interval) -> Interval:
    return Interval(-one.largest, -one.smallest)


def _sum(one: Interval, other: Interval) -> Interval:
    return Interval(one.smallest + other.smallest, one.largest + other.largest)


def _product(one: Interval, other: Interval) -> Interval:
    ends = [a * b for a in (one.smallest, one.largest) for b in (other.smallest, other.largest)]
    return Interval(min(ends), max(ends))


def _quotient(one: Interval, other: Interval) -> Interval | None:
    inverse = reciprocal(other)
    return _product(one, inverse) if inverse is not None else None


_BINARY: dict[str, Operator] = {
    "Add": _sum,
    "Sub": lambda one, other: _sum(one, _negated(other)),
    "Mul": _product,
    "Div": _quotient,
    "Min": lambda one, other: Interval(min(one.smallest, other.smallest), min(one.largest, other.largest)),
    "Max": lambda one, other: Interval(max(one.smallest, other.smallest), max(one.largest, other.largest)),
}
