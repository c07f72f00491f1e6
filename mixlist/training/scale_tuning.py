"""Search the initial loss scale of a scaler and its growth interval: ``--tune-scale`` (Rule S10.18).

1. Initial scales: powers of two. A short training of one seed tries each of them. The best scale has the fewest
   exceptions, then the fewest gradient values that become zero, then the largest value.
2. Growth intervals: numbers of good steps after which the scale grows, if the scaler has such a parameter. A training
   of full length, with the best initial scale, tries each interval that is shorter than the training. The best
   interval has the fewest exceptions, then the smallest value.
"""

from __future__ import annotations

from mixlist.training.gradient_underflow import UnderflowSampler
from mixlist.training.job import TrainingJob
from mixlist.training.result import TuningRun
from mixlist.training.scalers import SCALERS, ScalerError
from mixlist.training.step_session import StepSession

INITIAL_SCALE_EXPONENTS = (0, 4, 8, 10, 12, 14, 16, 20, 24)  # of 2
INITIAL_SCALE_STEPS = 40  # the length of a training that tries an initial scale
GROWTH_INTERVALS = (100, 200, 500, 1000, 2000)  # good steps before the scale grows


def tune_scale(
    job: TrainingJob, float32_session: StepSession, mixed_session: StepSession, seed: int
) -> tuple[tuple[TuningRun, ...], dict[str, float]]:
    """Return all tuning runs and the best parameters of the scaler.

    Both are empty for a scaler whose scale is always 1.
    """
    scaler = SCALERS[job.options.scaler]
    scale_parameter, growth_parameter = scaler.INITIAL_SCALE_PARAMETER, scaler.GROWTH_PARAMETER
    if not scale_parameter:
        return (), {}

    def train_with(parameters: dict[str, float], steps: int) -> TuningRun:
        """Train ``steps`` steps in mixed precision with these parameters of the scaler."""
        # A sampler of its own: the counts of the report must hold no steps of the tuning.
        training = job.new_training(mixed_session, seed, job.new_scaler(**parameters))
        sampler = training.sampler = UnderflowSampler(float32_session, mixed_session, job.policy.mode.low, steps)
        try:
            training.run(steps)
        except ScalerError:  # MindSpore's scaler ends a training after many exceptions in a row
            # The worst result there is: every step an exception, every gradient value zero.
            return TuningRun(parameters, steps, steps, 1.0)
        underflow = sampler.result()
        exceptions = len(training.history.exceptions)
        return TuningRun(parameters, exceptions, steps, underflow.zero if underflow is not None else 0.0)

    # Phase 1: initial scales.
    short_steps = min(INITIAL_SCALE_STEPS, job.steps)
    runs = [train_with({scale_parameter: 2.0**exponent}, short_steps) for exponent in INITIAL_SCALE_EXPONENTS]
    # The largest scale of equal ones: it loses the fewest gradient values when gradients become smaller later.
    best = min(runs, key=lambda run: (run.exceptions, run.zero, -run.parameters[scale_parameter])).parameters

    # Phase 2: growth intervals. A short training would end before the scale grows, so these have the full length.
    intervals = [interval for interval in GROWTH_INTERVALS if interval < job.steps]
    if growth_parameter and intervals:
        growth_runs = [train_with({**best, growth_parameter: interval}, job.steps) for interval in intervals]
        runs += growth_runs
        best = min(growth_runs, key=lambda run: (run.exceptions, run.parameters[growth_parameter])).parameters
    return tuple(runs), best
