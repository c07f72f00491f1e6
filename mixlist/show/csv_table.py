"""Write CSV: a header and a row for each record, with ``\\n`` line ends. Names are escaped as in text output."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from typing import TextIO

from mixlist.show.terminal import escape_commands


def write_csv(columns: Sequence[str], rows: Iterable[Sequence[str]], stream: TextIO) -> None:
    """Write the header and the rows."""
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([escape_commands(cell) for cell in row] for row in rows)
