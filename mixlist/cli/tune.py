"""``mixlist tune``: find the smallest change of the lists under which a model keeps its limits."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mixlist.cli.command_files import FileCheckingCommand
from mixlist.cli.config_file import CONFIG
from mixlist.cli.grouped_help import GroupedOption
from mixlist.cli.options import HTML, PLAN_OPTIONS, pop_policy
from mixlist.cli.parameters import MODEL, OptionValues, PathType
from mixlist.cli.result_output import next_command, unused_path, write_report
from mixlist.cli.search_command import (
    check_search_options,
    name_written_files,
    read_search,
    report_trials,
    search_options,
)
from mixlist.errors import UsageError
from mixlist.lists.save_lists import default_rules_path
from mixlist.search.options import TuneOptions
from mixlist.show import terminal
from mixlist.show.terminal import escape_commands
from mixlist.show.tune_document import keeps_no_work, tune_document

if TYPE_CHECKING:
    from mixlist.search.tune_result import TuneReport


def _partial_name(name: str) -> str:
    """Return ``modify.partial.json`` for ``modify.json``: the file for the result of an interrupted search."""
    path = Path(name)
    return str(path.parent / f"{path.stem}.partial{path.suffix}")


_LISTS_PATH = PathType("writes", must_be_new=True, replaceable_input="mixlist", other_output=_partial_name)
_RULES_PATH = PathType("writes", must_be_new=True, other_output=_partial_name)


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
        "--labels",
        "--objective",
        "--node-rules",
        "--force",
        "--html",
    ),
    params=[
        click.Argument(["model"], type=MODEL),
        GroupedOption(
            ["-o", "--output"],
            group="output",
            metavar="OUT",
            type=_LISTS_PATH,
            required=True,
            help="The modify_mixlist file to write.",
        ),
        GroupedOption(
            ["--node-rules", "rules"],
            group="output",
            metavar="FILE",
            type=_RULES_PATH,
            help="Also search rules that keep single nodes in float32, and write them to this customize_dtypes file.",
        ),
        GroupedOption(["--force"], group="output", is_flag=True, help="Replace existing outputs."),
        *PLAN_OPTIONS,
        *search_options(TuneOptions),
        HTML,
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
    html: str | None,
    **option_values: object,
) -> int:
    """Find the smallest change of the lists under which MODEL keeps the limits of 'mixlist check' on data.

    To use the result, give OUT as --mixlist and the FILE of --node-rules as --customize-dtypes, instead of the files
    that you gave to tune. Keep the other options of the policy. If lists alone keep too little work in low precision,
    the result can have rules for single nodes, too: modify.rules.txt, beside an OUT modify.json. Both files are written
    only if a final check of the result keeps the limits. With four batches or more, the search does not use the last
    quarter, which validates the result; --validate-on gives other data for this. Held-out batches on which the result
    fails join the search, which goes on. If the result does not keep the limits on the validation data in the end, it
    is written, and the verdict is fail. With --labels the share of right answers is judged, and the
    default limits of outputs do not apply.

    Ctrl-C ends the search and writes the best list so far to a file with .partial in its name (modify.partial.json).
    Exit status 0: pass, 1: fail, inconclusive, no list found, or interrupted.

    \b
    Example:
      mixlist tune model.onnx -o modify.json --data batches/ --html report.html
      mixlist tune model.onnx -o modify.json --data batches/ --node-rules nodes.txt --state search.jsonl --trace
      mixlist tune model.onnx -o modify.json --ops-info mindspore-o3 --random 4 --dim batch=8 --objective max-low
    """
    from mixlist.search.tune import run_tune

    # These checks are cheap, so they come before the lists and the model are read.
    data = check_search_options(option_values)
    rules_path = _rules_path(output, option_values, force) if rules is None else rules
    keeps_state = option_values["state"] is not None
    policy = pop_policy(option_values)
    source, batches, options = read_search(model, data, TuneOptions(node_rules=rules is not None), option_values)
    with report_trials(trace) as progress:
        report = run_tune(source, policy, batches, replace(options, progress=progress))
    if rules is None and report.has_node_rules:
        rules = rules_path
    report = replace(report, next_command=_recommended_command(report, output, rules, options, keeps_state))
    terminal.write_findings(report.warnings)
    try:
        saved = _save(report, output, rules, force)
        sys.stderr.write(f"{escape_commands(saved)}\n")
    finally:  # the report is written even if a file cannot be written
        write_report(report, tune_document(report), output_format, html)
    return int(report.verdict != "pass")


def _rules_path(output: str, option_values: OptionValues, force: bool) -> str:
    """Return the file for node rules that are not asked for; raise UsageError if it exists and must not be replaced.

    With --force it may replace the file of --customize-dtypes, whose rules it repeats.
    """
    path = default_rules_path(output)
    other_inputs = [option_values["keep_dtype"]]
    is_input = any(name is not None and Path(str(name)).resolve() == Path(path).resolve() for name in other_inputs)
    if Path(path).exists() and (is_input or not force):
        hint = "name another OUT" if is_input else "use --force to replace it"
        raise UsageError(f"{path} exists, to which node rules of the result would go", hint=hint)
    return path


def _recommended_command(
    report: TuneReport, output: str, rules: str | None, options: TuneOptions, keeps_state: bool
) -> str:
    """Return the command line for the next step, or "".

    It writes the mixed model. If the result keeps no matrix work in low precision, it searches for one that keeps the
    most. If there is no result, it searches rules for single nodes, too, or goes on with an interrupted search.
    """
    if not report.complete:
        return next_command("tune", *(() if keeps_state else ("--state", unused_path("search.jsonl"))))
    if report.verdict == "inconclusive":
        return ""
    node_rules = () if options.node_rules else ("--node-rules", unused_path("nodes.txt"))
    if not report.modify_mixlist:
        return next_command("tune", *node_rules) if node_rules else ""
    # A result that has an alternative was compared with node rules already.
    may_gain = keeps_no_work(report) and report.alternative is None and report.verdict == "pass"
    if may_gain and node_rules and not report.has_node_rules:
        return next_command("tune", *node_rules, "--force", excluded=("force",))  # the running command has written OUT
    if may_gain and report.objective != "max-low":
        return next_command("tune", "--objective", "max-low", "--force", excluded=("objective", "force"))
    if report.verdict == "fail":
        return ""
    # Without rules of its own, the result goes with the rules that the user gave.
    own_rules = rules is not None and report.has_node_rules
    files = [
        "--mixlist",
        output,
        *(["--customize-dtypes", rules] if own_rules else []),
        "-o",
        unused_path("mixed.onnx"),
    ]
    replaced = ("mixlist", "output", "force", *(["customize_dtypes"] if own_rules else []))
    return next_command("apply", *map(str, files), excluded=replaced)


def _save(report: TuneReport, lists: str, rules: str | None, force: bool) -> str:
    """Write the files if there is a list; return a sentence that names the written files."""
    if not report.modify_mixlist:
        return "nothing was written"
    # Ctrl-C: the lists so far are not minimal, so they do not replace OUT.
    if not report.complete:
        partial = _partial_name(lists), None if rules is None else _partial_name(rules)
        report.save(*partial, force=True)
        unchanged = f"; {lists} is unchanged" if Path(lists).exists() else ""
        return f"interrupted: {name_written_files(*partial)}{unchanged}"
    report.save(lists, rules, force=force)
    # The files are written with every verdict, because the list keeps the limits on the data of the search.
    remarks = {
        "pass": "",
        "fail": "; the list keeps the limits on the data of the search, but not on the validation data",
        "inconclusive": "; too little of the validation data could be compared",
    }
    return name_written_files(lists, rules) + remarks[report.verdict]
