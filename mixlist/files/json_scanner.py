"""The scanner behind ``jsonc``: one pass over a JSON text that says what is wrong with it, and where.

One regular expression per token, a stack of its own, no recursion: time and memory are linear in
the text, whatever it holds.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple, NoReturn

from mixlist.diagnostics import Diagnostic, Severity, findings_for
from mixlist.errors import FileError, ListError

MAX_DEPTH = 200  # an operator information library needs 4
MAX_COMMENTS = 100_000
MAX_DIGITS = 600  # of an integer; below 640, the lowest limit that Python can be told for int()
MAX_STRING = 4 << 20  # characters; the longest string of a real library has some hundred

_STRING = r'"[^"\\\x00-\x1f]*+(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*+)*+'
TOKEN = re.compile(
    r"[ \t\r\n]*+(?:"
    r"(?P<punct>[{}\[\]:,])"
    rf'|(?P<string>{_STRING}")'
    r"|(?P<bare>[^ \t\r\n\"{}\[\]:,/\x00-\x1f]++)"
    r"|(?P<comment>//[^\r\n]*+|/\*(?s:.*?)\*/)"
    r")"
)
_BLANK = re.compile(r"[ \t\r\n]*+")
_OPEN_STRING = re.compile(_STRING)
_NUMBER = re.compile(r"-?+(?P<int>0|[1-9][0-9]*+)(?P<real>(?:\.[0-9]++)?+(?:[eE][+-]?[0-9]++)?+)")
_NEWLINE = re.compile(r"\r\n|\r|\n")
_LONE = re.compile("[\ud800-\udfff]")


class Lines:
    """Line and column of an offset: lines end with LF, CRLF or CR, both count from 1."""

    def __init__(self, text: str) -> None:
        self._starts = [0, *(m.end() for m in _NEWLINE.finditer(text))]

    def position(self, offset: int) -> tuple[int, int]:
        """The place of the character at ``offset``."""
        line = bisect_right(self._starts, offset)
        return line, offset - self._starts[line - 1] + 1


def quoted(text: str, limit: int = 60) -> str:
    """``text`` as a message shows it: in double quotes, on one line, printable, cut when long."""
    cut = text if len(text) <= limit else text[:limit] + "..."
    return '"' + "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut) + '"'


def after_blank(text: str, offset: int) -> int:
    """The offset of the first character from ``offset`` on that is no JSON white space."""
    blank = _BLANK.match(text, offset)
    return blank.end() if blank else offset


class Cut(NamedTuple):
    """Replace ``text[start:end]``."""

    start: int
    end: int
    text: str


def apply(text: str, cuts: Iterable[Cut]) -> str:
    """Return the text after the cuts, which do not overlap."""
    parts: list[str] = []
    done = 0
    for cut in sorted(cuts):
        parts += [text[done : cut.start], cut.text]
        done = cut.end
    return "".join([*parts, text[done:]])


def stop(findings: list[Diagnostic]) -> NoReturn:
    """Raise ListError for the last of the findings, carrying all of them."""
    last = findings[-1]
    raise ListError(f"{last.place}: {last.message}", hint=last.hint, diagnostics=tuple(findings))


# The things that may come next, as messages name them.
_VALUE, _ITEM = "a value", 'a value or "]"'
_KEY, _FIRST_KEY, _COLON = "a key in double quotes", 'a key in double quotes or "}"', '":" after the key'
_NEXT_MEMBER, _NEXT_ITEM, _END = '"," or "}"', '"," or "]"', "the end of the file"

_HINTS = {
    "True": "write true",
    "False": "write false",
    "None": "write null",
    **dict.fromkeys(("NaN", "Infinity", "-Infinity"), "JSON has no such number"),
}


class Scanner:
    """One pass over a text that the C module refused: all warnings and duplicate keys, the first error.

    ``open`` holds, for each bracket that is open, its offset and (for an object) its keys' offsets.
    """

    def __init__(self, text: str, path: str, strict: bool) -> None:
        self.text, self.path = text, path
        self.mild: Severity = "error" if strict else "warning"
        self.lines = Lines(text)
        self.open: list[tuple[int, dict[str, int] | None]] = []
        self.expect = _VALUE
        self.last_comma = -1  # offset of the comma just read, else -1
        self.comments: list[tuple[int, int]] = []
        self.commas: list[int] = []
        self.duplicates: list[tuple[str, int, int]] = []

    def scan(self) -> tuple[str, list[Diagnostic]]:
        """The strict JSON of the same length, and the findings; raises ListError at the first error."""
        at, match = 0, TOKEN.match
        while found := match(self.text, at):
            kind, at = found.lastgroup or "", found.end()
            start = found.start(kind)
            if kind == "comment":
                if len(self.comments) == MAX_COMMENTS:
                    raise FileError(f"{self.path}: more than {MAX_COMMENTS:,} comments, which no list file has")
                self.comments.append((start, at))
                continue
            token = found[kind]
            if kind == "punct":
                self.punctuation(token, start)
            elif kind == "string" and self.expect in (_KEY, _FIRST_KEY):
                self.key(token, start)
            else:
                self.scalar(kind, token, start)
            self.last_comma = start if token == "," else -1
        at = after_blank(self.text, at)
        if at < len(self.text) or self.expect != _END:
            self.no_token(at)
        return self.cleaned(), self.findings()

    def punctuation(self, token: str, at: int) -> None:
        if token in "{[":
            if self.expect not in (_VALUE, _ITEM):
                self.unexpected(token, at)
            if len(self.open) == MAX_DEPTH:
                self.fail("ML004", f"nested deeper than {MAX_DEPTH} levels", at)
            self.open.append((at, {} if token == "{" else None))
            self.expect = _FIRST_KEY if token == "{" else _ITEM
        elif token in "}]":
            self.close(token, at)
        elif token == ":" and self.expect == _COLON:
            self.expect = _VALUE
        elif token == "," and self.expect in (_NEXT_MEMBER, _NEXT_ITEM):
            self.expect = _KEY if self.expect == _NEXT_MEMBER else _VALUE
        else:
            self.unexpected(token, at)

    def close(self, token: str, at: int) -> None:
        allowed = (_FIRST_KEY, _NEXT_MEMBER) if token == "}" else (_ITEM, _NEXT_ITEM)
        in_own = bool(self.open) and (self.open[-1][1] is None) == (token == "]")
        if in_own and self.last_comma >= 0:
            self.commas.append(self.last_comma)
        elif self.expect not in allowed:
            self.unexpected(token, at)
        self.open.pop()
        self.after_value()

    def after_value(self) -> None:
        if not self.open:
            self.expect = _END
        else:
            self.expect = _NEXT_ITEM if self.open[-1][1] is None else _NEXT_MEMBER

    def key(self, token: str, at: int) -> None:
        name = self.string(token, at)
        keys = self.open[-1][1]
        if keys is not None:
            if name in keys:
                self.duplicates.append((name, keys[name], at))
            keys[name] = at
        self.expect = _COLON

    def scalar(self, kind: str, token: str, at: int) -> None:
        if self.expect not in (_VALUE, _ITEM):
            self.unexpected(token, at)
        if kind == "string":
            self.string(token, at)
        elif token not in ("true", "false", "null"):
            number = _NUMBER.fullmatch(token)
            if not number:
                hint = _HINTS.get(token, "strings stand in double quotes" if token[0] not in "-+.0123456789" else None)
                self.fail("ML001", f"{quoted(token, 30)} is no JSON value", at, hint)
            if not number["real"] and len(token) > MAX_DIGITS:
                self.fail("ML008", f"an integer of {len(number['int'])} digits; at most {MAX_DIGITS} are read", at)
        self.after_value()

    def string(self, token: str, at: int) -> str:
        if len(token) > MAX_STRING:
            self.fail("ML012", f"a string of {len(token) - 2} characters; at most {MAX_STRING - 2} are read", at)
        if "\\" not in token:
            return token[1:-1]
        value: str = json.loads(token)
        if _LONE.search(value):
            self.fail("ML009", f"{quoted(value)} holds half of a surrogate pair, which is no character", at)
        return value

    def unexpected(self, token: str, at: int) -> NoReturn:
        found = f"the string {quoted(token[1:-1])}" if token[0] == '"' else quoted(token, 30)
        hint = None
        if self.expect in (_NEXT_MEMBER, _NEXT_ITEM) and token not in (":", "}", "]"):
            hint = "a comma is missing before it"
        elif self.expect in (_NEXT_MEMBER, _NEXT_ITEM, _FIRST_KEY, _ITEM) and token in "}]":
            hint = self.opened()
        self.fail("ML001", f"expected {self.expect}, found {found}", at, hint)

    def no_token(self, at: int) -> NoReturn:
        """The text ends too early, or holds what starts no token."""
        rest = self.text[at : at + 2]
        if not rest and not self.text.strip(" \t\r\n"):
            self.fail("ML003", "the file is empty", 0, "an empty modify_mixlist is written {}")
        if not rest:
            hint = self.opened() if self.open else None
            self.fail("ML001", f"the file ends here, but {self.expect} is missing", at, hint)
        if rest[0] == '"':
            self.bad_string(at)
        if rest == "/*":
            self.fail("ML001", "the comment that starts here has no end", at, 'end it with "*/"')
        if rest[0] == "\0":
            self.fail("ML002", "a NUL byte: the file is damaged, or no text", at)
        self.fail("ML001", f"expected {self.expect}, found {quoted(rest[0])}", at)

    def bad_string(self, at: int) -> NoReturn:
        found = _OPEN_STRING.match(self.text, at)
        end = found.end() if found else at
        wrong = self.text[end : end + 2]
        if not wrong or wrong[0] in "\r\n":
            self.fail("ML001", "the string that starts here is not closed on its line", at, 'end it with "')
        if wrong[0] == "\\":
            self.fail("ML001", f"{quoted(wrong)} is no JSON escape", end, "write a backslash as \\\\")
        self.fail("ML001", f"the control character {quoted(wrong[0])} in a string", end, "write it as an escape")

    def opened(self) -> str:
        """Return the bracket that was opened last and its place, for messages."""
        offset = self.open[-1][0]
        return f'"{self.text[offset]}" was opened at {self.at(offset)}'

    def cleaned(self) -> str:
        """The text with comments and trailing commas blanked; what blanks mean to lines stays."""
        spans = [*self.comments, *((at, at + 1) for at in self.commas)]
        return apply(self.text, [Cut(start, end, " " * (end - start)) for start, end in spans])

    def findings(self) -> list[Diagnostic]:
        """Return a finding for each comment, trailing comma and duplicate key so far, in file order."""
        hint = "the engine's JSON reader rejects it; mixlist fmt writes the strict form"
        comments = [start for start, _ in self.comments]
        found = findings_for(comments, lambda at: self.finding("ML006", self.mild, "a comment", at, hint))
        found += findings_for(self.commas, lambda at: self.finding("ML007", self.mild, "a trailing comma", at, hint))
        found += findings_for(self.duplicates, self.duplicate)
        return sorted(found, key=lambda d: (d.line or 0, d.column or 0))

    def duplicate(self, key: tuple[str, int, int]) -> Diagnostic:
        name, first, at = key
        message = f"the key {quoted(name)} stands here again, first at {self.at(first)}"
        return self.finding("ML005", "error", message, at, "keep one: the engine silently takes the last")

    def finding(self, code: str, severity: Severity, message: str, at: int, hint: str | None) -> Diagnostic:
        return Diagnostic(code, severity, message, self.path, *self.lines.position(at), hint)

    def at(self, offset: int) -> str:
        line, column = self.lines.position(offset)
        return f"{line}:{column}"

    def fail(self, code: str, message: str, at: int, hint: str | None = None) -> NoReturn:
        stop([*self.findings(), self.finding(code, "error", message, at, hint)])
