"""Which kind of list file a text is, judged by its content."""

from __future__ import annotations

import re
from typing import Literal, cast

from mixlist.files.jsonc import Document
from mixlist.lists.findings import stop_on_errors
from mixlist.lists.schema_check import JsonKind, guess_kind

Kind = Literal["modify-mixlist", "ops-info", "keep-dtype", "customize-dtypes"]
TextKind = Literal["keep-dtype", "customize-dtypes"]

# Comments may precede the first bracket; a node name starts with neither "//" nor "/*" nor a bracket.
_JSON_START = re.compile(r"(?:[ \t\r\n]++|//[^\r\n]*+|/\*(?s:.*?)\*/)*+[{\[\"]")


def text_kind(text: str, path: str) -> TextKind | None:
    """The kind of a node rule file; None for a text that is JSON, or should be (``.json``, or empty)."""
    if path.lower().endswith(".json") or not text.strip() or _JSON_START.match(text):
        return None
    return "customize-dtypes" if "InputDtype:" in text or "OutputDtype:" in text else "keep-dtype"


def json_kind(document: Document) -> JsonKind:
    """The kind of a JSON list file; raises ListError if nothing tells."""
    kind = guess_kind(document.value)
    if kind is None:
        found = "an object with keys of neither kind" if isinstance(document.value, dict) else "no object"
        message = f"the file holds {found}: it is neither a modify_mixlist nor an operator information library"
        finding = document.finding("ML010", "error", message, hint="name its kind with --kind")
        stop_on_errors([*document.findings, finding])
    return cast(JsonKind, kind)
