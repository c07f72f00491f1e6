"""Decide whether mixed precision passes: by its exceptions, and by a comparison with float32 and its twins.

- S10.13, S10.20: exceptions of the steady state, and those that no smaller scale prevents.
- S10.14, S10.15: the metric is not worse than in float32, and as constant over the runs as in float32.
- S10.16: no run diverges.
- S10.21: gradients do not become zero.

A seed whose float32 training fails by itself gives nothing to compare with (Rule S10.19). The seed is not judged, and
the verdict is inconclusive unless another seed fails.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mixlist.checker.exception_rate import describe_rate
from mixlist.checker.result import Verdict
from mixlist.training.comparison import Comparison, compare_metrics
from mixlist.training.result import GradientUnderflow, SeedRun
from mixlist.training.steady_state import GOOD_STEPS, ExceptionRates, lower_bound

if TYPE_CHECKING:
    from mixlist.training.evaluation import Metric
    from mixlist.training.options import TrainOptions

MIN_RUNS = 3
# Rule S10.21: the largest share of the gradient values that may become zero, and by how much more of all values may be
# zero than in float32.
MOST_LOST, MOST_MORE_ZEROS = 0.5, 0.1


@dataclass(frozen=True)
class TrainingVerdict:
    """The verdict on a series of trainings, its reasons, and the comparison of the metric (None if there is none)."""

    verdict: Verdict
    reasons: tuple[str, ...]
    comparison: Comparison | None


def judge(
    finished: Sequence[SeedRun],
    rates: ExceptionRates,
    underflow: GradientUnderflow | None,
    metric: Metric,
    options: TrainOptions,
) -> TrainingVerdict:
    """Return the verdict on the runs that came to their end (Rule S10.17)."""
    unjudged = describe_unjudged_runs(finished, metric)
    runs = judged_runs(finished, metric)
    failures = _exception_failures(rates, options)
    failures += [
        f"seed {run.seed}: training in mixed precision {run.mixed.diverged}" for run in runs if run.mixed.diverged
    ]
    failures += [
        f"seed {run.seed}: {metric.name} is {run.mixed.metric}"
        for run in runs
        if run.mixed.metric is not None and not math.isfinite(run.mixed.metric) and not run.mixed.diverged
    ]
    if not unjudged:  # the sampled steps are those of all runs
        failures += _zero_gradient_failures(underflow)
    open_questions = [*unjudged, *_missing_evidence(finished, runs, rates, options)]
    comparison = _compare(runs, metric, options.tolerance)
    if comparison is not None:
        text = describe_comparison(comparison, metric.name)
        if comparison.verdict == "fail":
            failures.append(text)
        elif comparison.verdict == "inconclusive":
            open_questions.append(f"{text}{_describe_runs_needed(comparison)}")
        if not comparison.is_constant:
            failures.append(
                f"{metric.name} differs from float32 by {comparison.deviation:.4g} more or less over the runs (standard"
                f" deviation), the limit is {comparison.largest_deviation:.4g}: it is not constant"
            )
    verdict: Verdict = "fail" if failures else "inconclusive" if open_questions else "pass"
    reasons = (*failures, *open_questions)
    if not reasons and comparison is not None:
        text = describe_comparison(comparison, metric.name)
        passed = f"exceptions stay below their limit, no training diverges, and {text}"
        reasons = (passed, *_hidden_difference(runs, comparison, metric))
    return TrainingVerdict(verdict, reasons, comparison)


def judged_runs(runs: Sequence[SeedRun], metric: Metric) -> list[SeedRun]:
    """Return the runs whose float32 trainings give something to compare with (Rule S10.19)."""
    return [run for run in runs if not _float32_problem(run, metric)]


def describe_unjudged_runs(runs: Sequence[SeedRun], metric: Metric) -> list[str]:
    """Return one sentence for each run whose float32 training gives nothing to compare with (Rule S10.19)."""
    return [
        f"seed {run.seed}: {problem}, so there is nothing to compare with"
        for run in runs
        if (problem := _float32_problem(run, metric))
    ]


def _float32_problem(run: SeedRun, metric: Metric) -> str:
    """Return the reason why the float32 trainings of a run give nothing to compare with, or ""."""
    for history, name in ((run.float32, "in float32"), (run.twin, "of the float32 twin")):
        if history.diverged:
            return f"training {name} {history.diverged}"
        if history.metric is not None and not math.isfinite(history.metric):
            return f"{metric.name} is {history.metric} {name}"
    return ""


def _exception_failures(rates: ExceptionRates, options: TrainOptions) -> list[str]:
    """Return the reasons of Rule S10.13."""
    limit, failures = options.max_exception_rate, []
    always_least = rates.least_scale_steps == rates.start_up_steps + rates.steady_steps
    for exceptions, steps, where in (
        (rates.steady_exceptions, rates.steady_steps, " after the start-up"),
        (rates.least_scale_exceptions, rates.least_scale_steps, "" if always_least else " at the smallest loss scale"),
    ):
        if lower_bound(exceptions, steps) > limit:
            rate = describe_rate(exceptions, steps, limit)
            failures.append(f"{exceptions} of {steps} steps{where} have an exception: {rate}")
            break  # steps may be among both; one reason is enough
    planned, projected = options.planned_steps, rates.projected_rate
    if planned is not None and projected is not None and projected > 0 and projected >= limit:
        failures.append(f"of {planned} planned steps {projected:.2%} would have an exception, the limit is {limit:.2%}")
    return failures


def _zero_gradient_failures(underflow: GradientUnderflow | None) -> list[str]:
    """Return the reason of Rule S10.21."""
    if underflow is None:
        return []
    if underflow.zero > MOST_LOST:
        return [
            f"{underflow.zero:.1%} of the gradient values that are not zero in float32 become zero, the limit is"
            f" {MOST_LOST:.0%}"
        ]
    shares = underflow.zero_gradient_share
    if shares["mixed"] - shares["float32"] > MOST_MORE_ZEROS:
        return [
            f"{shares['mixed']:.1%} of the gradient values are zero, in float32 {shares['float32']:.1%}: more than"
            f" {100 * MOST_MORE_ZEROS:.0f} points above"
        ]
    return []


def _missing_evidence(
    finished: Sequence[SeedRun], runs: Sequence[SeedRun], rates: ExceptionRates, options: TrainOptions
) -> list[str]:
    """Return what the verdict lacks: a steady state, or runs."""
    missing = []
    if rates.unsteady_trainings:
        count = rates.unsteady_trainings
        missing.append(
            f"{count} of {len(runs)} mixed trainings have no step after {GOOD_STEPS} good steps in a row, so the rate"
            " of exceptions is not known: give more --steps, or a smaller --loss-scale"
        )
    # After Ctrl-C there are fewer finished runs than ``options.runs``, and the interruption is a reason already.
    if len(finished) == options.runs < MIN_RUNS:
        missing.append(f"{len(finished)} of at least {MIN_RUNS} runs: too few to judge a training by")
    return missing


def _compare(runs: Sequence[SeedRun], metric: Metric, tolerance: float) -> Comparison | None:
    """Return the comparison of the metric over the runs, None if no run has all three (Rules S10.14, S10.15)."""
    compared = [
        (run.mixed.metric, run.float32.metric, run.twin.metric, _learned(run))
        for run in runs
        if run.mixed.metric is not None and math.isfinite(run.mixed.metric)
    ]
    if not compared:
        return None
    mixed, float32, twins, learned = (np.array(column, np.float64) for column in zip(*compared, strict=True))
    # More is worse from here on.
    unit = -1.0 if metric.higher_is_better else 1 / learned
    return compare_metrics(mixed * unit, float32 * unit, twins * unit, tolerance, relative=not metric.higher_is_better)


def _learned(run: SeedRun) -> float:
    """Return what the float32 training has gained of a metric that is better when lower, or where it stands.

    That is the larger of the two: a training that starts from converged values gains nothing (Rule S10.14).
    """
    first, last = run.float32.first_metric, run.float32.metric
    gained = first - last if first is not None and last is not None and math.isfinite(first) else 0.0
    return max(gained, abs(last or 0.0), float(np.finfo(np.float32).tiny))


def describe_comparison(comparison: Comparison, name: str) -> str:
    """Return the comparison as a part of a sentence, with both bounds and the margin."""
    of_loss = " of what float32 has learned" if comparison.relative else ""
    direction = "better" if comparison.difference < 0 else "worse"
    # A bound is positive where the metric is worse, as in the JSON.
    return (
        f"{name} is {direction} than in float32 by {abs(comparison.difference):.2g}{of_loss} (worse by at least"
        f" {comparison.lower:.2g} and at most {comparison.upper:.2g}), the margin is {comparison.margin:.2g}"
    )


def _describe_runs_needed(comparison: Comparison) -> str:
    if comparison.runs_needed is None:
        return "; more runs would not decide"
    return f"; about {comparison.runs_needed} runs would decide (--runs)"


def _hidden_difference(runs: Sequence[SeedRun], comparison: Comparison, metric: Metric) -> list[str]:
    """Return a remark if a loss is worse than float32 varies by itself, but small beside what was learned."""
    if not comparison.relative or comparison.difference <= comparison.scatter * (1 + 6 / len(runs)):
        return []
    mixed, float32 = ([getattr(run, kind).metric for run in runs] for kind in ("mixed", "float32"))
    return [
        f"but {metric.name} is {np.mean(mixed):.3g}, and in float32 {np.mean(float32):.3g}: float32 varies by less, and"
        " the difference is small only beside what the training has learned; judge it by a smaller --tolerance"
    ]


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
    return ""
