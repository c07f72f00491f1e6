"""``--tune-scale``: the scaler's first scale and its growth, by trying.

First scales are powers of two; each is tried for a few steps from the first seed. The best has the fewest exceptions,
then the fewest gradients lost, then the largest scale. Where the scaler grows, intervals that the training is long
enough for are tried from that scale on over the whole length; of those with the fewest exceptions the shortest is best.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mixlist.training.gradients import Sampler
from mixlist.training.loop import Training
from mixlist.training.result import Trial
from mixlist.training.scalers import Scaler, initial_parameter, make_scaler

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

Start = Callable[[Scaler, int], Training]


def tune_scale(
    start: Start, sampler: Callable[[int], Sampler], name: str, parameters: Mapping[str, Any], steps: int
) -> tuple[tuple[Trial, ...], dict[str, float]]:
    """The trials and the best parameters; ``start`` gives a training of so many steps with a scaler.

    A scaler without a scale of its own has none to tune: no trials then.
    """
    own = initial_parameter(name)
    if not own:
        return (), {}
    trials = []
    for exponent in EXPONENTS:
        tried = {**parameters, own: 2.0**exponent}
        trials.append(_try(start, sampler, name, tried, {own: 2.0**exponent}, min(SHORT, steps)))
    best = min(trials, key=lambda t: (t.exceptions, t.zero, -t.parameters[own]))
    found = dict(best.parameters)
    interval = GROWTH.get(name)
    fitting = [n for n in INTERVALS if n < steps] if interval is not None else []
    if interval is not None and fitting:
        grown = [
            _try(start, sampler, name, {**parameters, **found, interval: n}, {**found, interval: n}, steps)
            for n in fitting
        ]
        trials += grown
        found = dict(min(grown, key=lambda t: (t.exceptions, t.parameters[interval])).parameters)
    return tuple(trials), found


def _try(
    start: Start,
    sampler: Callable[[int], Sampler],
    name: str,
    parameters: Mapping[str, Any],
    told: Mapping[str, float],
    steps: int,
) -> Trial:
    training = start(make_scaler(name, **parameters), steps)
    training.sampler = sampler(steps)
    training.run(steps)
    lost = training.sampler.result()
    return Trial(dict(told), len(training.history.exceptions), steps, lost.zero if lost is not None else 0.0)
