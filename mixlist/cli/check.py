"""``mixlist check``: find overflow in the mixed model, and compare its outputs with the original's."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from mixlist.checker.accuracy import Limits
from mixlist.checker.options import CheckOptions
from mixlist.cli.command_files import Command, load_model
from mixlist.cli.data import DataOptions, batches_from, take_data
from mixlist.cli.declared import build, declared
from mixlist.cli.index import load_command
from mixlist.cli.judging import LARGE_BATCH, apply_large_batch, refuse_two_workplaces
from mixlist.cli.next_command import next_command
from mixlist.cli.options import HTML, PLAN_OPTIONS, format_option, take_policy, take_type_hints
from mixlist.cli.outputs import write_report
from mixlist.cli.parameters import CONFIG, MODEL

if TYPE_CHECKING:
    from mixlist.graph.load import LoadedModel


@click.command(
    "check",
    cls=Command,
    params=[
        click.Argument(["model"], type=MODEL),
        *PLAN_OPTIONS,
        *declared(DataOptions, CheckOptions),
        LARGE_BATCH,
        *declared(Limits),
        format_option("text", "json"),
        HTML,
        CONFIG,
    ],
)
def command(model: str, labels: str | None, form: str, html: str | None, **given: object) -> int:
    """Check a mixed model for overflow and accuracy on data. Nothing is written but the report.

    MODEL runs in float32 and, as the lists say, in mixed precision, batch by batch. An overflow is a value that is
    finite in float32 and not in low precision. The report leads with the nodes where it starts, and says which list
    entry made them low and what would keep them high. Outputs are held to limits. Exit status 0: pass, 1: fail, or
    inconclusive where too little could be compared.

    On a CPU the mixed model is emulated: ONNX Runtime's CPU provider computes most float16 nodes in float32 and drops
    the Casts between them, so the mixed model itself would show no overflow there. Instead a float32 model runs in
    which every low-precision value is rounded to the low type. With --provider cuda the mixed model itself runs.

    \b
    Example:
      mixlist check model.onnx --data batches/ --mixlist modify.json
      mixlist check model.onnx --random 4 --dim batch=8 --html report.html
      mixlist check model.onnx --against mixed.onnx --data batches/ --format json
    """
    from mixlist.checker.label_accuracy import read_labels
    from mixlist.checker.run import run_check
    from mixlist.report import check_html, check_terminal
    from mixlist.report.progress import bar
    from mixlist.runtime.subprocess_session import SessionProcess

    apply_large_batch(given)
    refuse_two_workplaces(given)
    alone = given["jobs"] is None and given["scheduler"] is None
    context = click.get_current_context()  # ends the process, which starts while the model is read
    process = context.with_resource(SessionProcess()) if alone else False
    policy = take_policy(given)
    hints = take_type_hints(given)
    source = load_model(model)
    batches = batches_from(take_data(given), source.proto)
    given["per_tensor"] = given["per_tensor"] or html is not None
    limits = build(Limits(), given)
    answers = None if labels is None else read_labels(labels)
    options = build(CheckOptions(), given, limits=limits, labels=answers, type_hints=hints, isolate=process)
    with bar("checking", "batches") as progress:
        report = run_check(source, policy, batches, replace(options, progress=progress))
    if report.verdict == "fail" and options.against is None and policy.mode.action == "lists":
        report = replace(report, next_command=_tune_command(source))
    write_report(report, form, html, check_html.render, check_terminal.write_check)
    return int(report.verdict != "pass")


def _tune_command(source: LoadedModel) -> str:
    """Return the command line of ``tune`` for the same model, data and limits.

    Only rules of nodes raise what the model has in a low type itself.
    """
    from mixlist.emulation.emulate import has_low_types

    rules = ("--node-rules", "nodes.txt") if has_low_types(source.proto) else ()
    return next_command(load_command("tune"), "-o", "modify.json", *rules, without=("form",))
