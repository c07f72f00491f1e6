"""Forecast how long a search still takes, from the trials so far.

A search of ``tune`` is a sequence of steps, each of which finds one minimal set. The number of trials of a step is
roughly known once a trial of it has passed, because then a passing prefix of the candidates bounds it. For later steps,
the forecast takes the mean of the finished ones. Where neither is known, there is no forecast.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

# A step that may need more trials than this has no forecast: it would be far too high, and predicting it takes long.
MAX_PREDICTED = 200
RECENT_TRIALS = 30  # the trials whose mean time counts


class TrialForecast:
    """The number of trials that a search needs, and their time.

    ``steps_after``: the number of steps after the current one, None if it is not known.
    """

    def __init__(self) -> None:
        self.steps_after: int | None = None
        self._finished_steps: list[int] = []  # the number of trials of each
        self._trials_of_step = 0
        self._has_passed = False
        self._left_in_step: int | None = None  # if all further trials fail
        # Later trials are often faster, because the batch that fails runs first.
        self._seconds: deque[float] = deque(maxlen=RECENT_TRIALS)

    def begin_step(self, steps_after: int | None, *, is_bounded: bool = False) -> None:
        """Begin a step, which ends when the next one begins.

        ``is_bounded``: all trials of the step are known at its start if each of them fails.
        """
        if self._trials_of_step:
            self._finished_steps.append(self._trials_of_step)
        self.steps_after = steps_after
        self._trials_of_step, self._has_passed, self._left_in_step = 0, is_bounded, None

    def begin_trial(self, trials_left: int | None) -> None:
        """Count a trial of the step.

        ``trials_left``: the trials after it if it and all others of the step fail, None if they are not known.
        """
        self._trials_of_step += 1
        is_known = trials_left is not None and self._has_passed and trials_left < MAX_PREDICTED
        self._left_in_step = trials_left if is_known else None

    def end_trial(self, *, passed: bool) -> None:
        """Note the outcome of a test of the step, also of one that needed no trial."""
        self._has_passed = self._has_passed or passed

    def add_seconds(self, seconds: float) -> None:
        """Add the time of a trial that ran."""
        self._seconds.append(seconds)

    @property
    def seconds_left(self) -> float | None:
        """Return the seconds until the search ends; None if they cannot be known yet."""
        if self.steps_after is None or not self._seconds:
            return None
        mean_step = _mean(self._finished_steps)
        left = self._left_in_step
        if left is None and mean_step is not None:
            left = max(round(mean_step) - self._trials_of_step, 1)
        if left is None:
            return None
        # A step of the same search takes about as many trials as this one.
        later_step = mean_step if mean_step is not None else self._trials_of_step + left
        return (left + self.steps_after * later_step) * (_mean(self._seconds) or 0.0)


def _mean(numbers: Iterable[float]) -> float | None:
    values = list(numbers)
    return sum(values) / len(values) if values else None
