"""``mixlist resolve``: show the list and the precision of every node, with the reason."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from mixlist.cli.command_files import FileCheckingCommand
from mixlist.cli.options import PLAN_OPTIONS, format_option, pop_policy, pop_type_hints, resolve_with_progress
from mixlist.cli.parameters import CONFIG, MODEL

if TYPE_CHECKING:
    from mixlist.resolver import Decision, Plan


@click.command(
    "resolve",
    cls=FileCheckingCommand,
    params=[
        click.Argument(["model"], type=MODEL),
        *PLAN_OPTIONS,
        format_option("text", "json", "csv"),
        click.Option(
            ["--explain"],
            metavar="NODE",
            help="Follow the decision from this node to the node that caused it (NAME, SCOPE/NAME or ./NAME).",
        ),
        click.Option(
            ["--provider"],
            type=click.Choice(["cuda", "cpu"]),
            help="Show only low-precision nodes for which this ONNX Runtime provider has no kernel; needs no GPU.",
        ),
        CONFIG,
    ],
)
def command(model: str, output_format: str, explain: str | None, provider: str | None, **option_values: object) -> None:
    """Show every node's list, precision and the reason. This writes no file.

    \b
    Example:
      mixlist resolve model.onnx --mixlist modify.json
      mixlist resolve model.onnx --explain /fc/MatMul
      mixlist resolve model.onnx --format json | jq '.counts'
    """
    from mixlist.report import json_output, resolve_output, terminal

    plan = resolve_with_progress(model, pop_policy(option_values), pop_type_hints(option_values))
    terminal.write_findings(plan.warnings)
    if explain is not None:
        chain = plan.explain(explain)
        if output_format == "json":
            json_output.write_json(resolve_output.chain_json(plan, chain), sys.stdout)
        else:
            sys.stdout.write(resolve_output.chain_text(chain))
        return
    nodes = _nodes_without_kernel(plan, provider) if provider else plan.nodes
    if output_format == "json":
        json_output.write_json(resolve_output.plan_json(plan, nodes), sys.stdout)
    elif output_format == "csv":
        resolve_output.write_node_csv(nodes, sys.stdout)
    else:
        resolve_output.write_node_table(nodes, sys.stdout)


def _nodes_without_kernel(plan: Plan, provider: str) -> tuple[Decision, ...]:
    """Return the low-precision nodes without a kernel in low precision.

    If the installed ONNX Runtime cannot list the kernels of the provider, they come from a table. Then write to
    standard error which release of ONNX Runtime the table describes.
    """
    from mixlist.targets.kernels import find_nodes_without_low_kernel, kernel_release

    nodes = find_nodes_without_low_kernel(plan, provider)
    if release := kernel_release(provider):
        sys.stderr.write(f"the kernels of {provider} are those of {release}, not of the installed ONNX Runtime\n")
    return nodes
