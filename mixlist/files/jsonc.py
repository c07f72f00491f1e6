"""JSON with comments and trailing commas, and a line:column for every key and value.

An ordinary file goes through the C ``json`` module and costs what that costs. Only a text that it
refuses, or that holds a duplicate key, goes through the scanner (jsonscan.py), which says what is
wrong and where. Places are found when a message needs
them: the C scanner skips the values in between, so asking for every place stays linear.

What is accepted beyond JSON (each with a warning, because the Ascend engine's JSON reader rejects
it): ``//`` and ``/* */`` comments and trailing commas. A UTF-8 byte-order mark is accepted in
silence. Duplicate keys are errors that do not stop the reading (the last value stands, as in the
engine). Everything else that is not JSON stops it with a ListError.
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
from mixlist.files.json_scanner import MAX_DEPTH, MAX_DIGITS, MAX_STRING, Lines, Scanner, after_blank, stop
from mixlist.files.json_scanner import quoted as quoted

MAX_BYTES = 64 << 20  # a real library has 1.4 MB; a device file has no end
# Characters, each with the number that a file may hold, and the words for this bound in messages: short values take up
# to 130 times their size in memory. A real library of 1.4 MB has 60,000 lines, 120,000 strings and 20,000 objects.
_MOST: tuple[tuple[bytes, int, str], ...] = (
    (b'"', 1_000_000, "500,000 strings"),
    (b"{", 100_000, "100,000 objects"),
    (b"[", 100_000, "100,000 arrays"),
    (b",", 500_000, "500,000 commas"),
    (b"\n", 1_000_000, "1,000,000 lines"),
    (b"\r", 1_000_000, "1,000,000 lines"),
)

Steps = Sequence[str | int]

_LONG = re.compile(rf'"[^"]{{{MAX_STRING - 2}}}')  # may be a string that is too long; the scanner knows
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


class Member(NamedTuple):
    """Offsets of one member of an object: its key, its value, and the end of the value."""

    key: int
    value: int
    end: int


@dataclass(frozen=True)
class Document:
    """A JSON text, read.

    ``text`` is the text without byte-order mark; ``clean`` has the same length, with comments and
    trailing commas blanked, and is strict JSON. ``value`` is what ``json.loads`` makes of it.
    ``findings`` are the warnings and the duplicate keys. Offsets count characters from 0.
    """

    path: str
    text: str
    clean: str
    value: object
    findings: tuple[Diagnostic, ...] = ()
    _members: dict[int, dict[str, Member]] = field(default_factory=dict, repr=False, compare=False)
    _items: dict[int, list[int]] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def root(self) -> int:
        """The offset of the top-level value."""
        return after_blank(self.clean, 0)

    def members(self, offset: int) -> dict[str, Member]:
        """The members of the object that starts at ``offset`` (the last of a duplicate key)."""
        if offset not in self._members:
            self._members[offset] = dict(_scan_members(self.clean, offset))
        return self._members[offset]

    def items(self, offset: int) -> list[int]:
        """The offsets of the items of the array that starts at ``offset``."""
        if offset not in self._items:
            self._items[offset] = list(_scan_items(self.clean, offset))
        return self._items[offset]

    def offset(self, steps: Steps = (), *, key: bool = False) -> int:
        """Return the offset of the value at ``steps`` (keys and indices from the top); with ``key``, of its key."""
        at = self.root
        for index, step in enumerate(steps):
            if isinstance(step, int):
                at = self.items(at)[step]
            else:
                member = self.members(at)[step]
                at = member.key if key and index == len(steps) - 1 else member.value
        return at

    def position(self, steps: Steps = (), *, key: bool = False) -> tuple[int, int]:
        """Line and column (characters, both from 1) of the value at ``steps``, or of its key."""
        return self._lines.position(self.offset(steps, key=key))

    def places(self, steps: Steps = ()) -> list[tuple[int, int]]:
        """Line and column of every item of the array at ``steps``."""
        return [self._lines.position(at) for at in self.items(self.offset(steps))]

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
        """A Diagnostic at the value at ``steps``, or at its key."""
        line, column = self.position(steps, key=key)
        return Diagnostic(code, severity, message, self.path, line, column, hint)

    @cached_property
    def _lines(self) -> Lines:
        return Lines(self.text)


def shown_path(path: str | os.PathLike[str]) -> str:
    """``path`` as messages show it: ``<stdin>`` for ``-``, and always printable."""
    name = os.fspath(path)
    return "<stdin>" if name == "-" else name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def is_directory(path: str | os.PathLike[str]) -> bool:
    """Return True if the path is a directory; False for standard input and for text that no path can have."""
    return os.fspath(path) != "-" and os.path.isdir(path)  # noqa: PTH112  # Path.is_dir raises for odd paths


def read(path: str | os.PathLike[str], *, strict: bool = False) -> Document:
    """Read a JSON file (``-``: standard input).

    Raises FileError if it cannot be read and ListError if it is not JSON; see ``parse``.
    """
    return parse(read_text(path), shown_path(path), strict=strict)


def read_text(path: str | os.PathLike[str]) -> str:
    """The text of a UTF-8 file (``-``: standard input), without byte-order mark.

    Raises FileError if the file cannot be read, ListError if it is not UTF-8.
    """
    return decode(read_bytes(path), shown_path(path))


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a file (``-``: standard input); raises FileError."""
    shown = shown_path(path)
    if not shown:  # to Path that is the current directory
        raise FileError("the path is empty")
    try:
        if os.fspath(path) == "-":
            data = sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            with Path(path).open("rb") as file:
                data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise FileError(f"{shown}: no such file") from None
    except (OSError, ValueError, AttributeError) as error:  # ValueError: NUL in the path; no stdin at all
        if is_directory(path):  # Windows reports a lack of permission
            raise FileError(f"{shown}: is a directory, a file is needed") from None
        reason = getattr(error, "strerror", None) or str(error)
        raise FileError(f"{shown}: cannot be read: {reason}") from None
    if len(data) > MAX_BYTES:
        raise FileError(f"{shown}: larger than {MAX_BYTES >> 20} MiB, which no list file is")
    return data


