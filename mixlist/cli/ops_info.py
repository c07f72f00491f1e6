"""``mixlist ops-info set``: edits an operator information library in place."""

from __future__ import annotations

import sys

import click

from mixlist.cli.command_files import Command
from mixlist.cli.parameters import PathType
from mixlist.errors import UsageError


@click.group("ops-info")
def command() -> None:
    """Edit an operator information library in place."""


@command.command("set", cls=Command, short_help="Set the precision flag of op types.")
@click.argument("library", type=PathType("edits"))
@click.argument("changes", metavar="OP=true|false|none...", nargs=-1, required=True)
@click.option(
    "--backup",
    "backup",
    metavar="DIR",
    required=True,
    type=PathType("writes into"),  # under names that are free
    help="Where the original is saved.",
)
@click.option("--make-writable", is_flag=True, help="Edit a read-only library; its permissions are restored after.")
def set_command(library: str, changes: tuple[str, ...], backup: str, make_writable: bool) -> None:
    """Set the precision flag of op types: true is white, false is black, none is gray.

    LIBRARY is a file or a directory of .json files. The rest of each file stays byte for byte as it is.
    The original is saved first, in a directory outside the library's own: the engine loads every
    .json file that it finds there.

    Edits of one library wait for each other, and the next edit finishes one that was killed. The files
    of a directory are replaced one after the other: an engine that loads the library meanwhile can
    read old and new files together.

    \b
    Example:
      mixlist ops-info set aic-ascend910b-ops-info.json Add=false Relu=none --backup ../backup
    """
    from mixlist.lists.ops_info_edit import set_flags
    from mixlist.report.terminal import clean

    changed, finished = set_flags(library, _flags(changes), backup, make_writable=make_writable)
    if finished:
        flags = " ".join(f"{op}={flag}" for op, flag in finished.items())
        sys.stderr.write(f"{clean(library)}: finished the edit that was interrupted before: {clean(flags)}\n")
    for path in changed:
        sys.stderr.write(f"{clean(str(path))}: changed; the original is in {clean(backup)}\n")
    if not changed:
        sys.stderr.write(f"{clean(library)}: nothing to change, the flags are so already\n")


def _flags(changes: tuple[str, ...]) -> dict[str, str]:
    flags: dict[str, str] = {}
    for change in changes:
        op, equals, flag = change.rpartition("=")
        if not (op and equals):
            raise UsageError(f"{change!r} is not OP=true, OP=false or OP=none", hint="for example Add=false")
        if flags.setdefault(op, flag) != flag:
            raise UsageError(f"{op} is given twice, as {flags[op]} and as {flag}")
    return flags
