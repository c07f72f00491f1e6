"""``mixlist lists``: show the list of each op type after the edits."""

from __future__ import annotations

import click

from mixlist.cli.command_files import FileCheckingCommand
from mixlist.cli.config_file import CONFIG
from mixlist.cli.grouped_help import GroupedOption
from mixlist.cli.options import POLICY_OPTIONS, format_option, pop_policy
from mixlist.cli.result_output import write_rows
from mixlist.show.terminal import write_findings

_COLUMNS = ("op", "list", "was", "at")


@click.command(
    "lists",
    cls=FileCheckingCommand,
    params=[
        *POLICY_OPTIONS,
        GroupedOption("--all all_op_types", "output", "Show also what --mixlist does not move.", is_flag=True),
        format_option("text", "json", "csv"),
        CONFIG,
    ],
)
def command(output_format: str, all_op_types: bool, **option_values: object) -> None:
    """Show the effective lists: the library's, after the edits of --mixlist.

    With edits, the text shows what they change. An op type that is on no list is gray: it follows the operator
    upstream.

    \b
    Example:
      mixlist lists --ops-info ascend910b --mixlist modify.json
      mixlist lists --mixlist modify.json --format json
    """
    from mixlist.model.name_warnings import find_name_warnings

    policy = pop_policy(option_values)
    write_findings(find_name_warnings(policy))
    lists = policy.lists
    # The modify_mixlist can name op types that the library does not have; they are on a list, too (Rule S2.5).
    op_types = sorted(lists.library.lists.keys() | lists.named_ops)
    by_list = {name: [op for op in op_types if lists.list_of(op) == name] for name in ("white", "black", "gray")}
    edited = {op: (str(move.before), str(move.place or "")) for op, move in lists.moves.items()}
    rows = [(op, name, *edited.get(op, ("", ""))) for name, ops in by_list.items() for op in ops]
    if output_format == "text" and edited and not all_op_types:
        moved_rows = [row for row in rows if row[0] in edited]
        write_rows(output_format, _COLUMNS, moved_rows, {})
        counts = ", ".join(f"{sum(op not in edited for op in ops)} {name}" for name, ops in by_list.items())
        click.echo(f"\nnot moved: {counts}; --all shows them")
        return
    edits = [
        {"op": move.op, "from": move.before, "to": move.after, "at": str(move.place) if move.place else None}
        for move in lists.moves.values()
    ]
    as_json = {"format": "mixlist.lists/1", **by_list, "edits": edits}
    write_rows(output_format, _COLUMNS, rows, as_json)
