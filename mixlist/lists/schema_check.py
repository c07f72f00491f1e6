"""The form of the JSON list files: which keys and types stand where.

The schemas (schemas/*.json) say what is allowed and ``jsonschema`` judges by them. Because importing
it costs 80 ms and a real library has a million characters, plain code first picks out the
``suspects``: every part that could offend. An ordinary file has none and never reaches
``jsonschema``; of any other, only the suspects do. The rule that keeps this honest, and that a test
proves on random files: a file has a suspect wherever the schema has an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from itertools import islice
from typing import Any, Literal

from mixlist.diagnostics import Diagnostic
from mixlist.files import package_data
from mixlist.files.jsonc import Document, quoted
from mixlist.lists.suggestions import closest

JsonKind = Literal["modify-mixlist", "ops-info"]
Suspect = tuple[tuple[str | int, ...], Any]  # the way to a part of the file, and the part

LISTS = ("black-list", "white-list", "gray-list")
EDITS = ("to-add", "to-remove")
MAX_SUSPECTS = 100

_LIST_LIKE = re.compile(r"(black|white|gr[ae]y)[-_ ]?lists?$", re.IGNORECASE)
_ENTRY_KEYS = ("precision_reduce", "input0", "output0", "attr", "opFile", "opInterface")
_CODES = {"modify-mixlist": ["ML102"] * 4, "ops-info": ["ML201", "ML201", "ML202", "ML203"]}
_TITLES = {"modify-mixlist": "a modify_mixlist", "ops-info": "an operator information library"}
_WRONG_KIND = {"modify-mixlist": "ML109", "ops-info": "ML208"}
_OPTIONS = {"modify-mixlist": "--mixlist", "ops-info": "--ops-info"}


def guess_kind(value: Any) -> JsonKind | None:
    """What a JSON value is by its content: None if nothing tells."""
    if not isinstance(value, dict):
        return None
    if not value.keys() - {"$schema"}:
        return "modify-mixlist"
    objects = any(isinstance(part, dict) for part in value.values())
    return _evident_kind(value) or ("ops-info" if objects else None)


def _evident_kind(value: Any) -> JsonKind | None:
    if not isinstance(value, dict):
        return None
    objects = [part for part in value.values() if isinstance(part, dict)]
    if any(map(_LIST_LIKE.match, value)) or any(key in part for part in objects for key in EDITS):
        return "modify-mixlist"
    return "ops-info" if any(key in part for part in objects for key in _ENTRY_KEYS) else None


def check_structure(document: Document, kind: JsonKind) -> list[Diagnostic]:
    """What in a file of that kind is not allowed where it stands: errors, the first hundred."""
    guess = _evident_kind(document.value)
    if guess and guess != kind:
        message = f"this is {_TITLES[guess]}, but {_TITLES[kind]} is expected here"
        hint = f"give it with {_OPTIONS[guess]}"
        return [document.finding(_WRONG_KIND[kind], "error", message, hint=hint)]
    found = suspects(document.value, kind)
    first = list(islice(found, MAX_SUSPECTS))
    if not first:
        return []
    findings = [f for steps, part in first for f in _judge(document, kind, steps, part)]
    rest = sum(1 for _ in found)
    if rest:
        findings.append(
            document.finding(findings[-1].code, "error", f"{rest} more places that are not as they must be")
        )
    return findings


def suspects(value: Any, kind: JsonKind) -> Iterator[Suspect]:
    """Every part of a file that the schema may object to; none means that it does not."""
    return _mixlist_suspects(value) if kind == "modify-mixlist" else _ops_info_suspects(value)


def _mixlist_suspects(value: Any) -> Iterator[Suspect]:
    if not isinstance(value, dict):
        yield (), value
        return
    yield from _unknown_keys((), value, LISTS)
    for key in LISTS:
        part = value.get(key, {})
        if not isinstance(part, dict):
            yield (key,), part
            continue
        yield from _unknown_keys((key,), part, EDITS)
        for edit in EDITS:
            names = part.get(edit, [])
            if not isinstance(names, list):
                yield (key, edit), names
            elif not set(map(type, names)) <= {str}:
                yield from (((key, edit, i), name) for i, name in enumerate(names) if not isinstance(name, str))


def _unknown_keys(steps: tuple[str, ...], value: dict[str, Any], allowed: tuple[str, ...]) -> Iterator[Suspect]:
    return ((steps, {key: part}) for key, part in value.items() if key not in allowed)


def _ops_info_suspects(value: Any) -> Iterator[Suspect]:
    if not isinstance(value, dict):
        yield (), value
        return
    for op, entry in value.items():
        if not isinstance(entry, dict):
            yield (op,), entry
            continue
        reduce = entry.get("precision_reduce")
        if reduce is None:
            if "precision_reduce" in entry:
                yield (op, "precision_reduce"), reduce
        elif not isinstance(reduce, dict):
            yield (op, "precision_reduce"), reduce
        elif "flag" in reduce and reduce["flag"] not in ("true", "false"):
            yield (op, "precision_reduce", "flag"), reduce["flag"]


@cache
def _schema(kind: JsonKind) -> Any:
    text = (package_data.folder("schemas") / f"{kind}.json").read_text("utf-8")
    return json.loads(text)


def _judge(document: Document, kind: JsonKind, steps: tuple[str | int, ...], part: Any) -> Iterator[Diagnostic]:
    """The findings of the schema about one part of a file."""
    from jsonschema import Draft202012Validator

    schema = _schema(kind)
    for error in Draft202012Validator(schema).descend(part, _at(schema, steps)):
        if error.validator == "additionalProperties":
            for key in part:
                yield _unknown(document, steps, key, list(error.schema["properties"]))
        else:
            yield _wrong(document, kind, steps, part, error.schema["description"])


def _at(schema: Any, steps: tuple[str | int, ...]) -> Any:
    """The part of the schema that speaks of the value at ``steps``."""
    part = schema
    for step in steps:
        if isinstance(step, int):
            part = part["items"]
        else:
            part = part.get("properties", {}).get(step) or part["additionalProperties"]
        if "$ref" in part:
            part = schema["$defs"][part["$ref"].removeprefix("#/$defs/")]
    return part


def _unknown(document: Document, steps: tuple[str | int, ...], key: str, allowed: list[str]) -> Diagnostic:
    where = f" in {quoted(str(steps[-1]))}" if steps else ""
    if key == "$schema" and not steps:
        message = 'the key "$schema" is not allowed in the file: the engine rejects every key that it does not know'
        hint = "remove it; name the schema in the editor's settings"
        return document.finding("ML103", "error", message, (key,), key=True, hint=hint)
    near = closest(key, allowed, 1)
    hint = f"allowed here: {', '.join(allowed)}"
    if near:
        hint = f'did you mean "{near[0]}"? {hint}'
    return document.finding("ML101", "error", f"unknown key {quoted(key)}{where}", (*steps, key), key=True, hint=hint)


def _wrong(document: Document, kind: JsonKind, steps: tuple[str | int, ...], part: Any, allowed: str) -> Diagnostic:
    where = ".".join(quoted(s) if isinstance(s, str) else f"[{s}]" for s in steps).replace(".[", "[")
    message = f"{where or 'the file'} is {_found(part)}"
    return document.finding(_CODES[kind][len(steps)], "error", message, steps, hint=f"allowed here: {allowed}")


def _found(part: Any) -> str:
    if isinstance(part, str):
        return f"the string {quoted(part)}"
    if isinstance(part, dict | list):
        return "an object" if isinstance(part, dict) else "an array"
    return "null" if part is None else f"the {'boolean' if isinstance(part, bool) else 'number'} {json.dumps(part)}"
