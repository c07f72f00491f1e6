"""``mixlist check``: does the mixed model overflow, and how far are its outputs from the original's?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from mixlist.cli.data import DATA_OPTIONS, LABELS, batches_from, take_data
from mixlist.cli.limits import LIMITS, OVERFLOW_MODE, RATES, STEPS, exception_rate, take_limits
from mixlist.cli.options import (
    FILE,
    POLICY_OPTIONS,
    TYPE_HINTS,
    one_standard_input,
    options,
    policy_from,
    read_hints,
)
from mixlist.cli.outputs import check_output, write_report
from mixlist.cli.workers import take_workers, worker_options

if TYPE_CHECKING:
    pass


@click.command("check", short_help="Check a mixed model for overflow and accuracy on data.")
@click.argument("model", type=FILE)
@options(
    *POLICY_OPTIONS,
    TYPE_HINTS,
    *DATA_OPTIONS,
    click.option("--against", metavar="MIXED", type=FILE, help="Judge this file instead of what the lists make."),
    OVERFLOW_MODE,
    click.option(
        "--full-statistics",
        is_flag=True,
        help="Count the values of every low tensor: not finite, became zero, subnormal, near the limit.",
    ),
    STEPS,
    *RATES,
    *LIMITS,
    LABELS,
    click.option(
        "--baseline",
        type=click.Choice(["float32", "float64"]),
        default="float32",
        show_default=True,
        help="What the reference is computed in; float64 where the operators allow.",
    ),
    click.option("--layerwise", is_flag=True, help="Rank nodes by the error that they add to exact inputs."),
    *worker_options("batches", "default: one, beside the command's own"),
    click.option(
        "--compare-emulated",
        is_flag=True,
        help="Beside a native check, run the emulation too, and tell where they part.",
    ),
    click.option("--per-tensor", is_flag=True, help="Report the range of every tensor (--html always does)."),
    click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True),
    click.option("--html", metavar="FILE", type=FILE, help="Write the report as one self-contained page, too."),
)
def command(
    model: str,
    against: str | None,
    provider: str,
    overflow_mode: str,
    full_statistics: bool,
    steps: int | None,
    large_batch: bool,
    max_exception_rate: float | None,
    labels: str | None,
    baseline: str,
    layerwise: bool,
    compare_emulated: bool,
    per_tensor: bool,
    form: str,
    html: str | None,
    type_hints: str | None,
    **given: Any,
) -> int:
    """Check a mixed model for overflow and accuracy on data. Nothing is written but the report.

    MODEL runs in float32 and, as the lists say, in mixed precision, batch by batch. An overflow is a value that is
    finite in float32 and not in low precision. The report leads with the nodes where it starts, and says which list
    entry made them low and what would keep them high. Outputs are held to limits. Exit status 0: pass, 1: fail.

    On a CPU the mixed model is emulated: ONNX Runtime's CPU provider computes most float16 nodes in float32 and drops
    the Casts between them, so the mixed model itself would show no overflow there. Instead a float32 model runs in
    which every low-precision value is rounded to the low type. With --provider cuda the mixed model itself runs.

    \b
    Example:
      mixlist check model.onnx --data batches/ --mixlist modify.json
      mixlist check model.onnx --random 4 --dim batch=8 --html report.html
      mixlist check model.onnx --against mixed.onnx --data batches/ --format json
    """
    import mixlist
    from mixlist.checker.accuracy import Limits
    from mixlist.checker.label_accuracy import read_labels
    from mixlist.graph.io import load
    from mixlist.report import check_html, check_terminal
    from mixlist.report.progress import count_bar
    from mixlist.runtime.subprocess_session import Process

    rate = exception_rate(max_exception_rate, large_batch)
    workers = take_workers(given)
    limits = take_limits(given, Limits())
    data = take_data(given)
    if html is not None:
        check_output("--html", html, (model, against, labels, type_hints, *data["data"], *given.values()))
    one_standard_input((type_hints, *given.values()))
    alone = workers == {"jobs": None, "scheduler": None}
    process = Process() if alone else False  # it starts while the model is read
    policy = policy_from(given)
    hints = read_hints(type_hints) if type_hints is not None else None
    source = load(model)
    batches = batches_from(data, source.proto)
    answers = read_labels(labels) if labels is not None else None
    with count_bar("checking", min(len(batches), steps or len(batches))) as told:
        report = mixlist.check(
            source,
            policy,
            batches,
            against=against,
            provider=provider,
            isolate=process,
            overflow_mode=overflow_mode,
            full_statistics=full_statistics,
            steps=steps,
            max_exception_rate=rate,
            limits=limits,
            labels=answers,
            baseline=baseline,
            layerwise=layerwise,
            per_tensor=per_tensor or html is not None,
            type_hints=hints,
            compare_emulated=compare_emulated,
            progress=told,
            **workers,
        )
    write_report(report, form, html, check_html.write_html, check_terminal.write_check)
    return int(report.verdict == "fail")
