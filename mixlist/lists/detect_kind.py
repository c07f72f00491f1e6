"""Detect by its content which kind of list file a text is."""

from __future__ import annotations

import re
from typing import Literal

from mixlist.errors import raise_for_errors
from mixlist.files.jsonc import Document

JsonKind = Literal["modify-mixlist", "ops-info"]
TextKind = Literal["keep-dtype", "customize-dtypes"]
FileKind = Literal[JsonKind, TextKind]

LISTS = ("black-list", "white-list", "gray-list")  # the keys of a modify_mixlist, in canonical order (Rule S2.8)
EDITS = ("to-add", "to-remove")

# Blanks around a node rule and its parts, with the byte-order mark of a file that was joined to another. Other blank
# characters belong to the name.
BLANKS = " \t\r\ufeff"

# Comments may precede the first bracket; a node name starts with neither "//" nor "/*" nor a bracket.
_JSON_START = re.compile(r"(?:[ \t\r\n\ufeff]++|//[^\r\n]*+|#[^\n]*+|/\*(?s:.*?)\*/)*+[{\[\"]")
_LIST_LIKE = re.compile(r"(black|white|gr[ae]y)[-_ ]?lists?$", re.IGNORECASE)
_ENTRY_KEYS = ("precision_reduce", "input0", "output0", "attr", "opFile", "opInterface")


def text_kind(text: str, path: str) -> TextKind | None:
    """Return the kind of a node rule file; None for a text that is JSON, or should be (``.json``, or empty)."""
    if path.lower().endswith(".json") or not text.strip(BLANKS + "\n") or _JSON_START.match(text):
        return None
    return "customize-dtypes" if "InputDtype:" in text or "OutputDtype:" in text else "keep-dtype"


def json_kind(document: Document) -> JsonKind:
    """Return the kind of a JSON list file; raise ListError if nothing tells."""
    kind = guess_kind(document.value)
    if kind is None:
        found = "an object with keys of neither kind" if isinstance(document.value, dict) else "no object"
        message = f"the file holds {found}: it is neither a modify_mixlist nor an operator information library"
        finding = document.finding("ML010", "error", message, hint="name its kind with --kind")
        raise_for_errors([*document.findings, finding])
    assert kind is not None
    return kind


def guess_kind(value: object) -> JsonKind | None:
    """Return the kind of a JSON value; None if nothing tells."""
    if not isinstance(value, dict):
        return None
    if not value.keys() - {"$schema"}:
        return "modify-mixlist"
    objects = any(isinstance(part, dict) for part in value.values())
    return evident_kind(value) or ("ops-info" if objects else None)


def evident_kind(value: object) -> JsonKind | None:
    """Return the kind of which a JSON value has a typical key; None if it has none."""
    if not isinstance(value, dict):
        return None
    objects = [part for part in value.values() if isinstance(part, dict)]
    if any(map(_LIST_LIKE.match, value)) or any(key in part for part in objects for key in EDITS):
        return "modify-mixlist"
    return "ops-info" if any(key in part for part in objects for key in _ENTRY_KEYS) else None
