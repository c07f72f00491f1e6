"""Store rows as columns and each text once, so that the page of a large model stays small."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class TextTable:
    """Texts by number. Number 0 is the empty text."""

    def __init__(self) -> None:
        self._numbers = {"": 0}

    def number(self, text: str) -> int:
        """Return the number of a text; a new text gets the next number."""
        return self._numbers.setdefault(text, len(self._numbers))

    @property
    def texts(self) -> list[str]:
        """Return the texts in the order of their numbers."""
        return list(self._numbers)


def to_columns(row_type: type[NamedTuple], rows: Sequence[NamedTuple]) -> dict[str, list[object]]:
    """Return a list for each field of ``row_type``, with the values of all rows."""
    fields: tuple[str, ...] = row_type._fields
    return {name: [row[index] for row in rows] for index, name in enumerate(fields)}
