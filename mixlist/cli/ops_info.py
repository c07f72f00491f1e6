"""``mixlist ops-info set``: edit an operator information library in place."""

from __future__ import annotations

import sys

import click

from mixlist.cli.command_files import FileCheckingCommand
from mixlist.cli.grouped_help import GroupedOption
from mixlist.cli.parameters import PathType
from mixlist.errors import UsageError


@click.group("ops-info")
def command() -> None:
    """Edit an operator information library in place."""


@command.command(
    "set",
    cls=FileCheckingCommand,
    short_help="Set the precision flag of op types.",
    params=[
        click.Argument(["library"], type=PathType("edits")),
        click.Argument(["changes"], metavar="OP=true|false|none...", nargs=-1, required=True),
        GroupedOption(
            "--backup",
            "output",
            "The folder for a copy of the original.",
            metavar="DIR",
            required=True,
            # Without ``must_be_new``: the originals get names that do not exist in the folder.
            type=PathType("writes into"),
        ),
    ],
)
def set_command(library: str, changes: tuple[str, ...], backup: str) -> None:
    """Set the precision flag of op types: true is white, false is black, none is gray.

    LIBRARY is a file or a directory of .json files. All other text of each file stays the same, byte for byte. The
    original is saved first, in a directory outside that of the library, because the Ascend graph engine loads every
    .json file in the directory of the library.

    Edits of one library wait for each other. The files of a directory are replaced one after the other, so an engine
    that loads the library at that time can read old and new files together. If an edit is killed between two files,
    copy the files of the backup back.

    \b
    Example:
      mixlist ops-info set aic-ascend910b-ops-info.json Add=false Relu=none --backup ../backup
    """
    from mixlist.lists.ops_info import set_flags
    from mixlist.show.terminal import escape_commands

    changed = set_flags(library, _flags(changes), backup)
    for path in changed:
        sys.stderr.write(f"{escape_commands(str(path))}: changed; the original is in {escape_commands(backup)}\n")
    if not changed:
        sys.stderr.write(f"{escape_commands(library)}: nothing to change: the flags have these values already\n")


def _flags(changes: tuple[str, ...]) -> dict[str, str]:
    flags: dict[str, str] = {}
    for change in changes:
        op, equals, flag = change.rpartition("=")
        if not (op and equals):
            raise UsageError(f"{change!r} is not OP=true, OP=false or OP=none", hint="for example Add=false")
        if flags.setdefault(op, flag) != flag:
            raise UsageError(f"{op} is given twice, as {flags[op]} and as {flag}")
    return flags
