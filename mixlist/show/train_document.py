"""The report of a training: verdict, loss curves, runs, where overflow starts, loss scale, underflow, exceptions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from mixlist.show import train_charts
from mixlist.show.document import (
    MAX_ROWS,
    REST_IN_JSON,
    VERDICT_LEVELS,
    Block,
    Column,
    Document,
    Section,
    Step,
    Table,
    Text,
    Verdict,
    bar,
    columns_of,
    next_step,
    times,
)
from mixlist.show.number_text import format_number, format_power, format_share, pluralize
from mixlist.training.result import SeedRun, TrainReport

_ROUNDED = (
    "The mixed training computes in float32 and rounds the operands and results of each low-precision operator to the"
    " low type, forward and backward. Parameters, optimizer and loss scale stay in float32."
)


def train_document(report: TrainReport, command: str = "") -> Document:
    """Return the report of a training. ``command``: the command line of the run, "" from Python."""
    lines = (*report.reasons, _describe_exceptions(report), *report.notes)
    headline = f"{report.loop} in {_conditions(report)}"
    sections = (
        Section("loss", "Loss", _given(train_charts.draw_losses(report)), train_charts.explain_losses(report)),
        _runs(report),
        _findings(report),
        _loss_scaling(report),
        *_underflow(report),
        _exceptions(report),
        Section("timing", "Time", (times(report.seconds),) if report.seconds else ()),
        _about(report),
    )
    level = VERDICT_LEVELS[report.verdict]
    return Document(
        "train",
        sections,
        verdict=Verdict(report.verdict.upper(), level, report.loop, headline, lines),
        steps=tuple(_next_steps(report, command)),
        warnings=report.warnings,
    )


def _given(*blocks: Block | None) -> tuple[Block, ...]:
    """Return the blocks that are not None: a chart without values is None."""
    return tuple(block for block in blocks if block is not None)


def _conditions(report: TrainReport) -> str:
    """Return the precision, the device, and the numbers of runs and steps."""
    counts = f"{pluralize(len(report.runs), 'run')} of {pluralize(report.steps, 'step')}"
    saturates = ", saturating" if report.overflow_mode == "saturate" else ""
    return f"{report.precision} on {report.device}{saturates}, {counts}"


def _describe_exceptions(report: TrainReport) -> str:
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


# --- runs ---


def _runs(report: TrainReport) -> Section:
    """Return the table of runs; with several runs, its last row has means and standard deviations."""
    values = ("training loss in float32", "mixed", f"{report.metric} in float32", "its twin", "mixed")
    columns = columns_of("seed", *values, "exceptions", "skipped", "last scale", numbers=range(1, 9))
    rows = [_run_row(run) for run in report.runs]
    if len(report.runs) > 1:
        samples = zip(*map(_losses_and_metrics, report.runs), strict=True)
        rows.append(("mean", *map(_mean_and_deviation, samples), "", "", ""))
    better = "more" if report.higher else "less"
    explanation = (
        "Losses are means of the last tenth of the steps; ± is the standard deviation over the runs. Of"
        f" {report.metric}, {better} is better. The twin is float32 once more, from parameters that differ by one"
        " rounding: what the two differ by is no fault of the precision."
    )
    return Section("runs", "Runs", _given(Table(columns, rows), train_charts.draw_metrics(report)), explanation)


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
    losses = _final_loss(run.float32.loss), _final_loss(run.mixed.loss)
    return (*losses, run.float32.metric, run.twin.metric, run.mixed.metric)


def _final_loss(loss: Sequence[float]) -> float | None:
    """Return the mean loss of the last tenth of a training."""
    last = loss[-max(1, len(loss) // 10) :]
    return sum(last) / len(last) if last else None


def _mean_and_deviation(sample: Iterable[float | None]) -> str:
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


# --- overflow, loss scaling and underflow ---


def _findings(report: TrainReport) -> Section:
    """Return the operators where an overflow starts that no loss scale prevents, and what keeps them in float32."""
    if not report.findings:
        return Section("findings", "Where overflow starts", ())
    rows = [
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
    columns = columns_of("steps", "first", "module", "operator", "in lists", "pass", "list", numbers=[0], names=[2])
    blocks: list[Block] = [Table(columns, rows, MAX_ROWS, REST_IN_JSON), Text((_describe_findings(report),))]
    if report.suggestion:
        blocks.append(Text(tuple(report.suggestion.splitlines()), is_file=True))
    return Section("findings", "Where overflow starts", tuple(blocks))


def _describe_findings(report: TrainReport) -> str:
    """Return a sentence on what keeps the operators of the findings from overflowing."""
    start = "These operators are the first whose result is not finite, with the loss unscaled."
    if report.suggestion:
        return f"{start} This modify_mixlist keeps them in float32:"
    modules = sorted({finding.operator.module for finding in report.findings if finding.operator.is_low})
    if modules:
        return f"{start} Keep them in float32 with a keep_dtype file: {', '.join(modules[:4])}."
    return f"{start} They are in float32: low-precision operators before them lost the small or the large values."


def _loss_scaling(report: TrainReport) -> Section:
    """Return the parameters of the loss scaler, and the loss scale over the steps."""
    parameters = Text((_format_parameters(report.scaler),))
    return Section("scale", "Loss scaling", _given(parameters, train_charts.draw_scales(report)))


def _format_parameters(parameters: dict[str, object]) -> str:
    """Return parameters as text: ``init_scale = 1024, growth_interval = 200``; leave out those that are not set."""
    given = {name: value for name, value in parameters.items() if value is not None and value != ()}
    return ", ".join(f"{name} = {_format_parameter(value)}" for name, value in given.items())


def _format_parameter(value: object) -> str:
    if isinstance(value, float):
        # 65536 and not 65536.0. From 2^53 on, a float no longer shows every digit of an integer.
        return f"{value:.0f}" if value.is_integer() and abs(value) < 2**53 else f"{value:g}"
    return str(value)


def _underflow(report: TrainReport) -> tuple[Section, ...]:
    """Return the shares of lost gradient values: in the mixed training, and of float32 without a loss scale."""
    shares = report.underflow
    if shares is None:
        return ()
    steps = pluralize(shares.steps, "step")
    columns = columns_of(f"in {report.precision}", "mixed, with the loss scale", "without a scale", numbers=[1, 2])
    rows = [
        ("became zero", format_share(shares.zero), format_share(shares.zero_unscaled)),
        ("subnormal", format_share(shares.subnormal), format_share(shares.subnormal_unscaled)),
    ]
    line = Text((f"Of the gradient values that are not zero in float32 ({steps} examined):",))
    section = Section("underflow", "Underflow of gradients", (line, Table(columns, rows)))
    histograms = train_charts.gradient_histograms(report)
    if histograms is None:
        return (section,)
    first, last = format_power(shares.exponent_edges[0]), format_power(shares.exponent_edges[-1])
    explanation = (
        f"The magnitudes of these values, from 0 at the left over {first}, the smallest number of {report.precision},"
        f" to {last} and above. Values below the smallest normal number are too small; a number is their share."
    )
    return (section, Section("gradients", "Underflow by parameter", (histograms,), explanation))


def _exceptions(report: TrainReport) -> Section:
    """Return the number of steps in which the gradient of each parameter was not finite."""
    columns = (*columns_of("gradient of", "steps", names=[0], numbers=[1]), Column("bar", "picture"))
    most = max(report.bad.values(), default=1)
    rows = [(name, str(count), bar(round(100 * count / most, 1))) for name, count in report.bad.items()]
    explanation = "Steps of all runs in which the gradient of a parameter was not finite."
    return Section(
        "exceptions", "Exceptions by parameter", (Table(columns, rows, MAX_ROWS, REST_IN_JSON),), explanation
    )


# --- next steps ---


def _remedies(report: TrainReport) -> Iterator[tuple[str, str]]:
    """Yield sentences about a failed training, each with the options of a run that helps, or ""."""
    if not report.exception_rate and report.overflow_detection == "gradients":
        # An infinity of the forward pass need not reach the gradients: 1/inf is 0.
        yield "No gradient overflowed. See overflow inside the step", "--overflow-detection any-node"
    shares = report.underflow
    if shares is not None and shares.zero > 0.01 and not report.exception_rate:
        yield "Gradients become zero: a larger loss scale, or operators in float32, keep them", ""
    scale = report.scale_exceptions
    first_scales = [run.mixed.scale[0] for run in report.runs if run.mixed.scale]
    if scale is not None and scale.first_scale < min(first_scales, default=math.inf):
        # All digits, because a format with fewer could make a scale larger.
        options = f"--loss-scale {scale.first_scale:.17g}"
        yield "A smaller loss scale has no exception of the scale in these runs", options
    elif scale is not None:  # the scale never fell, so no smaller one was tried
        yield "Train with a smaller loss scale", ""


def _next_steps(report: TrainReport, command: str) -> list[Step]:
    """Return what the reader should do next, which depends on the verdict."""

    def again(text: str, options: str) -> Step:
        return next_step(text, f"{command} {options}" if command and options else "")

    if report.verdict == "pass":
        return [Step(f"Train with these lists and this loss scaler: {_format_parameters(report.scaler)}.")]
    steps = []
    if report.verdict == "fail":
        steps = [again(*remedy) for remedy in _remedies(report)]
    elif report.comparison is not None and report.comparison.runs_needed is not None:
        steps = [again("More runs would decide", f"--runs {report.comparison.runs_needed}")]
    if report.suggestion:
        steps.append(Step("Save the modify_mixlist under Where overflow starts, and train again with it."))
    return steps or [Step("Remove the cause that the reasons above name, and train again.")]


def _about(report: TrainReport) -> Section:
    in_any_node = (
        ", or in which any low-precision operator overflows" if report.overflow_detection == "any-node" else ""
    )
    lines = [
        _ROUNDED,
        "Each seed trains three times: mixed, in float32, and as its twin. An exception is a step whose gradients are"
        f" not all finite{in_any_node}; its update is skipped, in all three trainings.",
    ]
    if report.unlisted_operators:
        counts = ", ".join(f"{operator} {calls}" for operator, calls in report.unlisted_operators.items())
        lines.append(f"ATen operators without a name in the lists, with their calls: {counts}.")
    return Section("about", "How to read this", (Text(tuple(lines), on="page"),))
