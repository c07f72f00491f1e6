"""Node rule files: keep_dtype and customize_dtypes (Rules S6.1 to S6.3).

keep_dtype has one rule per line: a node name, or ``OpType::Type``. customize_dtypes has
``name::InputDtype:float16,,OutputDtype:float32`` or ``OpType::Type:InputDtype:...,OutputDtype:...``.

Rules that the formats leave open: a line is split at the last ``::InputDtype:`` (names hold
colons); a comma separates slots, and the one before ``OutputDtype:`` ends the inputs; a blank entry
means any type; of two rules for one name the first wins. Blank lines mean nothing. No document
allows comments, so a line that starts with ``#`` is skipped with a warning.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from mixlist.diagnostics import Diagnostic, FilePlace
from mixlist.errors import FileError, raise_for_errors
from mixlist.files.jsonc import read_text, shown_path
from mixlist.lists.detect_kind import BLANKS, TextKind
from mixlist.lists.policy import NodeRule
from mixlist.lists.suggestions import closest

# The names the documents use, and the aliases found in the field; three types are all that a rule can ask for.
DTYPES = {
    "float16": "float16",
    "float32": "float32",
    "bfloat16": "bfloat16",
    "fp16": "float16",
    "fp32": "float32",
    "bf16": "bfloat16",
    "float": "float32",
}

MAX_LINES = 100_000  # the largest models have some 100,000 nodes, and few of them need a rule

Rules = tuple[tuple[NodeRule, ...], list[Diagnostic]]
_Path = str | os.PathLike[str]
_TYPE = "OpType::"
_BY_NAME = "::InputDtype:"
_BY_TYPE = ":InputDtype:"
_OUTPUTS = "OutputDtype:"


class _MalformedError(Exception):
    """An error in a line; ``column`` counts from 1, from the line's first character that is not blank."""

    def __init__(self, message: str, column: int, hint: str | None = None, code: str = "ML301") -> None:
        super().__init__(message)
        self.message, self.column, self.hint, self.code = message, column, hint, code


def read_keep_dtype(path: _Path) -> Rules:
    """The rules of a keep_dtype file and the warnings about it.

    Raises FileError if it cannot be read, ListError (with every finding) if a line is malformed.
    """
    return _read(path, _keep_line)


def read_customize_dtypes(path: _Path) -> Rules:
    """The rules of a customize_dtypes file, those by name before those by type, and the warnings about it.

    Raises FileError if it cannot be read, ListError (with every finding) if a line is malformed.
    """
    rules, warnings = _read(path, _customize_line)
    return tuple(sorted(rules, key=lambda rule: rule.by == "type")), warnings


def format_customize_line(rule: NodeRule) -> str:
    """A line of a customize_dtypes file that says what the rule says; a ``keep`` rule has no such line."""
    subject = f"{_TYPE}{rule.pattern}:" if rule.by == "type" else f"{rule.pattern}::"
    inputs, outputs = (",".join(t or "" for t in slots) for slots in (rule.inputs, rule.outputs))
    return f"{subject}InputDtype:{inputs},{_OUTPUTS}{outputs}"


def is_nameable(name: str) -> bool:
    """Return True if a line of a customize_dtypes file can name a node of this name, and no other node."""
    rules, findings = _parse(f"{name}{_BY_NAME},{_OUTPUTS}", "", _customize_line)
    told = [(rule.by, rule.pattern) for rule in rules]
    return not findings and told == [("name", name)] and "*" not in name and "?" not in name


def check(text: str, name: str, kind: TextKind) -> list[Diagnostic]:
    """Return every finding about the text of a node rule file, errors too; ``name`` is the path in messages."""
    return _parse(text, name, _keep_line if kind == "keep-dtype" else _customize_line)[1]


def _read(path: _Path, parse: Callable[[str, FilePlace], NodeRule]) -> Rules:
    rules, findings = _parse(read_text(path), shown_path(path), parse)
    return rules, raise_for_errors(findings)


def _parse(source: str, name: str, parse: Callable[[str, FilePlace], NodeRule]) -> Rules:
    """The rules as far as they can be read, and every finding."""
    rules: dict[tuple[str, str], NodeRule] = {}
    findings: list[Diagnostic] = []
    if source.count("\n") > MAX_LINES:
        raise FileError(f"{name}: more than {MAX_LINES:,} lines, which no node rule file has")
    for number, text in enumerate(source.split("\n"), start=1):
        line = text.strip(BLANKS)
        place = FilePlace(name, number, len(text) - len(text.lstrip(BLANKS)) + 1)
        if line.startswith("#"):
            findings.append(place.finding("ML303", "warning", "a comment, which no document allows here"))
            continue
        if not line:
            continue
        try:
            if "\0" in line:
                raise _MalformedError("a NUL byte: this is no text file", line.index("\0") + 1, code="ML002")
            rule = parse(line, place)
        except _MalformedError as error:
            there = replace(place, column=place.column + error.column - 1)
            findings.append(there.finding(error.code, "error", error.message, error.hint))
            continue
        first = rules.setdefault((rule.by, rule.pattern), rule)
        if first is not rule:
            findings.append(_again(first, rule))
    return tuple(rules.values()), findings


