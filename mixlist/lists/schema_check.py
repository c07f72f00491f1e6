"""Check JSON list files against their JSON schemas: the keys and types at each place (Rules S2.1 and S1.2).

The schemas in schemas/*.json are the only source, and the package ``jsonschema`` applies them. Here each error gets its
code, its place in the file, and a hint.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from mixlist.diagnostics import Diagnostic
from mixlist.files import package_data
from mixlist.files.jsonc import Document, Steps
from mixlist.files.list_text import quoted, too_much_error
from mixlist.lists.detect_kind import ACTION_KEYS, LIST_KEYS, JsonKind, find_evident_kind
from mixlist.lists.suggestions import choices_hint, sure_correction
from mixlist.option_spelling import spell

if TYPE_CHECKING:
    from jsonschema import ValidationError

# The number of errors of one file that are reported one by one: all kinds of errors together, while
# ``diagnostics.MAX_SIMILAR`` limits each kind.
MAX_FINDINGS = 100
_MAX_COUNTED = 10_000  # finding one error takes 0.1 ms
# In characters. ONNX and Ascend have some 2,000 op types, which take 50 KB.
_MAX_MODIFY_MIXLIST = 2 << 20

# The code of a wrong value. The index is the depth of the value in the file: in a library, 0 is the whole file, 1 an
# entry, 2 a ``precision_reduce`` and 3 a ``flag``.
_CODES_BY_DEPTH = {"modify-mixlist": ["ML102"] * 4, "ops-info": ["ML201", "ML201", "ML202", "ML203"]}
_TITLES = {"modify-mixlist": "a modify_mixlist", "ops-info": "an operator information library"}
_WRONG_KIND = {"modify-mixlist": "ML109", "ops-info": "ML208"}
_OPTIONS = {"modify-mixlist": "mixlist", "ops-info": "ops_info"}


def check_structure(document: Document, kind: JsonKind) -> list[Diagnostic]:
    """Return an error for each value and key of a file that the schema of its kind does not allow.

    For a file of another kind, the result is one finding. After ``MAX_FINDINGS`` errors, one more finding gives the
    number of the other errors, which are counted up to ``_MAX_COUNTED``. Raises FileError for a modify_mixlist that is
    too large.
    """
    if kind == "modify-mixlist" and len(document.text) > _MAX_MODIFY_MIXLIST:
        raise too_much_error(document.path, f"{_MAX_MODIFY_MIXLIST >> 20} MiB", "modify_mixlist")
    # A file of the other kind breaks the schema at nearly every place: one finding that says so is enough.
    evident = find_evident_kind(document.value)
    if evident and evident != kind:
        message = f"this is {_TITLES[evident]}, but {_TITLES[kind]} is expected here"
        hint = f"give this file as {spell(_OPTIONS[evident])}"
        return [document.finding(_WRONG_KIND[kind], "error", message, hint=hint)]
    # Most files are valid. This takes a third of the time of jsonschema (measured on 10 MB), and no import of it.
    if _conforms(document.value, _schema(kind), _schema(kind)):
        return []
    right_keys = find_misspelled_keys(document.value) if kind == "modify-mixlist" else {}
    # Computing the place of an error costs more than finding it: the errors beyond the limit are only counted.
    errors = list(islice(_schema_errors(document.value, kind, right_keys), _MAX_COUNTED))
    findings = [_finding(document, kind, error) for error in errors[:MAX_FINDINGS]]
    findings.sort(key=lambda finding: (finding.line or 0, finding.column or 0))  # jsonschema has no fixed order
    more_count = len(errors) - len(findings)
    if more_count > 0:
        message = f"{'at least ' if len(errors) == _MAX_COUNTED else ''}{more_count} more errors like these"
        findings.append(document.finding(findings[-1].code, "error", message))
    return findings


# The right name of each misspelled key, by the path of the key in the file.
RightKeys = Mapping[tuple[str, ...], str]


def find_misspelled_keys(value: object) -> RightKeys:
    """Return the right name of each misspelled key of a modify_mixlist, as far as it is certain."""
    root = value if isinstance(value, dict) else {}
    right_keys: dict[tuple[str, ...], str] = {(key,): name for key, name in _right_names(root, LIST_KEYS)}
    for list_key, arrays in root.items():
        if isinstance(arrays, dict) and right_keys.get((list_key,), list_key) in LIST_KEYS:
            right_keys |= {(list_key, key): name for key, name in _right_names(arrays, ACTION_KEYS)}
    return right_keys


def _right_names(keys: Collection[str], allowed: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each misspelled key with its right name, unless the object has that name, or two keys mean it."""
    right_names = {key: sure_correction(key, allowed) for key in keys if key not in allowed}
    for key, name in right_names.items():
        if name is not None and name not in keys and list(right_names.values()).count(name) == 1:
            yield key, name


def rename_keys(value: object, right_keys: RightKeys) -> object:
    """Return the value of a modify_mixlist with the right names of its misspelled keys."""
    if not right_keys or not isinstance(value, dict):
        return value
    return {
        right_keys.get((key,), key): {right_keys.get((key, name), name): names for name, names in arrays.items()}
        if isinstance(arrays, dict)
        else arrays
        for key, arrays in value.items()
    }


