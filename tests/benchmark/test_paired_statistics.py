"""Statistics of paired timings, on timings whose true ratio is known."""

from __future__ import annotations

import numpy as np
import pytest

from mixlist.benchmark.paired_statistics import compute_ratio, compute_spread


def simulated(true_ratio: float, pairs: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Timings as machines give them: skewed noise of each turn, and slow moments that hit both turns of a pair."""
    rng = np.random.default_rng(seed)
    slow = np.where(rng.random(pairs) < 0.2, rng.uniform(1, 4, pairs), 1)
    turns = [0.01 * slow * np.exp(0.05 * rng.gumbel(size=pairs)) for _ in range(2)]
    return turns[0], turns[1] * true_ratio


@pytest.mark.parametrize("true_ratio", [0.4, 0.97, 1.0, 2.5])
def test_a_known_ratio_is_found(true_ratio: float) -> None:
    told = compute_ratio(*simulated(true_ratio, 400, 1))
    assert told.value == pytest.approx(true_ratio, rel=0.02)
    assert told.low < true_ratio < told.high
    assert told.high - told.low < 0.05 * true_ratio


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    told = [compute_ratio(*simulated(0.8, 30, seed)) for seed in range(300)]
    covered = sum(r.low <= 0.8 <= r.high for r in told) / len(told)
    assert 0.92 <= covered <= 0.99


def test_slow_moments_of_both_cost_nothing() -> None:
    rng = np.random.default_rng(0)
    original = rng.uniform(0.01, 0.1, 50)
    told = compute_ratio(original, original * 0.5)
    assert (told.value, told.low, told.high) == pytest.approx((0.5, 0.5, 0.5))


def test_the_same_timings_give_the_same_bounds() -> None:
    original, other = simulated(1.1, 20, 3)
    assert compute_ratio(original, other) == compute_ratio(list(original), list(other))


def test_decided_means_that_the_bounds_leave_one_out() -> None:
    assert compute_ratio([1.0] * 9, [0.5] * 9).decided
    assert compute_ratio([1.0] * 9, [2.0] * 9).decided
    assert not compute_ratio([1.0, 1.0, 1.0, 1.0], [0.5, 2.0, 0.5, 2.0]).decided


def test_spread() -> None:
    told = compute_spread([5.0, 1.0, 2.0, 4.0, 3.0])
    assert (told.median, told.q1, told.q3, told.least, told.count) == (3.0, 2.0, 4.0, 1.0, 5)
