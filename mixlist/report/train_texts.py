"""The texts and figures that the terminal report and the HTML report of a training share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from mixlist.report.number_text import format_number, format_share, pluralize
from mixlist.training.result import SeedRun, TrainReport

ROUNDED = (
    "The mixed training computes in float32 and rounds the operands and results of each low-precision operator to the"
    " low type, forward and backward. Parameters, optimizer and loss scale stay in float32."
)
FINDING_COLUMNS = ("steps", "first", "module", "operator", "in lists", "pass", "list")


def headline(report: TrainReport) -> str:
    """Return the loop and the conditions of the training, as one line."""
    return f"{report.loop} in {conditions(report)}"


def conditions(report: TrainReport) -> str:
    """Return the precision, the device, and the numbers of runs and steps."""
    counts = f"{pluralize(len(report.runs), 'run')} of {pluralize(report.steps, 'step')}"
    saturates = ", saturating" if report.overflow_mode == "saturate" else ""
    return f"{report.precision} on {report.device}{saturates}, {counts}"


def describe_exceptions(report: TrainReport) -> str:
    """Return the number of steps with an exception, and the rate that the runs can prove."""
    total = sum(len(run.mixed.loss) for run in report.runs)
    bad = sum(len(run.mixed.exceptions) for run in report.runs)
    in_any_node = " in any operator" if report.overflow_detection == "any-node" else ""
    text = f"{bad} of {pluralize(total, 'mixed step')} with an exception{in_any_node}"
    if report.replays:
        own = sum(len(replay.own_exceptions) for replay in report.replays)
        text += f", {own} that no loss scale prevents"
    # A large rate is no proof of anything.
    proven = f": the rate of the network's own is proven to be at most {report.proven_rate:.2%}"
    return text + (proven if report.proven_rate < 0.1 else "")


def run_columns(report: TrainReport) -> tuple[str, ...]:
    """Return the column titles of the table of runs."""
    values = ("training loss in float32", "mixed", f"{report.metric} in float32", "its twin", "mixed")
    return ("seed", *values, "exceptions", "skipped", "last scale")


def run_rows(report: TrainReport) -> list[tuple[str, ...]]:
    """Return the table of runs. With several runs, the last row has means and standard deviations."""
    table_rows = [_run_row(run) for run in report.runs]
    if len(report.runs) > 1:
        values = zip(*map(_losses_and_metrics, report.runs), strict=True)
        table_rows.append(("mean", *map(mean_and_deviation, values), "", "", ""))
    return table_rows


def _run_row(run: SeedRun) -> tuple[str, ...]:
    mixed = run.mixed
    counts = str(len(mixed.exceptions)), str(len(mixed.skipped))
    return (
        str(run.seed),
        *map(format_number, _losses_and_metrics(run)),
        *counts,
        format_number(mixed.scale[-1]) if mixed.scale else "-",
    )


def _losses_and_metrics(run: SeedRun) -> tuple[float | None, ...]:
    """Return the losses of a run in float32 and mixed, and the metrics of its three trainings."""
    losses = final_loss(run.float32.loss), final_loss(run.mixed.loss)
    return (*losses, run.float32.metric, run.twin.metric, run.mixed.metric)


def final_loss(loss: Sequence[float]) -> float | None:
    """Return the mean loss of the last tenth of a training."""
    last = loss[-max(1, len(loss) // 10) :]
    return sum(last) / len(last) if last else None


def mean_and_deviation(sample: Iterable[float | None]) -> str:
    """Return the mean and the standard deviation of the values that are not None: ``0.985 ± 0.0021``."""
    values = [value for value in sample if value is not None]
    if not values:
        return "-"
    mean = sum(values) / len(values)
    if len(values) < 2 or not math.isfinite(mean):
        return format_number(mean)
    # The runs are a sample of all seeds, so the sum is divided by their number minus 1.
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
    return f"{format_number(mean)} ± {format_number(deviation, 2)}"


def underflow_columns(report: TrainReport) -> tuple[str, str, str]:
    """Return the column titles of the table of lost gradient values."""
    return (f"in {report.precision}", "mixed, with the loss scale", "without a scale")


def underflow_rows(report: TrainReport) -> list[tuple[str, str, str]]:
    """Return the shares of lost gradient values by kind: in the mixed training, and of float32 without a scale."""
    shares = report.underflow
    if shares is None:
        return []
    return [
        ("became zero", format_share(shares.zero), format_share(shares.zero_unscaled)),
        ("subnormal", format_share(shares.subnormal), format_share(shares.subnormal_unscaled)),
    ]


def format_parameters(parameters: dict[str, object]) -> str:
    """Return parameters as text: ``init_scale = 1024, growth_interval = 200``; leave out those that are not set."""
    given = {name: value for name, value in parameters.items() if value is not None and value != ()}
    return ", ".join(f"{name} = {_format_parameter(value)}" for name, value in given.items())


def _format_parameter(value: object) -> str:
    if isinstance(value, float):
        # 65536 and not 65536.0. From 2^53 on, a float no longer shows every digit of an integer.
        return f"{value:.0f}" if value.is_integer() and abs(value) < 2**53 else f"{value:g}"
    return str(value)


def finding_rows(report: TrainReport) -> list[tuple[str, ...]]:
    """Return a row for each operator where an overflow starts that no loss scale prevents."""
    return [
        (
            str(finding.steps),
            f"seed {finding.seed}, step {finding.step}",
            finding.operator.module,
            finding.operator.operator,
            finding.operator.op_type,
            "backward" if finding.operator.is_gradient else "forward",
            finding.operator.list if finding.operator.is_low else f"{finding.operator.list}, in float32",
        )
        for finding in report.findings
    ]


def describe_findings(report: TrainReport) -> str:
    """Return a sentence on what keeps the operators of the findings from overflowing; "" without findings."""
    if not report.findings:
        return ""
    start = "These operators are the first whose result is not finite, with the loss unscaled."
    if report.suggestion:
        return f"{start} This modify_mixlist keeps them in float32:"
    modules = sorted({finding.operator.module for finding in report.findings if finding.operator.is_low})
    if modules:
        return f"{start} Keep them in float32 with a keep_dtype file: {', '.join(modules[:4])}."
    return f"{start} They are in float32: low-precision operators before them lost the small or the large values."


def remedies(report: TrainReport) -> list[str]:
    """Return hints for a training that failed."""
    if report.verdict != "fail":
        return []
    hints = []
    if not report.exception_rate and report.overflow_detection == "gradients":
        # An infinity of the forward pass need not reach the gradients: 1/inf is 0.
        hints.append("no gradient overflowed; --overflow-detection any-node shows overflow inside the step")
    shares = report.underflow
    if shares is not None and shares.zero > 0.01 and not report.exception_rate:
        hints.append("gradients become zero: a larger --loss-scale, or operators in float32, keep them")
    scale = report.scale_exceptions
    if scale is not None:
        hints.append(f"--loss-scale {format_number(scale.first_scale)} has no exception of the scale in these runs")
    return hints
