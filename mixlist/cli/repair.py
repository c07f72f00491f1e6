"""``mixlist repair``: raise the nodes of a float16 model that overflow."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from mixlist.checker.limits import Limits
from mixlist.cli.command_files import FileCheckingCommand, load_input_model
from mixlist.cli.data_options import DataOptions
from mixlist.cli.declared_options import build_options, declared_options
from mixlist.cli.options import TYPE_HINTS, format_option, pop_type_hints
from mixlist.cli.parameters import CONFIG, MODEL, PathType
from mixlist.cli.result_output import write_report
from mixlist.cli.search_command import TRACE, check_search_options, read_search_data, report_trials
from mixlist.cli.verdict_options import LARGE_BATCH
from mixlist.repairer.options import RepairOptions
from mixlist.report import terminal
from mixlist.report.terminal import escape_commands
from mixlist.tuner.options import default_limits

if TYPE_CHECKING:
    from mixlist.repairer.result import RepairReport


@click.command(
    "repair",
    cls=FileCheckingCommand,
    params=[
        click.Argument(["model"], type=MODEL),
        click.Option(
            ["-o", "--output"],
            metavar="OUT",
            type=PathType("writes", must_be_new=True),
            required=True,
            help="The repaired model to write.",
        ),
        click.Option(
            ["--node-rules", "rules"],
            metavar="FILE",
            type=PathType("writes", must_be_new=True),
            help="Also write the repair to this customize_dtypes file; empty if there is nothing to repair.",
        ),
        click.Option(["--force"], is_flag=True, help="Replace existing outputs."),
        TYPE_HINTS,
        *declared_options(DataOptions, RepairOptions),
        LARGE_BATCH,
        *declared_options(Limits),
        TRACE,
        format_option("text", "json"),
        CONFIG,
    ],
)
def command(
    model: str,
    output: str,
    rules: str | None,
    force: bool,
    validate_on: tuple[str, ...],
    labels: str | None,
    state: str | None,
    trace: bool,
    output_format: str,
    **option_values: object,
) -> int:
    """Find the fewest nodes of a float16 or bfloat16 MODEL to raise to float32, and write the repaired model to OUT.

    MODEL is the file that overflows: no float32 model is needed. The reference is MODEL in float32, with its weights as
    they are in the file. OUT keeps the inputs and outputs of MODEL and the limits of 'mixlist check' on the data. The
    search is that of 'mixlist tune', on all of the data. Nodes that MODEL has in float32 stay as they are.

    If MODEL keeps every limit, OUT is MODEL without a change. OUT is not written if no repair is found, if more than
    half of the nodes had to be raised, or after Ctrl-C; --state FILE continues a search that was stopped. If OUT does
    not keep the limits on the data of --validate-on, it is written, and the verdict is fail.
    Exit status 0: pass, 1: fail, inconclusive, or interrupted.

    \b
    Example:
      mixlist repair model_fp16.onnx -o repaired.onnx --data batches/
      mixlist repair model_fp16.onnx -o repaired.onnx --data batches/ --clip
      mixlist repair model_fp16.onnx -o repaired.onnx --data batches/ --node-rules nodes.txt --format json
      mixlist apply model_fp16.onnx -o repaired.onnx --precision-mode-v2 origin --customize-dtypes nodes.txt
    """
    from mixlist.checker.label_accuracy import read_labels
    from mixlist.repairer.run import run_repair
    from mixlist.report.repair_terminal import write_repair

    # These checks are cheap, so they come before the model is read.
    data = check_search_options(option_values, labels)
    hints = pop_type_hints(option_values)
    source = load_input_model(model)
    batches, validation_batches = read_search_data(data, validate_on, source.proto, option_values["steps"])
    # ``isolate``: the trials run in worker processes, so that a crash of ONNX Runtime does not end the search.
    options = build_options(
        RepairOptions(),
        option_values,
        limits=build_options(default_limits(labeled=labels is not None), option_values),
        labels=None if labels is None else read_labels(labels),
        state=state,
        validate_on=validation_batches,
        type_hints=hints,
        isolate=True,
    )
    with report_trials(trace) as progress:
        report = run_repair(source, batches, replace(options, progress=progress))
    terminal.write_findings(report.warnings)
    try:
        sys.stderr.write(f"{escape_commands(_save(report, output, rules, force))}\n")
    finally:  # the report is written even if a file cannot be written
        write_report(report, output_format, write_repair)
    return int(report.verdict != "pass")


def _save(report: RepairReport, output: str, rules: str | None, force: bool) -> str:
    """Write the files if there is a repaired model; return a sentence that names the written files."""
    if report.rewritten is None:
        return "nothing was written"
    report.save(output, rules, force=force)
    written = f"wrote {output}" if rules is None else f"wrote {output} and {rules}"
    # The files are written with every verdict, because the model keeps the limits on the data of the search.
    remarks = {
        "pass": "",
        "fail": "; it does not keep the limits on the validation data",
        "inconclusive": "; too little of the validation data could be compared",
    }
    return written + ("" if report.edits else ": no node changed") + remarks[report.verdict]
