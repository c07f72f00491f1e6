"""The strict canonical form of list files.

JSON: no comments, no trailing commas, two spaces of indentation, one entry a line, a newline at the
end. A modify_mixlist has its keys in one order (black-list, white-list, gray-list; to-add,
to-remove) and each name once per array, in the user's order; strings are written out, not as
escapes. Of an operator information library only the white space changes: order, numbers and escapes
stay as they are. Node rule files: no blanks around a rule, no blank lines, no comments, each rule once.
"""

from __future__ import annotations

import json
from typing import Literal

from mixlist.diagnostics import Diagnostic
from mixlist.errors import raise_for_errors
from mixlist.files.json_scanner import TOKEN
from mixlist.files.jsonc import parse
from mixlist.lists.detect_kind import BLANKS, EDITS, LISTS, FileKind, json_kind, text_kind
from mixlist.lists.schema_check import check_structure

_OPEN, _CLOSE = frozenset("{["), frozenset("}]")
_PARTS = 10_000  # of a text in hand: a short token takes ten times its size in memory


def format_text(text: str, path: str, kind: Literal["auto"] | FileKind = "auto") -> str:
    """The canonical form of a list file's text; formatting that again changes nothing.

    ``path`` stands in messages. Raises ListError for a text that is not JSON, has duplicate keys,
    or keys and types that its kind does not allow. What cannot be kept ``find_lost_comments`` tells.
    """
    if kind == "auto":
        if _has_no_rules(text, path):
            return ""
        kind = text_kind(text, path) or "auto"
    if kind in ("keep-dtype", "customize-dtypes"):
        return "".join(f"{line}\n" for line in _rules(text))
    document = parse(text, path)
    kind = json_kind(document) if kind == "auto" else kind
    errors = [*document.findings, *check_structure(document, "ops-info" if kind == "ops-info" else "modify-mixlist")]
    raise_for_errors(errors)
    return _layout(document.clean) if kind == "ops-info" else _mixlist(document.value)


def find_lost_comments(text: str, path: str) -> list[Diagnostic]:
    """A warning if the canonical form of the text loses comments; raises ListError as ``format_text`` does."""
    if _has_no_rules(text, path):
        return []
    if text_kind(text, path):
        lines = enumerate(text.split("\n"), start=1)
        places = [(number, line.index("#") + 1) for number, line in lines if line.lstrip(BLANKS).startswith("#")]
    else:
        comments = [f for f in parse(text, path).findings if f.code == "ML006"]
        places = [(f.line or 1, f.column or 1) for f in comments]
    if not places:
        return []
    count = "a comment is" if len(places) == 1 else f"{len(places)} comments are"
    hint = "the strict form has no comments; keep them in another file"
    return [Diagnostic("ML011", "warning", f"{count} lost in the strict form", path, *places[0], hint)]


def _has_no_rules(text: str, path: str) -> bool:
    """Return whether a file is empty, and so one of node rules without any; an empty .json file is an error."""
    return not text and not path.lower().endswith(".json")


def _rules(text: str) -> list[str]:
    """The rules of a node rule file, stripped, each once."""
    lines = (line.strip(BLANKS) for line in text.split("\n"))
    return list(dict.fromkeys(line for line in lines if line and not line.startswith("#")))


def _mixlist(value: object) -> str:
    assert isinstance(value, dict)  # check_structure found no error
    ordered = {
        top: {edit: list(dict.fromkeys(value[top][edit])) for edit in EDITS if edit in value[top]}
        for top in LISTS
        if top in value
    }
    return json.dumps(ordered, indent=2, ensure_ascii=False) + "\n"


def _layout(clean: str) -> str:
    """Strict JSON with two spaces of indentation; every token stays as it is written."""
    blocks: list[str] = []
    parts: list[str] = []
    depth, at, before = 0, 0, ":"
    while found := TOKEN.match(clean, at):
        token, at = found[found.lastgroup or 0], found.end()
        depth -= token in _CLOSE
        if before == "," or (before in _OPEN) != (token in _CLOSE):
            if len(parts) > _PARTS:
                blocks.append("".join(parts))
                parts.clear()
            parts.append("\n" + "  " * depth)
        parts.append(": " if token == ":" else token)
        depth += token in _OPEN
        before = token
    return "".join([*blocks, *parts, "\n"])
