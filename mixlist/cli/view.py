"""``mixlist view``: write a page with the graph of a model, colored by the precision of its nodes."""

from __future__ import annotations

import sys

import click

from mixlist.cli.command_files import FileCheckingCommand, load_input_model
from mixlist.cli.config_file import CONFIG
from mixlist.cli.grouped_help import GroupedOption
from mixlist.cli.options import PLAN_OPTIONS, pop_policy, pop_type_hints
from mixlist.cli.parameters import INPUT_OR_DASH, MODEL, OUTPUT


@click.command(
    "view",
    cls=FileCheckingCommand,
    most_used=("--mixlist", "--ops-info", "--precision-mode-v2", "--keep-dtype", "--check-report", "--other-mixlist"),
    params=[
        click.Argument(["model"], type=MODEL),
        *PLAN_OPTIONS,
        GroupedOption("--output -o", "output", "The HTML page to write.", metavar="FILE", type=OUTPUT, required=True),
        GroupedOption(
            "--check-report",
            "data",
            "The JSON of 'mixlist check' for this model: the page shows findings, ranges and errors.",
            metavar="FILE",
            type=INPUT_OR_DASH,
        ),
        GroupedOption(
            "--other-mixlist",
            "lists",
            "Another modify_mixlist file, to compare with --mixlist: the page shows the nodes that differ.",
            metavar="FILE",
            type=INPUT_OR_DASH,
        ),
        CONFIG,
    ],
)
def command(
    model: str, output: str, check_report: str | None, other_mixlist: str | None, **option_values: object
) -> None:
    """Write one HTML page with the graph of MODEL: precision, list and reason of every node, and the new Casts.

    The page is one file and fetches nothing. Nodes are grouped by the scopes in their names, or by repeated blocks, and
    the groups unfold. A click on a node shows its reason and the chain to the node that decided. Use --per-tensor and
    --layerwise in the check, so that the page can show ranges and errors along the network.

    \b
    Example:
      mixlist view model.onnx -o page.html --mixlist modify.json
      mixlist check model.onnx --data batches/ --per-tensor --layerwise --format json > report.json
      mixlist view model.onnx -o page.html --check-report report.json
      mixlist view model.onnx -o page.html --other-mixlist other.json
    """
    from mixlist.decide import Resolver
    from mixlist.lists.load import replace_mixlist
    from mixlist.show import html_page, terminal
    from mixlist.show.check_results import read_check_report
    from mixlist.show.graph_page import view_page

    policy = pop_policy(option_values)
    other_policy = replace_mixlist(policy, other_mixlist) if other_mixlist is not None else None
    # Read the report first: a wrong file is found before the long work.
    check = read_check_report(check_report) if check_report is not None else None
    resolver = Resolver(load_input_model(model), type_hints=pop_type_hints(option_values))
    plan = resolver.plan(policy)
    terminal.write_findings((*plan.warnings, *(other_policy.warnings if other_policy is not None else ())))
    other_plan = resolver.plan(other_policy) if other_policy is not None else None
    html_page.write_page(view_page(plan, check=check, against=other_plan), output)
    sys.stderr.write(f"wrote {terminal.escape_commands(output)}\n")