def _again(first: NodeRule, rule: NodeRule) -> Diagnostic:
    same = (first.inputs, first.outputs) == (rule.inputs, rule.outputs)
    said = "repeats that of" if same else "is not heeded, the first one counts: that of"
    message = f"this rule for {rule.pattern} {said} line {first.place.line}"
    return rule.place.finding("ML304", "warning", message, "remove one of the two")


def _keep_line(line: str, place: FilePlace) -> NodeRule:
    if line.startswith(_TYPE):
        return NodeRule("type", _type_name(line.removeprefix(_TYPE), len(_TYPE) + 1), True, place)
    if "InputDtype:" in line:
        column = line.index("InputDtype:") + 1
        raise _MalformedError(
            "a keep_dtype line names a node or OpType::Type and no types", column, "see --customize-dtypes"
        )
    return NodeRule("name", line, True, place)


def _customize_line(line: str, place: FilePlace) -> NodeRule:
    by: Literal["name", "type"] = "type" if line.startswith(_TYPE) else "name"
    mark = _BY_TYPE if by == "type" else _BY_NAME
    start = len(_TYPE) if by == "type" else 0
    at = line.rfind(mark)
    if at < start:
        raise _no_input_dtype(line, by, start)
    subject = _type_name(line[start:at].removesuffix(":"), start + 1) if by == "type" else line[:at].strip(BLANKS)
    if not subject:
        raise _MalformedError("a rule without a node name", 1, f"write NAME{_BY_NAME}float16,{_OUTPUTS}float32")
    inputs, outputs = _slots(line, at + len(mark))
    return NodeRule(by, subject, False, place, inputs, outputs)


def _no_input_dtype(line: str, by: str, start: int) -> _MalformedError:
    form = f"OpType::TYPE{_BY_TYPE}..." if by == "type" else f"NAME{_BY_NAME}..."
    hint = f"the form is {form},{_OUTPUTS}..."
    first, then = line.find("InputDtype:", start), line.find(_OUTPUTS, start)
    if then >= 0 and (first < 0 or then < first):
        message = "OutputDtype without InputDtype before it: InputDtype comes first, blank for any type"
        return _MalformedError(message, then + 1, hint)
    if first >= 0:
        return _MalformedError("InputDtype does not follow the name as it must", first + 1, hint)
    return _MalformedError("this line is no rule: it has no InputDtype", len(line) + 1, hint)


def _type_name(text: str, column: int) -> str:
    name = text.strip(BLANKS)
    if not name or any(c.isspace() or c == ":" for c in name.replace("::", "")):
        raise _MalformedError(f"{name!r} is no op type", column, "write OpType::Conv, without spaces")
    return name


def _slots(line: str, start: int) -> tuple[tuple[str | None, ...], tuple[str | None, ...]]:
    """The two lists of types: what stands between ``start`` and ``OutputDtype:``, and what follows it."""
    at = line.find(_OUTPUTS, start)
    if at < 0:
        raise _MalformedError("OutputDtype is missing", len(line) + 1, f"append ,{_OUTPUTS} and the output types")
    again = re.search("(In|Out)putDtype:", line[at + len(_OUTPUTS) :])
    if again:
        column = at + len(_OUTPUTS) + again.start() + 1
        raise _MalformedError("InputDtype comes first, then OutputDtype, each once", column)
    inputs = line[start:at].rstrip(BLANKS)
    if inputs and not inputs.endswith(","):
        raise _MalformedError("a comma is missing before OutputDtype", at + 1)
    return _types(inputs.removesuffix(","), start + 1), _types(line[at + len(_OUTPUTS) :], at + len(_OUTPUTS) + 1)


def _types(text: str, column: int) -> tuple[str | None, ...]:
    """One type or None (any) per comma-separated entry; nothing at all is the empty tuple: any for every slot."""
    if not text.strip(BLANKS):
        return ()
    found: list[str | None] = []
    for entry in text.split(","):
        name = entry.strip(BLANKS)
        if name and name not in DTYPES:
            near = closest(name, DTYPES, 1)
            meant = f"did you mean {near[0]}? " if near else ""
            raise _MalformedError(
                f"{name!r} is not a type that a rule can ask for",
                column + len(entry) - len(entry.lstrip(BLANKS)),
                f"{meant}allowed are float16, float32 and bfloat16 (or fp16, fp32, bf16, float), and blank for any",
                "ML302",
            )
        found.append(DTYPES[name] if name else None)
        column += len(entry) + 1
    return tuple(found)
