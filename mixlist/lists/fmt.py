"""Write list files in the strict canonical form (Rule S2.8): what ``mixlist fmt`` does.

JSON files have no comments and no trailing commas, an indentation of two spaces, one entry per line, and a newline at
the end. The three kinds of list files keep different parts of the user's text:

- A modify_mixlist gets its keys in one order (black-list, white-list, gray-list; to-add, to-remove). The names of an
  array keep the user's order, each once. Escapes in names become the characters that they mean.
- An operator information library changes only its white space: the order, numbers and escapes stay.
- A node rule file has no blank lines, no blanks around a rule and no comments, and each rule once.
"""

from __future__ import annotations

import json
from typing import Literal

from mixlist.diagnostics import Diagnostic
from mixlist.errors import raise_for_errors
from mixlist.files.jsonc import TOKEN, parse
from mixlist.lists.detect_kind import ACTION_KEYS, BLANKS, LIST_KEYS, FileKind, detect_json_kind, detect_text_kind
from mixlist.lists.node_rules import check_rule_text
from mixlist.lists.schema_check import check_structure

_OPENING, _CLOSING = frozenset("{["), frozenset("}]")
# The number of tokens that are collected before they are joined to a block. A separate token takes ten times its length
# in memory.
_MAX_PARTS = 10_000


def format_text(text: str, path: str, kind: Literal["auto"] | FileKind = "auto") -> str:
    """Return the text of a list file in its canonical form. Formatting the result again changes nothing.

    ``path`` is for messages. Raises ListError for a text that is not JSON, has duplicate keys, or has keys and types
    that its kind does not allow. Comments are lost: ``find_lost_comments`` returns a warning about them.
    """
    if kind == "auto":
        kind = detect_text_kind(text, path) or "auto"
    if kind == "keep-dtype" or kind == "customize-dtypes":
        # A file with a NUL byte (ML002) is damaged, so it is not formatted. Any other error is about one rule: the
        # result has this rule unchanged, so that the user can correct it.
        raise_for_errors([finding for finding in check_rule_text(text, path, kind) if finding.code == "ML002"])
        return "".join(f"{line}\n" for line in _unique_rules(text))
    document = parse(text, path)
    kind = detect_json_kind(document) if kind == "auto" else kind
    structure = check_structure(document, "ops-info" if kind == "ops-info" else "modify-mixlist")
    # Comments and trailing commas are only warnings here. A duplicate key is an error: fmt would have to drop one
    # value.
    raise_for_errors([*document.findings, *structure])
    return _indent(document.strict_text) if kind == "ops-info" else _format_modify_mixlist(document.value)


def find_lost_comments(text: str, path: str) -> list[Diagnostic]:
    """Return a warning if the canonical form of the text loses comments. Raises ListError as ``format_text`` does."""
    if detect_text_kind(text, path):
        lines = enumerate(text.split("\n"), start=1)
        places = [(number, line.index("#") + 1) for number, line in lines if line.lstrip(BLANKS).startswith("#")]
    else:
        comments = [finding for finding in parse(text, path).findings if finding.code == "ML006"]
        places = [(comment.line or 1, comment.column or 1) for comment in comments]
    if not places:
        return []
    count = "a comment" if len(places) == 1 else f"{len(places)} comments"
    hint = "the strict form has no comments: keep them in another file"
    return [Diagnostic("ML011", "warning", f"the strict form of the file loses {count}", path, *places[0], hint)]


def _unique_rules(text: str) -> list[str]:
    """Return the rules of a node rule file in file order, without blanks around them, each once."""
    lines = (line.strip(BLANKS) for line in text.split("\n"))
    return list(dict.fromkeys(line for line in lines if line and not line.startswith("#")))


def _format_modify_mixlist(value: object) -> str:
    assert isinstance(value, dict)  # check_structure found no error
    ordered = {
        list_key: {key: list(dict.fromkeys(value[list_key][key])) for key in ACTION_KEYS if key in value[list_key]}
        for list_key in LIST_KEYS
        if list_key in value
    }
    return json.dumps(ordered, indent=2, ensure_ascii=False) + "\n"


def _indent(strict_text: str) -> str:
    """Return strict JSON with two spaces of indentation. Every token stays as it is written.

    ``json.dumps`` cannot do this: it writes 1.50e+3 as 1500.0 and decodes escapes.
    """
    blocks: list[str] = []
    parts: list[str] = []
    # At first, ``previous`` is a token after which no line starts.
    depth, offset, previous = 0, 0, ":"
    while match := TOKEN.match(strict_text, offset):
        token, offset = match[match.lastgroup or 0], match.end()
        # A closing bracket is indented like the line of its opening one: the depth falls before the new line, and rises
        # after the token.
        depth -= token in _CLOSING
        # A new line starts after a comma, after an opening bracket, and before a closing one. An opening bracket and a
        # closing one next to each other, {} or [], stay together: both tests are true, so ``!=`` is false.
        if previous == "," or (previous in _OPENING) != (token in _CLOSING):
            if len(parts) > _MAX_PARTS:
                blocks.append("".join(parts))
                parts.clear()
            parts.append("\n" + "  " * depth)
        parts.append(": " if token == ":" else token)
        depth += token in _OPENING
        previous = token
    return "".join([*blocks, *parts, "\n"])