def _schema_errors(value: object, kind: JsonKind, right_keys: RightKeys) -> Iterator[_SchemaError]:
    """Yield the errors of a file. A misspelled key is one, and what it holds is checked as under its right name."""
    given_keys: dict[Steps, str] = {}
    for steps, name in right_keys.items():
        yield _SchemaError(steps, None, "", LIST_KEYS if len(steps) == 1 else ACTION_KEYS)
        given_keys[*(right_keys.get(steps[:1], steps[0]) for _ in steps[1:]), name] = steps[-1]
    for error in _validator(kind).iter_errors(rename_keys(value, right_keys)):
        for part in _split(error):
            given = tuple(given_keys.get(part.steps[: depth + 1], step) for depth, step in enumerate(part.steps))
            yield part._replace(steps=given)


@cache
def _validator(kind: JsonKind) -> Any:
    """Return the validator of a kind of file."""
    from jsonschema import Draft202012Validator

    return Draft202012Validator(_schema(kind))


@cache
def _schema(kind: JsonKind) -> Mapping[str, Any]:
    schema: Mapping[str, Any] = json.loads((package_data.data_folder("schemas") / f"{kind}.json").read_text("utf-8"))
    return schema


_TYPES = {"object": dict, "array": list, "string": str, "boolean": bool}


def _conforms(value: object, schema: Mapping[str, Any], root: Mapping[str, Any]) -> bool:
    """Return whether a value conforms to a schema that has only the keywords of our two schemas.

    ``root``: the schema with the definitions. The tests compare the answers with those of jsonschema.
    """
    if "$ref" in schema:
        schema = root["$defs"][schema["$ref"].removeprefix("#/$defs/")]
    types = schema.get("type", ())
    if not any(type(value) is _TYPES[name] for name in ([types] if isinstance(types, str) else types)):
        return False
    if isinstance(value, dict):
        properties, others = schema.get("properties", {}), schema.get("additionalProperties", True)
        member_schemas = ((member, properties.get(key, others)) for key, member in value.items())
        return all(s is True or (s is not False and _conforms(member, s, root)) for member, s in member_schemas)
    if isinstance(value, list):
        return all(_conforms(item, schema["items"], root) for item in value)
    return not isinstance(value, str) or "pattern" not in schema or re.search(schema["pattern"], value) is not None


class _SchemaError(NamedTuple):
    """A value that the schema does not allow, or a key. ``allowed``: the keys that its object allows, for a key."""

    steps: Steps
    value: object
    description: str
    allowed: tuple[str, ...] | None = None


def _split(error: ValidationError) -> Iterator[_SchemaError]:
    """Yield an error of jsonschema; one for each key if it is about the unknown keys of an object."""
    steps, schema = tuple(error.absolute_path), cast("Mapping[str, Any]", error.schema)
    if error.validator != "additionalProperties":
        yield _SchemaError(steps, error.instance, schema["description"])
        return
    allowed = tuple(schema["properties"])
    for key in cast("Mapping[str, object]", error.instance):
        if key not in allowed:
            yield _SchemaError((*steps, key), None, "", allowed)


def _finding(document: Document, kind: JsonKind, error: _SchemaError) -> Diagnostic:
    steps = error.steps
    if error.allowed is not None:
        return _unknown_key_finding(document, steps, error.allowed)
    if kind == "ops-info" and len(steps) == len(("op", "precision_reduce", "flag")) and isinstance(error.value, bool):
        text = "true" if error.value else "false"
        message = f"the flag of {quoted(str(steps[0]))} is the boolean {text}, but the Ascend engine reads only strings"
        return document.finding("ML204", "error", message, steps, hint=f'write "{text}", with the quotes')
    # ("black-list", "to-add", 1) -> "black-list"."to-add"[1]
    place = ".".join(quoted(step) if isinstance(step, str) else f"[{step}]" for step in steps).replace(".[", "[")
    message = f"{place or 'the file'} is {_describe(error.value)}"
    # The number of steps is the depth of the value.
    code = _CODES_BY_DEPTH[kind][len(steps)]
    return document.finding(code, "error", message, steps, hint=f"allowed here: {error.description}")


def _unknown_key_finding(document: Document, steps: Steps, allowed: Sequence[str]) -> Diagnostic:
    *parents, key = map(str, steps)
    if key == "$schema" and not parents:
        # Editors offer to insert this key, so users need to know why it is an error and what replaces it.
        message = 'the key "$schema" is not allowed: the Ascend engine rejects every key that it does not know'
        hint = "remove the key, and name the schema in the settings of your editor"
        return document.finding("ML103", "error", message, steps, key=True, hint=hint)
    place = f" in {quoted(parents[-1])}" if parents else ""
    # "add" is too short to be similar to "to-add".
    hint = choices_hint(f"to_{key}" if f"to-{key}" in allowed else key, allowed, "allowed here:", 1)
    if key in ACTION_KEYS and not parents:
        hint = f'the list comes first: {{"black-list": {{"{key}": [...]}}}}; {hint}'
    return document.finding("ML101", "error", f"unknown key {quoted(key)}{place}", steps, key=True, hint=hint)


def _describe(value: object) -> str:
    if isinstance(value, str):
        return f"the string {quoted(value)}"
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "an array"
    return "null" if value is None else f"the {'boolean' if isinstance(value, bool) else 'number'} {json.dumps(value)}"
