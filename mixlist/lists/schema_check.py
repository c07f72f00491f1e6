"""Check JSON list files against their JSON schemas: the keys and types at each place (Rules S2.1 and S1.2).

The schemas in schemas/*.json are the only source. This module supports the keywords that they use: ``type``,
``properties``, ``additionalProperties``, ``items``, ``pattern``, ``description`` and ``$ref``. The package
``jsonschema`` is not used, because its import would take a third of the time of ``mixlist validate``; a test compares
the two on random files.
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
from mixlist.files.json_scanner import quoted
from mixlist.files.jsonc import Document, Steps
from mixlist.lists.detect_kind import JsonKind, find_evident_kind
from mixlist.lists.suggestions import choices_hint

# The number of errors of one file that are reported one by one: all kinds of errors together, while
# ``diagnostics.MAX_SIMILAR`` limits each kind.
MAX_FINDINGS = 100

# The types that the schemas name. No key that they describe has a number or null as its value.
_TYPES: Mapping[str, type] = {"object": dict, "array": list, "string": str, "boolean": bool}
# The code of a wrong value. The index is the depth of the value in the file: in a library, 0 is the whole file, 1 an
# entry, 2 a ``precision_reduce`` and 3 a ``flag``.
_CODES_BY_DEPTH = {"modify-mixlist": ["ML102"] * 4, "ops-info": ["ML201", "ML201", "ML202", "ML203"]}
_TITLES = {"modify-mixlist": "a modify_mixlist", "ops-info": "an operator information library"}
_WRONG_KIND = {"modify-mixlist": "ML109", "ops-info": "ML208"}
_OPTIONS = {"modify-mixlist": "--mixlist", "ops-info": "--ops-info"}


@dataclass(frozen=True)
class JsonSchema:
    """A JSON schema, or a part of one: the allowed types of a value, and the schemas of its members or items.

    ``members`` holds the schemas of the members of an object by key. ``other_members`` is the schema of all other
    members; None allows any value. If an object allows no other keys, ``other_members`` is a schema with empty
    ``types``, which allows no value. The ``members`` of that schema are the keys that the object allows: the hint of
    the finding names them.
    """

    description: str
    types: tuple[type, ...]
    pattern: re.Pattern[str] | None = None
    members: Mapping[str, JsonSchema] = field(default_factory=dict)
    other_members: JsonSchema | None = None
    items: JsonSchema | None = None


@dataclass(frozen=True)
class Violation:
    """A value in a file, and the schema that does not allow it."""

    steps: Steps
    value: object
    schema: JsonSchema


def check_structure(document: Document, kind: JsonKind) -> list[Diagnostic]:
    """Return an error for each value and key of a file that the schema of its kind does not allow.

    For a file of another kind, the result is one finding. After ``MAX_FINDINGS`` errors, one more finding gives the
    number of the other errors.
    """
    # A file of the other kind breaks the schema at nearly every place: one finding that says so is enough.
    evident = find_evident_kind(document.value)
    if evident and evident != kind:
        message = f"this is {_TITLES[evident]}, but {_TITLES[kind]} is expected here"
        hint = f"give this file as {_OPTIONS[evident]}"
        return [document.finding(_WRONG_KIND[kind], "error", message, hint=hint)]
    # Computing the place of a violation costs more than finding it: the violations beyond the limit are only counted.
    violations = find_violations(document.value, load_json_schema(kind))
    findings = [_finding(document, kind, violation) for violation in islice(violations, MAX_FINDINGS)]
    more_count = sum(1 for _ in violations)
    if more_count > 0:
        message = f"{more_count} more errors like these"
        findings.append(document.finding(findings[-1].code, "error", message))
    return findings


@cache
def load_json_schema(kind: JsonKind) -> JsonSchema:
    """Return the schema of a kind of file."""
    root = json.loads((package_data.data_folder("schemas") / f"{kind}.json").read_text("utf-8"))

    def read(part: dict[str, object]) -> JsonSchema:
        if "$ref" in part:
            part = root["$defs"][str(part["$ref"]).removeprefix("#/$defs/")]
        type_names = part["type"] if isinstance(part["type"], list) else [part["type"]]
        properties, additional, items = (part.get(key) for key in ("properties", "additionalProperties", "items"))
        members = {key: read(member) for key, member in properties.items()} if isinstance(properties, dict) else {}
        # "additionalProperties": false. A schema without types rejects every value, and keeps the keys for the hint.
        forbidden = JsonSchema("no other key", (), members=members) if additional is False else None
        return JsonSchema(
            description=str(part["description"]),
            types=tuple(_TYPES[str(name)] for name in type_names),
            pattern=re.compile(str(part["pattern"])) if "pattern" in part else None,
            members=members,
            other_members=read(additional) if isinstance(additional, dict) else forbidden,
            items=read(items) if isinstance(items, dict) else None,
        )

    return read(root)


def find_violations(value: object, schema: JsonSchema, steps: Steps = ()) -> Iterator[Violation]:
    """Yield the parts of a value that the schema does not allow. ``steps`` lead to the value.

    The unknown keys of an object come before its members.
    """
    # isinstance(value, ()) is False: a schema without types refuses every value.
    if not isinstance(value, schema.types):
        yield Violation(steps, value, schema)
    elif isinstance(value, dict):
        # For a key that is not allowed, ``other_members`` refuses the value whatever it is, so its finding is about the
        # key.
        if schema.other_members is not None:
            for key, member in value.items():
                if key not in schema.members:
                    yield from find_violations(member, schema.other_members, (*steps, key))
        for key, member_schema in schema.members.items():
            if key in value:
                yield from find_violations(value[key], member_schema, (*steps, key))
    elif isinstance(value, list):
        if schema.items is not None:
            for index, item in enumerate(value):
                yield from find_violations(item, schema.items, (*steps, index))
    elif schema.pattern is not None and isinstance(value, str) and not schema.pattern.search(value):
        yield Violation(steps, value, schema)


def _finding(document: Document, kind: JsonKind, violation: Violation) -> Diagnostic:
    steps, schema = violation.steps, violation.schema
    # A schema without types stands for a key that is not allowed, see ``JsonSchema``.
    if not schema.types:
        return _unknown_key_finding(document, steps, list(schema.members))
    # ("black-list", "to-add", 1) -> "black-list"."to-add"[1]
    place = ".".join(quoted(step) if isinstance(step, str) else f"[{step}]" for step in steps).replace(".[", "[")
    message = f"{place or 'the file'} is {_describe(violation.value)}"
    # The number of steps is the depth of the value.
    code = _CODES_BY_DEPTH[kind][len(steps)]
    return document.finding(code, "error", message, steps, hint=f"allowed here: {schema.description}")


def _unknown_key_finding(document: Document, steps: Steps, allowed: list[str]) -> Diagnostic:
    *parents, key = map(str, steps)
    if key == "$schema" and not parents:
        # Editors offer to insert this key, so users need to know why it is an error and what replaces it.
        message = 'the key "$schema" is not allowed: the Ascend engine rejects every key that it does not know'
        hint = "remove the key, and name the schema in the settings of your editor"
        return document.finding("ML103", "error", message, steps, key=True, hint=hint)
    place = f" in {quoted(parents[-1])}" if parents else ""
    hint = choices_hint(key, allowed, "allowed here:", 1)
    return document.finding("ML101", "error", f"unknown key {quoted(key)}{place}", steps, key=True, hint=hint)


def _describe(value: object) -> str:
    if isinstance(value, str):
        return f"the string {quoted(value)}"
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "an array"
    return "null" if value is None else f"the {'boolean' if isinstance(value, bool) else 'number'} {json.dumps(value)}"
