"""``mixlist diff``: print the edits between two sets of lists, or what changes in a model between two policies."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from mixlist.checker.options import CheckOptions, JudgingOptions
from mixlist.cli.command_files import FileCheckingCommand, load_input_model
from mixlist.cli.config_file import CONFIG
from mixlist.cli.data_options import (
    DataOptions,
    batches_of_options,
    build_judging_options,
    judging_options,
    pop_data_options,
)
from mixlist.cli.grouped_help import GroupedOption
from mixlist.cli.options import HTML, OP_NAMES, SIDES, TYPE_HINTS, format_option, pop_side_policy, side_options
from mixlist.cli.parameters import LIBRARY, MODEL, OptionValues, options_on_command_line
from mixlist.cli.result_output import next_command, unused_path, write_page_file, write_report
from mixlist.errors import ListError, UsageError
from mixlist.lists.policy import PolicyOptions
from mixlist.option_fields import command_line_forms

if TYPE_CHECKING:
    from mixlist.comparison import DiffReport
    from mixlist.lists.policy import Policy

MAX_NODES = 50  # the number of nodes in the text without --all
_LIST_HINT = (
    "BASE and OTHER are libraries. To compare two modify_mixlist files over one:"
    " mixlist diff ascend910b ascend910b --base-mixlist a.json --other-mixlist b.json"
)
ALL = GroupedOption("--all show_all", "output", f"With --model, show all nodes, not only {MAX_NODES}.", is_flag=True)
# The options of the check of both sides. They need data.
CHECK_OPTIONS = tuple(judging_options(JudgingOptions))


@click.command(
    "diff",
    cls=FileCheckingCommand,
    most_used=(
        "--base-mixlist",
        "--other-mixlist",
        "--other-precision-mode-v2",
        "--other-gray-policy",
        "--model",
        "--data",
        "--random",
        "--all",
        "--format",
        "--html",
    ),
    params=[
        click.Argument(["base"], metavar="BASE", type=LIBRARY),
        click.Argument(["other"], metavar="OTHER", type=LIBRARY),
        *(option for side in SIDES for option in side_options(side)),
        OP_NAMES,
        GroupedOption("--model", "lists", "Show what changes in this ONNX model, instead of the edits.", type=MODEL),
        TYPE_HINTS,
        ALL,
        *CHECK_OPTIONS,
        format_option("text", "json", "csv", description="With --model."),
        HTML,
        CONFIG,
    ],
)
def command(
    base: str, other: str, model: str | None, show_all: bool, output_format: str, html: str | None, **values: object
) -> int:
    """Print the modify_mixlist that turns the lists of BASE into those of OTHER.

    BASE and OTHER are built-in libraries or ops-info paths. Each side may have its own list files, precision mode and
    other settings. With --model, print what changes in the model: the number of nodes by precision and operator, the
    number of Casts, and the nodes. With --data too, check both sides on the same batches, and estimate their cost.
    Exit status 1 with data: the verdict of OTHER is fail or inconclusive. Otherwise 0, also where the sides differ.

    \b
    Example:
      mixlist diff ascend910 ascend910b > modify.json
      mixlist diff ascend910b ascend910b --base-mixlist a.json --other-mixlist b.json
      mixlist diff onnx onnx --other-gray-policy between --model model.onnx
      mixlist diff ascend910b ascend910b --other-mixlist modify.json --model model.onnx --html diff.html
      mixlist diff onnx onnx --other-mixlist modify.json --model model.onnx --data batches/
    """
    op_names = values.pop("op_names")
    data = pop_data_options(values) if model is not None else DataOptions()
    try:
        before, after = (
            pop_side_policy(values, side, {"ops_info": library, "op_names": op_names})
            for side, library in zip(SIDES, (base, other), strict=True)
        )
    except ListError as error:
        error.diagnostics = tuple(
            replace(finding, hint=_LIST_HINT) if finding.code == "ML208" else finding for finding in error.diagnostics
        )
        raise
    if model is None:
        _refuse_options_of_a_model()
        _write_edits(before, after, html)
        return 0
    report = _compare(model, before, after, data, values)
    return _write_comparison(report, _next_commands(base, model), show_all, output_format, html)


def _next_commands(base: str, model: str | None) -> dict[str, str]:
    """Return the command lines that write the modify_mixlist, and with a model the page of its graph."""
    values = click.get_current_context().params
    given = values["other_mixlist"] or ""
    # Edits of BASE itself are a file already; one from standard input cannot be read again.
    has_file = model is not None and values["other"] == base and given not in ("", "-") and not values["base_mixlist"]
    lists = given if has_file else unused_path("modify.json")
    of_model = ["model", *(str(option.name) for option in (TYPE_HINTS, ALL, *CHECK_OPTIONS))]
    commands = {} if has_file else {"diff": f"{next_command('diff', excluded=of_model)} > {lists}"}
    # The page compares lists with those of the library, and not with a list that has edits of its own.
    if model is None or values["base_mixlist"] is not None:
        return commands
    settings = []
    for name, form in command_line_forms(PolicyOptions).items():
        if values.get(f"base_{name}") is not None:
            settings += [form.flag, str(values[f"base_{name}"])]
    files = ["--other-mixlist", lists, "-o", unused_path("view.html")]
    view = next_command("view", model, "--ops-info", base, *settings, *files, excluded=("other_mixlist",))
    return commands | {"view": view}


def _refuse_options_of_a_model() -> None:
    """Raise UsageError for an option on the command line that has no effect without --model."""
    for option in (TYPE_HINTS, ALL, *CHECK_OPTIONS):
        if options_on_command_line(option.name or ""):
            raise UsageError(f"{option.opts[-1]} needs a model", hint="add --model model.onnx")


def _write_edits(before: Policy, after: Policy, html: str | None) -> None:
    """Write the modify_mixlist to standard output, and the settings that it cannot express to standard error."""
    from mixlist.lists.diff import diff, find_setting_changes
    from mixlist.lists.fmt import format_text
    from mixlist.model.name_warnings import find_name_warnings
    from mixlist.show import terminal
    from mixlist.show.diff_document import describe_settings, diff_document
    from mixlist.show.json_csv import escaped_json

    names = (*find_name_warnings(before), *find_name_warnings(after))
    warnings = tuple(dict.fromkeys((*before.warnings, *after.warnings, *names)))
    terminal.write_findings(warnings)
    edits = diff(before, after)
    settings = find_setting_changes(before, after)
    if text := describe_settings(settings):
        sys.stderr.write(f"{terminal.escape_commands(text)}; add --model to see the effect\n")
    if html is not None:
        write_page_file(diff_document(edits, settings, warnings, commands=_next_commands("", None)), html)
    # The canonical form of ``mixlist fmt``, so that the output can be saved as a list file.
    sys.stdout.write(escaped_json(format_text(json.dumps(edits), "diff", "modify-mixlist")))


def _compare(model: str, before: Policy, after: Policy, data: DataOptions, values: OptionValues) -> DiffReport:
    """Return the changes of a model, with checks of both sides if there is data."""
    from mixlist.comparison import compare_policies
    from mixlist.show import terminal
    from mixlist.show.progress_bar import bar

    terminal.write_findings(dict.fromkeys((*before.warnings, *after.warnings)))
    has_data = data.has_source
    if not has_data and (names := options_on_command_line(*(option.name or "" for option in CHECK_OPTIONS))):
        flag = next(option.opts[-1] for option in CHECK_OPTIONS if option.name == names[0])
        raise UsageError(f"{flag} is for a check of both sides, and there is no data", hint="add --data batches/")
    source = load_input_model(model)
    options = build_judging_options(CheckOptions(), values)
    batches = batches_of_options(data, source, options.max_batches) if has_data else None
    with bar("checking" if has_data else "scanning weights", "batches" if has_data else "bytes") as progress:
        return compare_policies(before, after, source, batches, replace(options, progress=progress))


def _write_comparison(
    report: DiffReport, commands: Mapping[str, str], show_all: bool, output_format: str, html: str | None
) -> int:
    """Write the report; return the exit status."""
    from mixlist.show import terminal
    from mixlist.show.diff_document import diff_document, write_diff_csv

    terminal.write_findings(report.warnings)
    document = diff_document(report, max_nodes=None if show_all else MAX_NODES, commands=commands)
    if output_format == "csv":
        try:
            if html is not None:
                write_page_file(document, html)
        finally:
            write_diff_csv(report, sys.stdout)
    else:
        write_report(report, document, output_format, html)
    check = report.other.check
    return int(check is not None and check.verdict != "pass")
