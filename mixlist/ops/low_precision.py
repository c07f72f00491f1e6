"""The two low-precision types: what they hold, and where rounding leaves their range."""

from __future__ import annotations

import math

from mixlist.ops import types

LOW_TYPES = frozenset({types.FLOAT16, types.BFLOAT16})
FINITE_MAX = {types.FLOAT16: 65504.0, types.BFLOAT16: float.fromhex("0x1.fep127")}
_LEAST_EXPONENT = {types.FLOAT16: -14, types.BFLOAT16: -126}
_FRACTION_BITS = {types.FLOAT16: 10, types.BFLOAT16: 7}
SMALLEST_NORMAL = {low: 2.0**exponent for low, exponent in _LEAST_EXPONENT.items()}
MAX_EXACT_INTEGER = {low: 2 ** (bits + 1) for low, bits in _FRACTION_BITS.items()}  # all up to this magnitude are exact


def overflow_bound(low: int) -> float:
    """Return the least magnitude that rounds to infinity: half a step beyond the largest finite value."""
    return 65520.0 if low == types.FLOAT16 else float.fromhex("0x1.ffp127")


def flush_bound(low: int) -> float:
    """Return the largest magnitude that rounds to zero: half the smallest subnormal (a tie, to even)."""
    return 2.0 ** (_LEAST_EXPONENT[low] - _FRACTION_BITS[low] - 1)


def round_to_low_type(number: float, low: int) -> float:
    """Return a number as the low type holds it: rounded to even, infinite beyond the range."""
    if number == 0 or not math.isfinite(number):
        return number
    if abs(number) >= overflow_bound(low):
        return math.copysign(math.inf, number)
    exponent = max(math.frexp(number)[1] - 1, _LEAST_EXPONENT[low])
    step = 2.0 ** (exponent - _FRACTION_BITS[low])
    return round(number / step) * step  # exact, but for the rounding: the step is a power of two


def round_unless_lost(number: float, low: int) -> float:
    """Return a number as the low type holds it; the number itself if it would become infinite or zero."""
    held = round_to_low_type(number, low)
    return held if held and math.isfinite(held) else number
