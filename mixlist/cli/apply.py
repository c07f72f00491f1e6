"""``mixlist apply``: write the model in mixed precision."""

from __future__ import annotations

import io
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mixlist.cli.command_files import FileCheckingCommand, load_input_model
from mixlist.cli.name_completion import complete_interface
from mixlist.cli.options import PLAN_OPTIONS, pop_policy, pop_type_hints, resolve_with_progress
from mixlist.cli.parameters import CONFIG, MODEL, OUTPUT_OR_DASH, PathType
from mixlist.report.number_text import pluralize

if TYPE_CHECKING:
    from mixlist.graph.load import LoadedModel
    from mixlist.rewriter import RewriteResult


_OUTPUT_PATH = PathType("writes", must_be_new=True)


@click.command(
    "apply",
    cls=FileCheckingCommand,
    params=[
        click.Argument(["model"], type=MODEL),
        click.Option(["-o", "--output"], metavar="OUT", type=_OUTPUT_PATH, required=True, help="The file to write."),
        *PLAN_OPTIONS,
        click.Option(
            ["--keep-io-types/--no-keep-io-types"],
            default=True,
            help="Keep the types of graph inputs and outputs, or let them follow the lists.  [default: keep]",
        ),
        click.Option(
            ["--keep-io"],
            metavar="NAME",
            multiple=True,
            help="An input or output that keeps its type, with --no-keep-io-types.",
            shell_complete=complete_interface,
        ),
        click.Option(
            ["--external-data"],
            type=click.Choice(["auto", "yes", "no"]),
            default="auto",
            show_default=True,
            help="Write the weights to a separate file. auto: as in MODEL, or if OUT would exceed 2 GB.",
        ),
        click.Option(["--inline-functions"], is_flag=True, help="Inline model-local functions first."),
        click.Option(
            ["--opset"], type=int, metavar="N", help="Convert to this opset first; a later opset may allow more types."
        ),
        click.Option(["--force"], is_flag=True, help="Replace an existing OUT."),
        click.Option(["--dry-run"], is_flag=True, help="Do everything except writing OUT."),
        click.Option(
            ["--report"],
            metavar="FILE",
            type=OUTPUT_OR_DASH,
            help="Write a report as JSON ('-': standard output).",
        ),
        CONFIG,
    ],
)
def command(
    model: str,
    output: str,
    keep_io_types: bool,
    keep_io: tuple[str, ...],
    external_data: str,
    inline_functions: bool,
    opset: int | None,
    force: bool,
    dry_run: bool,
    report: str | None,
    **option_values: object,
) -> None:
    """Write MODEL to OUT in mixed precision. MODEL never changes; OUT appears whole or not at all.

    \b
    Example:
      mixlist apply model.onnx -o mixed.onnx --mixlist modify.json
      mixlist apply model.onnx -o mixed.onnx --ops-info ascend910b --dry-run
      mixlist apply model.onnx -o mixed.onnx --precision-mode-v2 mixed_bfloat16 --report report.json
    """
    from mixlist.graph.save import files_of_model
    from mixlist.graph.traversal import nodes_in_model
    from mixlist.report import apply_terminal, terminal
    from mixlist.report.progress import bar
    from mixlist.rewriter import rewrite_in_place

    out = Path(output)
    policy, hints = pop_policy(option_values), pop_type_hints(option_values)
    source = load_input_model(model)
    # Count the nodes now, because ``rewrite_in_place`` changes the model.
    before, inputs = Counter(node.op_type for node in nodes_in_model(source.proto)), files_of_model(source)
    # Phases: decide the precision of the nodes, rewrite, save, then report.
    plan = resolve_with_progress(_with_inlining_and_opset(source, inline_functions, opset), policy, hints)
    result = rewrite_in_place(plan, keep_io_types, keep_io)
    written: tuple[Path, ...] = ()
    if not dry_run:
        with bar("writing weights", "bytes", result.streamed_bytes()) as progress:
            written = result.save(out, force=force, external_data=external_data, progress=progress)
    terminal.write_findings(result.warnings)
    if report is not None:
        _write_report(report, result)
    sizes = _total_size(inputs), None if dry_run else _total_size(written)
    after = Counter(node.op_type for node in nodes_in_model(result.proto))
    apply_terminal.write_summary(plan, result, (before, after), sizes, sys.stderr)
    # A bfloat16 model is valid, but that provider has few bfloat16 kernels: say before the first run how many are
    # missing.
    if plan.policy.mode.low == "bfloat16" and result.low:
        from mixlist.targets.kernels import find_nodes_without_low_kernel

        missing = len(find_nodes_without_low_kernel(plan, "cpu"))
        sys.stderr.write(
            f"{missing} of the {result.low} bfloat16 nodes have no bfloat16 kernel in ONNX Runtime's CPU provider\n"
        )


def _with_inlining_and_opset(source: LoadedModel, inline: bool, opset: int | None) -> LoadedModel:
    """Return the model with its functions inlined and converted to another opset, if the user asks for it."""
    from mixlist.graph.onnx_conversion import convert_opset, inline_functions

    # Functions first: onnx's version converter drops them, so ``convert_opset`` refuses a model that has any.
    proto = source.proto
    if inline and proto.functions:
        count = len(proto.functions)
        proto = inline_functions(proto)
        sys.stderr.write(f"inlined {pluralize(count, 'function')}\n")
    if opset is not None:
        proto = convert_opset(proto, opset)
        sys.stderr.write(f"converted to opset {opset}\n")
    return replace(source, proto=proto)


def _total_size(files: Iterable[Path]) -> int:
    return sum(file.stat().st_size for file in files if file.is_file())


def _write_report(path: str, result: RewriteResult) -> None:
    from mixlist.files.atomic_writes import write_atomically
    from mixlist.report.json_output import write_json

    if path == "-":
        write_json(result.to_json(), sys.stdout)
        return
    text = io.StringIO()
    write_json(result.to_json(), text)
    # The name of a file in the report can hold a byte that is not UTF-8.
    write_atomically(path, text.getvalue().encode("utf-8", "backslashreplace"))
