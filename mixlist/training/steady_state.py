"""Judge the exceptions of trainings: those of the start-up apart from those of the steady state (Rules S10.13, S10.20).

A dynamic scaler starts with a scale that is too large, and lowers it until no step has an exception. The exceptions of
this *start-up* belong to the scale and not to the network: a training of any length has them once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mixlist.checker.exception_rate import exception_rate
from mixlist.training.result import TrainingHistory

if TYPE_CHECKING:
    from mixlist.training.scalers import Scaler

GOOD_STEPS = 10  # in a row: then the steady state begins (or as many as the growth interval, if it is shorter)
CONFIDENCE = 0.95


def split_start_up(exceptions: Sequence[int], steps: int, good_steps: int = GOOD_STEPS) -> int:
    """Return the first step of the steady state, which begins after the first ``good_steps`` good steps in a row.

    ``exceptions`` are the steps with an exception, in ascending order, of a training of ``steps`` steps. The result is
    ``steps`` if there is no steady state.
    """
    start = 0  # of the good steps in a row
    for step in exceptions:
        if step - start >= good_steps:
            break
        start = step + 1
    return min(start + good_steps, steps)


def lower_bound(exceptions: int, steps: int) -> float:
    """Return the exact lower bound of a rate of exceptions (one-sided, 95 %, Clopper and Pearson); 0 without any."""
    from scipy.special import betaincinv

    if not exceptions:
        return 0.0
    return float(betaincinv(exceptions, steps - exceptions + 1, 1 - CONFIDENCE))


@dataclass(frozen=True)
class ExceptionRates:
    """The exceptions of all mixed trainings of a command.

    - ``start_up_exceptions`` of ``start_up_steps``, ``steady_exceptions`` of ``steady_steps``: in all trainings.
    - ``least_scale_exceptions`` of ``least_scale_steps``: at the smallest scale that the scaler can have, or below 1.
    - ``unsteady_trainings``: the number of trainings without a steady state.
    - ``initial_scale``: the smallest scale with which a steady state began; None if no training has one.
    - ``future_rate``: the steady rate of a longer training, None if it is not known. Each growth of the scale
      ends in an exception at some time.
    - ``projected_rate``: the rate in a training of ``planned_steps``; None if that is not given or not known.
    """

    start_up_exceptions: int
    start_up_steps: int
    steady_exceptions: int
    steady_steps: int
    least_scale_exceptions: int
    least_scale_steps: int
    unsteady_trainings: int
    initial_scale: float | None
    future_rate: float | None
    projected_rate: float | None

    @property
    def start_up_rate(self) -> float:
        """The share of the start-up's steps with an exception."""
        return exception_rate(self.start_up_exceptions, self.start_up_steps)

    @property
    def steady_rate(self) -> float | None:
        """The share of the steady steps with an exception; None if there are none."""
        return exception_rate(self.steady_exceptions, self.steady_steps) if self.steady_steps else None


def measure_rates(
    histories: Sequence[TrainingHistory], scaler: Scaler, planned_steps: int | None = None
) -> ExceptionRates:
    """Return the rates of mixed trainings with new copies of ``scaler``."""
    # A fixed scaler cannot go lower. At a scale of 1 or less, the scale is not what overflows.
    least_scale = max(1.0, 0.0 if scaler.GROWTH_PARAMETER else scaler.scale)
    growth_interval = getattr(scaler, scaler.GROWTH_PARAMETER) if scaler.GROWTH_PARAMETER else 0
    # A scale that grows after fewer good steps has an exception before there are more of them.
    good_steps = min(GOOD_STEPS, growth_interval or GOOD_STEPS)
    start_up_exceptions = start_up_steps = steady_exceptions = steady_steps = 0
    least_exceptions = least_steps = unsteady = 0
    initial_scales: list[float] = []
    for history in histories:
        steps, exceptions = len(history.loss), set(history.exceptions)
        steady = split_start_up(history.exceptions, steps, good_steps)
        early = sum(step < steady for step in exceptions)
        start_up_exceptions, start_up_steps = start_up_exceptions + early, start_up_steps + steady
        steady_exceptions += len(exceptions) - early
        steady_steps += steps - steady
        if steady < steps:
            initial_scales.append(history.scale[steady - 1])
        else:
            unsteady += 1
        at_least = [step for step in range(steps) if history.scale[step] <= least_scale]
        least_steps += len(at_least)
        least_exceptions += len(exceptions.intersection(at_least))
    future_rate = projected = None
    if steady_steps:
        future_rate = steady_exceptions / steady_steps
        growth_rate = 1 / (growth_interval + 1) if growth_interval else 0.0
        if future_rate < growth_rate:  # the scale has not grown as far yet as it can
            future_rate += growth_rate
    if planned_steps is not None and future_rate is not None:
        early_steps = min(start_up_steps / len(histories), planned_steps)
        early_exceptions = start_up_exceptions / len(histories)
        projected = min(1.0, (early_exceptions + future_rate * (planned_steps - early_steps)) / planned_steps)
    return ExceptionRates(
        start_up_exceptions,
        start_up_steps,
        steady_exceptions,
        steady_steps,
        least_exceptions,
        least_steps,
        unsteady,
        min(initial_scales, default=None),
        future_rate,
        projected,
    )
