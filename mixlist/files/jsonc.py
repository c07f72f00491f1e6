"""Read JSON with comments and trailing commas, and find the line and column of every key and value.

Python's ``json`` (in C) reads an ordinary file. Only a text that ``json`` refuses, or that has a duplicate key, goes
through the scanner in Python (``json_scanner.py``), which finds what is wrong and where. Lines and columns are computed
only when a message needs them. To find the offsets of the members of an object, ``json`` in C skips one member after
the other, and the offsets are kept. Finding all offsets of a file therefore takes linear time.

Three things are accepted beyond JSON (Rules S2.6 and S2.7):

- ``//`` and ``/* */`` comments and trailing commas, with a warning each, because the Ascend engine rejects them;
- a UTF-8 byte-order mark, without a warning;
- duplicate keys, with an error that does not stop the reading. The last value counts, as in the engine.

Any other text that is not JSON stops the reading with a ListError.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, NoReturn

from mixlist.diagnostics import Diagnostic, Severity
from mixlist.files.json_scanner import MAX_DEPTH, MAX_DIGITS, MAX_STRING, Lines, Scanner, skip_blanks
from mixlist.files.list_text import read_text, shown_path

Steps = Sequence[str | int]  # the keys and indices that lead from the top of a file to a value

_LONG_STRING = re.compile(rf'"[^"]{{{MAX_STRING - 2}}}')  # also matches a long text between two strings
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")  # also matches a valid pair of halves


class Member(NamedTuple):
    """The offsets of one member of an object: of its key, of its value, and of the end of its value."""

    key: int
    value: int
    end: int


@dataclass(frozen=True)
class Document:
    """A JSON text that was read.

    ``text`` is the text without its byte-order mark. ``strict_text`` is strict JSON of the same length: it has blanks
    where ``text`` has comments and trailing commas. ``value`` is the result of ``json.loads(strict_text)``.
    ``findings`` are the comments, the trailing commas and the duplicate keys. All offsets count characters from 0.
    """

    path: str
    text: str
    strict_text: str
    value: object
    findings: tuple[Diagnostic, ...] = ()
    # Offsets that were computed already, by the offset of the object or array.
    _members: dict[int, dict[str, Member]] = field(default_factory=dict, repr=False, compare=False)
    _items: dict[int, list[int]] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def root(self) -> int:
        """Return the offset of the top-level value."""
        return skip_blanks(self.strict_text, 0)

    def members(self, offset: int) -> dict[str, Member]:
        """Return the members of the object that starts at ``offset``; of a duplicate key, the last one."""
        if offset not in self._members:
            self._members[offset] = dict(_scan_members(self.strict_text, offset))
        return self._members[offset]

    def items(self, offset: int) -> list[int]:
        """Return the offsets of the items of the array that starts at ``offset``."""
        if offset not in self._items:
            self._items[offset] = list(_scan_items(self.strict_text, offset))
        return self._items[offset]

    def offset(self, steps: Steps = (), *, key: bool = False) -> int:
        """Return the offset of the value at ``steps``; with ``key``, the offset of its key.

        Raises KeyError or IndexError if there is no such value.
        """
        offset = self.root
        for index, step in enumerate(steps):
            if isinstance(step, int):
                offset = self.items(offset)[step]
            else:
                member = self.members(offset)[step]
                offset = member.key if key and index == len(steps) - 1 else member.value
        return offset

    def line_column(self, steps: Steps = (), *, key: bool = False) -> tuple[int, int]:
        """Return the line and the column of the value at ``steps``, or of its key. Both count characters from 1."""
        return self._lines.line_column(self.offset(steps, key=key))

    def item_line_columns(self, steps: Steps = ()) -> list[tuple[int, int]]:
        """Return the line and the column of each item of the array at ``steps``."""
        return [self._lines.line_column(offset) for offset in self.items(self.offset(steps))]

    def finding(
        self,
        code: str,
        severity: Severity,
        message: str,
        steps: Steps = (),
        *,
        key: bool = False,
        hint: str | None = None,
    ) -> Diagnostic:
        """Return a finding about the value at ``steps``, or about its key."""
        line, column = self.line_column(steps, key=key)
        return Diagnostic(code, severity, message, self.path, line, column, hint)

    @cached_property
    def _lines(self) -> Lines:
        return Lines(self.text)


def read(path: str | os.PathLike[str], *, strict: bool = False) -> Document:
    """Read a JSON file (``-``: standard input).

    Raises FileError if the file cannot be read, and ListError if it is not JSON; see ``parse``.
    """
    return parse(read_text(path), shown_path(path), strict=strict)


def parse(text: str, path: str, *, strict: bool = False) -> Document:
    """Parse a JSON text. The docstring of this module says what is accepted beyond JSON. ``path`` is for messages.

    ``strict`` makes comments and trailing commas errors; they stay findings, and the value is read. Raises ListError,
    with every finding up to that place, if the text is empty, not JSON, or nested deeper than ``MAX_DEPTH``, or if it
    holds half of a surrogate pair, an integer of more than ``MAX_DIGITS`` digits, or a string of more than
    ``MAX_STRING`` characters.
    """
    try:
        value = _loads(text)
    except (ValueError, RecursionError):
        pass  # the scanner below finds the reason and its place
    else:
        # json accepts deep nesting, surrogate halves and long strings. The two patterns also match some valid texts:
        # the scanner then finds nothing wrong.
        if not _is_too_deep(value) and not _SURROGATE_ESCAPE.search(text) and not _LONG_STRING.search(text):
            return Document(path, text, text, value)
    strict_text, findings = Scanner(text, path, strict).scan()
    return Document(path, text, strict_text, json.loads(strict_text), tuple(findings))


def _loads(text: str) -> object:
    """Return ``json.loads(text)``; raise ValueError also for duplicate keys, NaN, Infinity and too long integers."""
    # The messages of these errors are not shown: any of them only sends the text to the scanner.
    value: object = json.loads(
        text, object_pairs_hook=_dict_without_duplicates, parse_constant=_refuse_constant, parse_int=_parse_int
    )
    return value


def _dict_without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("duplicate key")
    return members


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(constant)


def _parse_int(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError("too many digits")
    return int(digits)


def _is_too_deep(value: object) -> bool:
    """Return True if a value is nested deeper than ``MAX_DEPTH``. It descends level by level, without recursion."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(MAX_DEPTH):
        if not level:
            return False
        next_level = []
        for container in level:
            for child in container.values() if type(container) is dict else container:
                # Every value of a file comes here: type() is faster than isinstance(), and json makes no subclasses.
                if type(child) is dict or type(child) is list:
                    next_level.append(child)
        level = next_level
    return bool(level)


# Skip one value in C: numbers stay text, so that a long one costs no conversion.
_skip_value = json.JSONDecoder(parse_int=str, parse_float=str).raw_decode


def _scan_members(text: str, start: int) -> Iterator[tuple[str, Member]]:
    """Yield the key and the offsets of each member of the object at ``start``, in strict JSON."""
    # In strict JSON only white space, a colon or a comma can be between two values, so nothing is tested here.
    offset = skip_blanks(text, start + 1)
    while text[offset] != "}":
        key, end = _skip_value(text, offset)
        value = skip_blanks(text, skip_blanks(text, end) + 1)  # + 1: after the colon
        end = _skip_value(text, value)[1]
        yield key, Member(offset, value, end)
        offset = skip_blanks(text, end)
        if text[offset] == ",":
            offset = skip_blanks(text, offset + 1)


def _scan_items(text: str, start: int) -> Iterator[int]:
    """Yield the offset of each item of the array at ``start``, in strict JSON."""
    offset = skip_blanks(text, start + 1)
    while text[offset] != "]":
        yield offset
        offset = skip_blanks(text, _skip_value(text, offset)[1])
        if text[offset] == ",":
            offset = skip_blanks(text, offset + 1)
