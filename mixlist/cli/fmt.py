"""``mixlist fmt``: rewrite list files in the canonical form, which every program that reads them accepts."""

from __future__ import annotations

import sys
from itertools import chain
from typing import TYPE_CHECKING, Literal

import click

from mixlist.cli.command_files import FileCheckingCommand
from mixlist.cli.options import KIND
from mixlist.cli.parameters import PathType, refuse_second_standard_input
from mixlist.errors import MixlistError
from mixlist.report.terminal import write_findings

if TYPE_CHECKING:
    from mixlist.lists.detect_kind import FileKind


@click.command(
    "fmt",
    cls=FileCheckingCommand,
    params=[
        click.Argument(["paths"], metavar="PATH...", nargs=-1, required=True, type=PathType("edits", allow_dash=True)),
        click.Option(["--check"], is_flag=True, help="Change nothing; exit with 1 if a file is not in that form."),
        KIND,
    ],
)
def command(paths: tuple[str, ...], check: bool, kind: FileKind | Literal["auto"]) -> int:
    """Rewrite list files in the strict canonical form: no comments, no trailing commas, one entry per line.

    The meaning does not change. '-' reads standard input and writes the result to standard output. A directory
    means all .json files directly in it.

    \b
    Example:
      mixlist fmt modify.json
      mixlist fmt --check lists/*.json
    """
    from mixlist.cli.error_output import report_error
    from mixlist.lists.ops_info import library_files

    refuse_second_standard_input()
    status = 0
    # map() calls ``library_files`` when the loop reaches the path, so a wrong path ends the command only after the
    # files of the paths before it are formatted.
    for file in chain.from_iterable(map(library_files, paths)):
        try:
            status = max(status, int(_format(str(file), kind, check) and check))
        except MixlistError as error:
            status = report_error(error)
    return status


def _format(path: str, kind: FileKind | Literal["auto"], check: bool) -> bool:
    """Format one file, or with ``check`` only report it; return whether its text differs from the canonical form."""
    from mixlist.files.edit_in_place import replace_unless_changed
    from mixlist.files.list_text import decode, read_bytes, shown_path
    from mixlist.lists.fmt import find_lost_comments, format_text
    from mixlist.report.terminal import escape_commands

    shown = shown_path(path)
    before = read_bytes(path)
    text = decode(before, shown)
    after = format_text(text, shown, kind)
    # Bytes, not text: a byte-order mark and CRLF line ends are differences, too.
    changed = after.encode() != before
    write_findings(find_lost_comments(text, shown))
    if check:
        if changed:
            sys.stderr.write(f"{escape_commands(shown)}: not in the canonical form; 'mixlist fmt' would rewrite it\n")
    elif path == "-":
        sys.stdout.write(after)
    elif changed:
        replace_unless_changed(path, before, after.encode())
        sys.stderr.write(f"{escape_commands(shown)}: rewritten\n")
    return changed
