"""``mixlist apply``: write the model in mixed precision."""

from __future__ import annotations

import io
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mixlist.cli.command_files import FileCheckingCommand, load_input_model
from mixlist.cli.config_file import CONFIG
from mixlist.cli.grouped_help import GroupedOption
from mixlist.cli.options import (
    OPSET,
    PLAN_OPTIONS,
    build_options,
    declared_options,
    output_options,
    pop_policy,
    pop_type_hints,
    resolve_with_progress,
    target_option,
    with_opset,
)
from mixlist.cli.parameters import MODEL, OUTPUT_OR_DASH
from mixlist.lists.policy import InterfaceOptions
from mixlist.number_text import pluralize

if TYPE_CHECKING:
    from mixlist.decide import Plan
    from mixlist.files.strict_json import JsonObject
    from mixlist.model.load import LoadedModel
    from mixlist.targets.target_plan import TargetPlan
    from mixlist.write import RewriteResult


@click.command(
    "apply",
    cls=FileCheckingCommand,
    most_used=(
        "--mixlist",
        "--ops-info",
        "--precision-mode-v2",
        "--keep-dtype",
        "--customize-dtypes",
        "--io",
        "--target",
        "--force",
        "--report",
    ),
    params=[
        click.Argument(["model"], type=MODEL),
        *output_options("The file to write."),
        *PLAN_OPTIONS,
        *declared_options(InterfaceOptions),
        GroupedOption(
            "--external-data",
            "output",
            "Write the weights to a separate file. auto: as in MODEL, or if OUT would exceed 2 GB.",
            type=click.Choice(["auto", "yes", "no"]),
            default="auto",
            show_default=True,
        ),
        GroupedOption("--inline-functions", "run", "Inline model-local functions first.", is_flag=True),
        OPSET,
        target_option(
            "Write what this target accepts: nodes for which it has no low-precision kernel stay as authored. FILE is a"
            " table of another target. The exit status is 1 if it refuses OUT."
        ),
        GroupedOption(
            "--report", "output", "Write a report as JSON ('-': standard output).", metavar="FILE", type=OUTPUT_OR_DASH
        ),
        CONFIG,
    ],
)
def command(
    model: str,
    output: str,
    external_data: str,
    inline_functions: bool,
    opset: int | None,
    target: str | None,
    force: bool,
    report: str | None,
    **option_values: object,
) -> int:
    """Write MODEL to OUT in mixed precision. MODEL never changes; OUT appears whole or not at all.

    \b
    Example:
      mixlist apply model.onnx -o mixed.onnx --mixlist modify.json
      mixlist apply model.onnx -o mixed.onnx --ops-info ascend910b
      mixlist apply model.onnx -o mixed.onnx --precision-mode-v2 mixed_bfloat16 --report report.json
      mixlist apply model.onnx -o mixed.onnx --target tensorrt
    """
    from mixlist.model.protos import nodes_in
    from mixlist.model.save import files_of_model
    from mixlist.show import terminal
    from mixlist.show.apply_document import applied_target_json, apply_document, describe_target
    from mixlist.show.progress_bar import bar
    from mixlist.write import rewrite_in_place

    out = Path(output)
    policy, hints = pop_policy(option_values), pop_type_hints(option_values)
    interface = build_options(InterfaceOptions(), option_values)
    source = load_input_model(model)
    # Count the nodes now, because ``rewrite_in_place`` changes the model.
    before, inputs = Counter(node.op_type for node in nodes_in(source.proto.graph)), files_of_model(source)
    # Phases: decide the precision of the nodes, rewrite, save, then report.
    # Functions first: onnx's version converter drops them, so it refuses a model that has any.
    model_to_resolve = with_opset(_inline_functions(source) if inline_functions else source, opset)
    plan = resolve_with_progress(model_to_resolve, policy, hints, interface)
    use = None if target is None else _plan_for_target(plan, target)
    plan = plan if use is None else use.plan
    result = rewrite_in_place(plan)
    with bar("writing weights", "bytes", result.streamed_bytes()) as progress:
        written = result.save(out, force=force, external_data=external_data, progress=progress)
    terminal.write_findings(result.warnings)
    check = None if use is None else use.check_model(out)
    if report is not None:
        shown_target = {} if use is None else {"target": applied_target_json(use, check)}
        _write_report(report, result.to_json() | shown_target)
    sizes = _total_size(inputs), _total_size(written)
    after = Counter(node.op_type for node in nodes_in(result.proto.graph))
    remarks = _describe_missing_bfloat16(plan, result) if use is None else describe_target(use, check)
    if result.low:
        # Not ``next_command``: it would import another command, which takes longer than many a rewrite.
        remarks.append(
            "not checked on data: mixlist check with the same lists and --data BATCHES judges the model, and mixlist"
            " convert writes the best one that keeps its outputs"
        )
    terminal.write_document(apply_document(plan, result, (before, after), sizes, remarks), sys.stderr)
    return 0 if use is None else int(bool(use.refused) or (check is not None and not check.is_accepted))


def _plan_for_target(plan: Plan, target: str) -> TargetPlan:
    """Call ``plan_for_target``; its import takes a tenth of the time of a small model."""
    from mixlist.targets.target_plan import plan_for_target

    return plan_for_target(plan, target)


def _describe_missing_bfloat16(plan: Plan, result: RewriteResult) -> list[str]:
    """Return how many bfloat16 nodes have no kernel in ONNX Runtime's CPU provider, which has few of them."""
    if plan.policy.mode.low != "bfloat16" or not result.low:
        return []
    from mixlist.targets.target import load_target
    from mixlist.targets.target_plan import find_low_nodes

    low_nodes = find_low_nodes(plan, load_target("cpu"))
    missing = sum(not node.has_kernel for node in low_nodes)
    # For a float16 node without a kernel that provider inserts Casts, for a bfloat16 node it does not.
    is_refused = any(node.otherwise == "refusal" for node in low_nodes)
    effect = ", so it does not load the model: --target cpu keeps them as authored" if is_refused else ""
    return [
        f"{missing} of the {result.low} bfloat16 nodes have no bfloat16 kernel in ONNX Runtime's CPU provider{effect}"
    ]


def _inline_functions(source: LoadedModel) -> LoadedModel:
    """Return the model with its functions inlined."""
    from mixlist.model.onnx_conversion import inline_functions

    count = len(source.proto.functions)
    if not count:
        return source
    proto = inline_functions(source.proto)
    sys.stderr.write(f"inlined {pluralize(count, 'function')}\n")
    return source._replace(proto=proto)


def _total_size(files: Iterable[Path]) -> int:
    return sum(file.stat().st_size for file in files if file.is_file())


def _write_report(path: str, content: JsonObject) -> None:
    from mixlist.files.atomic_writes import write_atomically
    from mixlist.show.json_csv import write_json

    if path == "-":
        write_json(content, sys.stdout)
        return
    text = io.StringIO()
    write_json(content, text)
    # The name of a file in the report can hold a byte that is not UTF-8.
    write_atomically(path, text.getvalue().encode("utf-8", "backslashreplace"))
