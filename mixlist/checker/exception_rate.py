"""Compare the exception rate of a check, a search or a training with its limit.

An *exception* is a batch with an overflow or a saturated tensor (Rule S8.14). In training it is a step whose gradients
are not all finite (Rule S10.13). ``check``, ``tune`` and ``train`` fail if the share of exceptions is at or above the
limit. Both default limits are those of the Ascend documents.
"""

from __future__ import annotations

DEFAULT_RATE_LIMIT = 0.005
LARGE_BATCH_RATE_LIMIT = 0.001  # with --large-batch


def exception_rate(exceptions: int, total: int) -> float:
    """Return the share of ``total`` batches or steps that are exceptions; 0 if ``total`` is 0."""
    return exceptions / max(total, 1)


def too_many_exceptions(exceptions: int, total: int, limit: float) -> bool:
    """Return True if the exception rate is at or above the limit.

    Without an exception the result is False, even for a limit of 0. Example: with a limit of 0.005, 1 of 200 batches is
    too many and 1 of 201 is not.
    """
    return exceptions > 0 and exception_rate(exceptions, total) >= limit


def describe_rate(exceptions: int, total: int, limit: float) -> str:
    """Return the exception rate and its limit as a part of a sentence: ``0.50%, the limit is 0.50%``.

    A rate below the limit that two digits round up to it has more digits: ``0.4960%, the limit is 0.50%``.
    """
    rate = exception_rate(exceptions, total)
    seems_equal = rate < limit and f"{rate:.2%}" == f"{limit:.2%}"
    return f"{rate:.{4 if seems_equal else 2}%}, the limit is {limit:.2%}"
