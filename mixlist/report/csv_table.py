"""CSV: a header and a row per record, newline-ended, quoted where needed."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from typing import TextIO


def write_csv(columns: Sequence[str], rows: Iterable[Sequence[str]], stream: TextIO) -> None:
    """Write the header and the rows."""
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
