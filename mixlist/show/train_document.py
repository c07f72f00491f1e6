"""The report of a training: verdict, loss curves, runs, where overflow starts, loss scale, headroom, underflow."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from mixlist.number_text import format_number, format_share, pluralize
from mixlist.option_spelling import spell
from mixlist.show import train_charts
from mixlist.show.document import (
    MAX_ROWS,
    REST_IN_JSON,
    VERDICT_LEVELS,
    Block,
    Document,
    Section,
    Step,
    Table,
    Text,
    Verdict,
    columns_of,
    next_step,
    times,
)
from mixlist.training.options import AUTOCAST_LISTS, LISTS_NOTE
from mixlist.training.result import SeedRun, TrainReport
from mixlist.training.scalers import SCALERS
from mixlist.training.verdict import MIN_RUNS, describe_bounds, zero_gradient_failures

_ROUNDED = (
    "The mixed training computes in float32 and rounds the operands and results of each low-precision operator to the"
    " low type, forward and backward. Parameters, optimizer and loss scale stay in float32."
)

_FIRST_OPERATORS = (
    "These operators are the first whose result is not finite, with the loss unscaled. Others may follow once these"
    " are in float32."
)
_EXTRA_TRAININGS = {
    "untrained": "“untrained” makes no update, and shows whether training changes the metric",
    "unskipped": "“unskipped” is float32 without skipped steps",
    "replay": "“replay” is the mixed one with the scale 1 in its steps with an exception, and shows what causes them",
}
_IN_PYTORCH = (
    "In PyTorch, the same is a region “with torch.autocast(device_type, enabled=False):” around them, which reads"
    " x.float()."
)


def train_document(report: TrainReport, command_with: Callable[..., str] | None = None) -> Document:
    """Return the report of a training.

    ``command_with``: takes options and their values, and returns the command line of the run with them; None from
    Python.
    """
    lines = (*report.reasons, *_describe_exceptions(report), *report.notes)
    headline = f"{report.loop} in {_conditions(report)}"
    sections = (
        Section("loss", "Loss", _given(train_charts.draw_losses(report)), train_charts.explain_losses(report)),
        _runs(report),
        _findings(report),
        _loss_scaling(report),
        _operators(report),
        _headroom(report),
        _underflow(report),
        Section("timing", "Time", (times(report.seconds),) if report.seconds else ()),
        _about(report),
    )
    level = VERDICT_LEVELS[report.verdict]
    return Document(
        "train",
        sections,
        verdict=Verdict(report.verdict.upper(), level, report.loop, headline, lines),
        steps=tuple(_next_steps(report, command_with)),
        warnings=report.warnings,
    )


def _given(*blocks: Block | None) -> tuple[Block, ...]:
    """Return the blocks that are not None: a chart without values is None."""
    return tuple(block for block in blocks if block is not None)


def _conditions(report: TrainReport) -> str:
    """Return the precision, the device, and the numbers of runs and steps."""
    # After Ctrl-C the last run may be incomplete, and the first reason has the number of finished runs.
    runs = pluralize(len(report.runs), "run") if report.complete else "interrupted runs"
    counts = f"{runs} of {pluralize(report.steps, 'step')}"
    saturates = ", saturating" if report.overflow_mode == "saturate" else ""
    return f"{report.precision} on {report.device}{saturates}, {counts}"


def _describe_exceptions(report: TrainReport) -> Sequence[str]:
    """Return the number of steps with an exception, or nothing if the reasons of the verdict have it."""
    total = sum(len(run.mixed.loss) for run in report.runs)
    bad = sum(len(run.mixed.exceptions) for run in report.runs)
    in_any_node = " in any operator" if report.overflow_detection == "any-node" else ""
    text = f"{bad} of {pluralize(total, 'mixed step')} with an exception{in_any_node}"
    if report.replays:
        own = sum(len(replay.own_exceptions) for replay in report.replays)
        if own == bad and own >= report.limit * total:
            return ()
        text += f", {own} that no loss scale prevents"
    return (text,)


# --- runs ---


def _runs(report: TrainReport) -> Section:
    """Return the table of runs; with several runs, its last row has means and standard deviations."""
    values = ("training loss in float32", "mixed", f"{report.metric} in float32", "its twin", "mixed")
    columns = columns_of("run", *values, "exceptions", "skipped", "last scale", numbers=range(1, 9))
    rows = [_run_row(run) for run in report.runs]
    if len(report.runs) > 1:
        samples = zip(*map(_losses_and_metrics, report.runs), strict=True)
        rows.append(("mean", *map(_mean_and_deviation, samples), "", "", ""))
    better = "more" if report.higher else "less"
    explanation = (
        "Losses are means of the last tenth of the steps; ± is the standard deviation over the runs. Of"
        f" {report.metric}, {better} is better. The twin is float32 once more, from parameters that differ by one"
        " rounding: what the two differ by is no fault of the precision. Steps that mixed precision skips are skipped"
        " in float32, too."
    )
    return Section("runs", "Runs", _given(Table(columns, rows), train_charts.draw_metrics(report)), explanation)


def _run_row(run: SeedRun) -> tuple[str, ...]:
    mixed = run.mixed
    counts = str(len(mixed.exceptions)), str(len(mixed.skipped))
    return (
        f"seed {run.seed}",
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
            finding.operator.module,
            finding.operator.operator,
            finding.operator.op_type,
            "backward" if finding.operator.is_gradient else "forward",
            finding.operator.list if finding.operator.is_low else f"{finding.operator.list}, in float32",
            str(finding.steps),
            f"seed {finding.seed}, step {finding.step}",
        )
        for finding in report.findings
    ]
    columns = columns_of("module", "operator", "in lists", "pass", "list", "steps", "first", names=[0], numbers=[5])
    blocks: list[Block] = [
        Table(columns, rows, MAX_ROWS, REST_IN_JSON),
        Text((_FIRST_OPERATORS,)),
    ]
    files = ("A keep_dtype", "keep.txt", report.keep_dtype), ("A modify_mixlist", "modify.json", report.suggestion)
    for name, file, text in files:
        if text:
            blocks += [
                Text((f"{name} file with this content, such as {file}, keeps them in float32:",)),
                Text(tuple(text.splitlines()), is_file=True),
            ]
    if any(text for *_, text in files):
        blocks.append(Text((_IN_PYTORCH,)))
    if not any(finding.operator.is_low for finding in report.findings):
        reason = "They are in float32: low-precision operators before them lost the small or the large values."
        blocks.append(Text((reason,)))
    elif not any(text for *_, text in files):
        blocks.append(
            Text(("Node rules or the mode put them in low precision: keep their modules by a keep_dtype file.",))
        )
    return Section("findings", "Where overflow starts", tuple(blocks))


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


def _operators(report: TrainReport) -> Section:
    """Return how often the mixed trainings ran each operator in low precision."""
    columns = columns_of("in lists", "list", report.precision, "float32", names=[0], numbers=[2, 3])
    rows = [(count.op_type, count.list, str(count.low), str(count.float32)) for count in report.operators]
    explanation = (
        "Calls in the mixed trainings, forward and backward, by the name in the lists. Gray follows the operands. In"
        " a module, keep_dtype lines, node rules and regions of torch.autocast with enabled=False decide first."
    )
    blocks = (Table(columns, rows, MAX_ROWS, REST_IN_JSON),) if rows else ()
    return Section("operators", "Operators", blocks, explanation)


def _headroom(report: TrainReport) -> Section:
    """Return how near the values of each module come to the largest number, with their course."""
    columns = columns_of(
        "module", "factor left", "largest activation", "first", "last", "largest gradient", "first", "last", names=[0],
        numbers=range(1, 8),
    )  # fmt: skip
    rows = [
        (
            found.module,
            format_number(found.factor, 3),
            *(
                format_number(value, 3)
                for value in (
                    found.activation, found.activation_start, found.activation_end,
                    found.gradient, found.gradient_start, found.gradient_end,
                )
            ),
        )
        for found in report.headroom
    ]  # fmt: skip
    explanation = (
        f"The largest values of each module that become {report.precision}, in all sampled steps, in the first quarter"
        " of them and in the last. Modules of several networks with the same name share a row. Gradients count without"
        " the loss scale. The factor is what is left to the largest number."
    )
    return Section("headroom", "Headroom", (Table(columns, rows, MAX_ROWS, REST_IN_JSON),) if rows else (), explanation)


def _underflow(report: TrainReport) -> Section:
    """Return the share of gradient values that became zero, for each parameter that lost some."""
    shares = report.underflow
    if shares is None:
        return Section("underflow", "Underflow of gradients", ())
    text = (
        f"{format_share(shares.zero)} of the gradient values that are not zero in float32 became zero"
        f" ({pluralize(shares.steps, 'step')} examined)."
    )
    rows = [(name, format_share(share)) for name, share in shares.by_parameter.items() if share > 0]
    columns = columns_of("gradient of", "became zero", names=[0], numbers=[1])
    table = Table(columns, rows, MAX_ROWS, REST_IN_JSON)
    return Section("underflow", "Underflow of gradients", _given(Text((text,)), table if rows else None))


# --- next steps ---


def _remedies(report: TrainReport) -> Iterator[tuple[str, str]]:
    """Yield sentences about a failed training, each with the options of a run that helps, or ""."""
    shares, scale = report.underflow, report.scale_exceptions
    loses_gradients = bool(zero_gradient_failures(shares))
    hides_overflow = _hides_overflow(report)
    no_gradient_overflows = not (report.exception_rate or loses_gradients)
    may_overflow = hides_overflow or report.precision == "float16"
    is_hidden = no_gradient_overflows or (hides_overflow and not report.findings)
    if report.overflow_detection == "gradients" and may_overflow and is_hidden:
        # An infinity of the forward pass need not reach the gradients: 1/inf is 0.
        text = "No gradient shows an overflow. See whether there is one inside the step"
        if hides_overflow:
            text = "The overflow does not reach the gradients. See where it starts inside the step"
        yield text, "--overflow-detection any-node"
    if shares is not None and not hides_overflow and (loses_gradients or shares.zero > 0.01 > report.exception_rate):
        names = [name for name, share in shares.by_parameter.items() if share > 0.01][:3]
        most = f", most of {', '.join(names)}" if names else ""
        scaling, larger = "a larger loss scale", _largest_scale(report)
        is_larger = larger > max((scale for run in report.runs for scale in run.mixed.scale), default=math.inf)
        options = f"--loss-scale {larger:.17g}" if is_larger else ""
        if report.scaler["name"] == "none":  # the loop may have no GradScaler
            scaling, options = f"a torch.amp.GradScaler in the loop, without {spell('loss_scaler', 'none')},", ""
        yield f"Gradients become zero{most}: {scaling} keeps them, or their modules in float32", options
        if loses_gradients and all(_is_learned(run) for run in report.runs):
            yield "The loss is near 0 at the end, and so are the gradients in any precision: judge fewer steps", ""
    is_static = not SCALERS[str(report.scaler["name"])].GROWTH_PARAMETER or report.scaler.get("dynamic") is False
    if scale is not None and is_static:
        smaller = _largest_scale(report)
        used = min((scale for run in report.runs for scale in run.mixed.scale), default=0.0)
        if 0 < smaller < used:
            yield "A smaller loss scale overflows in no measured step", f"--loss-scale {smaller:.17g}"
        else:  # only steps without an exception measure gradients: here they do not show what overflows
            yield "Train with a smaller loss scale", ""
    overflows = any(finding.operator.is_low for finding in report.findings)
    if report.precision == "float16" and (loses_gradients or overflows):
        options = "--precision-mode-v2 mixed_bfloat16 --loss-scaler none"
        yield "bfloat16 has the range of float32: see whether its digits are enough", options
    comparison = report.comparison
    if comparison is not None and (comparison.verdict, comparison.constancy) == ("pass", "fail"):
        text = f"On average {report.metric} is as in float32, and only single runs differ. If that is good enough"
        yield text, f"--tolerance {1.1 * comparison.deviation:.2g}"
    if report.overflow_detection == "any-node" and not report.exception_rate and not loses_gradients:
        yield "No step overflows: digits are lost, or the evaluation overflows. Keep half of the modules in float32", ""


def _hides_overflow(report: TrainReport) -> bool:
    """Return whether a module has values beyond the largest number."""
    return any(found.factor is not None and found.factor < 1 for found in report.headroom)


def _largest_scale(report: TrainReport) -> float:
    """Return the largest power of two with which the largest measured gradient stays below half of the range; or 0."""
    most = max((found.gradient or 0.0 for found in report.headroom), default=0.0)
    largest = 65504.0 if report.precision == "float16" else 3.3e38
    return 2.0 ** (math.floor(math.log2(largest / most)) - 1) if most and largest / most < 1e300 else 0.0


def _is_learned(run: SeedRun) -> bool:
    """Return whether the loss in float32 falls to less than a thousandth of the first one."""
    last = _final_loss(run.float32.loss)
    return last is not None and abs(last) < 1e-3 * abs(run.float32.loss[0])


def _next_steps(report: TrainReport, command_with: Callable[..., str] | None) -> list[Step]:
    """Return what the reader should do next, which depends on the verdict."""

    def again(text: str, options: str) -> Step:
        return next_step(text, command_with(*options.split()) if command_with and options else "")

    repeated = command_with() if command_with else ""
    if not report.complete:
        return [next_step("Train again, to the end", repeated)]
    if report.verdict == "pass":
        advised = _advised_scaler(report)
        scaling = f"with this loss scaler: {_format_parameters(advised)}"
        if report.scaler["name"] == "none":
            scaling = "without loss scaling"
        elif advised != report.scaler:
            scaling = f"and skips fewer steps {scaling}"
        # A list or a rule that differs from autocast's is a change of the loop, or the framework is another one.
        is_autocast = LISTS_NOTE.format(**AUTOCAST_LISTS) in report.notes
        as_it_is = f"Your loop can be trained as it is, under torch.autocast in {report.precision},"
        train = as_it_is if is_autocast else "Train with these lists,"
        if report.overflow_detection == "gradients" and _hides_overflow(report):
            text = "Values overflow, without harm in these runs. Before a long training, see where"
            return [again(text, "--overflow-detection any-node")]
        return [Step(f"{train} {scaling}.")]
    steps = []
    files = (
        ("keep_dtype", report.keep_dtype, "--keep-dtype keep.txt"),
        ("modify_mixlist", report.suggestion, "--mixlist modify.json"),
    )
    options = " ".join(option for _, text, option in files if text)
    if options:
        steps = [again("Save what is under Where overflow starts, and train with it", options)]
    if report.verdict == "fail":
        steps += [again(*remedy) for remedy in _remedies(report)]
    elif len(report.runs) < MIN_RUNS and report.complete:
        steps += [again("More runs decide", f"--runs {MIN_RUNS + 1}")]
    elif report.comparison is not None and report.comparison.runs_needed and "runs would decide" in str(report.reasons):
        steps += [again("More runs would decide", f"--runs {report.comparison.runs_needed}")]
    elif report.comparison is not None and report.comparison.constancy == "inconclusive":
        steps += [again("More runs would decide", f"--runs {2 * len(report.runs)}")]
    return steps or [next_step("Change the loop as the reasons say, and train again", repeated)]


def _advised_scaler(report: TrainReport) -> dict[str, object]:
    """Return the parameters of the scaler, with the first scale that had no exception."""
    scale = report.scale_exceptions
    if scale is None or scale.first_scale is None:
        return report.scaler
    return report.scaler | {SCALERS[str(report.scaler["name"])].INITIAL_SCALE_PARAMETER: scale.first_scale}


def _about(report: TrainReport) -> Section:
    in_any_node = (
        ", or in which any low-precision operator overflows" if report.overflow_detection == "any-node" else ""
    )
    lines = [
        _ROUNDED,
        "Each seed trains three times: mixed, in float32, and as its twin. An exception is a step whose gradients are"
        f" not all finite{in_any_node}; its update is skipped, in all three trainings.",
    ]
    extra = [_EXTRA_TRAININGS[kind] for kind in report.seconds if kind in _EXTRA_TRAININGS]
    lines += [f"More trainings: {', '.join(extra)}."] if extra else []
    if report.comparison is not None:
        lines.append(describe_bounds(report.comparison))
    if report.unlisted_operators:
        counts = ", ".join(f"{operator} {calls}" for operator, calls in report.unlisted_operators.items())
        lines.append(f"ATen operators without a name in the lists, with their calls: {counts}.")
    return Section("about", "How to read this", (Text(tuple(lines), on="page"),))
