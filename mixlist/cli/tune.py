"""``mixlist tune``: find the smallest change of the lists under which a model keeps its limits."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mixlist.cli.command_files import FileCheckingCommand
from mixlist.cli.config_file import CONFIG
from mixlist.cli.data_options import TRACE, judging_options, pop_data_options, read_run, report_trials
from mixlist.cli.options import HTML, PLAN_OPTIONS, format_option, output_options, pop_policy
from mixlist.cli.parameters import MODEL, PathType
from mixlist.cli.result_output import next_command, unused_path, write_report, writing_command
from mixlist.search.options import TuneOptions
from mixlist.show import terminal
from mixlist.show.terminal import escape_commands
from mixlist.show.tune_document import tune_document

if TYPE_CHECKING:
    from mixlist.lists.policy import Policy
    from mixlist.search.tune_result import TuneReport


def _partial_name(name: str) -> str:
    """Return ``modify.partial.json`` for ``modify.json``: the file for the result of an interrupted search."""
    path = Path(name)
    return str(path.parent / f"{path.stem}.partial{path.suffix}")


_LISTS_PATH = PathType("writes", must_be_new=True, replaceable_input="mixlist", other_output=_partial_name)


@click.command(
    "tune",
    cls=FileCheckingCommand,
    most_used=(
        "--mixlist",
        "--ops-info",
        "--data",
        "--random",
        "--dim",
        "--max-normalized-error",
        "--judge",
        "--force",
        "--html",
    ),
    params=[
        click.Argument(["model"], type=MODEL),
        *output_options("The modify_mixlist file to write.", kind=_LISTS_PATH),
        *PLAN_OPTIONS,
        *judging_options(TuneOptions),
        TRACE,
        format_option("text", "json"),
        HTML,
        CONFIG,
    ],
)
def command(
    model: str,
    output: str,
    force: bool,
    trace: bool,
    output_format: str,
    html: str | None,
    **option_values: object,
) -> int:
    """Find the smallest change of the lists under which MODEL keeps the limits of 'mixlist check' on data.

    An edit moves one op type to the black list, so that all its nodes compute in float32. To use the result, give OUT
    as --mixlist instead of the file that you gave to tune, and keep the other options of the policy. OUT is written
    only if a final check of the result keeps the limits. If it keeps too little work in low precision, or if there is
    no such list, the report names the 'mixlist convert' command that chooses single nodes. With four batches or more,
    the search does not use the last quarter, which validates the result; --validate-on gives other data for this.
    Held-out batches on which the result fails join the search, which goes on. If the result does not keep the limits on
    the validation data in the end, it is written, and the verdict is fail.

    Ctrl-C ends the search and writes the best list so far to a file with .partial in its name (modify.partial.json).
    Exit status 0: pass, 1: fail, inconclusive (also if nothing is low, or no matrix work is low any more), no list
    found, or interrupted.

    \b
    Example:
      mixlist tune model.onnx -o modify.json --data batches/ --html report.html
      mixlist tune model.onnx -o modify.json --data batches/ --state search.jsonl --trace
      mixlist tune model.onnx -o modify.json --ops-info mindspore-o3 --random 4 --dim batch=8
    """
    from mixlist.search.tune import run_tune

    data = pop_data_options(option_values)
    keeps_state = option_values["state"] is not None
    policy = pop_policy(option_values)
    source, batches, options = read_run(model, data, TuneOptions(), option_values)
    with report_trials(trace) as progress:
        report = run_tune(source, policy, batches, replace(options, progress=progress))
    report = replace(report, next_command=_recommended_command(report, output, policy, keeps_state))
    terminal.write_findings(report.warnings)
    try:
        saved = _save(report, output, force)
        sys.stderr.write(f"{escape_commands(saved)}\n")
    finally:  # the report is written even if a file cannot be written
        write_report(report, tune_document(report), output_format, html)
    return int(report.verdict != "pass")


def _recommended_command(report: TuneReport, output: str, policy: Policy, keeps_state: bool) -> str:
    """Return the command line for the next step, or "".

    It writes the mixed model, or the files of ATC. If the result keeps too little low, or if there is none, ``convert``
    chooses single nodes with the same lists, data and limits; from lists in Ascend names it writes their rules, and no
    model. An interrupted search goes on.
    """
    if not report.complete:
        return next_command("tune", *(() if keeps_state else ("--state", unused_path("search.jsonl"))))
    if report.keeps_too_little_low and (report.verdict != "inconclusive" or report.keeps_nothing_low):
        # An Ascend tool reads the rules, and not a mixed model.
        is_ascend = policy.space == "ascend"
        option, name = ("--rules", "rules.cfg") if is_ascend else ("-o", "mixed.onnx")
        return next_command("convert", option, unused_path(name), excluded=("output", "force"))
    if report.verdict != "pass":
        return ""
    return writing_command(policy, "--mixlist", output, excluded=("mixlist", "output", "force"))


def _save(report: TuneReport, lists: str, force: bool) -> str:
    """Write the file if there is a list; return a sentence that names the written file."""
    if not report.modify_mixlist:
        return "nothing was written"
    # Ctrl-C: the lists so far are not minimal, so they do not replace OUT.
    if not report.complete:
        partial = _partial_name(lists)
        report.save(partial, force=True)
        unchanged = f"; {lists} is unchanged" if Path(lists).exists() else ""
        return f"interrupted: wrote {partial}{unchanged}"
    report.save(lists, force=force)
    # The file is written with every verdict, because the list keeps the limits on the data of the search.
    remarks = {
        "pass": "",
        "fail": "; the list keeps the limits on the data of the search, but not on the validation data",
        "inconclusive": "; too little of the validation data could be compared",
    }
    if report.keeps_nothing_low:
        return f"wrote {lists}; {'hardly any matrix work' if report.loses_matrix_work else 'nothing'} is low"
    return f"wrote {lists}{remarks[report.verdict]}"
