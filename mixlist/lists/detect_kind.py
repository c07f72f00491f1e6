"""Detect the kind of a list file by its content."""

from __future__ import annotations

import re
from typing import Literal

from mixlist.errors import raise_for_errors
from mixlist.files.jsonc import Document

JsonKind = Literal["modify-mixlist", "ops-info"]
TextKind = Literal["keep-dtype", "customize-dtypes"]
FileKind = Literal[JsonKind, TextKind]

LIST_KEYS = ("black-list", "white-list", "gray-list")  # of a modify_mixlist, in canonical order (Rule S2.8)
ACTION_KEYS = ("to-add", "to-remove")  # of each list

# Blanks around a node rule and its parts. Files that were joined can have byte-order marks in the middle. All other
# white space belongs to the name of a node.
BLANKS = " \t\r\ufeff"

# The start of a JSON file: blanks and comments, then a bracket or a quote, with which no name of a node starts. Lines
# with # are skipped too: a JSON file that has them, by mistake, must not be read as node rules.
_JSON_START = re.compile(r"(?:[ \t\r\n\ufeff]++|//[^\r\n]*+|#[^\n]*+|/\*(?s:.*?)\*/)*+[{\[\"]")
_LIST_KEY = re.compile(r"(black|white|gr[ae]y)[-_ ]?lists?$", re.IGNORECASE)  # misspelled ones too
_ENTRY_KEYS = ("precision_reduce", "input0", "output0", "attr", "opFile", "opInterface")  # of an op type in a library


def detect_text_kind(text: str, path: str) -> TextKind | None:
    """Return the kind of a node rule file; None for a JSON file, also an invalid one.

    A file is JSON if its name ends with ``.json``, if it starts like JSON, or if it holds only blanks. Another file
    without any byte holds no node rule: ``tune`` writes such a file if no node needs a rule.
    """
    if path.lower().endswith(".json"):
        return None
    if not text:
        return "customize-dtypes"
    if not text.strip(BLANKS + "\n") or _JSON_START.match(text):
        return None
    # Every valid rule of customize_dtypes has ``InputDtype:``. ``OutputDtype:`` alone is an error of such a rule.
    return "customize-dtypes" if "InputDtype:" in text or "OutputDtype:" in text else "keep-dtype"


def detect_json_kind(document: Document) -> JsonKind:
    """Return the kind of a JSON list file; raise ListError if its content is not typical of any kind."""
    kind = guess_json_kind(document.value)
    if kind is None:
        is_object = isinstance(document.value, dict)
        reason = "no key is typical of either kind" if is_object else "it holds no JSON object"
        message = f"the file is neither a modify_mixlist nor an operator information library: {reason}"
        finding = document.finding("ML010", "error", message, hint="correct its keys, or give its kind with --kind")
        raise_for_errors([*document.findings, finding])
    assert kind is not None  # raise_for_errors has raised the finding above
    return kind


def guess_json_kind(value: object) -> JsonKind | None:
    """Return the most probable kind of a JSON value; None if there is no sign of a kind.

    Without typical keys, an object whose values are objects is a library: its keys can be the names of op types.
    """
    if not isinstance(value, dict):
        return None
    # {} is a modify_mixlist without edits (Rule S2.1). With "$schema" alone, its check explains that key (ML103).
    if not value.keys() - {"$schema"}:
        return "modify-mixlist"
    has_objects = any(isinstance(member, dict) for member in value.values())
    return find_evident_kind(value) or ("ops-info" if has_objects else None)


def find_evident_kind(value: object) -> JsonKind | None:
    """Return the kind that a typical key of a JSON value shows; None if the value has no typical key."""
    if not isinstance(value, dict):
        return None
    objects = [member for member in value.values() if isinstance(member, dict)]
    if any(map(_LIST_KEY.match, value)) or any(key in member for member in objects for key in ACTION_KEYS):
        return "modify-mixlist"
    return "ops-info" if any(key in member for member in objects for key in _ENTRY_KEYS) else None
