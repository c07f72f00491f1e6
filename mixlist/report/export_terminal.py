"""Write an export as text: the program or command that runs the tool, and the exceptions."""

from __future__ import annotations

from typing import TextIO

from mixlist.interop.result import ExportResult
from mixlist.report import terminal


def write_export(result: ExportResult, stream: TextIO) -> None:
    """Write the call, the notes and the exceptions. Lines that are no part of the call begin with ``#``."""
    stream.write("".join(f"{terminal.escape_commands(line)}\n" for line in result.call.splitlines()))
    stream.write(f"# {result.tool}: as in {result.measured_with}\n")
    stream.writelines(f"# note: {terminal.escape_commands(note)}\n" for note in result.notes)
    count = len(result.exceptions)
    stream.write(f"# {count} exception{'' if count == 1 else 's'}\n")
    for item in result.exceptions:
        stream.write(f"# {terminal.escape_commands(f'{item.node}: {item.why}')}\n")
