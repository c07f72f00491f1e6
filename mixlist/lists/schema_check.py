"""Check the form of JSON list files: which keys and types are allowed in which place (Rules S2.1 and S1.2).

The schemas (schemas/*.json) are the only source. This module reads the few keywords that they use: `type`,
`properties`, `additionalProperties`, `items`, `pattern`, `description` and `$ref`. To import `jsonschema` would take a
third of the time of `mixlist validate`; a test compares the two on random files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import islice

from mixlist.diagnostics import Diagnostic
from mixlist.files import package_data
from mixlist.files.jsonc import Document, quoted
from mixlist.lists.detect_kind import JsonKind, evident_kind
from mixlist.lists.suggestions import choices

Steps = tuple[str | int, ...]  # keys and indices from the top of a file

MAX_FINDINGS = 100

_TYPES: Mapping[str, type] = {"object": dict, "array": list, "string": str, "boolean": bool}
_CODES = {"modify-mixlist": ["ML102"] * 4, "ops-info": ["ML201", "ML201", "ML202", "ML203"]}  # by depth
_TITLES = {"modify-mixlist": "a modify_mixlist", "ops-info": "an operator information library"}
_WRONG_KIND = {"modify-mixlist": "ML109", "ops-info": "ML208"}
_OPTIONS = {"modify-mixlist": "--mixlist", "ops-info": "--ops-info"}


@dataclass(frozen=True)
class Form:
    """A part of a schema: the types that a value may have, and the forms of its members or items.

    ``others`` is the form of the members that ``members`` does not name; None if they may have any value. No value
    has a form without ``types``: that of a key that may not be there, whose ``members`` are the keys that may.
    """

    description: str
    types: tuple[type, ...]
    pattern: re.Pattern[str] | None = None
    members: Mapping[str, Form] = field(default_factory=dict)
    others: Form | None = None
    items: Form | None = None


@dataclass(frozen=True)
class Violation:
    """A value in a file, and the form that it does not have."""

    steps: Steps
    value: object
    form: Form


def check_structure(document: Document, kind: JsonKind) -> list[Diagnostic]:
    """Return an error for each of the first hundred places of a file that its kind does not allow."""
    evident = evident_kind(document.value)
    if evident and evident != kind:
        message = f"this is {_TITLES[evident]}, but {_TITLES[kind]} is expected here"
        hint = f"give it with {_OPTIONS[evident]}"
        return [document.finding(_WRONG_KIND[kind], "error", message, hint=hint)]
    violations = check_form(document.value, form_of(kind))
    findings = [_finding(document, kind, violation) for violation in islice(violations, MAX_FINDINGS)]
    rest = sum(1 for _ in violations)
    if rest > 0:
        findings.append(
            document.finding(findings[-1].code, "error", f"{rest} more places that are not as they must be")
        )
    return findings


@cache
def form_of(kind: JsonKind) -> Form:
    """Return the form that the schema of a kind of file describes."""
    schema = json.loads((package_data.data_folder("schemas") / f"{kind}.json").read_text("utf-8"))

    def read(part: dict[str, object]) -> Form:
        if "$ref" in part:
            part = schema["$defs"][str(part["$ref"]).removeprefix("#/$defs/")]
        names = part["type"] if isinstance(part["type"], list) else [part["type"]]
        properties, others, items = (part.get(key) for key in ("properties", "additionalProperties", "items"))
        members = {key: read(member) for key, member in properties.items()} if isinstance(properties, dict) else {}
        no_others = Form("no other key", (), members=members) if others is False else None
        return Form(
            description=str(part["description"]),
            types=tuple(_TYPES[str(name)] for name in names),
            pattern=re.compile(str(part["pattern"])) if "pattern" in part else None,
            members=members,
            others=read(others) if isinstance(others, dict) else no_others,
            items=read(items) if isinstance(items, dict) else None,
        )

    return read(schema)


def check_form(value: object, form: Form, steps: Steps = ()) -> Iterator[Violation]:
    """Yield the parts of a value that do not have the form; unknown keys come before the members of their object.

    ``steps`` leads to the value.
    """
    if not isinstance(value, form.types):
        yield Violation(steps, value, form)
    elif isinstance(value, dict):
        if form.others is not None:
            for key, part in value.items():
                if key not in form.members:
                    yield from check_form(part, form.others, (*steps, key))
        for key, member in form.members.items():
            if key in value:
                yield from check_form(value[key], member, (*steps, key))
    elif isinstance(value, list):
        if form.items is not None:
            for index, part in enumerate(value):
                yield from check_form(part, form.items, (*steps, index))
    elif form.pattern is not None and isinstance(value, str) and not form.pattern.search(value):
        yield Violation(steps, value, form)


def _finding(document: Document, kind: JsonKind, violation: Violation) -> Diagnostic:
    steps, form = violation.steps, violation.form
    if not form.types:
        return _unknown_key(document, steps, list(form.members))
    where = ".".join(quoted(s) if isinstance(s, str) else f"[{s}]" for s in steps).replace(".[", "[")
    message = f"{where or 'the file'} is {_shown(violation.value)}"
    return document.finding(_CODES[kind][len(steps)], "error", message, steps, hint=f"allowed here: {form.description}")


def _unknown_key(document: Document, steps: Steps, allowed: list[str]) -> Diagnostic:
    *above, key = map(str, steps)
    if key == "$schema" and not above:
        message = 'the key "$schema" is not allowed in the file: the engine rejects every key that it does not know'
        hint = "remove it; name the schema in the editor's settings"
        return document.finding("ML103", "error", message, steps, key=True, hint=hint)
    where = f" in {quoted(above[-1])}" if above else ""
    hint = choices(key, allowed, "allowed here:", 1)
    return document.finding("ML101", "error", f"unknown key {quoted(key)}{where}", steps, key=True, hint=hint)


def _shown(value: object) -> str:
    if isinstance(value, str):
        return f"the string {quoted(value)}"
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "an array"
    return "null" if value is None else f"the {'boolean' if isinstance(value, bool) else 'number'} {json.dumps(value)}"
