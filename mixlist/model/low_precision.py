"""The two low-precision types, float16 and bfloat16: their ranges, and the rounding of one number to them."""

from __future__ import annotations

import math

from mixlist.model import dtypes

LOW_TYPES = frozenset({dtypes.FLOAT16, dtypes.BFLOAT16})
FINITE_MAX = {dtypes.FLOAT16: 65504.0, dtypes.BFLOAT16: float.fromhex("0x1.fep127")}
_LEAST_EXPONENT = {dtypes.FLOAT16: -14, dtypes.BFLOAT16: -126}  # of normal numbers; subnormals share it
_FRACTION_BITS = {dtypes.FLOAT16: 10, dtypes.BFLOAT16: 7}  # stored bits, without the leading 1
SMALLEST_NORMAL = {low: 2.0**exponent for low, exponent in _LEAST_EXPONENT.items()}
# The type holds every integer up to this magnitude exactly: 2048 in float16, 256 in bfloat16.
MAX_EXACT_INTEGER = {low: 2 ** (bits + 1) for low, bits in _FRACTION_BITS.items()}


def overflow_bound(low: int) -> float:
    """Return the least magnitude that rounds to infinity: half a step beyond the largest finite value."""
    return 65520.0 if low == dtypes.FLOAT16 else float.fromhex("0x1.ffp127")


def flush_bound(low: int) -> float:
    """Return the largest magnitude that rounds to zero: half of the smallest subnormal number."""
    # The bound itself is half-way between zero and the smallest subnormal. Such a tie goes to the even one, zero.
    return 2.0 ** (_LEAST_EXPONENT[low] - _FRACTION_BITS[low] - 1)


def round_to_low_type(number: float, low: int) -> float:
    """Return a number rounded to the low type, ties to even; infinity for a number beyond the range."""
    if number == 0 or not math.isfinite(number):
        return number
    if abs(number) >= overflow_bound(low):
        return math.copysign(math.inf, number)
    # frexp gives 0.5 <= mantissa < 1, and the format has 1 <= mantissa < 2: subtract 1 from the exponent of frexp.
    # Below the least exponent all numbers are subnormal and have the same step.
    exponent = max(math.frexp(number)[1] - 1, _LEAST_EXPONENT[low])
    step = 2.0 ** (exponent - _FRACTION_BITS[low])
    return round(number / step) * step  # only round() rounds here: the step is a power of two


def round_unless_lost(number: float, low: int) -> float:
    """Return a number rounded to the low type; the number itself if rounding makes it infinite or zero."""
    rounded = round_to_low_type(number, low)
    return rounded if rounded and math.isfinite(rounded) else number
