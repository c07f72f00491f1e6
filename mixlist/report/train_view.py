"""The words and figures that the terminal and the HTML report of a training share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from mixlist.checker.exception_rate import describe_rate, too_many_exceptions
from mixlist.report.number_text import figure, pluralize, share
from mixlist.training.result import SeedRun, TrainReport

EMULATED = (
    "Emulated: ONNX Runtime's CPU provider computes most float16 nodes in float32, so the mixed step itself would show"
    " neither overflow nor underflow there. Instead a float32 step ran in which every low-precision value is rounded to"
    " the low type."
)


def headline(report: TrainReport) -> str:
    """Return the model, the precision and mode, and the numbers of runs and steps."""
    how = f"{report.precision}, {report.mode} on {report.provider}"
    return f"{report.model} in {how}, {pluralize(len(report.runs), 'run')} of {pluralize(report.steps, 'step')}"


def exceptions(report: TrainReport) -> str:
    """Return the number and rate of steps with an exception; "" if they are a reason of the verdict already."""
    total = sum(len(run.mixed.loss) for run in report.runs)
    bad = sum(len(run.mixed.exceptions) for run in report.runs)
    if too_many_exceptions(bad, total, report.limit):
        return ""
    tries = sum(run.mixed.tries for run in report.runs)
    again = f", {pluralize(tries, 'batch')} tried again" if tries else ""
    rate = describe_rate(bad, total, report.limit)
    return f"{bad} of {pluralize(total, 'mixed step')} with an exception: {rate}{again}"


def columns(report: TrainReport) -> tuple[str, ...]:
    """The heads of the table of runs."""
    values = ("loss in float32", "mixed", f"{report.metric} in float32", "mixed")
    return ("seed", *values, "exceptions", "skipped", "last scale")


def rows(report: TrainReport) -> list[tuple[str, ...]]:
    """The table of runs; a last row of means and deviations where there are several."""
    found = [_row(run) for run in report.runs]
    if len(report.runs) > 1:
        values = zip(*map(_values, report.runs), strict=True)
        found.append(("mean", *map(mean_and_deviation, values), "", "", ""))
    return found


def _row(run: SeedRun) -> tuple[str, ...]:
    mixed = run.mixed
    counts = str(len(mixed.exceptions)), str(len(mixed.skipped))
    return str(run.seed), *map(figure, _values(run)), *counts, figure(mixed.scale[-1]) if mixed.scale else "-"


def _values(run: SeedRun) -> tuple[float | None, ...]:
    """Return the losses and metrics of a run, in float32 and mixed."""
    return end(run.float32.loss), end(run.mixed.loss), run.float32.metric, run.mixed.metric


def end(loss: Sequence[float]) -> float | None:
    """The mean loss of the last tenth of a training."""
    last = loss[-max(1, len(loss) // 10) :]
    return sum(last) / len(last) if last else None


def mean_and_deviation(sample: Iterable[float | None]) -> str:
    """Return the mean and the standard deviation of the values there are: ``0.985 ± 0.0021``."""
    values = [value for value in sample if value is not None]
    if not values:
        return "-"
    mean = sum(values) / len(values)
    if len(values) < 2 or not math.isfinite(mean):
        return figure(mean)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
    return f"{figure(mean)} ± {figure(deviation, 2)}"


def underflow(report: TrainReport) -> list[tuple[str, str, str]]:
    """Return the shares of lost gradient values: their kind, with the loss scaled as in training, and unscaled."""
    found = report.underflow
    if found is None:
        return []
    return [
        ("became zero", share(found.zero), share(found.zero_unscaled)),
        ("subnormal", share(found.subnormal), share(found.subnormal_unscaled)),
    ]


def settings(parameters: dict[str, object]) -> str:
    """``init_scale = 1024, growth_interval = 200``."""
    return ", ".join(f"{name} = {_setting(value)}" for name, value in parameters.items())


def _setting(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() and abs(value) < 2**53 else f"{value:g}"
    return str(value)


def trial_rows(report: TrainReport) -> list[tuple[str, str, str]]:
    """Return what became of each setting of the scaler that was tried."""
    return [
        (settings(dict(trial.parameters)), f"{trial.exceptions} of {trial.steps}", share(trial.zero))
        for trial in report.scale_trials
    ]


def trace(report: TrainReport) -> str:
    """At which scale the offenders overflow, in a sentence; "" where nothing was traced."""
    if report.trace_scale is None:
        return ""
    if not report.offenders:
        return "No node overflows in the first bad step by itself: float32 overflows there as well, or masks do."
    if report.trace_scale == 1:
        return "They overflow in the first bad step with the loss unscaled, too: no loss scale helps."
    return (
        f"With the loss unscaled nothing overflows in the first bad step; with {figure(report.trace_scale)} these"
        " nodes do. The scale is too large: --tune-scale searches one."
    )


def remedies(report: TrainReport) -> list[str]:
    """Return the options that may find a remedy, if the training failed and they were not given."""
    found = []
    if report.verdict == "fail" and report.exception_rate > 0 and report.trace_scale is None:
        found.append("--trace-overflow finds the nodes that overflow first, and the lists that keep them high")
    lost = report.underflow is not None and report.underflow.zero > 0.01
    if report.verdict == "fail" and (report.exception_rate > 0 or lost) and not report.scale_trials:
        found.append("--tune-scale searches the scaler's first scale and its growth")
    return found
