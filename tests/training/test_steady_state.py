"""Exceptions of the start-up are told apart from those of the steady state (Rules S10.13, S10.20)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from scipy.stats import binom

from mixlist.training.result import TrainingHistory
from mixlist.training.scalers import make_scaler
from mixlist.training.steady_state import ExceptionRates, lower_bound, measure_rates, split_start_up


@pytest.mark.parametrize(
    ("exceptions", "steps", "first_steady_step"),
    [
        ((), 100, 10),
        ((), 10, 10),
        ((), 7, 7),
        ((0, 1, 2), 100, 13),
        ((0, 5, 15), 100, 26),  # 9 good steps between two exceptions are too few
        ((0, 5, 16), 100, 16),
        (range(50), 50, 50),
        (range(0, 50, 10), 50, 50),
    ],
)
def test_the_steady_state_begins_after_ten_good_steps(
    exceptions: Sequence[int], steps: int, first_steady_step: int
) -> None:
    assert split_start_up(exceptions, steps) == first_steady_step


@pytest.mark.parametrize(("exceptions", "steps"), [(1, 100), (3, 150), (50, 60), (7, 7), (2, 10_000)])
def test_the_lower_bound_is_exact(exceptions: int, steps: int) -> None:
    """So many exceptions, or more, have the probability 5 % if the rate is the bound."""
    assert binom.sf(exceptions - 1, steps, lower_bound(exceptions, steps)) == pytest.approx(0.05)


def test_no_exception_bounds_nothing() -> None:
    assert lower_bound(0, 100) == 0


def rates_of(
    *histories: tuple[Sequence[int], Sequence[float]],
    scaler: str = "torch",
    planned: int | None = None,
    **parameters: float,
) -> ExceptionRates:
    """Return the rates of trainings, each given by its exceptions and its scales."""
    trainings = [
        TrainingHistory(loss=[1.0] * len(scales), scale=list(scales), exceptions=list(exceptions))
        for exceptions, scales in histories
    ]
    return measure_rates(trainings, make_scaler(scaler, **parameters), planned)


def test_the_exceptions_of_the_search_for_a_scale_are_the_start_up() -> None:
    falling = [2.0**power for power in range(16, 11, -1)]
    rates = rates_of((range(4), [*falling, *[4096.0] * 145]), ([], [65536.0] * 150))
    assert (rates.start_up_exceptions, rates.start_up_steps) == (4, 14 + 10)
    assert (rates.steady_exceptions, rates.steady_steps, rates.steady_rate) == (0, 136 + 140, 0.0)
    assert rates.start_up_rate == 4 / 24 and rates.initial_scale == 4096.0
    assert rates.unsteady_trainings == 0 and rates.projected_rate is None


def test_exceptions_at_the_smallest_scale() -> None:
    dynamic = rates_of((range(30), [2.0 ** (16 - step) for step in range(30)]))
    assert (dynamic.least_scale_exceptions, dynamic.least_scale_steps) == (14, 14)  # 1 and below
    assert (dynamic.unsteady_trainings, dynamic.initial_scale, dynamic.steady_rate) == (1, None, None)
    fixed = rates_of(([3], [1024.0] * 30), scaler="fixed", loss_scale=1024.0)
    assert (fixed.least_scale_exceptions, fixed.least_scale_steps) == (1, 30)


def test_a_scale_that_grows_after_fewer_than_ten_steps_has_a_steady_state() -> None:
    rates = rates_of((range(0, 60, 6), [1024.0] * 60), growth_interval=5)
    assert (rates.steady_exceptions, rates.steady_steps) == (9, 54)


def test_the_projection_has_the_start_up_once() -> None:
    scales = [*[65536.0] * 4, *[4096.0] * 146]
    rates = rates_of((range(4), scales), planned=10_000)
    assert rates.future_rate == pytest.approx(1 / 2001)
    assert rates.projected_rate == pytest.approx((4 + (10_000 - 14) / 2001) / 10_000)
    fixed = rates_of((range(4), scales), scaler="fixed", loss_scale=65536.0, planned=10_000)
    assert fixed.projected_rate == pytest.approx(4 / 10_000)
    assert rates_of((range(4), scales), planned=4).projected_rate == 1.0


def test_the_exceptions_of_growth_count_once() -> None:
    grown = rates_of((range(0, 150, 21), [1024.0] * 150), growth_interval=20)
    assert grown.future_rate == grown.steady_rate == pytest.approx(7 / 139, abs=0.002)
    assert grown.future_rate > 1 / 21
    not_grown = rates_of(([100], [1024.0] * 150), growth_interval=100)
    assert not_grown.steady_rate == pytest.approx(1 / 140)
    assert not_grown.future_rate == pytest.approx(1 / 140 + 1 / 101)
