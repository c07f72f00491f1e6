"""Read node rule files: keep_dtype and customize_dtypes (Rules S6.1 to S6.3).

A line of a keep_dtype file is ``NODE`` or ``OpType::TYPE``. A line of a customize_dtypes file has one of two forms:

- ``NODE::InputDtype:float16,,OutputDtype:float32``: the first input is float16, the second input has any type;
- ``OpType::TYPE:InputDtype:float16,OutputDtype:float32``: the only input that the rule names is float16.

The documents of the formats leave these points open:

- The name ends before the last ``::InputDtype:`` of the line, because names can hold colons.
- Types are separated by commas. The comma directly before ``OutputDtype:`` ends the inputs: it starts no further one.
- An empty type means any type.
- Of two rules for one name, the first one is used.
- Empty lines mean nothing. A line that starts with ``#`` is a comment, which is skipped with a warning.
- A ``#`` behind a name belongs to the name, because the name of a node can hold it; ``name #`` gives a warning.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from typing import Literal

from mixlist.diagnostics import Diagnostic, FilePlace, findings_for
from mixlist.errors import raise_for_errors
from mixlist.files.list_text import read_text, shown_path, too_much_error
from mixlist.lists.detect_kind import BLANKS, TextKind
from mixlist.lists.policy import NodeRule
from mixlist.lists.suggestions import closest_names
from mixlist.option_spelling import spell

# The type names of the engine, in any case, and the aliases that users write. A slot of floats can have one of three.
DTYPES = {
    "float16": "float16",
    "float32": "float32",
    "bfloat16": "bfloat16",
    "fp16": "float16",
    "fp32": "float32",
    "bf16": "bfloat16",
    "float": "float32",
    "double": "float64",
    **{
        name: name
        for name in ("bool", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
    },
}

# The largest models have some 100,000 nodes, and few of them need a rule. Each line can have a finding.
MAX_LINES = 100_000

RulesAndFindings = tuple[tuple[NodeRule, ...], list[Diagnostic]]
_Path = str | os.PathLike[str]
_OP_TYPE = "OpType::"
_NODE_SEPARATOR = "::InputDtype:"
_TYPE_SEPARATOR = ":InputDtype:"
_OUTPUTS = "OutputDtype:"
_COMMENT_IN_NAME = re.compile(r"[ \t]#")


class _InvalidLineError(Exception):
    """An error in a line. ``column`` counts from 1 at the first character of the line that is not blank."""

    def __init__(self, message: str, column: int, hint: str | None = None, code: str = "ML301") -> None:
        super().__init__(message)
        self.message, self.column, self.hint, self.code = message, column, hint, code


def read_keep_dtype(path: _Path) -> RulesAndFindings:
    """Return the rules of a keep_dtype file and the warnings about it.

    Raises FileError if the file cannot be read, and ListError, with every finding, if a line is not valid.
    """
    rules, findings = _parse_rules(read_text(path), shown_path(path), _parse_keep_line)
    return rules, raise_for_errors(findings)


def read_customize_dtypes(path: _Path) -> RulesAndFindings:
    """Return the rules of a customize_dtypes file, those by name before those by op type, and the warnings about it.

    Raises FileError if the file cannot be read, and ListError, with every finding, if a line is not valid.
    """
    return parse_customize_dtypes(read_text(path), shown_path(path))


def parse_customize_dtypes(text: str, path: str = "customize_dtypes") -> RulesAndFindings:
    """Return the rules in the text of a customize_dtypes file, as ``read_customize_dtypes`` does.

    ``path`` is for messages. Raises ListError, with every finding, if a line is not valid.
    """
    rules, findings = _parse_rules(text, path, _parse_customize_line)
    warnings = raise_for_errors(findings)
    # sorted() is stable: in each of the two groups the first rule of the file stays first (Rule S6.3).
    return tuple(sorted(rules, key=lambda rule: rule.by == "type")), warnings


def format_customize_line(rule: NodeRule) -> str:
    """Return the line of a customize_dtypes file for a rule. A rule with ``keep`` has no such line."""
    subject = f"{_OP_TYPE}{rule.pattern}:" if rule.by == "type" else f"{rule.pattern}::"
    inputs, outputs = (",".join(dtype or "" for dtype in dtypes) for dtypes in (rule.inputs, rule.outputs))
    return f"{subject}InputDtype:{inputs},{_OUTPUTS}{outputs}"


def is_valid_rule_name(name: str) -> bool:
    """Return True if a line of a customize_dtypes file can name the node of this name, and no other node.

    Names with ``*`` or ``?`` are patterns there. Some names read as something else, such as ``OpType::Conv``.
    """
    # Read a rule with this name back: that finds a # at the start, blanks at the ends, and names like a rule.
    rules, findings = _parse_rules(f"{name}{_NODE_SEPARATOR},{_OUTPUTS}", "", _parse_customize_line)
    subjects = [(rule.by, rule.pattern) for rule in rules]
    return not findings and subjects == [("name", name)] and "*" not in name and "?" not in name


def check_rule_text(text: str, path: str, kind: TextKind) -> list[Diagnostic]:
    """Return every finding about the text of a node rule file, errors too. ``path`` is for messages."""
    parse_line = _parse_keep_line if kind == "keep-dtype" else _parse_customize_line
    return _parse_rules(text, path, parse_line)[1]


def _find_comments_in_names(rules: Iterable[NodeRule]) -> list[Diagnostic]:
    def describe(rule: NodeRule) -> Diagnostic:
        message = f"this rule is for a node called {rule.pattern!r}: a comment behind a name belongs to the name"
        return rule.place.finding("ML310", "warning", message, "remove the comment")

    # In a customize_dtypes file the types follow the name, so a comment is an error there.
    rules_by_name = (rule for rule in rules if rule.keep and rule.by == "name")
    return findings_for([rule for rule in rules_by_name if _COMMENT_IN_NAME.search(rule.pattern)], describe)


def _parse_rules(source: str, path: str, parse_line: Callable[[str, FilePlace], NodeRule]) -> RulesAndFindings:
    """Return the rules of all valid lines, and every finding."""
    rules: dict[tuple[str, str], NodeRule] = {}
    findings: list[Diagnostic] = []
    if source.count("\n") > MAX_LINES:
        raise too_much_error(path, f"{MAX_LINES:,} lines", "node rule file")
    # Not splitlines(): it also splits at characters that the name of a node can hold, such as U+2028. A carriage return
    # before the line end is one of ``BLANKS``.
    for number, text in enumerate(source.split("\n"), start=1):
        line = text.strip(BLANKS)
        # The place of a rule is its first character that is not blank.
        place = FilePlace(path, number, len(text) - len(text.lstrip(BLANKS)) + 1)
        if line.startswith("#"):
            message = "this comment is skipped: the documents show comments, but the Ascend engine reads them as rules"
            findings.append(place.finding("ML303", "warning", message, "remove the line"))
            continue
        if not line:
            continue
        # An invalid line becomes a finding, and the reading goes on: users see all errors of a file at once.
        try:
            if "\0" in line:
                message = "the line holds a NUL byte: the file is damaged, or not a text file"
                hint = "give a text file, or restore the damaged file"
                raise _InvalidLineError(message, line.index("\0") + 1, hint, code="ML002")
            rule = parse_line(line, place)
        except _InvalidLineError as error:
            error_place = place._replace(column=place.column + error.column - 1)
            findings.append(error_place.finding(error.code, "error", error.message, error.hint))
            continue
        # Of several rules for one name, the first one is used (Rule S6.3).
        first = rules.setdefault((rule.by, rule.pattern), rule)
        if first is not rule:
            findings.append(_second_rule_finding(first, rule))
    return tuple(rules.values()), [*findings, *_find_comments_in_names(rules.values())]


def _second_rule_finding(first: NodeRule, second: NodeRule) -> Diagnostic:
    if (first.inputs, first.outputs) == (second.inputs, second.outputs):
        message = f"this rule for {second.pattern} repeats the rule in line {first.place.line}"
    else:
        message = (
            f"this rule for {second.pattern} has no effect: the first rule for it is used, in line {first.place.line}"
        )
    return second.place.finding("ML304", "warning", message, "remove one of the two")


def _parse_keep_line(line: str, place: FilePlace) -> NodeRule:
    """Return the rule of a line ``NODE`` or ``OpType::TYPE``."""
    # A node whose name begins like this needs its scope before it: ./OpType::Conv (Rule S6.5).
    if line.startswith(_OP_TYPE):
        return NodeRule("type", _parse_op_type(line.removeprefix(_OP_TYPE), len(_OP_TYPE) + 1), True, place)
    if "InputDtype:" in line:
        message = "this line gives types, but a line of a keep_dtype file is a node name or OpType::TYPE"
        hint = f"give a file with types as {spell('customize_dtypes')}"
        raise _InvalidLineError(message, line.index("InputDtype:") + 1, hint)
    return NodeRule("name", line, True, place)


def _parse_customize_line(line: str, place: FilePlace) -> NodeRule:
    """Return the rule of a line ``NODE::InputDtype:...,OutputDtype:...`` or ``OpType::TYPE:InputDtype:...``."""
    by: Literal["name", "type"] = "type" if line.startswith(_OP_TYPE) else "name"
    separator = _TYPE_SEPARATOR if by == "type" else _NODE_SEPARATOR
    subject_start = len(_OP_TYPE) if by == "type" else 0
    subject_end = line.rfind(separator)  # the last one: a::InputDtype:b is a possible name
    if subject_end < subject_start:  # no separator (-1), or only one inside the prefix
        raise _missing_inputs_error(line, by, subject_start)
    subject = line[subject_start:subject_end].strip(BLANKS)
    if by == "type":
        # OpType::TYPE::InputDtype: is accepted, too: users write the two colons of a rule by name.
        subject = _parse_op_type(line[subject_start:subject_end].removesuffix(":"), subject_start + 1)
    if not subject:
        hint = f"write NAME{_NODE_SEPARATOR}float16,{_OUTPUTS}float32"
        raise _InvalidLineError("the rule has no node name", 1, hint)
    inputs, outputs = _parse_slots(line, subject_end + len(separator))
    return NodeRule(by, subject, False, place, inputs, outputs)


def _missing_inputs_error(line: str, by: str, subject_start: int) -> _InvalidLineError:
    """Return the error of a line without ``InputDtype:`` behind its name. Three mistakes lead here."""
    separator = _TYPE_SEPARATOR if by == "type" else _NODE_SEPARATOR
    hint = f"write {'OpType::TYPE' if by == 'type' else 'NAME'}{separator}...,{_OUTPUTS}..."
    inputs, outputs = line.find("InputDtype:", subject_start), line.find(_OUTPUTS, subject_start)
    if outputs >= 0 and (inputs < 0 or outputs < inputs):
        message = "OutputDtype has no InputDtype before it: InputDtype comes first, with nothing after it for any type"
        return _InvalidLineError(message, outputs + 1, hint)
    if inputs >= 0:
        message = f'InputDtype does not follow the name: write "{separator}" after the name'
        return _InvalidLineError(message, inputs + 1, hint)
    return _InvalidLineError("the line is not a rule: it has no InputDtype", len(line) + 1, hint)


def _parse_op_type(text: str, column: int) -> str:
    """Return the op type, which can have a domain (``com.microsoft::Gelu``)."""
    name = text.strip(BLANKS)
    # com.microsoft::Gelu has a domain. A single colon is a typing error.
    if not name or any(c.isspace() or c == ":" for c in name.replace("::", "")):
        hint = "write for example OpType::Conv, without blanks"
        raise _InvalidLineError(f"{name!r} is not the name of an op type", column, hint)
    return name


def _parse_slots(line: str, start: int) -> tuple[tuple[str | None, ...], tuple[str | None, ...]]:
    """Return the types of the inputs and of the outputs. The inputs begin at ``start`` and end at ``OutputDtype:``."""
    inputs_end = line.find(_OUTPUTS, start)
    if inputs_end < 0:
        hint = f"append ,{_OUTPUTS} and the output types"
        raise _InvalidLineError("OutputDtype is missing", len(line) + 1, hint)
    outputs_start = inputs_end + len(_OUTPUTS)
    second = re.search("(In|Out)putDtype:", line[outputs_start:])
    if second:
        name = second.group().rstrip(":")
        message = f"{name} is given twice: a rule has InputDtype and OutputDtype once each, in this order"
        raise _InvalidLineError(message, outputs_start + second.start() + 1, "remove one of the two")
    inputs = line[start:inputs_end].rstrip(BLANKS)
    if inputs and not inputs.endswith(","):
        raise _InvalidLineError("a comma is missing before OutputDtype", inputs_end + 1, f"write ,{_OUTPUTS}")
    # The comma before OutputDtype ends the last input: float16,,OutputDtype: has two inputs, the second of any type.
    return _parse_types(inputs.removesuffix(","), start + 1), _parse_types(line[outputs_start:], outputs_start + 1)


def _parse_types(text: str, column: int) -> tuple[str | None, ...]:
    """Return the type of each slot, None for any type. The empty tuple, of an empty text, means any type for all slots.

    ``column`` is that of the text in its line.
    """
    if not text.strip(BLANKS):
        return ()
    dtypes: list[str | None] = []
    for entry in text.split(","):
        name = entry.strip(BLANKS).lower()
        if name and name not in DTYPES:
            similar = closest_names(name, DTYPES, 1)
            question = f"did you mean {similar[0]}? " if similar else ""
            choices = (
                "float16, float32 and bfloat16 (or fp16, fp32, bf16, float), integer types, and nothing for any type"
            )
            raise _InvalidLineError(
                f"{entry.strip(BLANKS)!r} is not a type that a node rule can ask for",
                column + len(entry) - len(entry.lstrip(BLANKS)),
                f"{question}allowed are {choices}",
                "ML302",
            )
        dtypes.append(DTYPES[name] if name else None)
        # The next entry begins behind the comma.
        column += len(entry) + 1
    return tuple(dtypes)
