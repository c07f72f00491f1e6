"""The comparison of mixed trainings with float32 and its twins."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from mixlist.training.result import Comparison
from mixlist.training.verdict import compare_metrics

Floats = NDArray[np.float64]


def compare(mixed: list[float], float32: list[float], twins: list[float], tolerance: float = 0.005) -> Comparison:
    arrays = (np.array(values, np.float64) for values in (mixed, float32, twins))
    return compare_metrics(*arrays, tolerance, relative=False)


def test_the_figures_of_three_runs() -> None:
    """Computed by hand: d = 0.01, 0.02, 0.03; e = 0.01, -0.01, 0; D = 0.005, 0.025, 0.03."""
    comparison = compare([0.11, 0.22, 0.33], [0.1, 0.2, 0.3], [0.11, 0.19, 0.3])
    variance = (2 * 0.01**2 + 2 * 0.01**2) / 5
    error, scatter = math.sqrt(0.75 * variance / 3), math.sqrt(2 * 0.01**2 / 3)
    assert comparison.difference == pytest.approx(0.02)
    assert comparison.scatter == pytest.approx(scatter)
    assert comparison.lower == pytest.approx(0.02 - stats.t.ppf(0.995, 5) * error)
    assert comparison.upper == pytest.approx(0.02 + stats.t.ppf(0.95, 5) * error)
    assert comparison.margin == pytest.approx(3 * scatter)
    assert comparison.deviation == pytest.approx(0.01)
    assert comparison.largest_deviation == pytest.approx(scatter * math.sqrt(stats.f.ppf(0.995, 2, 3)))
    assert comparison.verdict == "inconclusive"


def test_equal_trainings_pass_and_a_clear_loss_fails() -> None:
    assert compare([0.1] * 3, [0.1] * 3, [0.1] * 3).verdict == "pass"
    assert compare([0.2] * 3, [0.1] * 3, [0.1] * 3).verdict == "fail"
    assert compare([0.0] * 3, [0.1] * 3, [0.1] * 3).verdict == "pass"  # better than float32


def test_more_runs_decide_what_is_open() -> None:
    comparison = compare([0.11, 0.22, 0.33], [0.1, 0.2, 0.3], [0.11, 0.19, 0.3])
    assert comparison.runs_needed == 4
    variance = 4e-4 / 5
    for runs, decides in ((3, False), (4, True)):
        error, freedom = math.sqrt(0.75 * variance / runs), 2 * runs - 1
        fails = 0.02 - stats.t.ppf(0.995, freedom) * error > 0.005
        passes = 0.02 + stats.t.ppf(0.95, freedom) * error <= comparison.scatter * (1 + 6 / runs)
        assert (fails or passes) == decides


def test_a_difference_between_tolerance_and_margin_stays_open() -> None:
    """The difference is exactly the tolerance: no number of runs decides it."""
    comparison = compare([0.105, 0.205, 0.305], [0.1, 0.2, 0.3], [0.1, 0.2, 0.3], tolerance=0.0049999)
    assert comparison.verdict == "fail"
    noisy = compare([0.105, 0.215, 0.295], [0.1, 0.2, 0.3], [0.1, 0.2, 0.3], tolerance=0.005)
    assert (noisy.verdict, noisy.runs_needed) == ("inconclusive", None)


def test_the_metric_must_be_as_constant_as_in_float32() -> None:
    """The metric must be constant over the runs."""
    erratic = compare([0.05, 0.2, 0.35], [0.1, 0.2, 0.3], [0.1, 0.2, 0.3])
    assert erratic.constancy == "fail"
    assert erratic.deviation == pytest.approx(0.05) and erratic.largest_deviation == 0.005
    assert compare([0.05, 0.2, 0.35], [0.1, 0.2, 0.3], [0.14, 0.16, 0.34]).constancy == "pass"  # the twins vary as much
    assert compare([0.5], [0.1], [0.1]).constancy == "pass"  # one run varies by nothing
    single = compare([0.15, 0.2, 0.301], [0.1, 0.2, 0.3], [0.1, 0.2, 0.3])
    assert single.constancy == "inconclusive"
    assert single.deviation_of_rest == pytest.approx(math.sqrt(0.5) * 0.001)


def verdict_shares(runs: int, loss: float, scatter: float) -> dict[str, float]:
    """Return the shares of the verdicts of 2,000 groups of runs; ``loss``: the true loss in root mean squares."""
    rng, counts = np.random.default_rng(0), dict.fromkeys(("pass", "fail", "inconclusive"), 0)
    for _ in range(2000):
        base = rng.normal(0, 0.05, runs)
        float32, twin, mixed = (base + rng.normal(0, scatter, runs) for _ in range(3))
        true_loss = loss * scatter * math.sqrt(2)
        verdict = compare_metrics(mixed + true_loss, float32, twin, 0.005, relative=False).verdict
        counts[verdict] += 1
    return {verdict: count / 2000 for verdict, count in counts.items()}


@pytest.mark.parametrize(("runs", "passes", "finds"), [(3, 0.95, 0.6), (10, 0.99, 0.99)])
def test_benign_groups_pass_and_true_losses_fail(runs: int, passes: float, finds: float) -> None:
    for scatter in (0.002, 0.02):
        benign = verdict_shares(runs, 0.0, scatter)
        assert benign["pass"] >= passes and benign["fail"] <= 0.005
        worse = verdict_shares(runs, 4.0, scatter)
        assert worse["fail"] >= finds and worse["pass"] <= 0.03


def test_the_remark_on_three_runs_has_the_right_shares() -> None:
    """``verdict.FEW_RUNS``: 8 % with 3 runs, 1 % with 4."""
    shares = [verdict_shares(runs, 3.0, 0.02)["pass"] for runs in (3, 4)]
    assert [round(100 * share) for share in shares] == [8, 1]
