"""Write a Document and findings as text, with color only on a terminal and only if NO_COLOR is not set.

In a pipe or a file, each row of a table is one line. On a terminal, a table that does not fit loses its ``wide``
columns, then long cells fold at blanks, and a table that does not fit even then becomes one record for each row. No
cell is ever cut, and no word is broken.
"""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Literal, TextIO

from mixlist.diagnostics import first_of_each_kind
from mixlist.show.document import (
    MAX_ROWS,
    REST_IN_JSON,
    Block,
    Cell,
    Column,
    Document,
    Facts,
    Level,
    Mark,
    Section,
    Table,
    Text,
    cell_text,
)
from mixlist.text_escapes import escape_unprintable

if TYPE_CHECKING:
    from mixlist.diagnostics import Diagnostic

Color = Literal["red", "yellow", "green", "cyan", "bold", "dim"]
_ANSI = {"red": "31", "yellow": "33", "green": "32", "cyan": "36", "bold": "1", "dim": "2"}
_SEVERITY: dict[str, Color] = {"error": "red", "warning": "yellow"}
_LEVELS: dict[Level, Color] = {"passing": "green", "failing": "red", "warning": "yellow", "note": "dim"}
# The color of a cell in a table, by its text.
_CELL_COLORS: dict[str, Color] = {"float16": "green", "bfloat16": "green", "white": "green", "black": "yellow"}
_COLUMN_GAP = 2
# A cell does not fold below this width, unless it is shorter.
_MIN_FOLD_WIDTH = 24
_RECORD_INDENT = " " * 4


def write_document(document: Document, stream: TextIO) -> None:
    """Write a report. Its warnings are not in this text, because they go to standard error."""
    _Writer(stream).write(document)


