"""Decide whether the trainings qualify: the rules of the Ascend documents, and a comparison with float32.

- S10.13: fewer than 0.5 % of the steps have an exception (0.1 % for a large global batch);
- S10.14: the metric is not worse than that of float32 by more than the tolerance, as means over the runs;
- S10.15: at least three runs, whose metric is as constant as that of float32 (within twice the tolerance);
- S10.16: no run diverges, and every run learns: the loss of its last tenth is below that of its first.

A seed whose training in float32 comes to nothing is nothing to compare with (Rule S10.19): it is not judged, and the
verdict is inconclusive unless another seed fails.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mixlist.checker.exception_rate import describe_rate, too_many_exceptions
from mixlist.training.result import SeedRun, spread

if TYPE_CHECKING:
    from mixlist.training.evaluation import Metric
    from mixlist.training.options import TrainOptions

RUNS = 3


def missing_comparisons(runs: Sequence[SeedRun], metric: Metric) -> list[str]:
    """Return why some runs are nothing to compare with, one sentence each (Rule S10.19)."""
    return [f"seed {run.seed}: {gap}: nothing to compare with" for run in runs if (gap := _gap(run, metric))]


def _gap(run: SeedRun, metric: Metric) -> str:
    """Return why the float32 training of a run is nothing to compare with, "" where it is."""
    if run.float32.diverged:
        return f"training in float32 {run.float32.diverged}"
    if run.float32.metric is not None and not math.isfinite(run.float32.metric):
        return f"{metric.name} is {run.float32.metric} in float32"
    return ""


def failure_reasons(
    finished: Sequence[SeedRun], cut_off: Sequence[SeedRun], metric: Metric, options: TrainOptions
) -> list[str]:
    """Return why the trainings do not qualify, one sentence each (Rule S10.17).

    ``finished`` are the runs that came to their end, ``cut_off`` those that did not. Runs with nothing to compare with
    are left out.
    """
    failures = []
    limit, tolerance = options.max_exception_rate, options.tolerance
    runs = [run for run in finished if not _gap(run, metric)]
    stepped = [run.mixed for run in (*runs, *cut_off) if not run.float32.diverged]
    steps, exceptions = sum(len(curve.loss) for curve in stepped), sum(len(curve.exceptions) for curve in stepped)
    if too_many_exceptions(exceptions, steps, limit):
        rate = describe_rate(exceptions, steps, limit)
        failures.append(f"{exceptions} of {steps} steps have an exception: {rate}")
    for run in runs:
        if run.mixed.diverged:
            failures.append(f"seed {run.seed}: training in mixed precision {run.mixed.diverged}")
    exact = [run.float32.metric for run in runs if run.float32.metric is not None]
    mixed = [run.mixed.metric for run in runs if run.mixed.metric is not None]
    if mixed and exact:
        failures += _worse_metric(exact, mixed, metric, tolerance)
    if len(finished) == options.runs < RUNS:  # Ctrl-C has a reason of its own
        failures.append(f"{len(finished)} of at least {RUNS} runs: whether the result is constant cannot be told")
    elif mixed and spread(mixed) > spread(exact) + 2 * tolerance:
        spreads = f"{metric.name} varies by {spread(mixed):.4g} over the runs, in float32 by {spread(exact):.4g}"
        failures.append(f"{spreads}: it is not constant within {2 * tolerance:g}")
    return failures


def _worse_metric(exact: Sequence[float], mixed: Sequence[float], metric: Metric, tolerance: float) -> list[str]:
    """Return the reason of Rule S10.14 if the metric is worse than in float32; NaN is worse."""
    before, after = sum(exact) / len(exact), sum(mixed) / len(mixed)
    worse = before - after if metric.higher else after - before
    if worse <= tolerance:
        return []
    means = f"{metric.name} is {after:.4g}, in float32 {before:.4g}"
    return [f"{means}: worse by {worse:.4g}, the tolerance is {tolerance:g}"]


def diverged(loss: Sequence[float], skipped: Sequence[int], finite: bool) -> str:
    """Return why a training came to nothing (Rule S10.16), or ""; ``finite``: whether its parameters are."""
    skipped_steps = set(skipped)
    applied = [value for step, value in enumerate(loss) if step not in skipped_steps]
    if not applied:
        return "made no step: every one was skipped"
    if not finite or not all(map(math.isfinite, applied)):
        return "diverges: its loss or its parameters are not finite"
    tenth = max(1, len(applied) // 10)
    first, last = sum(applied[:tenth]) / tenth, sum(applied[-tenth:]) / tenth
    if len(applied) >= 10 and last >= first != 0:
        return f"does not learn: the loss goes from {first:.4g} to {last:.4g}"
    return ""
