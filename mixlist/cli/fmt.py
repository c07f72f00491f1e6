"""``mixlist fmt``: rewrite list files in the canonical form, which every program that reads them accepts."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Literal

import click

from mixlist.cli.command_files import FileCheckingCommand
from mixlist.cli.grouped_help import GroupedOption
from mixlist.cli.options import KIND
from mixlist.cli.parameters import PathType
from mixlist.errors import MixlistError
from mixlist.show.terminal import escape_commands, write_findings

if TYPE_CHECKING:
    from mixlist.lists.detect_kind import FileKind

    _Kind = FileKind | Literal["auto"]


@click.command(
    "fmt",
    cls=FileCheckingCommand,
    params=[
        click.Argument(["paths"], metavar="PATH...", nargs=-1, required=True, type=PathType("edits", allow_dash=True)),
        GroupedOption("--check", "run", "Change nothing; exit with 1 if a file is not in that form.", is_flag=True),
        KIND,
    ],
)
def command(paths: tuple[str, ...], check: bool, kind: _Kind) -> int:
    """Rewrite list files in the strict canonical form: no comments, no trailing commas, one entry per line.

    The meaning does not change. '-' reads standard input and writes the result to standard output. A folder means
    the .json list files in it and its subfolders that 'mixlist validate' checks; with --kind, all .json files
    directly in it.

    \b
    Example:
      mixlist fmt modify.json
      mixlist fmt --check lists/
    """
    from mixlist.cli.error_output import report_error

    status = 0
    # The files of a path are searched when the loop reaches it, so a wrong path ends the command only after the files
    # of the paths before it are formatted.
    for file, file_kind in chain.from_iterable(_files_to_format(path, kind) for path in paths):
        try:
            status = max(status, int(_format(file, file_kind, check) and check))
        except MixlistError as error:
            status = report_error(error)
    return status


def _files_to_format(path: str, kind: _Kind) -> Iterator[tuple[str, _Kind]]:
    """Yield the files that a path means, each with its kind; name the .json files that are skipped."""
    from mixlist.files.list_text import is_directory, shown_path
    from mixlist.lists.detect_kind import find_list_files
    from mixlist.lists.ops_info import library_files

    if kind != "auto" or not is_directory(path):
        yield from ((os.fspath(file), kind) for file in library_files(path))
        return
    list_files, other_files = find_list_files(path)
    for list_file in list_files:
        files = list_file.members or (list_file.path,)
        # Node rules have their comments only in the file that a user names.
        yield from ((file, list_file.kind) for file in files if file.lower().endswith(".json"))
    for file in other_files:
        if file.lower().endswith(".json"):
            sys.stderr.write(f"{escape_commands(shown_path(file))}: no list file, skipped\n")


def _format(path: str, kind: _Kind, check: bool) -> bool:
    """Format one file, or with ``check`` only report it; return whether its text differs from the canonical form."""
    from mixlist.files.atomic_writes import replace_unless_changed
    from mixlist.files.list_text import decode, read_bytes, shown_path
    from mixlist.lists.fmt import find_lost_comments, format_text

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
