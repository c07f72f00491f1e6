"""``--tune-scale``: search the scaler's first scale and its growth by trials (Rule S10.18).

First scales are powers of two; each is tried for the first steps of the training of one seed. The best has the fewest
exceptions, then the fewest gradients lost, then the largest scale. If the scaler grows, intervals that the training
is long enough for are tried from that scale on over the whole length; of those with the fewest exceptions the shortest
is best.
"""

from __future__ import annotations

from mixlist.training.gradient_underflow import UnderflowSampler
from mixlist.training.job import TrainingJob
from mixlist.training.result import TuningRun
from mixlist.training.scalers import SCALERS, ScalerError
from mixlist.training.step_session import StepSession

EXPONENTS = (0, 4, 8, 10, 12, 14, 16, 20, 24)
SHORT = 40  # steps of a trial of the first scale
INTERVALS = (100, 200, 500, 1000, 2000)


def tune_scale(
    job: TrainingJob, exact: StepSession, mixed: StepSession, seed: int
) -> tuple[tuple[TuningRun, ...], dict[str, float]]:
    """Return the trials and the best parameters; no trials for a scaler without a scale of its own."""
    scaler = SCALERS[job.options.scaler]
    scale, growth = scaler.INITIAL_SCALE_PARAMETER, scaler.GROWTH_PARAMETER
    if not scale:
        return (), {}

    def trial(tried: dict[str, float], steps: int) -> TuningRun:
        training = job.training(mixed, seed, job.new_scaler(**tried))
        sampler = training.sampler = UnderflowSampler(exact, mixed, job.policy.mode.low, steps)
        try:
            training.run(steps)
        except ScalerError:  # every one of very many steps was bad
            return TuningRun(tried, steps, steps, 1.0)
        underflow = sampler.result()
        exceptions = len(training.history.exceptions)
        return TuningRun(tried, exceptions, steps, underflow.zero if underflow is not None else 0.0)

    trials = [trial({scale: 2.0**exponent}, min(SHORT, job.steps)) for exponent in EXPONENTS]
    best = min(trials, key=lambda t: (t.exceptions, t.zero, -t.parameters[scale])).parameters
    intervals = [steps for steps in INTERVALS if steps < job.steps]
    if growth and intervals:
        grown = [trial({**best, growth: steps}, job.steps) for steps in intervals]
        trials += grown
        best = min(grown, key=lambda t: (t.exceptions, t.parameters[growth])).parameters
    return tuple(trials), best
