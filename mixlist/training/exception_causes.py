"""Judge the exceptions of mixed trainings: those of the loss scale apart from those of the network (Rules S10.13,
S10.20).

A loop is replayed with the scales of its mixed training, but with the scale 1 in the steps that had an exception. An
exception that has gone belongs to the scale: a dynamic scaler lowers the scale, and a training of any length has this
exception once. One that is still there is the network's own, and comes again and again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mixlist.checker.limits import too_many_exceptions
from mixlist.training.result import ScaleExceptions, SeedRun

if TYPE_CHECKING:
    from mixlist.training.scalers import Scaler

CONFIDENCE = 0.95


def lower_bound(exceptions: int, steps: int) -> float:
    """Return the exact lower bound of a rate of exceptions (one-sided, 95 %, Clopper and Pearson); 0 without any."""
    from scipy.special import betaincinv

    return float(betaincinv(exceptions, steps - exceptions + 1, 1 - CONFIDENCE)) if exceptions else 0.0


def upper_bound(exceptions: int, steps: int) -> float:
    """Return the exact upper bound of a rate of exceptions, as ``lower_bound``: 0 of 420 steps prove 0.71 %."""
    from scipy.special import betaincinv

    return float(betaincinv(exceptions + 1, steps - exceptions, CONFIDENCE)) if exceptions < steps else 1.0


def seeds_to_replay(runs: Sequence[SeedRun], limit: float, planned_steps: int | None) -> list[int]:
    """Return the seeds of the runs whose exceptions can decide the verdict.

    They can if the exceptions of all runs together reach the limit, if there are too many for the planned length, or if
    a mixed training came to nothing.
    """
    exceptions = {run.seed: len(run.mixed.exceptions) for run in runs}
    all_steps = sum(len(run.mixed.loss) for run in runs)
    reach_limit = too_many_exceptions(sum(exceptions.values()), all_steps, limit)
    return [
        run.seed
        for run in runs
        if (count := exceptions[run.seed])
        and (reach_limit or run.mixed.diverged or (planned_steps is not None and count >= limit * planned_steps))
    ]


def growth_rate(scaler: Scaler) -> float:
    """Return the rate of exceptions of a scale that grows until a step overflows, again and again; 0 if it does not."""
    return 1 / (getattr(scaler, scaler.GROWTH_PARAMETER) + 1) if scaler.GROWTH_PARAMETER else 0.0


def measure_scale_exceptions(
    runs: Sequence[SeedRun], own: Mapping[int, Sequence[int]], scaler: Scaler, limit: float
) -> ScaleExceptions | None:
    """Return what the exceptions that belong to the scale mean for a longer training; None if there are none.

    ``own`` has the network's own exceptions of each replayed seed; ``scaler`` is new.
    """
    steps_of = {run.seed: sorted(set(run.mixed.exceptions) - set(own[run.seed])) for run in runs if run.seed in own}
    counts = [len(steps) for steps in steps_of.values() if steps]
    if not counts:
        return None
    most, room = max(counts), limit - growth_rate(scaler)
    rare_from = math.ceil(most / room) if scaler.GROWTH_PARAMETER and room > 0 else None
    first_scale = min(_scale_after(run, steps_of[run.seed][-1]) for run in runs if steps_of.get(run.seed))
    return ScaleExceptions(most, rare_from, first_scale)


def _scale_after(run: SeedRun, step: int) -> float:
    """Return the smallest scale of a run from the step after ``step`` on."""
    return min((*run.mixed.scale[step + 1 :], run.mixed.last_scale))


@dataclass(frozen=True)
class OwnExceptions:
    """The network's own exceptions: in each replayed run, with the number of its steps.

    ``proven_runs``: the number of runs whose own rate is certainly above the limit.
    """

    exceptions: int
    steps: int
    proven_runs: int


def measure_own_exceptions(runs: Sequence[SeedRun], own: Mapping[int, Sequence[int]], limit: float) -> OwnExceptions:
    """Return the network's own exceptions over all runs. ``own`` has those of each replayed seed."""
    counts = [(len(own.get(run.seed, ())), len(run.mixed.loss)) for run in runs]
    return OwnExceptions(
        exceptions=sum(count for count, _ in counts),
        steps=sum(steps for _, steps in counts),
        proven_runs=sum(lower_bound(count, steps) > limit for count, steps in counts),
    )
