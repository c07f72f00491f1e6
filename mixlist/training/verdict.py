"""Decide whether mixed precision passes, by the rules of the Ascend documents and a comparison with float32.

Mixed precision passes if these rules hold:

- S10.13: less than 0.5 % of the steps have an exception (0.1 % for a large global batch).
- S10.14: the metric is not worse than in float32 by more than the tolerance, as means over the runs.
- S10.15: there are at least three runs, and the spread of their metric exceeds the spread in float32 by at most twice
  the tolerance.
- S10.16: no run diverges, and every run learns: the loss of its last tenth is below the loss of its first tenth.

A seed whose float32 training fails by itself gives nothing to compare with (Rule S10.19). The seed is not judged, and
the verdict is inconclusive unless another seed fails.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mixlist.checker.exception_rate import describe_rate, too_many_exceptions
from mixlist.training.result import SeedRun

if TYPE_CHECKING:
    from mixlist.training.evaluation import Metric
    from mixlist.training.options import TrainOptions

MIN_RUNS = 3


def describe_unjudged_runs(runs: Sequence[SeedRun], metric: Metric) -> list[str]:
    """Return one sentence for each run whose float32 training gives nothing to compare with (Rule S10.19)."""
    return [
        f"seed {run.seed}: {problem}, so there is nothing to compare with"
        for run in runs
        if (problem := _float32_problem(run, metric))
    ]


def _float32_problem(run: SeedRun, metric: Metric) -> str:
    """Return the reason why the float32 training of a run gives nothing to compare with, or ""."""
    if run.float32.diverged:
        return f"training in float32 {run.float32.diverged}"
    if run.float32.metric is not None and not math.isfinite(run.float32.metric):
        return f"{metric.name} is {run.float32.metric} in float32"
    return ""


def failure_reasons(
    finished: Sequence[SeedRun], interrupted: Sequence[SeedRun], metric: Metric, options: TrainOptions
) -> list[str]:
    """Return the reasons for the verdict fail, one sentence each; an empty list if no rule fails (Rule S10.17).

    ``finished`` holds the runs that came to their end, ``interrupted`` those that Ctrl-C ended. Runs whose float32
    training gives nothing to compare with are left out.
    """
    reasons = []
    limit, tolerance = options.max_exception_rate, options.tolerance
    runs = [run for run in finished if not _float32_problem(run, metric)]

    # Rule S10.13. The steps of an interrupted run count too: an exception is known as soon as its step is done.
    histories = [run.mixed for run in (*runs, *interrupted) if not run.float32.diverged]
    steps = sum(len(history.loss) for history in histories)
    exceptions = sum(len(history.exceptions) for history in histories)
    if too_many_exceptions(exceptions, steps, limit):
        rate = describe_rate(exceptions, steps, limit)
        reasons.append(f"{exceptions} of {steps} steps have an exception: {rate}")

    # Rule S10.16.
    for run in runs:
        if run.mixed.diverged:
            reasons.append(f"seed {run.seed}: training in mixed precision {run.mixed.diverged}")

    # Rules S10.14 and S10.15.
    float32_metrics = [run.float32.metric for run in runs if run.float32.metric is not None]
    mixed_metrics = [run.mixed.metric for run in runs if run.mixed.metric is not None]
    if mixed_metrics and float32_metrics:
        reasons += _mean_failure_reasons(float32_metrics, mixed_metrics, metric, tolerance)
    # After Ctrl-C there are fewer finished runs than ``options.runs``, and the interruption is a reason already.
    if len(finished) == options.runs < MIN_RUNS:
        reasons.append(f"{len(finished)} of at least {MIN_RUNS} runs: too few to show that {metric.name} is constant")
    elif mixed_metrics and _spread(mixed_metrics) > _spread(float32_metrics) + 2 * tolerance:
        reasons.append(
            f"{metric.name} varies by {_spread(mixed_metrics):.4g} over the runs, in float32 by"
            f" {_spread(float32_metrics):.4g}: it is not constant within {2 * tolerance:g}"
        )
    return reasons


def _mean_failure_reasons(
    float32_metrics: Sequence[float], mixed_metrics: Sequence[float], metric: Metric, tolerance: float
) -> list[str]:
    """Return the reason of Rule S10.14, if the mean of the mixed metrics is worse by more than the tolerance."""
    float32_mean = sum(float32_metrics) / len(float32_metrics)
    mixed_mean = sum(mixed_metrics) / len(mixed_metrics)
    decline = float32_mean - mixed_mean if metric.higher_is_better else mixed_mean - float32_mean
    if decline <= tolerance:  # False if the mixed metric is NaN, so NaN fails
        return []
    means = f"{metric.name} is {mixed_mean:.4g}, in float32 {float32_mean:.4g}"
    return [f"{means}: worse by {decline:.4g}, the tolerance is {tolerance:g}"]


def _spread(values: list[float]) -> float:
    """Return the largest value minus the smallest, 0 for no values."""
    return max(values) - min(values) if values else 0.0


def reason_of_failure(loss: Sequence[float], skipped: Sequence[int], parameters_finite: bool) -> str:
    """Return the reason why a training failed (Rule S10.16), as the end of a sentence, or "".

    ``loss`` is the loss of each step, ``skipped`` the steps that were skipped. ``parameters_finite`` is
    True if all parameters are finite at the end.
    """
    skipped_steps = set(skipped)
    # The loss of a skipped step may be infinite without any effect on the parameters.
    applied_losses = [value for step, value in enumerate(loss) if step not in skipped_steps]
    if not applied_losses:
        return "applied no step: every step was skipped"
    if not parameters_finite or not all(map(math.isfinite, applied_losses)):
        return "diverges: its loss or its parameters are not finite"
    # The means of a tenth of the steps, because the loss of single batches varies.
    tenth = max(1, len(applied_losses) // 10)
    first, last = sum(applied_losses[:tenth]) / tenth, sum(applied_losses[-tenth:]) / tenth
    # Fewer than 10 losses are too noisy to compare. A loss that starts at 0 cannot fall.
    if len(applied_losses) >= 10 and last >= first != 0:
        return f"does not learn: the loss goes from {first:.4g} to {last:.4g}"
    return ""
