"""Statistics of the timings of two models, on timings whose true ratio is known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from mixlist.benchmark.result import Ratio, compute_ratio, compute_spread, scale_batches


def simulate_timings(true_ratio: float, rounds: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return timings as on a loaded machine: most rounds are slowed, by up to five times, each model on its own."""
    rng = np.random.default_rng(seed)
    slow = np.where(rng.random((2, rounds)) < 0.6, rng.uniform(1, 5, (2, rounds)), 1)
    original, other = 0.01 * slow * (1 + 0.02 * rng.exponential(size=(2, rounds)))
    return original, other * true_ratio


def ratio_of(original: Sequence[float], other: Sequence[float], batches: int = 1) -> Ratio:
    ratio = compute_ratio(*scale_batches([original, other], batches))
    assert ratio is not None
    return ratio


@pytest.mark.parametrize("true_ratio", [0.4, 0.97, 1.0, 2.5])
def test_a_known_ratio_is_found(true_ratio: float) -> None:
    ratio = ratio_of(*simulate_timings(true_ratio, 400, 1))
    assert ratio.value == pytest.approx(true_ratio, rel=0.01)
    assert ratio.low < true_ratio < ratio.high
    assert ratio.high - ratio.low < 0.05 * true_ratio


def test_the_bounds_contain_the_true_ratio_with_the_stated_confidence() -> None:
    ratios = [ratio_of(*simulate_timings(0.8, 30, seed)) for seed in range(300)]
    covered = sum(ratio.low <= 0.8 <= ratio.high for ratio in ratios) / len(ratios)
    assert 0.92 <= covered <= 0.99


def test_equal_models_are_called_equal_and_a_difference_of_ten_percent_is_found_under_load() -> None:
    """The medians of the times in these rounds differ by more than 10 % for most equal pairs."""
    seeds = range(100)
    assert sum(ratio_of(*simulate_timings(1, 30, seed)).is_significant for seed in seeds) <= 5
    slower = [ratio_of(*simulate_timings(1.1, 30, seed)) for seed in seeds]
    assert sum(ratio.is_significant and ratio.value > 1 for ratio in slower) >= 90
    assert sum(abs(np.median(b) / np.median(a) - 1) > 0.1 for a, b in (simulate_timings(1, 30, s) for s in seeds)) > 50


def test_there_is_no_ratio_of_fewer_than_ten_rounds() -> None:
    assert compute_ratio([1.0] * 9, [0.5] * 9) is None
    assert ratio_of([1.0] * 10, [0.5] * 10).value == 0.5


def test_batches_of_other_sizes_are_compared_with_themselves() -> None:
    """Without this, the ratio would be that of the smallest batch alone: 0.5."""
    original, other = [1.0, 50.0, 100.0, 200.0] * 5, [0.5, 100.0, 200.0, 400.0] * 5
    ratio = ratio_of(original, other, batches=4)
    assert ratio.low <= 1 <= ratio.high
    assert ratio_of(original, [2 * seconds for seconds in original], batches=4).value == pytest.approx(2)


def test_the_same_timings_give_the_same_bounds() -> None:
    original, mixed = simulate_timings(1.1, 20, 3)
    assert ratio_of(original, mixed) == ratio_of(list(original), list(mixed))


def test_a_ratio_is_significant_if_the_bounds_exclude_one_and_the_difference_is_five_percent() -> None:
    assert Ratio(0.5, 0.4, 0.6).is_significant
    assert Ratio(2.0, 1.9, 2.1).is_significant
    assert Ratio(1.05, 1.01, 1.06).is_significant
    assert Ratio(0.95, 0.94, 0.99).is_significant
    assert not Ratio(1.049, 1.01, 1.06).is_significant
    assert not Ratio(0.955, 0.94, 0.99).is_significant
    assert not Ratio(1.5, 0.9, 2.0).is_significant


def test_spread() -> None:
    spread = compute_spread([5.0, 1.0, 2.0, 4.0, 3.0])
    assert (spread.median, spread.q1, spread.q3, spread.least, spread.count) == (3.0, 2.0, 4.0, 1.0, 5)
    assert spread.p10 == pytest.approx(1.4)


def test_the_ratio_is_the_quotient_of_the_times_that_a_report_prints() -> None:
    original, other = simulate_timings(1.08, 40, 5)
    original[1::2] *= 30  # a larger batch
    other[1::2] *= 30
    original_times, other_times = scale_batches([original, other], 2)
    ratio = compute_ratio(original_times, other_times)
    assert ratio is not None
    assert ratio.value == pytest.approx(compute_spread(other_times).p10 / compute_spread(original_times).p10)


def test_the_times_of_one_batch_stay_as_measured() -> None:
    assert scale_batches([[3.0, 2.0], [4.0]], 1) == [[3.0, 2.0], [4.0]]


def test_batches_of_several_sizes_are_scaled_to_their_mean_size() -> None:
    # The least times of the batches are 1 and 9 seconds, and their mean is 5.
    assert scale_batches([[1.0, 18.0, 2.0], [2.0, 9.0]], 2) == [[5.0, 10.0, 10.0], [10.0, 5.0]]
