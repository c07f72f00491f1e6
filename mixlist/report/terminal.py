"""Write text, with color only on a terminal and only if NO_COLOR is not set."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, TextIO

from mixlist.diagnostics import Diagnostic
from mixlist.text_escapes import escape_unprintable

Color = Literal["red", "yellow", "green", "cyan", "bold", "dim"]
_ANSI = {"red": "31", "yellow": "33", "green": "32", "cyan": "36", "bold": "1", "dim": "2"}
_SEVERITY: dict[str, Color] = {"error": "red", "warning": "yellow"}
_VERDICTS: dict[str, Color] = {"pass": "green", "fail": "red", "inconclusive": "yellow"}
# The style of a cell in a folded table, by its text.
_CELL_STYLES = {"float16": "green", "bfloat16": "green", "white": "green", "black": "yellow"}
# The number of rows in a table of a report.
MAX_ROWS = 20
# Columns up to this width do not fold.
_NO_FOLD_WIDTH = 14
# The package rich needs about 0.3 ms per row, so longer tables are not folded.
_MAX_FOLDED_ROWS = 2000


def shows_color(stream: TextIO) -> bool:
    """Return whether the stream is a terminal that shows color."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(text: str, color: Color, stream: TextIO) -> str:
    """Return the text in a color if the stream shows color, else unchanged."""
    return f"\x1b[{_ANSI[color]}m{text}\x1b[0m" if shows_color(stream) else text


def diagnostic_lines(findings: Iterable[Diagnostic], stream: TextIO) -> Iterator[str]:
    """Yield ``path:line:column: severity code: message`` for each finding, and its hint on a separate line."""
    for finding in findings:
        where = f"{paint(escape_commands(finding.place), 'bold', stream)}: " if finding.place else ""
        severity = paint(finding.severity, _SEVERITY[finding.severity], stream)
        yield f"{where}{severity} {finding.code}: {escape_commands(finding.message)}"
        if finding.hint:
            yield f"    hint: {escape_commands(finding.hint)}"


def write_findings(findings: Iterable[Diagnostic]) -> None:
    """Write findings, warnings or errors, to standard error."""
    sys.stderr.writelines(f"{line}\n" for line in diagnostic_lines(findings, sys.stderr))


def write_table(columns: Sequence[str], rows: Sequence[Sequence[str]], stream: TextIO) -> None:
    """Write a table. On a terminal, long cells fold so that the table is not wider than the terminal.

    In a pipe or a file, and in a table of more than ``_MAX_FOLDED_ROWS`` rows, cells do not fold. No cell is ever cut.
    """
    columns = [escape_commands(column) for column in columns]
    if stream.isatty() and len(rows) <= _MAX_FOLDED_ROWS:
        _write_folded(columns, rows, stream)
    else:
        _write_plain(columns, rows, stream)


def write_heading(text: str, stream: TextIO) -> None:
    """Write the title of a section."""
    stream.write(f"\n{paint(text, 'bold', stream)}\n")


def write_verdict(verdict: str, headline: str, lines: Iterable[str], stream: TextIO) -> None:
    """Write ``PASS``, ``FAIL`` or ``INCONCLUSIVE`` with the headline, then each reason on a line."""
    stream.write(f"{paint(verdict.upper(), verdict_color(verdict), stream)}  {escape_commands(headline)}\n")
    stream.writelines(f"      {escape_commands(line)}\n" for line in lines)


def verdict_color(verdict: str) -> Color:
    """Return the color of a verdict."""
    return _VERDICTS[verdict]


def write_omitted(number: int, formats_with_all: str, stream: TextIO) -> None:
    """Write the number of rows that a table leaves out, and ``formats_with_all``: ``--format json has all``."""
    if number > 0:
        stream.write(f"  ... and {number} more ({formats_with_all})\n")


def write_seconds(seconds: Mapping[str, float], stream: TextIO) -> None:
    """Write the duration of each phase."""
    stream.writelines(f"  {escape_commands(phase):<24} {duration:8.2f} s\n" for phase, duration in seconds.items())


def escape_commands(text: str) -> str:
    """Escape the characters that a terminal or a CI runner would read as the beginning of a command.

    Control characters are escaped. GitHub's runner takes ``::`` at the beginning of a line, and ``##[`` anywhere, for a
    command, so the first colon and the second ``#`` are escaped there.
    """
    text = escape_unprintable(text)
    if "##[" in text:
        text = text.replace("##[", "#\\x23[")
    # The runner removes the blanks around a line before it looks for the colons.
    if text.lstrip().startswith("::"):
        text = text.replace("::", "\\x3a:", 1)
    return text


def _write_folded(columns: Sequence[str], rows: Sequence[Sequence[str]], stream: TextIO) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for column, *cells in zip(columns, *rows, strict=True):
        grid.add_column(column, overflow="fold", no_wrap=max(map(len, (column, *cells))) <= _NO_FOLD_WIDTH)
    for row in rows:
        # A Text and not a str: rich would read a name with brackets, such as a[red], as markup.
        grid.add_row(*(Text(escape_commands(cell), style=_CELL_STYLES.get(cell, "")) for cell in row))
    Console(file=stream, highlight=False, color_system="auto" if shows_color(stream) else None).print(grid)


def _write_plain(columns: Sequence[str], rows: Sequence[Sequence[str]], stream: TextIO) -> None:
    cells = [list(columns), *([escape_commands(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    # A line of dashes follows the column titles.
    cells.insert(1, ["-" * width for width in widths])
    for row in cells:
        line = "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        stream.write(line.rstrip() + "\n")
