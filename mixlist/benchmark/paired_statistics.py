"""Statistics of timings that were taken in pairs, one timing of each model.

Another load on the machine slows both timings of a pair, so the ratio of a pair hardly depends on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

RESAMPLES = 2000
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Spread:
    """Seconds per run: the median, the quartiles and the least of ``count`` timings."""

    median: float
    q1: float
    q3: float
    least: float
    count: int


@dataclass(frozen=True)
class Ratio:
    """The time of the other model divided by the time of the original: below 1, the other model is faster.

    ``value``: the median of the ratios of all pairs. ``low`` and ``high``: the ends of its confidence interval, at the
    level ``confidence``. They are percentiles of a bootstrap with 2000 resamples of the pairs. Its seed is fixed, so
    that the same timings give the same interval.
    """

    value: float
    low: float
    high: float
    confidence: float = CONFIDENCE

    @property
    def is_significant(self) -> bool:
        """Return True if 1 is outside the confidence interval, so that the ratio shows which model is faster."""
        return self.high < 1 or self.low > 1


def compute_spread(seconds: Sequence[float]) -> Spread:
    """Return the spread of at least one timing."""
    import numpy as np

    q1, median, q3 = np.percentile(seconds, [25, 50, 75])
    return Spread(float(median), float(q1), float(q3), float(min(seconds)), len(seconds))


def compute_ratio(original_times: Sequence[float], other_times: Sequence[float]) -> Ratio:
    """Return the ratio of two lists of timings with the same length, pair by pair."""
    import numpy as np

    pair_ratios = np.asarray(other_times, np.float64) / np.asarray(original_times, np.float64)
    # Bootstrap: each resample draws as many pairs as there are, with repetition.
    resampled_pairs = np.random.default_rng(0).integers(0, pair_ratios.size, (RESAMPLES, pair_ratios.size))
    # The interval leaves out the same share of resamples at each end: 2.5 % for a confidence of 95 %.
    tail_percent = (1 - CONFIDENCE) / 2 * 100
    medians = np.median(pair_ratios[resampled_pairs], axis=1)
    low, high = np.percentile(medians, [tail_percent, 100 - tail_percent])
    return Ratio(float(np.median(pair_ratios)), float(low), float(high))
