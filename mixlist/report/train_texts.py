"""The texts and figures that the terminal report and the HTML report of a training share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from mixlist.report.number_text import format_number, format_share, pluralize
from mixlist.training.result import SeedRun, TrainReport

EMULATED = (
    "Emulated: instead of the mixed step, a float32 step graph ran. It rounds every low-precision value to the low"
    " type. The mixed step itself would show neither overflow nor underflow, because ONNX Runtime's CPU provider"
    " computes most float16 nodes in float32."
)

# A share of the gradient values. If more of them become zero with every scale, the scale is not the cause.
_MOST_LOST = 0.5
TRIAL_COLUMNS = ("parameters", "exceptions", "in a longer training", "gradients lost")
_EXAMINE_NODES = "--overflow-detection any-node shows overflow inside the step"


def headline(report: TrainReport) -> str:
    """Return the model and the conditions of the training, as one line."""
    return f"{report.model} in {conditions(report)}"


def conditions(report: TrainReport) -> str:
    """Return the precision, the mode, the provider, and the numbers of runs and steps."""
    counts = f"{pluralize(len(report.runs), 'run')} of {pluralize(report.steps, 'step')}"
    saturates = ", saturating" if report.overflow_mode == "saturate" else ""
    return f"{report.precision}, {report.mode} on {report.provider}{saturates}, {counts}"


def describe_exceptions(report: TrainReport) -> str:
    """Return the number of steps with an exception, its rates, and the initial scale that has none."""
    total = sum(len(run.mixed.loss) for run in report.runs)
    bad = sum(len(run.mixed.exceptions) for run in report.runs)
    tries = sum(run.mixed.tries for run in report.runs)
    repeated = f", {tries} tried again with the next batch" if tries else ""
    in_any_node = " in any node" if report.overflow_detection == "any-node" else ""
    text = f"{bad} of {pluralize(total, 'mixed step')} with an exception{in_any_node}{repeated}"
    if not bad or report.steady_rate is None:
        return text
    rates = f"{report.start_up_rate:.2%} in the start-up, {report.steady_rate:.2%} after it"
    advice = ""
    if report.start_up_rate and report.initial_scale is not None:
        advice = f"; an initial scale of {format_number(report.initial_scale)} has no start-up"
    return f"{text}: {rates}{advice}"


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


def underflow_rows(report: TrainReport) -> list[tuple[str, str, str]]:
    """Return the shares of lost gradient values by kind: with the loss scaled as in training, and unscaled."""
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
    if isinstance(value, tuple):  # the groups of parameters
        return "; ".join(f"({format_parameters(group)})" for group in value)
    return str(value)


def trial_rows(report: TrainReport) -> list[tuple[str, str, str, str]]:
    """Return a row for each setting of the scaler that was tried.

    It has its parameters, its exceptions, their rate in a longer training, and the share of gradients that became zero.
    """
    return [
        (
            format_parameters(dict(trial.parameters)),
            f"{trial.exceptions} of {trial.steps}",
            f"{trial.projected_rate:.2%}",
            format_share(trial.zero),
        )
        for trial in report.scale_trials
    ]


def describe_missing_choice(report: TrainReport) -> str:
    """Return a sentence that no setting of the scaler is good enough; "" if one is."""
    if not report.scale_choice:
        return f"No setting keeps the exception rate below {report.limit:.2%}."
    # An infinity of the forward pass can make gradients zero, whatever the scale is: 1/inf is 0.
    least = min(trial.zero for trial in report.scale_trials)
    if least > _MOST_LOST:
        lost = f"at least {format_share(least)} of the gradient values become zero"
        return f"No scale helps: with each of them, {lost}. {_EXAMINE_NODES}."
    return ""


def describe_trace(report: TrainReport) -> str:
    """Return a sentence on the scale at which the offenders overflow; "" if nothing was traced."""
    if report.trace_scale is None:
        return ""
    if not report.offenders:
        return (
            "No node starts an overflow in the first bad step: float32 overflows there as well, or only masks overflow."
        )
    if report.trace_scale == 1:
        return "These nodes overflow in the first bad step even with the loss unscaled: no loss scale helps."
    advice = "" if report.scale_trials else ": --tune-scale searches a better one"
    return (
        "In the first bad step nothing overflows with the loss unscaled, and these nodes overflow with the scale"
        f" {format_number(report.trace_scale)}. The scale is too large{advice}."
    )


def remedies(report: TrainReport) -> list[str]:
    """Return hints for a training that failed: options that may find a remedy, without those that were used."""
    if report.verdict != "fail":
        return []
    options = []
    has_exceptions = report.exception_rate > 0
    if has_exceptions and report.trace_scale is None:
        options.append("--trace-overflow finds the nodes that overflow first, and the lists that keep them high")
    if not has_exceptions and report.overflow_detection == "gradients":
        # An infinity of the forward pass need not reach the gradients: 1/inf is 0.
        options.append(f"no gradient overflowed; {_EXAMINE_NODES}")
    # More than 1 % of zeros: a larger loss scale may help, even if no step has an exception.
    shares = report.underflow
    lost = shares is not None and shares.zero > 0.01
    if shares is not None and not has_exceptions and min(shares.zero, shares.zero_unscaled) > _MOST_LOST:
        lost = False  # the scale of this training has not helped
    helps = has_exceptions and not (report.trace_scale == 1 and report.offenders)
    if (helps or lost) and not report.scale_trials:
        options.append("--tune-scale searches the scaler's initial scale and its growth interval")
    return options
