"""Search the initial loss scale of a scaler and its growth interval: ``--tune-scale`` (Rule S10.18).

1. Initial scales: powers of two. A short training of one seed tries each of them. The best scale has the fewest
   exceptions, then the fewest gradient values that become zero, then the largest value.
2. A training of full length with the best initial scale. If the scaler has a growth interval, the number of good steps
   after which the scale grows, one training tries each interval that is shorter than the training. The best training
   has the lowest steady rate of exceptions, projected to a longer training: an interval of 100 means an exception in
   every 101 steps. If no training keeps the limit of exceptions, the next scale is tried.
"""

from __future__ import annotations

import math

from mixlist.checker.exception_rate import too_many_exceptions
from mixlist.training.gradient_underflow import UnderflowSampler
from mixlist.training.job import TrainingJob
from mixlist.training.result import TuningRun
from mixlist.training.scalers import SCALERS, ScalerError
from mixlist.training.steady_state import measure_rates
from mixlist.training.step_session import StepSession

INITIAL_SCALE_EXPONENTS = (0, 4, 8, 10, 12, 14, 16, 20, 24)  # of 2
INITIAL_SCALE_STEPS = 40  # the length of a training that tries an initial scale
GROWTH_INTERVALS = (100, 200, 500, 1000, 2000)  # good steps before the scale grows


def tune_scale(
    job: TrainingJob, float32_session: StepSession, mixed_session: StepSession, seed: int
) -> tuple[tuple[TuningRun, ...], dict[str, float]]:
    """Return all tuning runs and the best parameters of the scaler, which are empty if no run keeps the limit.

    ``TrainOptions`` refuses a scaler whose scale is always 1.
    """
    scaler_type = SCALERS[job.options.scaler]
    scale_parameter, growth_parameter = scaler_type.INITIAL_SCALE_PARAMETER, scaler_type.GROWTH_PARAMETER

    def train_with(parameters: dict[str, float], steps: int, limit: float = math.inf) -> TuningRun:
        """Train up to ``steps`` steps in mixed precision; end early when the steady rate cannot keep the limit."""
        # A sampler of its own: the counts of the report must hold no steps of the tuning.
        scaler = job.new_scaler(**parameters)
        training = job.new_training(mixed_session, seed, job.new_scaler(**parameters))
        sampler = training.sampler = UnderflowSampler(float32_session, mixed_session, job.policy.mode.low, steps)
        history = training.history
        rates = measure_rates([history], scaler)
        try:
            while training.step < steps and not too_many_exceptions(rates.steady_exceptions, steps, limit):
                training.run(training.step + 1)
                if history.exceptions[-1:] == [training.step - 1]:
                    rates = measure_rates([history], scaler)
        except ScalerError:  # MindSpore's scaler ends a training after many exceptions in a row
            # The worst result there is: every step an exception, every gradient value zero.
            return TuningRun(parameters, steps, steps, 1.0, 1.0)
        underflow, future_rate = sampler.result(), measure_rates([history], scaler).future_rate
        return TuningRun(
            parameters,
            len(history.exceptions),
            training.step,
            underflow.zero if underflow is not None else 0.0,
            1.0 if future_rate is None else min(1.0, future_rate),
        )

    # Phase 1: initial scales.
    short_steps = min(INITIAL_SCALE_STEPS, job.steps)
    runs = [train_with({scale_parameter: 2.0**exponent}, short_steps) for exponent in INITIAL_SCALE_EXPONENTS]
    # The largest scale of equal ones: it loses the fewest gradient values when gradients become smaller later.
    ranked = sorted(runs, key=lambda run: (run.exceptions, run.zero, -run.parameters[scale_parameter]))

    # Phase 2: the full length. A short training ends before the scale grows, and before rare exceptions.
    limit = job.options.max_exception_rate
    intervals = [interval for interval in GROWTH_INTERVALS if growth_parameter and interval < job.steps]
    for parameters in (run.parameters for run in ranked):
        settings = [{**parameters, growth_parameter: interval} for interval in intervals] or [parameters]
        full_runs = [train_with(setting, job.steps, limit) for setting in settings]
        runs += full_runs
        # The intervals ascend, so the first of equal ones is the smallest.
        best = min(full_runs, key=lambda run: run.projected_rate)
        if best.projected_rate < limit or not best.projected_rate:
            return tuple(runs), best.parameters
    return tuple(runs), {}
