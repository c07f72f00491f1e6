"""Decide how many exceptions a check, a search and a training may have.

An *exception* is a batch with an overflow or a saturated tensor (Rule S8.14), in training a step whose gradients are
not all finite (Rule S10.13). All three commands fail if the share of exceptions is at or above the limit. The two
limits are those of the Ascend documents.
"""

from __future__ import annotations

DEFAULT_RATE_LIMIT = 0.005
LARGE_BATCH_RATE_LIMIT = 0.001


def exception_rate(exceptions: int, total: int) -> float:
    """Return the share of ``total`` batches or steps that are exceptions; 0 where there are none at all."""
    return exceptions / max(total, 1)


def too_many_exceptions(exceptions: int, total: int, limit: float) -> bool:
    """Return whether the exception rate is at or above the limit; no exception is never too many."""
    return exceptions > 0 and exception_rate(exceptions, total) >= limit


def describe_rate(exceptions: int, total: int, limit: float) -> str:
    """Return the rate and its limit for a reason, for example ``0.50%, the limit is 0.50%``."""
    return f"{exception_rate(exceptions, total):.2%}, the limit is {limit:.2%}"
