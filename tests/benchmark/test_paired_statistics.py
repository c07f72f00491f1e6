"""Statistics of paired timings, on timings whose true ratio is known."""

from __future__ import annotations

import numpy as np
import pytest

from mixlist.benchmark.result import compute_ratio, compute_spread


def simulate_timings(true_ratio: float, pairs: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return timings like real ones: skewed noise in each turn, and loads that slow both turns of a pair."""
    rng = np.random.default_rng(seed)
    slow = np.where(rng.random(pairs) < 0.2, rng.uniform(1, 4, pairs), 1)
    turns = [0.01 * slow * np.exp(0.05 * rng.gumbel(size=pairs)) for _ in range(2)]
    return turns[0], turns[1] * true_ratio


@pytest.mark.parametrize("true_ratio", [0.4, 0.97, 1.0, 2.5])
def test_a_known_ratio_is_found(true_ratio: float) -> None:
    ratio = compute_ratio(*simulate_timings(true_ratio, 400, 1))
    assert ratio.value == pytest.approx(true_ratio, rel=0.02)
    assert ratio.low < true_ratio < ratio.high
    assert ratio.high - ratio.low < 0.05 * true_ratio


def test_the_bounds_contain_the_true_ratio_with_the_stated_confidence() -> None:
    ratios = [compute_ratio(*simulate_timings(0.8, 30, seed)) for seed in range(300)]
    covered = sum(ratio.low <= 0.8 <= ratio.high for ratio in ratios) / len(ratios)
    assert 0.92 <= covered <= 0.99


def test_loads_that_slow_both_turns_do_not_widen_the_bounds() -> None:
    rng = np.random.default_rng(0)
    original = rng.uniform(0.01, 0.1, 50)
    ratio = compute_ratio(original, original * 0.5)
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((0.5, 0.5, 0.5))


def test_the_same_timings_give_the_same_bounds() -> None:
    original, mixed = simulate_timings(1.1, 20, 3)
    assert compute_ratio(original, mixed) == compute_ratio(list(original), list(mixed))


def test_a_ratio_is_decided_if_the_bounds_exclude_one() -> None:
    assert compute_ratio([1.0] * 9, [0.5] * 9).is_significant
    assert compute_ratio([1.0] * 9, [2.0] * 9).is_significant
    assert not compute_ratio([1.0, 1.0, 1.0, 1.0], [0.5, 2.0, 0.5, 2.0]).is_significant


def test_spread() -> None:
    spread = compute_spread([5.0, 1.0, 2.0, 4.0, 3.0])
    assert (spread.median, spread.q1, spread.q3, spread.least, spread.count) == (3.0, 2.0, 4.0, 1.0, 5)
