"""The forecast of the time that a search still takes, and its text next to the progress bar."""

from __future__ import annotations

import numpy as np
import pytest

import mixlist
from mixlist.progress import Progress
from mixlist.search.minimal_sets import NextTests, find_minimal, search_with_lookahead
from mixlist.search.trials import MAX_PREDICTED, RECENT_TRIALS, TrialForecast
from mixlist.show.progress_bar import time_left
from tests.support.builders import model, policy


def finish_step(forecast: TrialForecast, trials: int, steps_after: int) -> None:
    forecast.begin_step(steps_after)
    for left in reversed(range(trials)):
        forecast.begin_trial(left)
        forecast.add_seconds(2.0)
        forecast.end_trial(passed=True)


def test_nothing_is_known_before_a_trial_has_passed() -> None:
    forecast = TrialForecast()
    assert forecast.seconds_left is None
    forecast.begin_step(0)
    forecast.begin_trial(5)
    forecast.add_seconds(2.0)
    assert forecast.seconds_left is None
    forecast.end_trial(passed=True)
    forecast.begin_trial(4)
    assert forecast.seconds_left == 8
    forecast.begin_trial(MAX_PREDICTED)  # too many to predict
    assert forecast.seconds_left is None


def test_later_steps_take_as_many_trials_as_the_finished_ones() -> None:
    forecast = TrialForecast()
    finish_step(forecast, 6, steps_after=2)
    assert forecast.seconds_left == 2 * 2 * 6
    forecast.begin_step(1)
    forecast.begin_trial(3)  # no trial of this step has passed: it takes as many as the last one
    assert forecast.seconds_left == 2 * (5 + 6)
    forecast.begin_step(0, is_bounded=True)
    forecast.begin_trial(3)
    assert forecast.seconds_left == 2 * 3


def test_the_latest_trials_decide_the_time() -> None:
    forecast = TrialForecast()
    finish_step(forecast, 4, steps_after=0)
    for _ in range(RECENT_TRIALS):
        forecast.add_seconds(10.0)
    forecast.begin_step(0, is_bounded=True)
    forecast.begin_trial(1)
    assert forecast.seconds_left == 10


@pytest.mark.parametrize("causes", [{0}, {3, 4}, {1, 17, 30}, {39}])
def test_the_forecast_of_a_minimal_set_is_never_too_early(causes: set[int]) -> None:
    forecast, forecasts, count = TrialForecast(), list[tuple[int, float | None]](), 0

    def passes(elements: frozenset[int], next_tests: NextTests[int]) -> bool:
        nonlocal count
        count += 1
        forecast.begin_trial(len(next_tests(MAX_PREDICTED)))
        forecast.add_seconds(1.0)
        forecast.end_trial(passed=causes <= elements)
        forecasts.append((count, forecast.seconds_left))
        return causes <= elements

    forecast.begin_step(0)
    assert search_with_lookahead(lambda test: find_minimal(range(40), test), passes) == causes
    known = [(count - done, seconds) for done, seconds in forecasts if seconds is not None]
    assert len(known) >= count // 2 or len(causes) == 1
    # It assumes that trials fail, which needs more of them.
    assert all(seconds >= left for left, seconds in known)


def test_tune_reports_the_time_of_its_search() -> None:
    text = "g (float[2] x) => (float[2] y) { a = Exp (x) b = Mul (a, a) c = Add (b, x) d = Sqrt (c) y = Neg (d) }"
    data = [{"x": np.array([8, 9], np.float32)}]  # exp(9) squared is beyond float16
    lists = policy(white=["Exp", "Mul", "Add", "Sqrt", "Neg"])
    progress: list[Progress] = []
    assert mixlist.tune(model(text), lists, data, progress=progress.append).verdict == "pass"
    assert progress[0].seconds_left is None
    assert progress[-1].total is None
    assert any(state.seconds_left is not None for state in progress)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, ""),
        (0.4, "about 0 s left in this search"),
        (75.0, "about 75 s left in this search"),
        (600.0, "about 10 min left in this search"),
        (7300.0, "about 2 h left in this search"),
    ],
)
def test_the_text_next_to_the_bar(seconds: float | None, text: str) -> None:
    assert time_left(Progress(3, None, "trials", seconds_left=seconds)) == text
