"""Text for people: coloured on a terminal, plain everywhere else and under NO_COLOR."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, TextIO

from mixlist.diagnostics import Diagnostic

Colour = Literal["red", "yellow", "green", "cyan", "bold", "dim"]
_ANSI = {"red": "31", "yellow": "33", "green": "32", "cyan": "36", "bold": "1", "dim": "2"}
_SEVERITY: dict[str, Colour] = {"error": "red", "warning": "yellow"}
_STYLES = {"float16": "green", "bfloat16": "green", "white": "green", "black": "yellow"}
_SHORT = 14  # cells up to this long stay on one line when others have to be folded
_FOLD_ROWS = 2000  # rich takes about 0.3 ms a row; longer tables are written plain at once


def coloured(stream: TextIO) -> bool:
    """Whether the stream is a terminal that wants colour."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(text: str, colour: Colour, stream: TextIO) -> str:
    """The text in a colour if the stream wants colour, else as it is."""
    return f"\x1b[{_ANSI[colour]}m{text}\x1b[0m" if coloured(stream) else text


def diagnostic_lines(findings: Iterable[Diagnostic], stream: TextIO) -> Iterator[str]:
    """``path:line:column: severity code: message`` and the hint on a line of its own."""
    for finding in findings:
        where = f"{paint(clean(finding.place), 'bold', stream)}: " if finding.place else ""
        severity = paint(finding.severity, _SEVERITY[finding.severity], stream)
        yield f"{where}{severity} {finding.code}: {clean(finding.message)}"
        if finding.hint:
            yield f"    hint: {clean(finding.hint)}"


def warn(findings: Iterable[Diagnostic]) -> None:
    """Writes findings to stderr."""
    for line in diagnostic_lines(findings, sys.stderr):
        sys.stderr.write(line + "\n")


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], stream: TextIO) -> None:
    """Writes a table: folded to the width of a terminal, never folded or cut when piped to a program or a file."""
    if stream.isatty() and len(rows) <= _FOLD_ROWS:
        _folded(columns, rows, stream)
    else:
        _plain(columns, rows, stream)


def clean(text: str) -> str:
    """The text with control characters spelled out: a name in a model must not steer the terminal."""
    return text if text.isprintable() else "".join(c if c.isprintable() else _escape(c) for c in text)


def _escape(char: str) -> str:
    return char.encode("unicode_escape", "surrogatepass").decode("ascii")


def _folded(columns: Sequence[str], rows: Sequence[Sequence[str]], stream: TextIO) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for column, *cells in zip(columns, *rows, strict=True):
        grid.add_column(column, overflow="fold", no_wrap=max(map(len, (column, *cells))) <= _SHORT)
    for row in rows:
        grid.add_row(*(Text(clean(cell), style=_STYLES.get(cell, "")) for cell in row))
    Console(file=stream, highlight=False, color_system="auto" if coloured(stream) else None).print(grid)


def _plain(columns: Sequence[str], rows: Sequence[Sequence[str]], stream: TextIO) -> None:
    cells = [list(columns), *([clean(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    cells.insert(1, ["-" * width for width in widths])
    for row in cells:
        line = "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        stream.write(line.rstrip() + "\n")
