"""Decide whether mixed precision passes: by its exceptions, and by a comparison with float32 and its twins.

- The network's own exceptions are rare, and those of the loss scale come once.
- The metric is not worse than in float32 (``compare_metrics``), and as constant over the runs (``Comparison``).
- No run diverges.
- Gradients do not become zero.

A seed whose float32 training fails by itself, or learns nothing, gives nothing to compare with. The seed
is not judged, and the verdict is inconclusive unless another seed fails, and most seeds are judged.

To separate the exceptions, a loop is replayed with the scales of its mixed training, but with the scale 1 in the steps
that had an exception: there ``scaler.get_scale()`` is 1 in arithmetic and the recorded scale in comparisons. The losses
of the other steps must be those of the training, bit for bit on a CPU, and within the difference of the twins
elsewhere. An exception that has gone belongs to the scale: a dynamic scaler lowers the scale, and a training of any
length has this exception once. One that is still there is the network's own, and comes again and again.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np

from mixlist.checker.limits import describe_rate, too_many_exceptions
from mixlist.checker.result import Verdict
from mixlist.number_text import format_share
from mixlist.option_spelling import spell
from mixlist.training.result import (
    Comparison,
    GradientUnderflow,
    Replay,
    ScaleExceptions,
    SeedRun,
    TrainingHistory,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mixlist.training.options import TrainOptions
    from mixlist.training.scalers import Scaler

    FloatArray = NDArray[np.float64]


# --- the verdict ---

MIN_RUNS = 3
NOTHING_TO_COMPARE = (
    "so there is nothing to compare with: correct the training in float32 first, its learning rate, number of steps"
    " or data"
)
UNKNOWN_CAUSE = (
    "the loop depends on more than its seed: a second training has other losses, so the cause of its exceptions is not"
    " known"
)
SKIPS_MOST = "more than half of the steps are skipped, in float32 too, and its loss rises: train longer"
# Of 2,000 simulated groups of runs: see tests/training/test_comparison.py.
# "Clearly worse": by three times what float32 varies by.
FEW_RUNS = "3 runs are few: of trainings that are clearly worse than float32, 8 % pass, and 1 % with 4 runs"
# The largest share of the gradient values that may become zero, and by how much more of all values may be
# zero than in float32.
MOST_LOST, MOST_MORE_ZEROS = 0.5, 0.1
# A comparison that lets the metric be worse by a larger share than this shows nothing.
MOST_MARGIN = 0.25
# Several losses in a step, as of a GAN, need not fall. They mean a training that fails if they rise by this factor.
SEVERAL_RISE = 10.0
# With a fall of the loss by less than this share in float32, a remark says that the training shows little.
LITTLE_FALL = 0.02
# A difference of a loss that is this multiple of its unit is shown as a multiple, and not in percent.
MANY_TIMES = 2.0
# A gain of the metric that is this multiple of the tolerance needs no other seed to confirm it.
MUCH_GAIN = 5.0
# A fall of the loss, or a gain, is no scatter if it exceeds this number of its standard errors.
LEARNING_ERRORS = 2.0
# Words in the name of a metric.
_LOWER_IS_BETTER = frozenset({
    "loss", "error", "err", "perplexity", "ppl", "nll", "mse", "rmse", "mae", "mape", "cer", "wer", "fid", "bpc", "bpb",
    "eer", "distance", "divergence", "ce", "bce", "kl", "nats", "bits", "rmsd", "logloss", "regret",
})  # fmt: skip
_HIGHER_IS_BETTER = frozenset({
    "accuracy", "acc", "top1", "top5", "f1", "auc", "auroc", "map", "ap", "iou", "miou", "dice", "precision", "recall",
    "bleu", "rouge", "r2", "psnr", "ssim", "score", "reward",
})  # fmt: skip


@dataclass(frozen=True)
class Metric:
    """A metric by its name, and whether more of it is better."""

    name: str
    higher_is_better: bool

    @classmethod
    def of(cls, name: str, better: str | None) -> Metric:
        """Return the metric of a name; ``better`` is "higher", "lower", or None if the name says it.

        A name with a word such as loss, error or perplexity is better when lower, any other when higher.
        """
        if better is None:
            better = "lower" if _words(name) & _LOWER_IS_BETTER else "higher"
        return cls(name, better == "higher")

    @property
    def is_known(self) -> bool:
        """Return whether the name says if more or less is better."""
        return bool(_words(self.name) & (_LOWER_IS_BETTER | _HIGHER_IS_BETTER))


def _words(name: str) -> set[str]:
    return set(re.findall(r"[a-z]+\d*", name.lower()))


@dataclass(frozen=True)
class TrainingVerdict:
    """The verdict on a series of trainings, its reasons, and what they rest on; see ``TrainReport``.

    ``judged``: the seeds whose float32 trainings give something to compare with. ``comparison`` is None if no run could
    be compared, ``scale_exceptions`` if no exception belongs to the scale.
    """

    verdict: Verdict
    reasons: tuple[str, ...]
    judged: frozenset[int]
    comparison: Comparison | None
    scale_exceptions: ScaleExceptions | None


@dataclass
class _Findings:
    """The reasons against a verdict ``pass``, and remarks for one."""

    failures: list[str] = field(default_factory=list)
    open_questions: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


def judge(
    finished: Sequence[SeedRun],
    replays: Sequence[Replay],
    underflow: GradientUnderflow | None,
    metric: Metric,
    scaler: Scaler,
    options: TrainOptions,
) -> TrainingVerdict:
    """Return the verdict on the runs that came to their end. ``scaler`` is new.

    It is ``fail`` if exceptions, the metric, its constancy, a divergence or lost gradients fail, also after an
    interruption. Else it is ``inconclusive`` if the training was interrupted, the comparison is open, a seed is not
    judged, the cause of exceptions is not known, the trainings of a seed have different numbers of steps or first
    losses, or there are fewer than three runs.
    """
    findings = _Findings()
    problems = {run.seed: _float32_problem(run, metric, options) for run in finished}
    if not options.float32:
        _judge_without_float32(findings, finished, metric, options.tolerance)
    runs = [run for run in finished if not problems[run.seed]]
    findings.open_questions += [f"{text}, {NOTHING_TO_COMPARE}" for text in _by_seeds(problems)]
    own = {replay.seed: replay.own_exceptions for replay in replays if replay.repeats}
    findings.open_questions += _by_seeds({replay.seed: UNKNOWN_CAUSE for replay in replays if not replay.repeats})
    scale_exceptions = measure_scale_exceptions(runs, own, scaler, options.max_exception_rate)
    _judge_own_exceptions(findings, runs, own, options.max_exception_rate)
    if scale_exceptions is not None:
        steps = sum(len(run.mixed.loss) for run in runs)
        _judge_scale_exceptions(findings, scale_exceptions, steps, scaler, options.max_exception_rate)
    _judge_courses(findings, runs, metric, options.float32)
    findings.open_questions[:0] = _describe_other_starts(finished)
    if scaler.INITIAL_SCALE_PARAMETER and not scaler.steps_to_growth:
        findings.remarks.append("a static loss scale is not recommended: gradients change in the course of a training")
    if len(runs) == len(finished):  # the sampled steps are those of all runs
        findings.failures += zero_gradient_failures(underflow)
    # After Ctrl-C there are fewer finished runs than ``options.runs``, and the interruption is a reason already.
    if len(finished) == options.runs < MIN_RUNS:
        findings.open_questions.append(f"{len(finished)} of at least {MIN_RUNS} runs: too few to judge a training by")
    comparison = _compare(runs, metric, options.tolerance) if options.float32 else None
    if not findings.failures:  # else the exceptions decide, and nothing is claimed about float32
        rising = [run.seed for run in runs if run.mixed.skips_most and _rises(run.float32.loss)]
        findings.open_questions += _by_seeds(dict.fromkeys(rising, SKIPS_MOST))
    if comparison is not None:
        is_open = bool(findings.failures or findings.open_questions)
        _judge_comparison(findings, comparison, len(runs), metric, options.tolerance)
        findings.open_questions += _large_margin(runs, comparison, metric)
        findings.open_questions += _describe_unlearned_metric(runs, metric, options)
        if findings.open_questions and not (is_open or findings.failures):
            findings.open_questions.insert(0, _describe_stability(runs, options))
    judged = frozenset(run.seed for run in runs)
    if 2 * len(runs) < len(finished):  # float32 fails in most seeds: the others say nothing about the precision
        findings.open_questions += findings.failures
        findings.failures, judged = [], frozenset()
    verdict: Verdict = "fail" if findings.failures else "inconclusive" if findings.open_questions else "pass"
    reasons = [*findings.failures, *findings.open_questions] or _pass_reasons(runs, comparison, metric, options)
    return TrainingVerdict(verdict, (*reasons, *findings.remarks), judged, comparison, scale_exceptions)


def _describe_stability(runs: Sequence[SeedRun], options: TrainOptions) -> str:
    """Return what a training shows that passes, or whose metric alone is open."""
    some = any(run.mixed.exceptions for run in runs)
    exceptions = "exceptions stay below their limit" if some else "no step has an exception"
    last = "gradients do not become zero" if options.float32 else "the metric is constant"
    return f"{exceptions}, no training diverges, and {last}"


def _describe_little(runs: Sequence[SeedRun]) -> list[str]:
    """Return a remark if float32 itself learns little, by its loss: then the runs show little."""
    falls = [
        1 - float(np.mean(_last_fifth(run.float32.loss))) / run.float32.loss[0]
        for run in runs
        if run.float32.loss and run.float32.loss[0] > 0 and learns(run.float32.loss) and not run.float32.several_losses
    ]
    if not falls or max(falls) > LITTLE_FALL:
        return []
    return [f"float32 learns little: its loss falls by at most {format_share(max(falls))}, so train longer to see more"]


def _pass_reasons(
    runs: Sequence[SeedRun], comparison: Comparison | None, metric: Metric, options: TrainOptions
) -> list[str]:
    """Return what a training that passes shows."""
    reasons = [_describe_stability(runs, options), *_describe_little(runs)]
    if comparison is not None:
        reasons.append(describe_comparison(comparison, metric.name, options.tolerance))
        reasons += _hidden_difference(runs, comparison, metric)
    return reasons + [FEW_RUNS] * (options.runs == MIN_RUNS)


def _judge_without_float32(findings: _Findings, runs: Sequence[SeedRun], metric: Metric, tolerance: float) -> None:
    """Judge mixed runs that no float32 run can be compared with: by what they learn, and by a constant metric.

    The metric is constant if its standard deviation over the runs is at most the tolerance, of a metric that is better
    when lower as a share of its mean. If it is not, the verdict is inconclusive: float32 may vary as much.
    """
    findings.remarks.append(
        f"float32 was not trained: {metric.name} was not compared with it, nor how many gradients become zero"
    )
    findings.open_questions += [
        f"seed {run.seed}: the mixed training learns nothing: its loss does not fall"
        for run in runs
        if not (run.mixed.diverged or run.mixed.several_losses or learns(run.mixed.loss))
    ]
    values = np.array([run.mixed.metric for run in runs if run.mixed.metric is not None], np.float64)
    if len(values) > 1 and np.isfinite(values).all():
        unit = 1.0 if metric.higher_is_better else max(abs(float(values.mean())), float(np.finfo(np.float32).tiny))
        deviation = float(values.std(ddof=1)) / unit
        if deviation > tolerance:
            findings.open_questions.append(
                f"{metric.name} is not constant over the runs: its standard deviation is {deviation:.2g}, the limit is"
                f" {tolerance:g} ({spell('tolerance')})"
            )


def _float32_problem(run: SeedRun, metric: Metric, options: TrainOptions) -> str:
    """Return the reason why the float32 trainings of a run give nothing to compare with, or "".

    Such a seed counts neither for nor against a limit. float32 learns nothing if the mean loss of the last fifth of its
    steps is not below that of the first fifth by two standard errors (see ``learns``). Several losses in a step need
    only not rise to ``SEVERAL_RISE`` times the first. No fall is asked of a loss that does not rise while the metric
    becomes better than that of the untrained network, by more than the tolerance and the twins differ by. If the mixed
    run skips more than half of the steps, which float32 then skips too, float32 was not trained: then one that skips
    none decides.
    """
    if not options.float32:
        return ""
    for history, name in ((run.float32, "in float32"), (run.twin, "of the float32 twin")):
        if history.diverged:
            return f"training {name} {history.diverged}"
        if history.metric is not None and not math.isfinite(history.metric):
            return f"{metric.name} is {history.metric} {name}"
    if run.mixed.skips_most:
        return run.unskipped
    problem = _learning_problem(run.float32)
    if not problem:
        return ""
    gain, tolerance, scatter = _gain(run, metric, options.tolerance)
    if not _rises(run.float32.loss) and gain > max(tolerance, scatter):
        return ""
    as_before = f", and {metric.name} is as before the training" if abs(gain) <= tolerance else ""
    return f"training in float32 {problem}{as_before}"


def _gain(run: SeedRun, metric: Metric, tolerance: float) -> tuple[float, float, float]:
    """Return the gain of the metric over the untrained network, the tolerance, and the difference of the twins.

    The gain is NaN, and with it no comparison is true, if a metric is not known or not finite.
    """
    values = run.untrained, run.float32.metric, run.twin.metric
    before, after, twin = (math.nan if value is None or math.isinf(value) else value for value in values)
    gain = after - before if metric.higher_is_better else before - after
    return gain, tolerance if metric.higher_is_better else tolerance * abs(before), abs(twin - after)


def gains_much(run: SeedRun, metric: Metric, tolerance: float) -> bool:
    """Return whether float32 makes the metric better by far more than the tolerance, and than its twins differ by.

    False, too, if the metric of the untrained network was not measured.
    """
    gain, tolerance, scatter = _gain(run, metric, tolerance)
    return gain > MUCH_GAIN * max(tolerance, scatter)


def _describe_unlearned_metric(runs: Sequence[SeedRun], metric: Metric, options: TrainOptions) -> list[str]:
    """Return why a metric shows nothing: float32 does not make it better, by more than the seeds scatter."""
    measured = [run for run in runs if run.untrained is not None and math.isfinite(run.untrained)]
    tolerance = options.tolerance
    if not judges_gain(metric, options) or not measured or any(gains_much(r, metric, tolerance) for r in measured):
        return []
    gain = np.array([_gain(run, metric, tolerance)[0] for run in measured])
    error = float(gain.std(ddof=1)) / math.sqrt(len(gain)) if len(gain) > 1 else 0.0
    if gain.mean() > max(tolerance, LEARNING_ERRORS * error):
        return []
    if gain.mean() > tolerance:
        return [
            f"{metric.name} becomes better by {gain.mean():.2g} in float32, and this differs as much from seed to seed:"
            " train longer, or measure it on more data"
        ]
    pairs = [(run.untrained, run.float32.metric) for run in measured]
    before, after = np.array(pairs, np.float64).mean(axis=0)
    return [
        f"{metric.name} is {before:.4g} before the training and {after:.4g} after it in float32, so it cannot show a"
        " loss: correct the data, or return a metric that the training improves"
    ]


def judges_gain(metric: Metric, options: TrainOptions) -> bool:
    """Return whether the metric must become better: more of it is, for sure. Losses have their own unit."""
    return metric.higher_is_better and (metric.is_known or options.better is not None)


def describe_unskipped(history: TrainingHistory) -> str:
    """Return what is wrong with a training in float32 that skips no step, or "". Mixed precision skips most there."""
    if history.diverged:
        return f"training in float32, without skipped steps, {history.diverged}"
    problem = _learning_problem(history)
    return f"training in float32, without skipped steps, {problem}" if problem else ""


def _learning_problem(history: TrainingHistory) -> str:
    """Return that a training learns nothing by its loss, as the end of a sentence, or "". Several need not fall."""
    if history.several_losses:
        return "learns nothing: its loss rises" if _rises(history.loss, SEVERAL_RISE) else ""
    return "" if learns(history.loss) else "learns nothing: its loss does not fall"


def learns(losses: Sequence[float]) -> bool:
    """Return whether the mean loss of the last fifth is below that of the first, by more than the losses scatter.

    It is enough, too, that each loss of the last fifth is at most half of the first one, and their mean at most half of
    the median of the first fifth: a few steps at the beginning may be far above all others. A loss that ends at more
    than twice the first one is not learned, although it may fall from a peak.
    """
    part = max(1, len(losses) // 5)
    first, last = np.array(losses[:part], np.float64), np.array(_last_fifth(losses), np.float64)
    if not len(losses) or not (np.isfinite(first).all() and np.isfinite(last).all()) or _rises(losses):
        return False
    if 0 < 2 * last.max() <= losses[0] and 2 * last.mean() <= np.median(first):
        return True
    error = math.sqrt((first.var(ddof=1) + last.var(ddof=1)) / part) if part > 1 else 0.0
    return bool(first.mean() - last.mean() > LEARNING_ERRORS * error)


def _rises(losses: Sequence[float], factor: float = 2.0) -> bool:
    """Return whether every loss of the last fifth is more than ``factor`` times the first one, or NaN.

    If the first loss is negative, zero takes the place of twice the first one.
    """
    most = losses[0] + (factor - 1) * abs(losses[0]) if losses else 0.0
    return bool(losses) and not any(loss <= most for loss in _last_fifth(losses))


def _last_fifth(losses: Sequence[float]) -> Sequence[float]:
    """Return the losses of the last fifth of the steps, at least one."""
    return losses[-max(1, len(losses) // 5) :]


def _judge_own_exceptions(
    findings: _Findings, runs: Sequence[SeedRun], own: dict[int, tuple[int, ...]], limit: float
) -> None:
    """Judge the exceptions that no loss scale prevents. ``own`` has those of each replayed seed.

    They fail if in two of three runs the exact lower bound of their rate is at least the limit. If only the rate of all
    runs is, the verdict is inconclusive: few steps do not show a rate.
    """
    counts = [(len(own.get(run.seed, ())), len(run.mixed.loss)) for run in runs]
    exceptions, steps = sum(count for count, _ in counts), sum(run_steps for _, run_steps in counts)
    if not exceptions:
        return
    text = (
        f"{exceptions} of {steps} steps have an exception that no loss scale prevents:"
        f" {describe_rate(exceptions, steps, limit)}"
    )
    # A run proves it if its own rate is certainly at or above the limit. A run without an exception proves nothing, not
    # even with a limit of 0.
    proven_runs = sum(count > 0 and lower_bound(count, run_steps) >= limit for count, run_steps in counts)
    if proven_runs >= math.ceil(2 * len(runs) / 3):
        findings.failures.append(text)
    elif exceptions / steps >= limit:
        with_some = [str(run.seed) for run, (count, _) in zip(runs, counts, strict=True) if count]
        several = 3 * len(with_some) >= 2 * len(runs)
        only = f"only in seed{'s' * (len(with_some) > 1)} {', '.join(with_some)}, so more runs would decide"
        findings.open_questions.append(f"{text}; {'more steps would decide' if several else only}")


def _judge_scale_exceptions(
    findings: _Findings, found: ScaleExceptions, steps: int, scaler: Scaler, limit: float
) -> None:
    """Judge the exceptions that belong to the loss scale, in so many steps: a longer training has no more of them.

    They fail if the scale never changes, or if it grows too often and the rate is certainly at least the limit.
    """
    text = f"the loss scale is too large in {found.steps} of {steps} steps"
    if not scaler.steps_to_growth:
        findings.failures.append(f"{text}, and the scaler {scaler.NAME} never lowers it")
    elif _grows_too_often(scaler, limit):
        often = f"{text}: it grows too often, raise {scaler.GROWTH_PARAMETER} from {scaler.steps_to_growth}"
        certain = lower_bound(found.steps, steps) >= limit
        (findings.failures if certain else findings.open_questions).append(often)
    else:
        advice = "the scaler lowers it" if found.first_scale is None else f"start it at {found.first_scale:g}"
        findings.remarks.append(f"{text}: {advice}")


def _judge_courses(findings: _Findings, runs: Sequence[SeedRun], metric: Metric, compares: bool) -> None:
    """Judge each training by itself, and whether the trainings of a seed can be compared."""
    failures: dict[int, str] = {}
    for run in runs:
        mixed, float32, twin = run.mixed, run.float32, run.twin
        if mixed.diverged:
            failures[run.seed] = f"training in mixed precision {mixed.diverged}"
        elif mixed.metric is not None and not math.isfinite(mixed.metric):
            failures[run.seed] = f"{metric.name} is {mixed.metric}"
        if compares and not _has_equal_lengths(run):
            lengths = len(mixed.loss), len(float32.loss), len(twin.loss)
            findings.open_questions.append(
                f"seed {run.seed}: the trainings have {lengths[0]}, {lengths[1]} and {lengths[2]} steps (mixed,"
                " float32, twin): they cannot be compared at equal updates"
            )
    findings.failures += _by_seeds(failures)


def _by_seeds(problems: Mapping[int, str]) -> list[str]:
    """Return each problem once, with the seeds that have it."""
    seeds: dict[str, list[str]] = {}
    for seed, problem in problems.items():
        if problem:
            seeds.setdefault(problem, []).append(str(seed))
    return [f"{'seeds' if len(of) > 1 else 'seed'} {', '.join(of)}: {problem}" for problem, of in seeds.items()]


def _has_equal_lengths(run: SeedRun) -> bool:
    return len(run.mixed.loss) == len(run.float32.loss) == len(run.twin.loss)


def _describe_other_starts(finished: Sequence[SeedRun]) -> list[str]:
    """Return a sentence for each seed whose float32 trainings begin with different losses."""
    starts = [(run.seed, run.float32.first_loss, run.twin.first_loss) for run in finished]
    return [
        f"seed {seed}: two trainings in float32 begin with the losses {first:.6g} and {second:.6g}: make network,"
        " optimizer and data inside of the function, and seed what it draws"
        for seed, first, second in starts
        if first is not None and second is not None and _differ(first, second)
    ]


def _differ(first: float, second: float) -> bool:
    return math.isfinite(first) and not math.isclose(first, second, rel_tol=1e-5)


def zero_gradient_failures(underflow: GradientUnderflow | None) -> list[str]:
    """Return the reason why too many gradients become zero, or nothing.

    The share of zeros in mixed precision may be ``MOST_MORE_ZEROS`` above that in float32 at the same steps, and
    ``MOST_LOST`` of the values that are not zero in float32 may be lost: (z - f) / (1 - f) with the shares of zeros z,
    f.
    """
    if underflow is None:
        return []
    if underflow.zero > MOST_LOST:
        lost = format_share(underflow.zero)
        limit = format_share(MOST_LOST)
        return [f"{lost} of the gradient values that are not zero in float32 become zero, the limit is {limit}"]
    shares = underflow.zero_gradient_share
    if shares["mixed"] - shares["float32"] > MOST_MORE_ZEROS:
        mixed, float32 = format_share(shares["mixed"]), format_share(shares["float32"])
        return [
            f"{mixed} of the gradient values are zero, in float32 {float32}: more than"
            f" {100 * MOST_MORE_ZEROS:.0f} points above"
        ]
    return []


def _compare(runs: Sequence[SeedRun], metric: Metric, tolerance: float) -> Comparison | None:
    """Return the comparison of the metric over the runs, None if no run has all three, or applied a step."""
    compared = [
        (run.mixed.metric, run.float32.metric, run.twin.metric, _learned(run, metric))
        for run in runs
        if run.mixed.metric is not None
        and math.isfinite(run.mixed.metric)
        and any(map(any, run.mixed.applied))  # else float32 was not trained, either
        and _has_equal_lengths(run)
    ]
    if not compared:
        return None
    mixed, float32, twins, learned = (np.array(column, np.float64) for column in zip(*compared, strict=True))
    # More is worse from here on.
    unit = -1.0 if metric.higher_is_better else 1 / learned
    return compare_metrics(mixed * unit, float32 * unit, twins * unit, tolerance, relative=not metric.higher_is_better)


def _has_fall(name: str) -> bool:
    """Return whether a metric is a loss by its name: its unit is what the loss falls by in the training."""
    return "loss" in name.lower()


def _learned(run: SeedRun, metric: Metric) -> float:
    """Return the unit of a metric that is better when lower: its magnitude in float32, or the fall of a loss if larger.

    The fall alone is no unit: a training that starts from converged values has none.
    """
    last, gained = abs(run.float32.metric or 0.0), 0.0
    if _has_fall(metric.name) and not run.float32.several_losses and run.float32.loss:
        gained = run.float32.loss[0] - last
    return max(gained if math.isfinite(gained) else 0.0, last, float(np.finfo(np.float32).tiny))


def _judge_comparison(findings: _Findings, comparison: Comparison, runs: int, metric: Metric, tolerance: float) -> None:
    """Judge the metric."""
    text = describe_comparison(comparison, metric.name, tolerance)
    if comparison.verdict == "fail":
        findings.failures.append(text)
    elif comparison.verdict == "inconclusive":
        # More runs alone decide only if nothing else is open.
        needed = _describe_runs_needed(comparison, runs, tolerance) if not findings.open_questions else ""
        findings.open_questions.append(f"{text}{needed}")
    if comparison.constancy != "pass":
        text = (
            f"the difference of {metric.name} from float32 varies over the runs: its standard deviation is"
            f" {_show(comparison, comparison.deviation, metric.name)},"
            f" and {_show(comparison, comparison.largest_deviation)} is allowed"
        )
        if comparison.constancy == "fail":
            findings.failures.append(text)
        else:
            findings.open_questions.append(f"{text}; a single run differs, and more runs would decide")


def _large_margin(runs: Sequence[SeedRun], comparison: Comparison, metric: Metric) -> list[str]:
    """Return the reason why a comparison that passes shows nothing, or nothing."""
    level = 1.0 if comparison.relative else float(np.mean([abs(run.float32.metric or 0.0) for run in runs]))
    if comparison.verdict != "pass" or comparison.margin <= MOST_MARGIN * level:
        return []
    if comparison.scatter * (1 + 6 / len(runs)) < comparison.margin:  # the margin is the tolerance
        return [
            f"{metric.name} is so small that it could be worse by a quarter and pass: use a smaller"
            f" {spell('tolerance')}, or {spell('better', 'lower')} for a loss"
        ]
    return [
        f"trainings in float32 differ so much that {metric.name} could be worse by"
        f" {_show(comparison, comparison.margin)} and pass: train longer, or measure it on more data"
    ]


def _show(comparison: Comparison, value: float, name: str = "") -> str:
    """Return a difference of the metric ``name`` as text: a loss is compared by shares of what was learned."""
    if not comparison.relative:
        return f"{value:.2g}"
    is_large = abs(value) >= MANY_TIMES
    if _has_fall(name):
        unit = " what float32 has learned" if is_large else " of what float32 has learned"
    else:
        unit = " the value in float32" if is_large else ""
    return f"{value:.2g} times{unit}" if is_large else f"{format_share(value, digits=2)}{unit}"


def describe_comparison(comparison: Comparison, name: str, tolerance: float) -> str:
    """Return the comparison as a sentence: the difference, or if that is open the bound, and what is allowed."""
    allowed = f"{_show(comparison, comparison.margin)} is allowed"
    if comparison.margin > tolerance:
        allowed += f", as float32 itself varies by {_show(comparison, comparison.scatter)}"
    if comparison.verdict == "inconclusive":
        return f"{name} may be worse than in float32 by up to {_show(comparison, comparison.upper, name)}; {allowed}"
    if not comparison.difference:
        return f"{name} is as in float32"
    if comparison.difference < 0 and comparison.verdict == "pass":
        return f"{name} is better than in float32 by {_show(comparison, -comparison.difference, name)}"
    return f"{name} is worse than in float32 by {_show(comparison, comparison.difference, name)}; {allowed}"


def describe_bounds(comparison: Comparison) -> str:
    """Return the statistics behind the comparison as a sentence; positive numbers are worse."""
    unit = ", as shares of what float32 has learned" if comparison.relative else ""
    return (
        f"The difference of the metric lies between {comparison.lower:.2g} and {comparison.upper:.2g} (positive is"
        f" worse{unit}); its standard deviation over the runs is {comparison.deviation:.2g}, and"
        f" {comparison.largest_deviation:.2g} is allowed."
    )


def _describe_runs_needed(comparison: Comparison, runs: int, tolerance: float) -> str:
    if comparison.margin > tolerance and (comparison.runs_needed or MOST_RUNS) > MOST_MORE_RUNS * runs:
        return "; more runs would hardly decide: train longer, or measure it on more data"
    if comparison.runs_needed is None:
        return f"; more runs would not decide, a larger {spell('tolerance')} would"
    return f"; about {comparison.runs_needed} runs would decide ({spell('runs')})"


def _hidden_difference(runs: Sequence[SeedRun], comparison: Comparison, metric: Metric) -> list[str]:
    """Return a remark if a loss is worse than float32 varies by itself, but small beside what was learned."""
    if not comparison.relative or comparison.difference <= comparison.scatter * (1 + 6 / len(runs)):
        return []
    mixed, float32 = ([getattr(run, kind).metric for run in runs] for kind in ("mixed", "float32"))
    return [
        f"{metric.name} is {np.mean(mixed):.3g}, and in float32 {np.mean(float32):.3g}: if that matters, use a smaller"
        f" {spell('tolerance')}"
    ]


def reason_of_failure(history: TrainingHistory, *, parameters_finite: bool) -> str:
    """Return the reason why a training failed, as the end of a sentence, or "".

    It applies no step, or its last applied loss is NaN, or a parameter at its end is not finite. An infinite loss alone
    is none: its step was applied, so its gradients are finite. A float32 run with a gradient that is not finite in an
    applied step fails as well. ``parameters_finite`` is True if all parameters are finite at the end.
    """
    # The loss of a skipped step may be infinite without any effect on the parameters.
    applied = [loss for loss, steps in zip(history.loss, history.applied, strict=True) if any(steps)]
    if not applied:
        return "applied no step: every step was skipped"
    if not parameters_finite or math.isnan(applied[-1]):
        return "diverges: its loss or its parameters are not finite at the end"
    return ""


# --- exceptions: those of the scale, and the network's own ---

CONFIDENCE = 0.95


def lower_bound(exceptions: int, steps: int) -> float:
    """Return the exact lower bound of a rate of exceptions (one-sided, 95 %, Clopper and Pearson); 0 without any."""
    from scipy.special import betaincinv

    return float(betaincinv(exceptions, steps - exceptions + 1, 1 - CONFIDENCE)) if exceptions else 0.0


def seeds_to_replay(runs: Sequence[SeedRun], limit: float) -> list[int]:
    """Return the seeds of the runs whose exceptions can decide the verdict.

    They can if the exceptions of all runs together reach the limit, or if a mixed training came to nothing.
    """
    exceptions = sum(len(run.mixed.exceptions) for run in runs)
    reach_limit = too_many_exceptions(exceptions, sum(len(run.mixed.loss) for run in runs), limit)
    return [run.seed for run in runs if run.mixed.exceptions and (reach_limit or run.mixed.diverged)]


def measure_scale_exceptions(
    runs: Sequence[SeedRun], own: Mapping[int, Sequence[int]], scaler: Scaler, limit: float
) -> ScaleExceptions | None:
    """Return the exceptions that belong to the scale; None if there are none.

    ``own`` has the network's own exceptions of each replayed seed.
    """
    count, first_scale = 0, math.inf
    for run in runs:
        steps = set(run.mixed.exceptions) - set(own[run.seed]) if run.seed in own else set()
        if steps:
            count += len(steps)
            # The smallest scale after the last of them; 0 if none was tried, because the last step had one.
            later = run.mixed.scale[max(steps) + 1 :]
            first_scale = min(first_scale, *later) if later else 0.0
    if not count:
        return None
    helps = first_scale > 0 and not any(own.values()) and not _grows_too_often(scaler, limit)
    return ScaleExceptions(count, first_scale if helps else None)


def _grows_too_often(scaler: Scaler, limit: float) -> bool:
    """Return whether the scale grows until a step overflows, in a share of the steps that is at least the limit."""
    return scaler.steps_to_growth > 0 and 1 / (scaler.steps_to_growth + 1) >= limit


# --- the comparison of the metric ---

# The probabilities of the one-sided quantiles: a training fails and passes only if the comparison is that certain.
FAIL_QUANTILE, PASS_QUANTILE = 0.995, 0.95
MOST_RUNS = 1000  # more runs are not recommended
# Where float32 varies by more than the tolerance, a few runs do not show by how much. They cannot be extrapolated to
# more than this multiple of their number: the next ones change the margin.
MOST_MORE_RUNS = 2


def compare_metrics(
    mixed: FloatArray, float32: FloatArray, twins: FloatArray, tolerance: float, *, relative: bool
) -> Comparison:
    """Compare the metrics of the runs: float64 [runs] each, where more is worse.

    For each of the n seeds: d = mixed - float32, e = twin - float32, D = mixed - (float32 + twin) / 2. With

    - v = (sum of (d - mean d)^2 + sum of e^2) / (2n - 1) and s = sqrt(0.75 v / n), the error of mean D;
    - r = sqrt(sum of e^2 / n), the scatter of float32 itself, and the margin M = max(tolerance, r (1 + 6 / n)),

    training fails if mean D - t(0.995; 2n - 1) s exceeds the tolerance, and passes if mean D + t(0.95; 2n - 1) s is at
    most M. Otherwise the comparison is open, with the number of runs that would decide. A margin that included the
    scatter of the mixed runs would pass erratic trainings.

    The metric is constant if the standard deviation of d is at most max(tolerance, r sqrt(F(0.995; n - 1, n))). It
    fails if it exceeds this also without the run that is farthest from the median of d; if only with that run, it is
    open.
    """
    from scipy.special import fdtri

    count = len(mixed)
    d, e = mixed - float32, twins - float32
    difference = float((mixed - (float32 + twins) / 2).mean())
    scatter = math.sqrt(float((e**2).mean()))
    variance = float(((d - d.mean()) ** 2).sum() + (e**2).sum()) / (2 * count - 1)
    verdict, lower, upper, margin = _decide(difference, variance, scatter, count, tolerance)
    runs_needed = None
    if verdict == "inconclusive":
        more = range(count + 1, MOST_RUNS + 1)
        decides = (n for n in more if _decide(difference, variance, scatter, n, tolerance)[0] != "inconclusive")
        runs_needed = next(decides, None)
    deviation = deviation_of_rest = largest = 0.0
    if count > 1:
        deviation = float(d.std(ddof=1))
        rest = np.delete(d, np.abs(d - np.median(d)).argmax())
        deviation_of_rest = float(rest.std(ddof=1)) if len(rest) > 1 else 0.0
        largest = max(tolerance, scatter * math.sqrt(fdtri(count - 1, count, FAIL_QUANTILE)))
    return Comparison(
        verdict, difference, lower, upper, margin, scatter, deviation, deviation_of_rest, largest, runs_needed, relative
    )


def _decide(
    difference: float, variance: float, scatter: float, count: int, tolerance: float
) -> tuple[Literal["pass", "fail", "inconclusive"], float, float, float]:
    """Return the verdict, the lower and the upper bound of the difference, and the margin, for so many runs."""
    from scipy.special import stdtrit

    # ``difference`` is the mean of D in ``compare_metrics``. The variance of D is 3/4 of ``variance``, because float32
    # and its twin are averaged.
    error = math.sqrt(0.75 * variance / count)
    freedom = 2 * count - 1
    lower = difference - float(stdtrit(freedom, FAIL_QUANTILE)) * error
    upper = difference + float(stdtrit(freedom, PASS_QUANTILE)) * error
    # With few runs the scatter is known poorly, so more of it is allowed.
    margin = max(tolerance, scatter * (1 + 6 / count))
    if lower > tolerance:
        return "fail", lower, upper, margin
    return ("pass" if upper <= margin else "inconclusive"), lower, upper, margin
