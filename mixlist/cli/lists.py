"""``mixlist lists``: show the list of each op type after the edits."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from mixlist.cli.command_files import FileCheckingCommand
from mixlist.cli.config_file import CONFIG
from mixlist.cli.grouped_help import GroupedOption
from mixlist.cli.options import POLICY_OPTIONS, format_option, pop_policy
from mixlist.cli.parameters import INPUT
from mixlist.cli.result_output import write_rows
from mixlist.number_text import pluralize
from mixlist.show.terminal import escape_commands, write_findings

if TYPE_CHECKING:
    from mixlist.lists.policy import Policy

_COLUMNS = ("op", "list", "was", "at", "reason")  # reason: of the library for its own list


@click.command(
    "lists",
    cls=FileCheckingCommand,
    params=[
        *POLICY_OPTIONS,
        GroupedOption(
            "--from chip_result",
            "lists",
            "Show instead what the worst operators of a chip ask for: the CSV of msaccucmp or msProbe.",
            metavar="FILE",
            type=INPUT,
        ),
        GroupedOption("--all all_op_types", "output", "Show also what --mixlist does not move.", is_flag=True),
        format_option("text", "json", "csv"),
        CONFIG,
    ],
)
def command(output_format: str, all_op_types: bool, chip_result: str | None, **option_values: object) -> None:
    """Show the effective lists: the library's, after the edits of --mixlist.

    With edits, the text shows what they change. The reason is that of the library for its own list. An op type that is
    on no list is gray: it follows the operator upstream.

    \b
    Example:
      mixlist lists --ops-info ascend910b --mixlist modify.json
      mixlist lists --mixlist modify.json --format json
      mixlist lists --ops-info ascend910b --from result_20260101.csv
    """
    from mixlist.model.name_warnings import find_name_warnings

    policy = pop_policy(option_values)
    if chip_result is not None:
        _write_chip_errors(chip_result, policy, output_format)
        return
    write_findings(find_name_warnings(policy))
    lists = policy.lists
    # The modify_mixlist can name op types that the library does not have; they are on a list, too (Rule S2.5).
    op_types = sorted(lists.library.lists.keys() | lists.named_ops)
    by_list = {name: [op for op in op_types if lists.list_of(op) == name] for name in ("white", "black", "gray")}
    edited = {op: (str(move.before), str(move.place or "")) for op, move in lists.moves.items()}
    reasons = lists.library.reasons
    rows = [(op, name, *edited.get(op, ("", "")), reasons.get(op, "")) for name, ops in by_list.items() for op in ops]
    if output_format == "text" and edited and not all_op_types:
        moved_rows = [row for row in rows if row[0] in edited]
        write_rows(output_format, *_columns_and_rows(moved_rows), {})
        counts = ", ".join(f"{sum(op not in edited for op in ops)} {name}" for name, ops in by_list.items())
        click.echo(f"\nnot moved: {counts}; --all shows them")
        return
    edits = [
        {"op": move.op, "from": move.before, "to": move.after, "at": str(move.place) if move.place else None}
        for move in lists.moves.values()
    ]
    as_json = {"format": "mixlist.lists/1", **by_list, "edits": edits, "reasons": dict(sorted(reasons.items()))}
    write_rows(output_format, *(_columns_and_rows(rows) if output_format == "text" else (_COLUMNS, rows)), as_json)


def _columns_and_rows(rows: Sequence[Sequence[str]]) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """Return the columns and the rows of a text; without the column of reasons if there are none."""
    if any(row[-1] for row in rows):
        return _COLUMNS, rows
    return _COLUMNS[:-1], [row[:-1] for row in rows]


_ERROR_COLUMNS = ("op", "nodes", "type", "cosine", "distance", "at")


def _write_chip_errors(path: str, policy: Policy, output_format: str) -> None:
    """Write the operators where the errors of a chip start, and the edits that keep them in float32.

    The edits of op types need a library in Ascend names: those of the file are Ascend op types.
    """
    from mixlist.lists.chip_errors import read_chip_errors
    from mixlist.lists.diff import diff_lists
    from mixlist.lists.library import Lists, Move

    errors = read_chip_errors(path)
    low = [error for error in errors if error.is_low]
    keep = list(dict.fromkeys(node for error in low for node in error.nodes))
    lists = policy.lists
    ops = dict.fromkeys(error.op for error in low if error.op and lists.list_of(error.op) != "black")
    moves = {**lists.moves, **{op: Move(op, lists.library.list_of(op), "black", None) for op in ops}}
    edited = Lists(lists.library, moves, frozenset(moves))
    mixlist = diff_lists(Lists(lists.library), edited) if policy.space == "ascend" else {}
    rows = [
        (error.op, ", ".join(error.nodes), error.dtype, _shown(error.cosine), _shown(error.distance), error.place)
        for error in errors
    ]
    operators = [{**error._asdict(), "nodes": list(error.nodes)} for error in errors]
    as_json = {
        "format": "mixlist.chip-errors/1",
        "operators": operators,
        "keep_dtype": keep,
        "modify_mixlist": mixlist,
    }
    if output_format == "text" and not errors:
        click.echo("no operator is wrong")
        return
    write_rows(output_format, _ERROR_COLUMNS, rows, as_json)
    if output_format == "text":
        if high_count := len(errors) - len(low):
            click.echo(f"\n{pluralize(high_count, 'operator')} computed in no low type: no list changes that")
        if keep:
            click.echo("\nkeep_dtype:\n" + "\n".join(map(escape_commands, keep)))
        if mixlist:
            click.echo(f"\nor modify_mixlist, for all operators of a type:\n{json.dumps(mixlist)}")


def _shown(number: float | None) -> str:
    return "" if number is None else f"{number:.6g}"
