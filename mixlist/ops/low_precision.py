"""The two low-precision types: what they hold, and where rounding leaves their range."""

from __future__ import annotations

from mixlist.ops import types

LOW = frozenset({types.FLOAT16, types.BFLOAT16})
FINITE_MAX = {types.FLOAT16: 65504.0, types.BFLOAT16: float.fromhex("0x1.fep127")}
SMALLEST_NORMAL = {types.FLOAT16: 2.0**-14, types.BFLOAT16: 2.0**-126}
EXACT_INTEGERS = {types.FLOAT16: 2048, types.BFLOAT16: 256}  # up to this magnitude all integers are exact


def overflow_bound(low: int) -> float:
    """Return the least magnitude that rounds to infinity: half a step beyond the largest finite value."""
    return 65520.0 if low == types.FLOAT16 else float.fromhex("0x1.ffp127")


def flush_bound(low: int) -> float:
    """Return the largest magnitude that rounds to zero: half the smallest subnormal (a tie, to even)."""
    return 2.0**-25 if low == types.FLOAT16 else 2.0**-134
