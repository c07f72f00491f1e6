"""Choose the findings to report by their codes: ``--select`` and ``--ignore``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

from mixlist.errors import UsageError
from mixlist.files.package_data import data_folder
from mixlist.option_spelling import spell

# A file with one of these findings cannot be read. Without this finding it would pass unread.
UNREADABLE_CODES = frozenset(f"ML{number:03}" for number in (1, 2, 3, 4, 8, 9, 10, 13, 16))

# A section of a page in docs/codes: its code, its title and its first paragraph.
_SECTION = re.compile(r"^## (ML\d+): (.+)\n+((?:.+\n)*?)(?=\n|\Z)", re.MULTILINE)


@cache
def code_texts() -> Mapping[str, tuple[str, str]]:
    """Return the title and the first paragraph of each section of docs/codes (in the package), by code."""
    pages = (data_folder("docs") / "codes").glob("ml*.md")
    sections = (section for page in pages for section in _SECTION.findall(page.read_text(encoding="utf-8")))
    return {code: (title, " ".join(body.split()) or title) for code, title, body in sections}


class CodeSelection(NamedTuple):
    """The codes of the findings that a user wants to see.

    ``selected`` and ``ignored`` hold beginnings of codes. Without ``selected``, all codes are selected. If a code has a
    selected and an ignored beginning, the longer one decides, and the ignored one if they are equal.
    """

    selected: Sequence[str] = ()
    ignored: Sequence[str] = ()

    def includes(self, code: str) -> bool:
        """Return whether the user wants to see a finding of this code; always True for ``UNREADABLE_CODES``."""
        select_length = _longest_beginning(code, self.selected or ("",))
        return code in UNREADABLE_CODES or select_length > _longest_beginning(code, self.ignored)


def read_selection(select: str | Iterable[str], ignore: str | Iterable[str]) -> CodeSelection:
    """Return the selection for texts such as ``ML1`` or ``ML105,ML2``.

    Raises UsageError for a text with which no code begins.
    """
    return CodeSelection(_split_codes("select", select), _split_codes("ignore", ignore))


def _longest_beginning(code: str, beginnings: Sequence[str]) -> int:
    """Return the length of the longest of the beginnings that the code has; -1 if it has none."""
    return max((len(beginning) for beginning in beginnings if code.startswith(beginning)), default=-1)


def _split_codes(option: str, texts: str | Iterable[str]) -> tuple[str, ...]:
    texts = [texts] if isinstance(texts, str) else texts
    beginnings = [part.strip().upper() for text in texts for part in text.split(",") if part.strip()]
    for beginning in beginnings:
        if not any(code.startswith(beginning) for code in code_texts()):
            raise UsageError(
                f"{spell(option, beginning)}: no code of a finding begins so",
                hint="write a code, such as ML105, or its beginning, such as ML1; docs/codes explains every code",
            )
    return tuple(beginnings)
