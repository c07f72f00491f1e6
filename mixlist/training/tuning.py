"""``--tune-scale``: the scaler's first scale and its growth, by trying.

First scales are powers of two; each is tried for the first steps of the training of one seed. The best has the fewest
exceptions, then the fewest gradients lost, then the largest scale. Where the scaler grows, intervals that the training
is long enough for are tried from that scale on over the whole length; of those with the fewest exceptions the shortest
is best.
"""

from __future__ import annotations

from mixlist.training.gradient_underflow import Sampler
from mixlist.training.job import Job
from mixlist.training.result import Trial
from mixlist.training.scalers import ScalerError, initial_parameter, make_scaler
from mixlist.training.step_session import Machine

EXPONENTS = (0, 4, 8, 10, 12, 14, 16, 20, 24)
SHORT = 40  # steps of a trial of the first scale
GROWTH = {
    "npu": "incr_every_n_steps",
    "npu-tf2": "dynamic_growth_steps",
    "mindspore": "scale_window",
    "torch": "growth_interval",
    "nnabla": "N",
}
INTERVALS = (100, 200, 500, 1000, 2000)


def tune_scale(job: Job, exact: Machine, mixed: Machine, seed: int) -> tuple[tuple[Trial, ...], dict[str, float]]:
    """The trials and the best parameters. A scaler without a scale of its own has none to tune: no trials then."""
    name, given = job.scaler
    own = initial_parameter(name)
    if not own:
        return (), {}

    def tried(told: dict[str, float], steps: int) -> Trial:
        training = job.training(mixed, seed, make_scaler(name, **{**given, **told}))
        sampler = training.sampler = Sampler(exact, mixed, job.policy.mode.low, steps)
        try:
            training.run(steps)
        except ScalerError:  # every one of very many steps was bad
            return Trial(told, steps, steps, 1.0)
        lost = sampler.result()
        return Trial(told, len(training.history.exceptions), steps, lost.zero if lost is not None else 0.0)

    trials = [tried({own: 2.0**exponent}, min(SHORT, job.steps)) for exponent in EXPONENTS]
    found = min(trials, key=lambda t: (t.exceptions, t.zero, -t.parameters[own])).parameters
    interval = GROWTH.get(name)
    fitting = [n for n in INTERVALS if n < job.steps]
    if interval is not None and fitting:
        grown = [tried({**found, interval: n}, job.steps) for n in fitting]
        trials += grown
        found = min(grown, key=lambda t: (t.exceptions, t.parameters[interval])).parameters
    return tuple(trials), found
