"""``mixlist export``: print the lists that make another tool decide as mixlist does."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mixlist.cli.command_files import FileCheckingCommand
from mixlist.cli.config_file import CONFIG
from mixlist.cli.grouped_help import GroupedOption
from mixlist.cli.options import (
    PLAN_OPTIONS,
    build_options,
    declared_options,
    format_option,
    pop_policy,
    pop_type_hints,
    resolve_with_progress,
)
from mixlist.cli.parameters import LIBRARY, MODEL, PathType
from mixlist.errors import UsageError
from mixlist.exchange import TOOLS
from mixlist.lists.policy import InterfaceOptions
from mixlist.number_text import pluralize
from mixlist.text_escapes import quote_argument

if TYPE_CHECKING:
    from mixlist.exchange.export_result import ExportResult

_FILES = ("modify_mixlist.json", "keep_dtype.cfg", "customize_dtypes.cfg", "atc.sh")
_OUTPUT_FOLDER = PathType("writes into", files=_FILES)


@click.command(
    "export",
    cls=FileCheckingCommand,
    most_used=(
        "--mixlist",
        "--ops-info",
        "--precision-mode-v2",
        "--keep-dtype",
        "--customize-dtypes",
        "--library",
        "--format",
    ),
    params=[
        click.Argument(["model"], type=MODEL),
        GroupedOption(
            "--for tool",
            "output",
            "modelopt (ModelOpt AutoCast), ort (onnxruntime.transformers), onnxconverter (onnxconverter-common) or "
            "atc (the Ascend compiler).",
            type=click.Choice(TOOLS),
            required=True,
        ),
        GroupedOption(
            "-o --output",
            "output",
            "Write the files that the tool reads into this new folder; only atc reads "
            "files. Its command is among them.",
            metavar="DIR",
            type=_OUTPUT_FOLDER,
        ),
        *PLAN_OPTIONS,
        *declared_options(InterfaceOptions),
        GroupedOption(
            "--library",
            "lists",
            "With --for atc: the operator library of the chip.  [default: that of --ops-info, else ascend910b]",
            metavar="PATH|PRESET",
            type=LIBRARY,
        ),
        format_option("text", "json", description="text: a program or command that runs the tool; json: its lists."),
        CONFIG,
    ],
)
def command(
    model: str, tool: str, output: str | None, library: str | None, output_format: str, **option_values: object
) -> int:
    """Print a program or command that makes another tool decide the precision of each node as mixlist does.

    Its arguments are the lists of the tool. The exceptions, in its last comments or in the JSON, are the nodes that the
    tool decides otherwise, with the reason. MODEL is not changed. Exit status 1 if the tool makes an invalid model.

    \b
    Example:
      mixlist export model.onnx --for ort --mixlist modify.json > convert.py
      mixlist export model.onnx --for modelopt --format json
      mixlist export model.onnx --for atc --ops-info ascend910b -o atc_lists
    """
    from mixlist.exchange.export import export
    from mixlist.files.atomic_writes import refuse_used_folder
    from mixlist.show import json_csv, terminal

    if output is not None:
        refuse_used_folder(Path(output))
    policy, type_hints = pop_policy(option_values), pop_type_hints(option_values)
    interface = build_options(InterfaceOptions(), option_values)
    if tool == "atc" and policy.mode.low == "hifloat8":  # no plan exists (S3.9)
        result = export(model, policy, tool, library=library)
    else:
        result = export(None, resolve_with_progress(model, policy, type_hints, interface), tool, library=library)
    if output is not None and not result.files:
        raise UsageError(f"--output: {tool} reads no files, but takes lists as arguments", hint="leave --output out")
    terminal.write_findings(result.warnings)
    if output is not None:
        for path in result.save(Path(output)):
            sys.stderr.write(f"wrote {terminal.escape_commands(str(path))}\n")
    if output_format == "json":
        json_csv.write_json(result.to_json(), sys.stdout)
    else:
        _write_call(result, output)
    if result.is_valid:
        return 0
    count = sum(item.invalid for item in result.exceptions)
    sys.stderr.write(f"{tool} makes an invalid model because of {pluralize(count, 'node')}: see the exceptions\n")
    return 1


def _write_call(result: ExportResult, folder: str | None) -> None:
    """Write the program or command that runs the tool. Lines that are no part of it begin with ``#``.

    It is the script of the folder if the user has asked for the files.
    """
    from mixlist.show.terminal import escape_commands

    count = len(result.exceptions)
    comments = [
        f"{result.tool}: as in {result.measured_with}",
        *(f"note: {note}" for note in result.notes),
        f"{count} exception{'' if count == 1 else 's'}",
        *(f"{item.node}: {item.why}" for item in result.exceptions),
    ]
    call = result.call
    if folder is not None:
        script = quote_argument(str(Path(folder, "atc.sh")))
        call = f"export SOC_VERSION=...  # the name of the chip\nsh {script}"
    lines = [*call.splitlines(), *(f"# {comment}" for comment in comments)]
    sys.stdout.writelines(f"{escape_commands(line)}\n" for line in lines)
