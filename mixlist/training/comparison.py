"""Compare the metric of mixed trainings with that of float32, by the scatter of float32 itself (Rules S10.14, S10.15).

Two trainings are never equal, even if both are in float32. So each seed has a *twin*: float32 once more, from initial
weights that are perturbed by the rounding error of float16. What the twins differ by is no fault of mixed precision.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    FloatArray = NDArray[np.float64]

# The probabilities of the one-sided quantiles: a training fails and passes only if the comparison is that certain.
FAIL_QUANTILE, PASS_QUANTILE = 0.995, 0.95
MOST_RUNS = 1000  # more runs are not recommended


@dataclass(frozen=True)
class Comparison:
    """The decline of the metric from float32 to mixed precision, over the runs. Positive numbers are worse.

    - ``difference``: the mean of mixed minus the mean of float32 and its twin. ``lower``, ``upper``: its bounds; the
      lower one exceeds the tolerance in a comparison that fails, the upper one is within ``margin`` in one that passes.
    - ``margin``: the tolerance, or the scatter of float32 itself if that is larger.
    - ``scatter``: the root of the mean square of twin minus float32.
    - ``deviation``: the standard deviation of mixed minus float32. ``deviation_of_rest``: the same without the run that
      differs most. Above ``largest_deviation`` the metric is not constant (Rule S10.15). All are 0 for a single run.
    - ``runs_needed``: the number of runs that would decide, if the figures stay the same; None if the comparison
      decides, or if ``MOST_RUNS`` runs would not.
    - ``relative``: True if the metric is better when lower: then all figures are shares of what float32 has learned.
    """

    verdict: Literal["pass", "fail", "inconclusive"]
    difference: float
    lower: float
    upper: float
    margin: float
    scatter: float
    deviation: float
    deviation_of_rest: float
    largest_deviation: float
    runs_needed: int | None
    relative: bool

    @property
    def constancy(self) -> Literal["pass", "fail", "inconclusive"]:
        """Return whether the mixed metric is as constant over the runs as that of float32 (Rule S10.15)."""
        if self.deviation <= self.largest_deviation:
            return "pass"
        return "fail" if self.deviation_of_rest > self.largest_deviation else "inconclusive"


def compare_metrics(
    mixed: FloatArray, float32: FloatArray, twins: FloatArray, tolerance: float, *, relative: bool
) -> Comparison:
    """Compare the metrics of the runs: float64 [runs] each, where more is worse."""
    import numpy as np
    from scipy.special import fdtri

    count = len(mixed)
    d, e = mixed - float32, twins - float32
    difference = float((mixed - (float32 + twins) / 2).mean())
    scatter = math.sqrt(float((e**2).mean()))
    variance = float(((d - d.mean()) ** 2).sum() + (e**2).sum()) / (2 * count - 1)
    verdict, lower, upper, margin = _decide(difference, variance, scatter, count, tolerance)
    runs_needed = None
    if verdict == "inconclusive":
        more = range(count + 1, MOST_RUNS + 1)
        decides = (n for n in more if _decide(difference, variance, scatter, n, tolerance)[0] != "inconclusive")
        runs_needed = next(decides, None)
    deviation = deviation_of_rest = largest = 0.0
    if count > 1:
        deviation = float(d.std(ddof=1))
        rest = np.delete(d, np.abs(d - np.median(d)).argmax())
        deviation_of_rest = float(rest.std(ddof=1)) if len(rest) > 1 else 0.0
        largest = max(tolerance, scatter * math.sqrt(fdtri(count - 1, count, FAIL_QUANTILE)))
    return Comparison(
        verdict, difference, lower, upper, margin, scatter, deviation, deviation_of_rest, largest, runs_needed, relative
    )


def _decide(
    difference: float, variance: float, scatter: float, count: int, tolerance: float
) -> tuple[Literal["pass", "fail", "inconclusive"], float, float, float]:
    """Return the verdict, the lower and the upper bound of the difference, and the margin, for so many runs."""
    from scipy.special import stdtrit

    # The variance of D is 3/4 of that of a single training's noise, because float32 and its twin are averaged.
    error = math.sqrt(0.75 * variance / count)
    freedom = 2 * count - 1
    lower = difference - float(stdtrit(freedom, FAIL_QUANTILE)) * error
    upper = difference + float(stdtrit(freedom, PASS_QUANTILE)) * error
    # With few runs the scatter is known poorly, so more of it is allowed.
    margin = max(tolerance, scatter * (1 + 6 / count))
    if lower > tolerance:
        return "fail", lower, upper, margin
    return ("pass" if upper <= margin else "inconclusive"), lower, upper, margin
