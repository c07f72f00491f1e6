"""Statistics of timings that were taken in pairs, so that what slows the machine for a while slows both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

RESAMPLES = 2000
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Spread:
    """Seconds per run: the median, the quartiles and the least, of ``count`` timings."""

    median: float
    q1: float
    q3: float
    least: float
    count: int


@dataclass(frozen=True)
class Ratio:
    """The time of the other model over that of the original: below 1 is faster.

    ``value`` is the median of the ratios of all pairs; ``low`` and ``high`` bound it with ``confidence``, by a
    bootstrap of the pairs (percentiles of 2000 resamples, seeded: the same timings give the same bounds).
    """

    value: float
    low: float
    high: float
    confidence: float = CONFIDENCE

    @property
    def decided(self) -> bool:
        """Return True if the bounds show which of the two models is faster."""
        return self.high < 1 or self.low > 1


def compute_spread(seconds: Sequence[float]) -> Spread:
    """Return the spread of at least one timing."""
    import numpy as np

    q1, median, q3 = np.percentile(seconds, [25, 50, 75])
    return Spread(float(median), float(q1), float(q3), float(min(seconds)), len(seconds))


def compute_ratio(original: Sequence[float], other: Sequence[float]) -> Ratio:
    """Return the ratio of two equally long lists of timings, pair by pair."""
    import numpy as np

    pairs = np.asarray(other, np.float64) / np.asarray(original, np.float64)
    picks = np.random.default_rng(0).integers(0, pairs.size, (RESAMPLES, pairs.size))
    tail = (1 - CONFIDENCE) / 2 * 100
    low, high = np.percentile(np.median(pairs[picks], axis=1), [tail, 100 - tail])
    return Ratio(float(np.median(pairs)), float(low), float(high))