def decode(data: bytes, path: str) -> str:
    """Return UTF-8 bytes as text, without byte-order mark.

    Raises ListError with the place of a bad byte, and FileError for more content than a list file has.
    """
    start = 0
    while data.startswith(codecs.BOM_UTF8, start):  # several, where files were joined
        start += len(codecs.BOM_UTF8)
    body = data[start:]
    first = body[:2]
    if first in (b"\xff\xfe", b"\xfe\xff") or (len(first) > 1 and 0 in first and first != b"\0\0"):
        hint = "save it as UTF-8"
        stop([Diagnostic("ML002", "error", "the file is UTF-16 or UTF-32 text, not UTF-8", path, 1, 1, hint)])
    for sign, most, what in _MOST:
        if body.count(sign) > most:
            raise FileError(f"{path}: more than {what}, which no list file has")
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        before = body[: error.start].decode("utf-8")
        line, column = Lines(before).position(len(before))
        at = error.start + len(data) - len(body)
        message = f"byte 0x{body[error.start]:02x} at byte offset {at} is not UTF-8"
        stop([Diagnostic("ML002", "error", message, path, line, column, "save the file as UTF-8")])


def parse(text: str, path: str, *, strict: bool = False) -> Document:
    """Parse a JSON text, see the top of this module for what is accepted.

    ``strict`` makes comments and trailing commas errors (they stay findings: the value is read).
    Raises ListError, with every finding up to there, where the text is empty or not JSON, nested
    deeper than ``MAX_DEPTH``, or holds what no file can mean (a lone surrogate, an integer of more
    than ``MAX_DIGITS`` digits, a string of more than ``MAX_STRING`` characters).
    """
    try:
        value = _loads(text)
    except (ValueError, RecursionError):
        pass
    else:
        if not _too_deep(value) and not _SURROGATE.search(text) and not _LONG.search(text):
            return Document(path, text, text, value)
    clean, findings = Scanner(text, path, strict).scan()
    return Document(path, text, clean, json.loads(clean), tuple(findings))


def _loads(text: str) -> object:
    """``json.loads`` that raises ValueError for duplicate keys, NaN, Infinity and endless integers."""
    value: object = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse, parse_int=_short_int)
    return value


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("duplicate key")
    return members


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


def _short_int(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError("too many digits")
    return int(digits)


def _too_deep(value: object) -> bool:
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(MAX_DEPTH):
        if not level:
            return False
        below = []
        for node in level:
            for child in node.values() if type(node) is dict else node:
                if type(child) is dict or type(child) is list:
                    below.append(child)
        level = below
    return bool(level)


_skip = json.JSONDecoder(parse_int=str, parse_float=str).raw_decode


def _scan_members(text: str, start: int) -> Iterator[tuple[str, Member]]:
    at = after_blank(text, start + 1)
    while text[at] != "}":
        key, end = _skip(text, at)
        value = after_blank(text, after_blank(text, end) + 1)
        end = _skip(text, value)[1]
        yield key, Member(at, value, end)
        at = after_blank(text, end)
        if text[at] == ",":
            at = after_blank(text, at + 1)


def _scan_items(text: str, start: int) -> Iterator[int]:
    at = after_blank(text, start + 1)
    while text[at] != "]":
        yield at
        at = after_blank(text, _skip(text, at)[1])
        if text[at] == ",":
            at = after_blank(text, at + 1)
