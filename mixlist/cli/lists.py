"""``mixlist lists``: which op type is on which list once the edits are applied."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mixlist.cli.index import COMMANDS
from mixlist.cli.options import POLICY_OPTIONS, format_option, take_policy
from mixlist.cli.outputs import write_table
from mixlist.cli.parameters import CONFIG

if TYPE_CHECKING:
    from mixlist.lists.library import Lists


@click.command(
    "lists", short_help=COMMANDS["lists"], params=[*POLICY_OPTIONS, format_option("table", "json", "csv"), CONFIG]
)
def command(form: str, **given: object) -> None:
    """Show the effective lists: the library's, after the edits of --mixlist.

    An op type that is on no list is gray: it follows the operator upstream.

    \b
    Example:
      mixlist lists --ops-info ascend910b --mixlist modify.json
      mixlist lists --mixlist modify.json --format json
    """
    lists = take_policy(given).lists
    write_table(form, ("op", "list", "was", "at"), _rows(lists), _as_json(lists))


def _by_list(lists: Lists) -> dict[str, list[str]]:
    known = sorted(lists.library.lists.keys() | lists.named)
    return {name: [op for op in known if lists.of(op) == name] for name in ("white", "black", "gray")}


def _as_json(lists: Lists) -> dict[str, object]:
    edits = [
        {"op": move.op, "from": move.before, "to": move.after, "at": str(move.place) if move.place else None}
        for move in lists.moves.values()
        if move.before != move.after
    ]
    return {"format": "mixlist.lists/1", **_by_list(lists), "edits": edits}


def _rows(lists: Lists) -> list[tuple[str, str, str, str]]:
    rows = []
    for name, ops in _by_list(lists).items():
        for op in ops:
            move = lists.moves.get(op)
            edited = move is not None and move.before != move.after
            rows.append((op, name, str(move.before), str(move.place or "")) if move and edited else (op, name, "", ""))
    return rows
