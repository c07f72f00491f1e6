"""``mixlist diff``: print the edits between two sets of lists, or the nodes of a model that they change."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import click

from mixlist.cli.command_files import FileCheckingCommand
from mixlist.cli.options import HTML, OP_NAMES, build_policy, format_option
from mixlist.cli.parameters import CONFIG, INPUT_OR_DASH, LIBRARY, MODEL, refuse_second_standard_input
from mixlist.cli.result_output import write_page_file, write_rows

if TYPE_CHECKING:
    from mixlist.lists.policy import Policy
    from mixlist.report.diff_html import NodeDifferences


@click.command(
    "diff",
    cls=FileCheckingCommand,
    params=[
        click.Argument(["base"], metavar="BASE", type=LIBRARY),
        click.Argument(["target"], metavar="TARGET", type=LIBRARY),
        click.Option(["--base-mixlist"], type=INPUT_OR_DASH, help="A modify_mixlist file applied to BASE first."),
        click.Option(["--target-mixlist"], type=INPUT_OR_DASH, help="A modify_mixlist file applied to TARGET first."),
        OP_NAMES,
        click.Option(
            ["--model"],
            type=MODEL,
            help="Show the nodes of this ONNX model whose precision changes, instead of the edits.",
        ),
        format_option("text", "json", "csv", description="With --model."),
        HTML,
        CONFIG,
    ],
)
def command(
    base: str,
    target: str,
    base_mixlist: str | None,
    target_mixlist: str | None,
    op_names: str | None,
    model: str | None,
    output_format: str,
    html: str | None,
) -> None:
    """Print the modify_mixlist that turns the lists of BASE into those of TARGET.

    BASE and TARGET are built-in libraries or ops-info paths. Each may have its own modify_mixlist file. With --model,
    print the nodes whose precision differs.

    \b
    Example:
      mixlist diff ascend910 ascend910b > modify.json
      mixlist diff ascend910b ascend910b --target-mixlist modify.json --model model.onnx --html diff.html
    """
    from mixlist.lists.diff import diff
    from mixlist.lists.fmt import format_text
    from mixlist.ops.name_warnings import find_name_warnings
    from mixlist.report import diff_html, terminal
    from mixlist.report.json_output import escaped_json

    refuse_second_standard_input()
    # Only these three options: the lists alone differ, and all other settings of the two policies are the defaults.
    before = build_policy({"ops_info": base, "mixlist": base_mixlist, "op_names": op_names})
    after = build_policy({"ops_info": target, "mixlist": target_mixlist, "op_names": op_names})
    names = (*find_name_warnings(before), *find_name_warnings(after))
    warnings = (*before.warnings, *after.warnings, *names)
    terminal.write_findings(warnings)
    edits = diff(before, after)
    nodes = None if model is None else _changed_nodes(model, before, after)
    if html is not None:
        write_page_file(diff_html.render(edits, nodes, warnings), html)
    if nodes is None:
        # The canonical form of ``mixlist fmt``, so that the output can be saved as a list file.
        sys.stdout.write(escaped_json(format_text(json.dumps(edits), "diff", "modify-mixlist")))
        return
    node_objects = [dict(zip(diff_html.NODE_COLUMNS, row, strict=True)) for row in nodes.rows]
    as_json = {"format": "mixlist.diff/1", "mixlist": edits, "nodes": node_objects}
    write_rows(output_format, diff_html.NODE_COLUMNS, nodes.rows, as_json)


def _changed_nodes(model: str, before: Policy, after: Policy) -> NodeDifferences:
    """Return the nodes whose precision differs, with the reason under ``after``."""
    from mixlist import resolve
    from mixlist.report.diff_html import NodeDifferences

    # A node of a function can be missing in one of the plans: its scope has a number if the lists make several
    # specializations of the function (Rule S4.31).
    old = {node.ref: node.precision for node in resolve(model, before).nodes}
    nodes = resolve(model, after).nodes
    rows = [
        (node.scope, node.name, node.op_type, old.get(node.ref, ""), node.precision, node.reason)
        for node in nodes
        if node.precision != old.get(node.ref)
    ]
    return NodeDifferences(model, len(nodes), rows)
