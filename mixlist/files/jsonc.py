"""Read JSON with comments and trailing commas, and find the line and column of every key and value.

Python's ``json`` (in C) reads an ordinary file. Only a text that ``json`` refuses, or that has a duplicate key, goes
through the scanner in Python (``json_scanner.py``), which finds what is wrong and where. Lines and columns are computed
only when a message needs them. For this, ``json`` in C skips the values before, so that the places of all values of a
file together take linear time.

Three things are accepted beyond JSON (Rules S2.6 and S2.7):

- ``//`` and ``/* */`` comments and trailing commas, with a warning each, because the Ascend engine rejects them;
- a UTF-8 byte-order mark, without a warning;
- duplicate keys, with an error that does not stop the reading. The last value counts, as in the engine.

Any other text that is not JSON stops the reading with a ListError.
"""

from __future__ import annotations

import codecs
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, NoReturn

from mixlist.diagnostics import Diagnostic, Severity
from mixlist.errors import FileError
from mixlist.files.json_scanner import MAX_DEPTH, MAX_DIGITS, MAX_STRING, Lines, Scanner, raise_last, skip_blanks
from mixlist.files.json_scanner import quoted as quoted
from mixlist.files.json_scanner import too_much_error as too_much_error

MAX_BYTES = 64 << 20  # a real library has 1.4 MB; a device file has no end
# Each entry: a byte, how many times a file may contain it, and the text of this bound for the message. Short values
# take up to 130 times their size in memory, so MAX_BYTES alone would allow gigabytes. A real library of 1.4 MB has
# 60,000 lines, 120,000 strings and 20,000 objects.
_MAX_COUNTS: tuple[tuple[bytes, int, str], ...] = (
    (b'"', 1_000_000, "500,000 strings"),
    (b"{", 100_000, "100,000 objects"),
    (b"[", 100_000, "100,000 arrays"),
    (b",", 500_000, "500,000 commas"),
    (b"\n", 1_000_000, "1,000,000 lines"),
    (b"\r", 1_000_000, "1,000,000 lines"),
)

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


def shown_path(path: str | os.PathLike[str]) -> str:
    """Return ``path`` for a message: ``<stdin>`` for ``-``, and always text that can be printed as UTF-8."""
    name = os.fspath(path)
    return "<stdin>" if name == "-" else name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def is_directory(path: str | os.PathLike[str]) -> bool:
    """Return True if the path is a directory; False for standard input and for text that no path can have."""
    return os.fspath(path) != "-" and os.path.isdir(path)  # noqa: PTH112  # Path.is_dir raises for odd paths


def read(path: str | os.PathLike[str], *, strict: bool = False) -> Document:
    """Read a JSON file (``-``: standard input).

    Raises FileError if the file cannot be read, and ListError if it is not JSON; see ``parse``.
    """
    return parse(read_text(path), shown_path(path), strict=strict)


def read_text(path: str | os.PathLike[str]) -> str:
    """Return the text of a UTF-8 file (``-``: standard input), without its byte-order mark.

    Raises FileError if the file cannot be read, and ListError if it is not UTF-8.
    """
    return decode(read_bytes(path), shown_path(path))


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """Return the bytes of a file (``-``: standard input); raise FileError if it cannot be read or is too large."""
    shown = shown_path(path)
    if not shown:  # Path("") would be the current directory
        raise FileError("the path is empty")
    try:
        if os.fspath(path) == "-":
            data = sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            with Path(path).open("rb") as file:
                data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise FileError(f"{shown}: no such file") from None
    # ValueError: the path holds a NUL. AttributeError: the process has no standard input.
    except (OSError, ValueError, AttributeError) as error:
        if is_directory(path):  # Windows raises PermissionError for a directory
            raise FileError(f"{shown}: this is a directory, but a file is needed") from None
        reason = getattr(error, "strerror", None) or str(error)
        raise FileError(f"{shown}: cannot be read: {reason}") from None
    if len(data) > MAX_BYTES:
        raise too_much_error(shown, f"{MAX_BYTES >> 20} MiB")
    return data


def decode(data: bytes, path: str) -> str:
    """Return UTF-8 bytes as text, without byte-order marks. ``path`` is for messages.

    Raises ListError at the first byte that is not UTF-8, and FileError if a count of ``_MAX_COUNTS`` is exceeded.
    """
    start = 0
    while data.startswith(codecs.BOM_UTF8, start):  # several, where files were joined
        start += len(codecs.BOM_UTF8)
    body = data[start:]
    # UTF-16 and UTF-32 start with a byte-order mark, or have a NUL among the first two bytes of an ASCII text.
    first = body[:2]
    if first in (b"\xff\xfe", b"\xfe\xff") or (len(first) > 1 and 0 in first and first != b"\0\0"):
        message = "the file is UTF-16 or UTF-32 text, not UTF-8"
        raise_last([Diagnostic("ML002", "error", message, path, 1, 1, "save the file as UTF-8")])
    for byte, max_count, bound in _MAX_COUNTS:
        if body.count(byte) > max_count:
            raise too_much_error(path, bound)
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        valid = body[: error.start].decode("utf-8")
        line, column = Lines(valid).line_column(len(valid))
        offset = error.start + len(data) - len(body)
        message = f"byte 0x{body[error.start]:02x} at byte offset {offset} is not UTF-8"
        raise_last([Diagnostic("ML002", "error", message, path, line, column, "save the file as UTF-8")])


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
                if type(child) is dict or type(child) is list:
                    next_level.append(child)
        level = next_level
    return bool(level)


# Skip one value in C: numbers stay text, so that a long one costs no conversion.
_skip_value = json.JSONDecoder(parse_int=str, parse_float=str).raw_decode


def _scan_members(text: str, start: int) -> Iterator[tuple[str, Member]]:
    """Yield the key and the offsets of each member of the object at ``start``, in strict JSON."""
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