class _Writer:
    """Write the parts of a Document to a stream. ``width`` is None in a pipe or a file, where no line is folded."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._width = _terminal_width(stream) if stream.isatty() else None

    def write(self, document: Document) -> None:
        is_first = document.verdict is None
        if document.verdict is not None:
            verdict = document.verdict
            word = self._paint(verdict.word, _LEVELS[verdict.level])
            self._write_lines([verdict.headline], f"{word}  ", len(verdict.word) + 2)
            self._write_lines(verdict.lines, " " * 6)
        for section in document.sections:
            blocks = [block for block in section.blocks if _is_shown(block)]
            if blocks:
                self._stream.write("" if is_first else "\n")
                self._write_section(section, blocks)
                is_first = False
        for note in document.notes:
            self._stream.write("\n")
            self._write_lines([note], f"{self._paint('note', 'yellow')}: ", 6)
        if document.steps:
            self._stream.write(f"\n{self._paint('What to do next', 'bold')}\n")
        for step in document.steps:
            self._write_lines([step.text], "  ")
            if step.command:  # not folded, so that it can be copied
                self._stream.write(f"    {escape_commands(step.command)}\n")
            if step.details is not None:
                self._write_facts(step.details, "    ")

    def _write_section(self, section: Section, blocks: Sequence[Block]) -> None:
        indent = "  " if section.title else ""
        if section.title:
            self._write_lines([section.title], "", color="bold")
        for position, block in enumerate(blocks):
            inner = indent
            if block.title:
                # An empty line separates a table with its title from a line above it, except from the section's title.
                self._stream.write("\n" if position and isinstance(block, Table) else "")
                self._write_lines([block.title], indent)
                inner += "  "
            if isinstance(block, Text):
                self._write_text(block, inner)
            elif isinstance(block, Facts):
                self._write_facts(block, inner)
            elif isinstance(block, Table):
                self._stream.write("\n" if position and not block.title else "")
                self._write_table(block)

    def _write_text(self, block: Text, indent: str) -> None:
        if block.is_file:
            self._stream.writelines(f"  {indent}{escape_commands(line)}\n" for line in block.lines)
        else:
            self._write_lines(block.lines, indent)

    def _write_facts(self, block: Facts, indent: str) -> None:
        for record in block.records[:MAX_ROWS]:
            facts = {name: text for name, text in record.facts.items() if text}
            inner = indent + " " * 4 if record.heading else indent
            if record.heading:
                self._stream.write(f"{indent}{'  '.join(map(self._paint_cell, record.heading))}\n")
            colon = ":" if record.heading else ""
            widest = max((len(escape_commands(name)) for name in facts), default=0) + len(colon)
            for name, text in facts.items():
                start = f"{inner}{escape_commands(name) + colon:<{widest}} "
                self._write_lines([text], start, len(start))
        self._write_omitted(len(block.records) - MAX_ROWS, block.rest)

    def _write_table(self, table: Table) -> None:
        shown = [at for at, column in enumerate(table.columns) if column.style != "picture" and column.on != "page"]
        rows = table.rows[: table.max_rows]
        by_column = {at: [table.columns[at].title, *(cell_text(row[at]) for row in rows)] for at in shown}
        widths = [max(len(escape_commands(text)) for text in texts) for texts in by_column.values()]
        omitted = 0
        if self._exceeds_width(widths):
            narrow = [at for at in shown if not table.columns[at].wide]
            shown, omitted = narrow, len(shown) - len(narrow)
        if rows:
            self._write_rows([table.columns[at] for at in shown], [[row[at] for at in shown] for row in rows])
        self._write_omitted(len(table.rows) - len(rows), table.rest)
        self._write_omitted(omitted, REST_IN_JSON, "more columns")

    def _exceeds_width(self, widths: Sequence[int]) -> bool:
        return self._width is not None and sum(widths) + _COLUMN_GAP * (len(widths) - 1) > self._width

    def _write_rows(self, columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> None:
        titles = [escape_commands(column.title) for column in columns]
        texts = [[escape_commands(cell_text(cell)) for cell in row] for row in rows]
        by_column = list(zip(titles, *texts, strict=True))
        widths = [max(map(len, column)) for column in by_column]
        if self._width is not None and self._exceeds_width(widths):
            folded_widths = _fold_widths(by_column, self._width)
            if folded_widths is None:
                for row in rows:
                    self._write_record(columns, row)
                return
            widths = folded_widths
        plain: list[Color | None] = [None] * len(columns)
        self._write_row(titles, ["bold" for _ in columns], widths)
        self._write_row(["-" * width for width in widths], plain, widths)
        for row, cells in zip(rows, texts, strict=True):
            self._write_row(cells, list(map(_color, row)), widths)

    def _write_row(self, cells: Sequence[str], colors: Sequence[Color | None], widths: Sequence[int]) -> None:
        """Write a row of a table: several lines, if one of its cells is longer than its column is wide."""
        folded = [
            _fold(cell, width) if len(cell) > width else [cell] for cell, width in zip(cells, widths, strict=True)
        ]
        for parts in zip_longest(*folded, fillvalue=""):
            # The padding goes behind the color codes, which take no place on a terminal.
            line = "".join(
                (self._paint(part, color) if color else part) + " " * (width - len(part) + _COLUMN_GAP)
                for part, color, width in zip(parts, colors, widths, strict=True)
            )
            self._stream.write(line.rstrip() + "\n")

    def _write_record(self, columns: Sequence[Column], row: Sequence[Cell]) -> None:
        """Write a row as a record: a verdict and the name of the row on a line, then the other cells."""
        assert self._width is not None
        cells = list(zip(columns, row, strict=True))
        heading = [pair for pair in cells if pair[0].style == "verdict"]
        heading += [cells[0]] * (cells[0] not in heading)
        parts = [f"{_before(column)}{self._paint_cell(cell)}" for column, cell in heading]
        self._stream.write("   ".join(parts) + "\n")
        line = ""
        for column, cell in cells:
            if (column, cell) in heading:
                continue
            fact = f"{_before(column)}{escape_commands(cell_text(cell)) or '-'}"
            if line and len(_RECORD_INDENT) + len(line) + 3 + len(fact) > self._width:
                self._write_lines([line], _RECORD_INDENT)
                line = ""
            line += f"   {fact}" if line else fact
        if line:
            self._write_lines([line], _RECORD_INDENT)

    def _write_lines(
        self, lines: Iterable[str], start: str, start_width: int | None = None, *, color: Color | None = None
    ) -> None:
        """Write texts after ``start``, which is ``start_width`` characters wide; folded lines are indented as far."""
        indent = " " * (len(start) if start_width is None else start_width)
        for line in lines:
            text = escape_commands(line)
            folded = [text] if self._width is None else _fold(text, max(self._width - len(indent), _MIN_FOLD_WIDTH))
            for position, part in enumerate(folded):
                painted = self._paint(part, color) if color else part
                self._stream.write(f"{indent if position else start}{painted}\n")

    def _write_omitted(self, number: int, formats_with_all: str, more: str = "more") -> None:
        """Write the number of rows that a table leaves out, and where they are: ``--format json has all``."""
        if number > 0:
            self._stream.write(f"  ... and {number} {more} ({formats_with_all})\n")

    def _paint(self, text: str, color: Color) -> str:
        return paint(text, color, self._stream)

    def _paint_cell(self, cell: Cell) -> str:
        return self._paint(escape_commands(cell_text(cell)), _color(cell) or "bold")


def _is_shown(block: Block) -> bool:
    """Return whether a terminal shows a block: it draws no charts, and shows no empty tables."""
    if isinstance(block, Table) and not block.rows:
        return False
    return block.on != "page" and isinstance(block, (Text, Facts, Table))


def _before(column: Column) -> str:
    """Return the title of a column, as it stands before a cell in a record."""
    return f"{escape_commands(column.title)}: " if column.title else ""


def _color(cell: Cell) -> Color | None:
    return _LEVELS[cell.level] if isinstance(cell, Mark) else _CELL_COLORS.get(cell_text(cell))


def _fold(text: str, width: int) -> list[str]:
    """Return the lines of a text that is folded at blanks. A word that is longer than a line is not broken."""
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]


def _fold_widths(columns: Sequence[Sequence[str]], width: int) -> list[int] | None:
    """Return the widths of the columns of a table that fits ``width``; None if a word would have to be broken."""
    longest = [max(map(len, column)) for column in columns]
    # A column may be as narrow as its longest word, but a sentence in a very narrow column is hard to read.
    widths = [
        max(min(most, _MIN_FOLD_WIDTH), max(len(word) for cell in column for word in cell.split() or [""]))
        for column, most in zip(columns, longest, strict=True)
    ]
    free = width - sum(widths) - _COLUMN_GAP * (len(widths) - 1)
    if free < 0:
        return None
    # The columns share the free width evenly; a column that needs less leaves the rest to the others.
    by_need = sorted(range(len(widths)), key=lambda at: longest[at] - widths[at])
    for position, at in enumerate(by_need):
        share = min(longest[at] - widths[at], free // (len(widths) - position))
        widths[at] += share
        free -= share
    return widths


def _terminal_width(stream: TextIO) -> int:
    """Return the number of columns of a terminal; the variable COLUMNS, if set, wins."""
    try:
        return int(os.environ["COLUMNS"])
    except (KeyError, ValueError):
        pass
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def shows_color(stream: TextIO) -> bool:
    """Return whether the stream is a terminal that shows color."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(text: str, color: Color, stream: TextIO) -> str:
    """Return the text in a color if the stream shows color, else unchanged."""
    return f"\x1b[{_ANSI[color]}m{text}\x1b[0m" if shows_color(stream) else text


def diagnostic_lines(findings: Iterable[Diagnostic], stream: TextIO) -> Iterator[str]:
    """Yield ``path:line:column: severity code: message`` for each finding, and its hint on a separate line.

    Of many findings of one kind, the first ones are shown, and the number of the others.
    """
    for finding in first_of_each_kind(findings):
        where = f"{paint(escape_commands(finding.place), 'bold', stream)}: " if finding.place else ""
        severity = paint(finding.severity, _SEVERITY[finding.severity], stream)
        yield f"{where}{severity} {finding.code}: {escape_commands(finding.message)}"
        if finding.hint:
            yield f"    hint: {escape_commands(finding.hint)}"


def write_findings(findings: Iterable[Diagnostic]) -> None:
    """Write findings, warnings or errors, to standard error."""
    sys.stderr.writelines(f"{line}\n" for line in diagnostic_lines(findings, sys.stderr))


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
