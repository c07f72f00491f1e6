"""Whether the trainings qualify: the rules of the Ascend documents, and what float32 did beside.

- fewer than 0.5 % of the steps with an exception (0.1 % for a large global batch);
- the metric is not worse than that of float32 by more than the tolerance, as means over the runs;
- at least three runs, whose metric is as constant as that of float32 (within twice the tolerance);
- no run diverges, and every run learns: the loss of its last tenth is below that of its first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from mixlist.checker.exception_rate import describe_rate, too_many
from mixlist.training.result import Run, spread

RUNS = 3


def reasons(
    runs: Sequence[Run],
    total: int,
    exceptions: int,
    limit: float,
    higher: bool,
    tolerance: float,
    metric: str,
    complete: bool,
) -> list[str]:
    """Why the trainings do not qualify, one sentence each; [] where they do.

    ``exceptions`` of ``total`` mixed steps were bad; ``runs`` are those that came to their end, ``complete``: all that
    were asked for.
    """
    found = []
    if too_many(exceptions, total, limit):
        rate = describe_rate(exceptions, total, limit)
        found.append(f"{exceptions} of {total} steps have an exception: {rate}")
    for run in runs:
        if run.float32.diverged:
            found.append(f"seed {run.seed}: training in float32 {run.float32.diverged}: nothing to compare with")
        if run.mixed.diverged:
            found.append(f"seed {run.seed}: training in mixed precision {run.mixed.diverged}")
    exact = [r.float32.metric for r in runs if r.float32.metric is not None]
    mixed = [r.mixed.metric for r in runs if r.mixed.metric is not None]
    if mixed and exact:
        found += _metric(exact, mixed, higher, tolerance, metric)
    if complete and len(runs) < RUNS:
        found.append(f"{len(runs)} of at least {RUNS} runs: whether the result is constant cannot be told")
    elif mixed and spread(mixed) > spread(exact) + 2 * tolerance:
        told = f"{metric} varies by {spread(mixed):.4g} over the runs, in float32 by {spread(exact):.4g}"
        found.append(f"{told}: it is not constant within {2 * tolerance:g}")
    return found


def _metric(exact: list[float], mixed: list[float], higher: bool, tolerance: float, name: str) -> list[str]:
    before, after = sum(exact) / len(exact), sum(mixed) / len(mixed)
    worse = before - after if higher else after - before
    if worse <= tolerance:
        return []
    return [f"{name} is {after:.4g}, in float32 {before:.4g}: worse by {worse:.4g}, the tolerance is {tolerance:g}"]


def diverged(loss: Sequence[float], skipped: Sequence[int], finite: bool) -> str:
    """Why a training came to nothing, or ""; ``finite``: whether its parameters are."""
    left_out = set(skipped)
    applied = [value for at, value in enumerate(loss) if at not in left_out]
    if not applied:
        return "made no step: every one was skipped"
    if not finite or not all(map(math.isfinite, applied)):
        return "diverges: its loss or its parameters are not finite"
    tenth = max(1, len(applied) // 10)
    first, last = sum(applied[:tenth]) / tenth, sum(applied[-tenth:]) / tenth
    if len(applied) >= 10 and last >= first != 0:
        return f"does not learn: the loss goes from {first:.4g} to {last:.4g}"
    return ""
