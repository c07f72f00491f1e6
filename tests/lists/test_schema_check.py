"""The check of JSON list files against their schemas: each error of jsonschema has a finding at its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from mixlist.files import package_data
from mixlist.files.jsonc import parse
from mixlist.lists.detect_kind import guess_json_kind
from mixlist.lists.schema_check import check_structure

SCHEMAS = {
    path.stem: json.loads(path.read_text("utf-8")) for path in package_data.data_folder("schemas").glob("*.json")
}

ANYTHING = st.sampled_from([None, True, False, 0, 1.5, "", "x", [], {}, ["x"], {"x": 1}, [[]]])
NAMES = st.lists(st.text(max_size=3) | st.sampled_from([1, None, []]), max_size=3) | ANYTHING
EDITS = st.dictionaries(st.sampled_from(["to-add", "to_add", "to-remove", "add", ""]), NAMES, max_size=3) | ANYTHING
TOP = st.sampled_from(["black-list", "white-list", "gray-list", "grey-list", "$schema"])
MIXLISTS = st.dictionaries(TOP, EDITS, max_size=4) | ANYTHING

FLAGS = (
    st.sampled_from(["true", "false", " TRUE\n", "\tfAlse", "tru", "true false", "", "\u2003true", "truE\x00"])
    | ANYTHING
)
REDUCE = st.dictionaries(st.sampled_from(["flag", "Flag"]), FLAGS, max_size=2) | ANYTHING
ENTRIES = st.dictionaries(st.sampled_from(["precision_reduce", "input0"]), REDUCE, max_size=2) | ANYTHING
LIBRARIES = st.dictionaries(st.sampled_from(["A", "B", "properties", "black"]), ENTRIES, max_size=4) | ANYTHING


def jsonschema_errors(value: Any, kind: Any) -> list[tuple[tuple[Any, ...], bool]]:
    """Return the steps to each value with an error of jsonschema, and True if the error is about its key."""
    errors = []
    for error in Draft202012Validator(SCHEMAS[kind]).iter_errors(value):
        if error.validator == "additionalProperties":
            unknown_keys = [key for key in error.instance if key not in error.schema["properties"]]
            errors += [((*error.absolute_path, key), True) for key in unknown_keys]
        else:
            errors.append((tuple(error.absolute_path), False))
    return errors


def errors_under_misspelled_keys(value: Any) -> set[tuple[tuple[Any, ...], bool]]:
    """Return the errors of jsonschema that a modify_mixlist has under its misspelled keys, if their names are right."""
    renamed, old_names = value, {}
    if isinstance(value, dict):
        renamed = {rename(key, value): edits for key, edits in value.items()}
        old_names = {(rename(key, value),): key for key in value}
        for key, edits in renamed.items():
            if isinstance(edits, dict) and key in ("black-list", "white-list", "gray-list"):
                old_names |= {(key, rename(action, edits)): action for action in edits}
                renamed[key] = {rename(action, edits): names for action, names in edits.items()}
    return {
        (tuple(old_names.get(steps[: depth + 1], step) for depth, step in enumerate(steps)), key)
        for steps, key in jsonschema_errors(renamed, "modify-mixlist")
    }


def rename(key: str, keys: Any) -> str:
    """Return the right name of a key, unless the object has it, too."""
    name = {"grey-list": "gray-list", "to_add": "to-add"}.get(key, key)
    return key if name in keys else name


def assert_same_errors(value: Any, kind: Any) -> None:
    """Assert that the findings are at the places of the errors of jsonschema."""
    expected_errors = set(jsonschema_errors(value, kind))
    if kind == "modify-mixlist":
        expected_errors |= errors_under_misspelled_keys(value)
        # Under a misspelled list, jsonschema has no error for a misspelled action.
        expected_errors |= {
            ((key, "to_add"), True)
            for key, edits in (value.items() if isinstance(value, dict) else ())
            if rename(key, value) == "gray-list" and isinstance(edits, dict) and "to_add" in edits
        }
    document = parse(json.dumps(value), "f")
    findings = check_structure(document, kind)
    if [f.code for f in findings] not in (["ML109"], ["ML208"]):  # a file of the other kind has one finding
        expected = [document.line_column(steps, key=key) for steps, key in expected_errors]
        assert sorted((f.line, f.column) for f in findings) == sorted(expected)


@given(MIXLISTS)
def test_mixlists_have_the_errors_of_jsonschema(value: Any) -> None:
    """Rule S2.1: Three lists with two actions each."""
    assert_same_errors(value, "modify-mixlist")


@given(LIBRARIES)
def test_libraries_have_the_errors_of_jsonschema(value: Any) -> None:
    assert_same_errors(value, "ops-info")


def test_unusual_flags_are_no_errors() -> None:
    """Rule S1.2: Unusual flags are read or refused, never guessed."""
    library = {f"Op{k}": {"precision_reduce": {"flag": " True"}} for k in range(130)}
    assert check_structure(parse(json.dumps(library), "f"), "ops-info") == []


def test_errors_after_the_hundredth_are_counted() -> None:
    library = {f"Op{k}": {"precision_reduce": {"flag": " True" if k % 2 else "yes"}} for k in range(220)}
    findings = check_structure(parse(json.dumps(library), "f"), "ops-info")
    assert len(findings) == 101 and findings[-1].code == "ML203"
    assert findings[-1].message == "10 more errors like these"


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ({}, "modify-mixlist"),
        ({"$schema": "x"}, "modify-mixlist"),
        ({"black-list": 3}, "modify-mixlist"),
        ({"Blacklist": {}}, "modify-mixlist"),
        ({"balck-list": {"to-add": []}}, "modify-mixlist"),
        ({"Add": {}}, "ops-info"),
        ({"Add": {"precision_reduce": {"flag": "true"}}, "x": 1}, "ops-info"),
        ({"Add": 1}, None),
        ({"format": "mixlist.target/1", "kernels": {"": {}}}, None),
        ({"format": "mixlist.check/1", "nodes": []}, None),
        ({"format": {"precision_reduce": {}}}, "ops-info"),
        ([], None),
        ("text", None),
    ],
)
def test_the_kind_is_detected_by_the_content(value: Any, kind: str | None) -> None:
    assert guess_json_kind(value) == kind


@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_the_schemas_are_valid(name: str) -> None:
    schema = SCHEMAS[name]
    Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["$id"] == f"urn:mixlist:schema:{name}:1"
    assert schema["title"] and schema["description"]


def test_the_schemas_are_in_the_checkout() -> None:
    assert (Path(__file__).parents[2] / "schemas").is_dir()
    assert {"modify-mixlist", "ops-info", "resolve", "lists", "validate", "apply"} <= set(SCHEMAS)
