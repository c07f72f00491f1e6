"""``mixlist resolve``: every node's list and precision, and why."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from mixlist.cli.options import (
    FILE,
    POLICY_OPTIONS,
    TYPE_HINTS,
    one_standard_input,
    options,
    policy_from,
    resolve_watched,
)

if TYPE_CHECKING:
    from mixlist.resolver import Decision, Plan


@click.command("resolve", short_help="Show every node's list, precision and the reason.")
@click.argument("model", type=FILE)
@options(
    *POLICY_OPTIONS,
    TYPE_HINTS,
    click.option("--format", "form", type=click.Choice(["table", "json", "csv"]), default="table", show_default=True),
    click.option("--explain", metavar="NODE", help="Walk from this node to the one that decided (scope/name narrows)."),
    click.option(
        "--provider",
        type=click.Choice(["cuda", "cpu"]),
        help="Show only low nodes for which this ONNX Runtime provider has no low kernel; works without a GPU.",
    ),
)
def command(
    model: str, form: str, explain: str | None, provider: str | None, type_hints: str | None, **given: Any
) -> None:
    """Show every node's list, precision and the reason. Nothing is written.

    \b
    Example:
      mixlist resolve model.onnx --mixlist modify.json
      mixlist resolve model.onnx --explain /fc/MatMul
      mixlist resolve model.onnx --format json | jq '.counts'
    """
    from mixlist.report import json_output, resolve_terminal, terminal

    one_standard_input((type_hints, *given.values()))
    plan = resolve_watched(model, policy_from(given), type_hints)
    terminal.warn(plan.warnings)
    if explain is not None:
        chain = plan.explain(explain)
        if form == "json":
            json_output.write_json(resolve_terminal.chain_json(plan, chain), sys.stdout)
        else:
            sys.stdout.write(resolve_terminal.chain_text(chain))
        return
    nodes = _without_kernel(plan, provider) if provider else plan.nodes
    if form == "json":
        json_output.write_json(resolve_terminal.plan_json(plan, nodes), sys.stdout)
    elif form == "csv":
        resolve_terminal.write_csv(nodes, sys.stdout)
    else:
        resolve_terminal.write_table(nodes, sys.stdout)


def _without_kernel(plan: Plan, provider: str) -> tuple[Decision, ...]:
    from mixlist.targets.kernels import taken_from, without_low_kernel

    found = without_low_kernel(plan, provider)
    if release := taken_from(provider):
        sys.stderr.write(
            f"the kernels of {provider} are those of {release}; the installed ONNX Runtime was not asked\n"
        )
    return found
