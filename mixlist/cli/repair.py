"""``mixlist repair``: raise the nodes of a float16 model that overflow."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from mixlist.cli.command_files import FileCheckingCommand
from mixlist.cli.config_file import CONFIG
from mixlist.cli.data_options import TRACE, judging_options, pop_data_options, read_run, report_trials
from mixlist.cli.options import TYPE_HINTS, format_option, output_options
from mixlist.cli.parameters import MODEL
from mixlist.cli.result_output import next_command, unused_path, write_report
from mixlist.search.options import RepairOptions
from mixlist.show import terminal
from mixlist.show.terminal import escape_commands

if TYPE_CHECKING:
    from mixlist.search.repair_result import RepairReport


@click.command(
    "repair",
    cls=FileCheckingCommand,
    most_used=(
        "--data",
        "--random",
        "--dim",
        "--range",
        "--max-normalized-error",
        "--clip",
        "--provider",
        "--rules",
        "--force",
        "--format",
    ),
    params=[
        click.Argument(["model"], type=MODEL),
        *output_options(
            "The repaired model to write.",
            rules_help="Also write the repair to this customize_dtypes file; empty if there is nothing to repair.",
        ),
        TYPE_HINTS,
        *judging_options(RepairOptions),
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
    trace: bool,
    output_format: str,
    **option_values: object,
) -> int:
    """Find the fewest nodes of a float16 or bfloat16 MODEL to raise to float32, and write the repaired model to OUT.

    MODEL is the file that overflows: no float32 model is needed. The reference is MODEL in float32, with its weights as
    they are in the file. OUT keeps the limits of 'mixlist check' on the data, and without --io the inputs and outputs.
    The search is that of 'mixlist tune', on all of the data. Nodes that MODEL has in float32 stay as they are.

    If the types of MODEL clash, so that nothing loads it, Casts and declared types are corrected first. If no node is
    in float16 or bfloat16 then, there is nothing to search, and no data is needed.

    If MODEL keeps every limit, OUT is MODEL without a change. OUT is not written if no repair is found, or after
    Ctrl-C; --state FILE continues a search that was stopped. If OUT does not keep the limits on the data of
    --validate-on, it is written, and the verdict is fail.
    Exit status 0: pass, 1: fail, inconclusive, or interrupted.

    \b
    Example:
      mixlist repair model_fp16.onnx -o repaired.onnx --data batches/
      mixlist repair model_fp16.onnx -o repaired.onnx --data batches/ --clip
      mixlist repair model_fp16.onnx -o repaired.onnx --data batches/ --rules nodes.txt --format json
      mixlist apply model_fp16.onnx -o repaired.onnx --precision-mode-v2 origin --customize-dtypes nodes.txt
    """
    from mixlist.search.repair import needs_data, run_repair
    from mixlist.search.type_corrections import correct_types
    from mixlist.show.repair_document import repair_document

    data = pop_data_options(option_values)
    keeps_state = option_values["state"] is not None
    # Random data can be made only for a model whose types agree: correct them first.
    source, batches, options = read_run(
        model,
        data,
        RepairOptions(),
        option_values,
        lambda source, options: correct_types(source, options.type_hints),
        needs_data,
    )
    with report_trials(trace) as progress:
        report = run_repair(source, batches, replace(options, progress=progress))
    report = replace(
        report,
        next_command=_next_command(report, output, keeps_state),
        check_command=_check_command(report, output, options),
    )
    terminal.write_findings(report.warnings)
    try:
        sys.stderr.write(f"{escape_commands(_save(report, output, rules, force))}\n")
    finally:  # the report is written even if a file cannot be written
        write_report(report, repair_document(report), output_format)
    return int(report.verdict != "pass")


def _next_command(report: RepairReport, output: str, keeps_state: bool) -> str:
    """Return the command line that goes on with an interrupted search, or that times the repaired model, or ""."""
    if not report.complete:
        return next_command("repair", *(() if keeps_state else ("--state", unused_path("search.jsonl"))))
    if report.wide_outputs:
        return next_command("repair", "--io", "float32", excluded=("io",))
    if not _is_compared(report):
        return ""
    # The two models are files, so options of a policy would have no effect.
    return next_command("bench", output, excluded=("output", "force", "type_hints"))


def _check_command(report: RepairReport, output: str, options: RepairOptions) -> str:
    """Return the command line that checks the repaired model against the given one in float32, or ""."""
    if not _is_compared(report):
        return ""
    return next_command("check", output, "--reference-type", "float32", excluded=("output", "force", "reference_type"))


def _is_compared(report: RepairReport) -> bool:
    """Return whether the repaired model differs from the given one, which loads: types that clash do not."""
    return report.verdict == "pass" and bool(report.edits) and not any(edit.corrects_types for edit in report.edits)


def _save(report: RepairReport, output: str, rules: str | None, force: bool) -> str:
    """Write the files if there is a repaired model; return a sentence that names the written files."""
    if report.rewritten is None:
        return "nothing was written"
    report.save(output, rules=rules, force=force)
    # The files are written with every verdict, because the model keeps the limits on the data of the search.
    remarks = {
        "pass": "",
        "fail": "; it does not keep the limits on the validation data",
        "inconclusive": "; too little of the validation data could be compared",
    }
    files = f"{output} and {rules}" if rules is not None else output
    if rules is not None and any(edit.corrects_types for edit in report.edits):
        files += ", whose rules are for the model with the corrected types"
    return f"wrote {files}" + ("" if report.edits else ": no node changed") + remarks[report.verdict]
