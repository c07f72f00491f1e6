"""``mixlist lists``: which op type is on which list once the edits are applied."""

from __future__ import annotations

import click

from mixlist.cli.command_files import Command
from mixlist.cli.options import POLICY_OPTIONS, format_option, take_policy
from mixlist.cli.outputs import write_table
from mixlist.cli.parameters import CONFIG


@click.command("lists", cls=Command, params=[*POLICY_OPTIONS, format_option("text", "json", "csv"), CONFIG])
def command(form: str, **given: object) -> None:
    """Show the effective lists: the library's, after the edits of --mixlist.

    An op type that is on no list is gray: it follows the operator upstream.

    \b
    Example:
      mixlist lists --ops-info ascend910b --mixlist modify.json
      mixlist lists --mixlist modify.json --format json
    """
    lists = take_policy(given).lists
    known = sorted(lists.library.lists.keys() | lists.named_ops)
    by_list = {name: [op for op in known if lists.list_of(op) == name] for name in ("white", "black", "gray")}
    edited = {op: (str(move.before), str(move.place or "")) for op, move in lists.moves.items()}
    rows = [(op, name, *edited.get(op, ("", ""))) for name, ops in by_list.items() for op in ops]
    edits = [
        {"op": move.op, "from": move.before, "to": move.after, "at": str(move.place) if move.place else None}
        for move in lists.moves.values()
    ]
    as_json = {"format": "mixlist.lists/1", **by_list, "edits": edits}
    write_table(form, ("op", "list", "was", "at"), rows, as_json)
