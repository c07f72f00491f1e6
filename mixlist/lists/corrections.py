"""Correct the findings of a list file that have one safe correction: what ``mixlist validate --fix`` does.

A correction does not change what the file decides: it removes what has no meaning (comments, trailing commas,
``$schema``, names and rules that repeat), and writes the flag ``true``, a boolean, as the string ``"true"``. The only
exceptions are a key and an op type that differ from exactly one right name only in case, separators or one letter, and
a name of the other name space with one counterpart: they get the meaning that their author had in mind. All other
characters stay.

The corrected text is read again. If its value is not the expected one, the correction is not made.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from mixlist.diagnostics import Diagnostic
from mixlist.errors import ListError
from mixlist.files.jsonc import TOKEN, Document, Replacement, apply_replacements, parse
from mixlist.files.list_text import quoted
from mixlist.lists.detect_kind import ACTION_KEYS, BLANKS, LIST_KEYS
from mixlist.lists.modify_mixlist import parse_edits
from mixlist.lists.ops_info import entries_of
from mixlist.lists.schema_check import find_misspelled_keys, rename_keys

_LINE_REST = re.compile(r"[ \t]*(\r\n|\r|\n|\Z)")  # blanks up to the end of a line
_BLANKS_AFTER = re.compile(r"[ \t]*")

NewNames = Mapping[str, Mapping[str, str]]  # by code: right names by the names in the file
_Step = Callable[[str], tuple[str, int]]  # returns a corrected text and the number of corrections
# Replacements in a JSON text, the value that the text must have after them, and the number of corrections.
_Edit = tuple[Sequence[Replacement], object, int]

_RENAMED = ("ML101", "ML108", "ML404")
# By code: the verb and the noun of the message about a correction, such as "removed 2 comments".
_MESSAGES = {
    "ML006": ("removed", "comment"),
    "ML007": ("removed", "trailing comma"),
    "ML101": ("renamed", "key"),
    "ML103": ("removed", '"$schema" key'),
    "ML105": ("removed", "repeated name"),
    "ML108": ("renamed", "op type"),
    "ML204": ("quoted", "flag"),
    "ML303": ("removed", "comment"),
    "ML304": ("removed", "repeated rule"),
    "ML404": ("renamed", "op type"),
}


@dataclass(frozen=True, slots=True)
class Correction:
    """A correction of all findings of one code in a file: the first of them, their number, and what was done."""

    finding: Diagnostic
    count: int
    message: str


def correct_text(
    text: str, path: str, kind: str, findings: Iterable[Diagnostic], new_names: NewNames
) -> tuple[str, list[Correction]]:
    """Return the text of a list file after the corrections, and the corrections. ``path`` is for messages.

    Only codes that ``findings`` has are corrected. ``new_names`` maps, for ML108 and ML404, op types of the file to
    their right names.
    """
    first_findings: dict[str, Diagnostic] = {}
    for finding in findings:
        first_findings.setdefault(finding.code, finding)
    corrections: list[Correction] = []
    given_text = text
    steps = _RULE_STEPS if kind in ("keep-dtype", "customize-dtypes") else _json_steps(path, kind, new_names)
    for code, step in steps.items():
        if code in first_findings:
            corrected, count = step(text)
            if count:
                finding, names = first_findings[code], ""
                if code in _RENAMED:
                    renames = _find_renames(parse(given_text, path), code, new_names)
                    names = _describe_renames(renames)
                    _, _, (line, column) = renames[0]  # the first finding of this code may be one without a right name
                    finding = replace(finding, line=line, column=column)
                verb, noun = _MESSAGES[code]
                message = f"{verb} {count} {noun}{'' if count == 1 else 's'}{names}"
                corrections.append(Correction(finding, count, message))
            text = corrected
    return text, corrections


# The old and the new name, and the line and column of the old one in the file as given.
_Rename = tuple[str, str, tuple[int, int]]


def _find_renames(document: Document, code: str, new_names: NewNames) -> list[_Rename]:
    """Return the corrections of names, in the order of the file."""
    if code == "ML101":
        right_keys = find_misspelled_keys(document.value)
        return sorted(
            ((keys[-1], name, document.line_column(keys, key=True)) for keys, name in right_keys.items()),
            key=lambda rename: rename[2],
        )
    edits = {edit.op: edit.place for edit in reversed(parse_edits(document)[0])}  # the first place of each op type
    renames = [(old, new, (edits[old].line, edits[old].column)) for old, new in new_names[code].items()]
    return sorted(renames, key=lambda rename: rename[2])


def _describe_renames(renames: list[_Rename]) -> str:
    """Return the old and the new names, of several ones with their places."""
    places = [f" ({line}:{column})" if len(renames) > 1 else "" for _, _, (line, column) in renames]
    texts = (f"{quoted(old)}{place} to {quoted(new)}" for (old, new, _), place in zip(renames, places, strict=True))
    return f": {', '.join(texts)}"


def _json_steps(path: str, kind: str, new_names: NewNames) -> dict[str, _Step]:
    """Return, by code and in the order of the corrections, functions that correct the text of a JSON file."""
    edits: dict[str, Callable[[Document], _Edit]] = {"ML006": _remove_comments, "ML007": _remove_trailing_commas}
    if kind == "modify-mixlist":
        edits["ML103"] = _remove_schema_key
        # Before the names: those in an array with a misspelled key count only after it has its right name.
        edits["ML101"] = _rename_keys
        # Before the repeated names are removed: a right name can repeat a name of its array.
        for code, names in new_names.items():
            edits[code] = partial(_rename, new_names=names)
        edits["ML105"] = _remove_repeated_names
    elif kind == "ops-info":
        edits["ML204"] = _quote_flags
    return {code: partial(_apply_edit, edit, path) for code, edit in edits.items()}


def _apply_edit(edit: Callable[[Document], _Edit], path: str, text: str) -> tuple[str, int]:
    """Return the text after an edit and the number of corrections; the old text and 0 if its value would be wrong."""
    try:
        replacements, expected, count = edit(parse(text, path))
        edited = apply_replacements(text, replacements)
        value = parse(edited, path).value
    except ListError:
        return text, 0
    # As texts, because == of dicts does not compare the order of keys.
    return (edited, count) if json.dumps(value) == json.dumps(expected) else (text, 0)


def _remove_comments(document: Document) -> _Edit:
    """Remove comments, with the blanks around them and with lines that hold nothing else."""
    text, spans = document.text, _token_spans(document, "comment")
    without_comments = apply_replacements(text, [Replacement(*span, " " * (span[1] - span[0])) for span in spans])
    replacements: list[Replacement] = []
    for start, end in (_with_blanks(without_comments, text, *span) for span in spans):
        # The blanks between two comments belong to both.
        if replacements and start <= replacements[-1].end:
            previous = replacements.pop()
            start, end = previous.start, max(end, previous.end)
        replacements.append(Replacement(start, end, ""))
    return (replacements, document.value, len(spans))


def _with_blanks(without_comments: str, text: str, start: int, end: int) -> tuple[int, int]:
    """Return the range of a comment with the blanks around it, and with its line if the line holds nothing else.

    ``without_comments`` is the text with blanks in place of all comments.
    """
    line_start = max(text.rfind("\n", 0, start), text.rfind("\r", 0, start)) + 1
    before = without_comments[line_start:start]
    line_rest = _LINE_REST.match(without_comments, end)
    if line_rest is None:  # the line goes on: remove the blanks between the comment and the next token
        blanks = _BLANKS_AFTER.match(text, end)
        assert blanks is not None  # it matches no blanks, too
        return start, blanks.end()
    if not before.strip(" \t"):
        return line_start, line_rest.end()
    return line_start + len(before.rstrip(" \t")), line_rest.start(1)


def _token_spans(document: Document, kind: str) -> list[tuple[int, int]]:
    """Return the start and the end of each token of a kind of ``jsonc.TOKEN``."""
    spans, offset = [], 0
    while match := TOKEN.match(document.text, offset):
        offset = match.end()
        if match.lastgroup == kind:
            spans.append(match.span(kind))
    return spans


def _remove_trailing_commas(document: Document) -> _Edit:
    # A trailing comma is a blank in the strict text.
    spans = _token_spans(document, "punctuation")
    commas = [span for span in spans if document.text[span[0]] == "," and document.strict_text[span[0]] == " "]
    return ([Replacement(start, end, "") for start, end in commas], document.value, len(commas))


def _remove_schema_key(document: Document) -> _Edit:
    value = document.value
    if not isinstance(value, dict) or "$schema" not in value:
        return ([], value, 0)
    expected = {key: member for key, member in value.items() if key != "$schema"}
    index, members = list(value).index("$schema"), list(document.members(document.root).values())
    start, end = members[index].key, members[index].end
    if index + 1 < len(members):
        end = members[index + 1].key  # with the comma behind it
    elif index:
        start = members[index - 1].end  # with the comma before it
    if document.text[start:end] != document.strict_text[start:end]:
        return ([], value, 0)  # a comment there that was not to be removed
    return ([Replacement(start, end, "")], expected, 1)


def _rename_keys(document: Document) -> _Edit:
    """Give misspelled keys their right names."""
    right_keys = find_misspelled_keys(document.value)
    replacements = []
    for *parents, key in right_keys:
        start = document.members(document.offset(tuple(parents)))[key].key
        replacements.append(Replacement(start, _item_end(document, start), json.dumps(right_keys[*parents, key])))
    return (replacements, rename_keys(document.value, right_keys), len(replacements))


def _arrays(document: Document) -> dict[tuple[str, str], list[object]]:
    """Return the arrays of a modify_mixlist by their two keys."""
    value = document.value if isinstance(document.value, dict) else {}
    pairs = ((list_key, action_key) for list_key in LIST_KEYS for action_key in ACTION_KEYS)
    arrays = {
        (list_key, action_key): value[list_key].get(action_key)
        for list_key, action_key in pairs
        if isinstance(value.get(list_key), dict)
    }
    return {keys: names for keys, names in arrays.items() if isinstance(names, list)}


def _with_arrays(document: Document, arrays: Mapping[tuple[str, str], list[object]]) -> object:
    """Return the value of a modify_mixlist with other arrays."""
    value = json.loads(document.strict_text)
    for (list_key, action_key), names in arrays.items():
        value[list_key][action_key] = names
    return value


def _item_end(document: Document, start: int) -> int:
    match = TOKEN.match(document.strict_text, start)
    return match.end() if match else start


def _rename(document: Document, new_names: Mapping[str, str]) -> _Edit:
    """Give misspelled op types their right names."""
    replacements = []
    arrays = _arrays(document)
    for keys, names in arrays.items():
        for name, start in zip(names, document.items(document.offset(keys)), strict=True):
            if isinstance(name, str) and name in new_names:
                replacements.append(Replacement(start, _item_end(document, start), json.dumps(new_names[name])))
    expected = {
        keys: [new_names.get(name, name) if isinstance(name, str) else name for name in names]
        for keys, names in arrays.items()
    }
    return (replacements, _with_arrays(document, expected), len(replacements))


def _repeated_names(document: Document) -> list[tuple[tuple[str, str], int]]:
    """Return the array and the index of each name that its array has before."""
    repeated = []
    for keys, names in _arrays(document).items():
        earlier: set[str] = set()
        for index, name in enumerate(names):
            if isinstance(name, str):
                if name in earlier:
                    repeated.append((keys, index))
                earlier.add(name)
    return repeated


def _remove_repeated_names(document: Document) -> _Edit:
    """Remove names that their array has before, each with the comma before it. Comments between them stay."""
    replacements = []
    remaining: dict[tuple[str, str], list[object]] = {keys: list(names) for keys, names in _arrays(document).items()}
    for keys, index in reversed(_repeated_names(document)):
        del remaining[keys][index]
        starts = document.items(document.offset(keys))
        comma = document.strict_text.index(",", _item_end(document, starts[index - 1]))
        line_blanks = document.text[comma + 1 : starts[index]]
        name_start = starts[index] - (len(line_blanks) - len(line_blanks.rstrip()))
        replacements.append(Replacement(comma, comma + 1, ""))
        replacements.append(Replacement(name_start, _item_end(document, starts[index]), ""))
    return (replacements, _with_arrays(document, remaining), len(replacements) // 2)


def _quote_flags(document: Document) -> _Edit:
    replacements = []
    value = json.loads(document.strict_text)
    for op, entry in entries_of(document).items():
        reduce = entry.get("precision_reduce")
        if isinstance(reduce, dict) and isinstance(reduce.get("flag"), bool):
            member = document.members(document.offset((op, "precision_reduce")))["flag"]
            text = "true" if reduce["flag"] else "false"
            replacements.append(Replacement(member.value, member.end, f'"{text}"'))
            value[op]["precision_reduce"]["flag"] = text
    return (replacements, value, len(replacements))


def _remove_rule_comments(text: str) -> tuple[str, int]:
    lines = text.split("\n")
    rules = [line for line in lines if not line.strip(BLANKS).startswith("#")]
    return "\n".join(rules), len(lines) - len(rules)


def _remove_repeated_rules(text: str) -> tuple[str, int]:
    """Remove lines that repeat an earlier line. Empty lines and comments may repeat."""
    lines = text.split("\n")
    earlier: set[str] = set()
    rules = []
    for line in lines:
        rule = line.strip(BLANKS)
        if not rule or rule.startswith("#") or rule not in earlier:
            rules.append(line)
        earlier.add(rule)
    return "\n".join(rules), len(lines) - len(rules)


# By code, functions that correct the text of a node rule file.
_RULE_STEPS: dict[str, _Step] = {"ML303": _remove_rule_comments, "ML304": _remove_repeated_rules}
