"""Read and edit JSON with comments and trailing commas, with the line and column of every key and value.

Python's ``json`` (in C) reads an ordinary file. Only a text that ``json`` refuses, or that has a duplicate key, goes
through the ``Scanner`` in Python, which finds what is wrong and where. Lines and columns are computed only when a
message needs them. To find the offsets of the members of an object, ``json`` in C skips one member after the other,
and the offsets are kept. Finding all offsets of a file therefore takes linear time.

Three things are accepted beyond JSON (Rules S2.6 and S2.7):

- ``//`` and ``/* */`` comments and trailing commas, with a warning each, because the Ascend engine rejects them;
- a UTF-8 byte-order mark, without a warning;
- duplicate keys, with an error that does not stop the reading. The last value counts, as in the engine.

Any other text that is not JSON stops the reading with a ListError.

An edit of a text is ``Replacement`` values, each a range of the text and its new text, for ``apply_replacements``.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, NoReturn

from mixlist.diagnostics import Diagnostic, Severity, findings_for
from mixlist.files.list_text import Lines, quoted, raise_last, read_text, shown_path

# --- the scanner: what is wrong, and where ---

# An operator information library needs 4.
MAX_DEPTH = 200
# Of an integer. Python's own limit for int() is adjustable, but at least 640 digits.
MAX_DIGITS = 600

# The quantifiers ++, *+ and ?+ never give characters back. Without them a damaged text could cost quadratic time.
_STRING = r'"[^"\\\x00-\x1f]*+(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*+)*+'  # without the closing quote
TOKEN = re.compile(
    r"[ \t\r\n]*+(?:"
    r"(?P<punctuation>[{}\[\]:,])"
    rf'|(?P<string>{_STRING}")'
    r"|(?P<bare>[^ \t\r\n\"{}\[\]:,/\x00-\x1f]++)"  # a number, true, false, null, or a word that is not JSON
    r"|(?P<comment>//[^\r\n]*+|/\*(?s:.*?)\*/)"
    r")"
)
_BLANKS = re.compile(r"[ \t\r\n]*+")
_STRING_START = re.compile(_STRING)
_NUMBER = re.compile(r"-?+(?P<int>0|[1-9][0-9]*+)(?P<real>(?:\.[0-9]++)?+(?:[eE][+-]?[0-9]++)?+)")
_SURROGATE_HALF = re.compile("[\ud800-\udfff]")


def skip_blanks(text: str, offset: int) -> int:
    """Return the offset of the first character at or after ``offset`` that is not JSON white space."""
    blanks = _BLANKS.match(text, offset)
    return blanks.end() if blanks else offset


class Replacement(NamedTuple):
    """A new text for ``text[start:end]`` of a JSON text."""

    start: int
    end: int
    text: str


def apply_replacements(text: str, replacements: Iterable[Replacement]) -> str:
    """Return the text after the replacements, whose ranges do not overlap."""
    parts: list[str] = []
    end = 0
    for replacement in sorted(replacements):
        parts += [text[end : replacement.start], replacement.text]
        end = replacement.end
    return "".join([*parts, text[end:]])


# The states of the scanner. Each state is the text that messages show after "expected".
_VALUE, _ITEM = "a value", 'a value or "]"'
_KEY, _FIRST_KEY, _COLON = "a key in double quotes", 'a key in double quotes or "}"', '":" after the key'
_NEXT_MEMBER, _NEXT_ITEM, _END = '"," or "}"', '"," or "]"', "the end of the file"

_DAMAGED = "check whether the file is damaged"
_BARE_WORD_HINTS = {
    "True": "write true",
    "False": "write false",
    "None": "write null",
    **dict.fromkeys(("NaN", "Infinity", "-Infinity"), "JSON has only finite numbers: write one"),
}


class Scanner:
    """A scan of a text that Python's ``json`` refused, or that has duplicate keys.

    It has one regular expression for all tokens and a stack of its own instead of recursion. Its time and memory are
    therefore linear in the length of the text, whatever the text holds.

    The scan finds all comments, trailing commas and duplicate keys, and stops at the first other error.
    ``_open_brackets`` is the stack of open brackets: the offset of each and, for an object, the offsets of its keys.
    """

    def __init__(self, text: str, path: str, strict: bool) -> None:
        self.text, self.path = text, path
        self._lines = Lines(text)
        self._extension_severity: Severity = "error" if strict else "warning"  # of comments and trailing commas
        self._open_brackets: list[tuple[int, dict[str, int] | None]] = []
        self._expected = _VALUE
        self._previous_comma = -1  # the offset of the previous token if it is a comma, else -1; comments are no tokens
        self._comments: list[tuple[int, int]] = []  # start and end
        self._trailing_commas: list[int] = []
        self._duplicates: list[tuple[str, int, int]] = []  # the key, its first offset, its second offset

    def scan(self) -> tuple[str, list[Diagnostic]]:
        """Return strict JSON of the same length as the text, and the findings.

        Raises ListError at the first error that is not a duplicate key, and FileError for too many comments.
        """
        offset, match_token = 0, TOKEN.match
        while match := match_token(self.text, offset):
            kind, offset = match.lastgroup or "", match.end()
            start = match.start(kind)
            if kind == "comment":
                # A comment is no token: it changes neither the state nor ``_previous_comma``.
                self._comments.append((start, offset))
                continue
            token = match[kind]
            if kind == "punctuation":
                self._read_punctuation(token, start)
            elif kind == "string" and self._expected in (_KEY, _FIRST_KEY):
                self._read_key(token, start)
            else:
                self._read_scalar(kind, token, start)
            self._previous_comma = start if token == "," else -1
        # No token starts here: this is the end of the text, or an error.
        offset = skip_blanks(self.text, offset)
        if offset < len(self.text) or self._expected != _END:
            self._fail_without_token(offset)
        return self._strict_text(), self._findings()

    def _read_punctuation(self, token: str, offset: int) -> None:
        if token in "{[":
            if self._expected not in (_VALUE, _ITEM):
                self._fail_at_token(token, offset)
            if len(self._open_brackets) == MAX_DEPTH:
                message = f"arrays and objects are nested deeper than {MAX_DEPTH} levels"
                self._fail("ML004", message, offset, f"a list file needs 4 levels: {_DAMAGED}")
            self._open_brackets.append((offset, {} if token == "{" else None))
            self._expected = _FIRST_KEY if token == "{" else _ITEM
        elif token in "}]":
            self._read_closing_bracket(token, offset)
        elif token == ":" and self._expected == _COLON:
            self._expected = _VALUE
        elif token == "," and self._expected in (_NEXT_MEMBER, _NEXT_ITEM):
            # After a comma, _KEY and _VALUE and not _FIRST_KEY and _ITEM: messages then do not offer a closing bracket.
            self._expected = _KEY if self._expected == _NEXT_MEMBER else _VALUE
        else:
            self._fail_at_token(token, offset)

    def _read_closing_bracket(self, token: str, offset: int) -> None:
        closing_states = (_FIRST_KEY, _NEXT_MEMBER) if token == "}" else (_ITEM, _NEXT_ITEM)
        # False if no bracket is open, or if the innermost open one has the other form. Objects have a dict of keys.
        is_same_kind = bool(self._open_brackets) and (self._open_brackets[-1][1] is None) == (token == "]")
        # After a comma the state expects a key or a value, so a trailing comma is tested before the state.
        if is_same_kind and self._previous_comma >= 0:
            # This comma follows a member or an item: for [,] and [1,,] an error was raised at the comma.
            self._trailing_commas.append(self._previous_comma)
        elif self._expected not in closing_states:
            self._fail_at_token(token, offset)
        self._open_brackets.pop()
        self._expect_after_value()

    def _expect_after_value(self) -> None:
        if not self._open_brackets:
            self._expected = _END
        else:
            self._expected = _NEXT_ITEM if self._open_brackets[-1][1] is None else _NEXT_MEMBER

    def _read_key(self, token: str, offset: int) -> None:
        key = self._decode_string(token, offset)
        key_offsets = self._open_brackets[-1][1]
        # The test is for the type checker: a key is expected only inside an object, which has a dict.
        if key_offsets is not None:
            if key in key_offsets:
                self._duplicates.append((key, key_offsets[key], offset))
            key_offsets[key] = offset
        self._expected = _COLON

    def _read_scalar(self, kind: str, token: str, offset: int) -> None:
        if self._expected not in (_VALUE, _ITEM):
            self._fail_at_token(token, offset)
        if kind == "string":
            self._decode_string(token, offset)
        elif token not in ("true", "false", "null"):
            # Only an integer has a limit of digits: int() takes more than linear time for a long text, and float() does
            # not.
            number = _NUMBER.fullmatch(token)
            if not number:
                is_word = token[0] not in "-+.0123456789"
                hint = _BARE_WORD_HINTS.get(token, "write strings in double quotes" if is_word else None)
                self._fail("ML001", f"{quoted(token, 30)} is not a JSON value", offset, hint)
            if not number["real"] and len(token) > MAX_DIGITS:
                message = f"the integer has {len(number['int'])} digits; mixlist reads at most {MAX_DIGITS}"
                self._fail("ML008", message, offset, _DAMAGED)
        self._expect_after_value()

    def _decode_string(self, token: str, offset: int) -> str:
        if "\\" not in token:
            return token[1:-1]
        # Only an escape can hold one half of a surrogate pair: a file with such a half in UTF-8 is not decoded at all.
        value: str = json.loads(token)
        if _SURROGATE_HALF.search(value):
            message = f"the string {quoted(value)} holds one half of a surrogate pair, which is not a character"
            self._fail("ML009", message, offset, "write the character itself, or both halves")
        return value

    def _fail_at_token(self, token: str, offset: int) -> NoReturn:
        """Raise ListError for a token that cannot come here."""
        shown = f"the string {quoted(token[1:-1])}" if token[0] == '"' else quoted(token, 30)
        hint = None
        if self._expected in (_NEXT_MEMBER, _NEXT_ITEM) and token not in (":", "}", "]"):
            # [1 2] or {"a": 1 "b": 2}
            hint = "put a comma before it"
        elif self._expected in (_NEXT_MEMBER, _NEXT_ITEM, _FIRST_KEY, _ITEM) and token in "}]":
            # [1, 2} or {"a": [1}: the wrong closing bracket
            hint = self._unclosed_bracket()
        self._fail("ML001", f"expected {self._expected}, found {shown}", offset, hint)

    def _fail_without_token(self, offset: int) -> NoReturn:
        """Raise ListError for a text that ends too early, or whose next characters start no token."""
        start = self.text[offset : offset + 2]
        # From the most exact message to the most general one.
        if not start and not self.text.strip(" \t\r\n"):
            self._fail("ML003", "the file is empty", 0, "a modify_mixlist without edits is written {}")
        if not start:
            hint = self._unclosed_bracket() if self._open_brackets else None
            self._fail("ML001", f"the file ends here, but {self._expected} is missing", offset, hint)
        if start[0] == '"':
            self._fail_in_string(offset)
        if start == "/*":
            self._fail("ML001", "the comment that starts here has no end", offset, 'end it with "*/"')
        if start[0] == "\0":
            hint = "give a text file, or restore the damaged file"
            self._fail("ML002", "the file holds a NUL byte: it is damaged, or not a text file", offset, hint)
        self._fail("ML001", f"expected {self._expected}, found {quoted(start[0])}", offset)

    def _fail_in_string(self, offset: int) -> NoReturn:
        """Raise ListError for the string that starts at ``offset``, which is not a valid one."""
        match = _STRING_START.match(self.text, offset)
        end = match.end() if match else offset
        invalid = self.text[end : end + 2]
        if not invalid or invalid[0] in "\r\n":
            self._fail("ML001", "the string that starts here is not closed on its line", offset, 'close it with "')
        if invalid[0] == "\\":
            self._fail("ML001", f"{quoted(invalid)} is not a JSON escape", end, "write a backslash as \\\\")
        message = f"a string holds the control character {quoted(invalid[0])}"
        self._fail("ML001", message, end, "write it as an escape, such as \\t or \\u0009")

    def _unclosed_bracket(self) -> str:
        """Return a hint that names the innermost open bracket and its place."""
        offset = self._open_brackets[-1][0]
        return f'"{self.text[offset]}" at {self._place(offset)} is not closed yet'

    def _strict_text(self) -> str:
        """Return the text with blanks for comments and trailing commas: all other characters keep their offsets."""
        ranges = [*self._comments, *((offset, offset + 1) for offset in self._trailing_commas)]
        return apply_replacements(self.text, [Replacement(start, end, " " * (end - start)) for start, end in ranges])

    def _findings(self) -> list[Diagnostic]:
        """Return a finding for each comment, trailing comma and duplicate key so far, in file order."""
        hint = "the Ascend engine rejects it: remove it, or let mixlist fmt remove it"

        def describe_comment(start: int) -> Diagnostic:
            return self._finding("ML006", self._extension_severity, "JSON does not allow this comment", start, hint)

        def describe_trailing_comma(offset: int) -> Diagnostic:
            message = "JSON does not allow this trailing comma"
            return self._finding("ML007", self._extension_severity, message, offset, hint)

        findings = findings_for([start for start, _ in self._comments], describe_comment)
        findings += findings_for(self._trailing_commas, describe_trailing_comma)
        findings += findings_for(self._duplicates, self._describe_duplicate)
        return sorted(findings, key=lambda finding: (finding.line or 0, finding.column or 0))

    def _describe_duplicate(self, duplicate: tuple[str, int, int]) -> Diagnostic:
        key, first, offset = duplicate
        message = f"the key {quoted(key)} is in the object twice: here and at {self._place(first)}"
        hint = "remove one of the two: the Ascend engine uses the last one without a warning"
        return self._finding("ML005", "error", message, offset, hint)

    def _finding(self, code: str, severity: Severity, message: str, offset: int, hint: str | None) -> Diagnostic:
        return Diagnostic(code, severity, message, self.path, *self._lines.line_column(offset), hint)

    def _place(self, offset: int) -> str:
        line, column = self._lines.line_column(offset)
        return f"{line}:{column}"

    def _fail(self, code: str, message: str, offset: int, hint: str | None = None) -> NoReturn:
        raise_last([*self._findings(), self._finding(code, "error", message, offset, hint)])


# --- documents: values and their places ---

Steps = Sequence[str | int]  # the keys and indices that lead from the top of a file to a value

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
    holds half of a surrogate pair or an integer of more than ``MAX_DIGITS`` digits.
    """
    try:
        value = _loads(text)
    except (ValueError, RecursionError):
        pass  # the scanner below finds the reason and its place
    else:
        # json accepts deep nesting and surrogate halves. The pattern also matches some valid texts: the scanner then
        # finds nothing wrong.
        if not _is_too_deep(value) and not _SURROGATE_ESCAPE.search(text):
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
