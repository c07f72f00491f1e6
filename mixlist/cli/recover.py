"""``mixlist recover``: find the lists and node rules that decide as another tool's output does."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, get_args

import click

from mixlist.cli.command_files import FileCheckingCommand, load_input_model
from mixlist.cli.config_file import CONFIG
from mixlist.cli.grouped_help import GroupedOption
from mixlist.cli.options import GRAY_POLICY, OP_NAMES, OPS_INFO, TYPE_HINTS, format_option, pop_type_hints
from mixlist.cli.parameters import MODEL, PathType, refuse_second_standard_input
from mixlist.cli.result_output import next_command, write_report
from mixlist.lists.policy import Constants
from mixlist.show import terminal

if TYPE_CHECKING:
    from mixlist.exchange.recover_result import RecoverReport


@click.command(
    "recover",
    cls=FileCheckingCommand,
    params=[
        click.Argument(["original"], metavar="ORIGINAL", type=MODEL),
        click.Argument(["mixed"], metavar="MIXED", type=MODEL),
        GroupedOption(
            ["-o", "--output"],
            group="output",
            metavar="OUT",
            type=PathType("writes", must_be_new=True),
            required=True,
            help="The modify_mixlist file to write.",
        ),
        GroupedOption(
            ["--node-rules", "rules"],
            group="output",
            metavar="FILE",
            type=PathType("writes", must_be_new=True),
            required=True,
            help="The customize_dtypes file to write; empty if no node needs a rule.",
        ),
        GroupedOption(["--force"], group="output", is_flag=True, help="Replace existing outputs."),
        OPS_INFO,
        OP_NAMES,
        GRAY_POLICY,
        GroupedOption(
            ["--constants"],
            group="lists",
            type=click.Choice(get_args(Constants)),
            help="How constants beyond the range of the low type are treated."
            "  [default: keep, or clamp if that needs fewer edits]",
        ),
        GroupedOption(
            ["--protect"],
            group="lists",
            metavar="masks,positions,quantized|none",
            help="Values that no list makes low precision."
            "  [default: that of the library, or less if that needs fewer edits]",
        ),
        TYPE_HINTS,
        format_option("text", "json"),
        CONFIG,
    ],
)
def command(original: str, mixed: str, output: str, rules: str, output_format: str, **option_values: object) -> int:
    """Find the smallest lists and node rules under which mixlist decides as another tool did.

    MIXED is the model that the tool made from ORIGINAL. Its low type, float16 or bfloat16, is read from the file. Nodes
    are matched by their names, by the tensors that they make, and by their place in the graph. The report names each
    node that lists and node rules cannot give its type, with the reason, and each node without a counterpart.

    Both files are written in any case. The report ends with the command that shows the recovered decisions.
    Exit status 0: every node of MIXED that computes gets its types, 1: some do not.

    \b
    Example:
      mixlist recover model.onnx model_fp16.onnx -o list.json --node-rules nodes.txt
      mixlist recover model.onnx model_bf16.onnx -o list.json --node-rules nodes.txt --ops-info ascend910b
      mixlist recover model.onnx model_fp16.onnx -o list.json --node-rules nodes.txt --format json | jq .exceptions
    """
    from mixlist.exchange.recover import recover
    from mixlist.show.recover_document import recover_document

    refuse_second_standard_input()
    force = bool(option_values.pop("force"))
    hints = pop_type_hints(option_values)
    settings = {name: value for name, value in option_values.items() if value is not None}
    report = recover(load_input_model(original), load_input_model(mixed), type_hints=hints, **settings)  # type: ignore[arg-type]
    report = replace(report, next_command=_resolve_command(report, original, output, rules))
    terminal.write_findings(report.warnings)
    try:
        report.save(output, rules, force=force)
        sys.stderr.write(f"wrote {terminal.escape_commands(output)} and {terminal.escape_commands(rules)}\n")
    finally:  # the report is written even if a file cannot be written
        write_report(report, recover_document(report), output_format)
    return int(not report.complete)


def _resolve_command(report: RecoverReport, original: str, lists: str, rules: str) -> str:
    """Return the command line that shows the recovered decisions."""
    files = ["--mixlist", lists, *(["--customize-dtypes", rules] if report.customize_dtypes else [])]
    settings = ["--precision-mode-v2", report.precision_mode_v2, "--protect", report.protect]
    settings += ["--constants", report.constants] if report.constants != "keep" else []
    return next_command("resolve", original, *files, *settings, excluded=("constants", "protect"))
