"""The JSON of a search, in tests."""

from __future__ import annotations

import json
from typing import Any

from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from mixlist.files.package_data import data_folder

SCHEMAS = [json.loads(path.read_text("utf-8")) for path in sorted(data_folder("schemas").glob("*.json"))]
REGISTRY = Registry().with_resources((schema["$id"], Resource.from_contents(schema)) for schema in SCHEMAS)
(SCHEMA,) = [schema for schema in SCHEMAS if schema["$id"] == "urn:mixlist:schema:tune:1"]


def result(text: str) -> dict[str, Any]:
    """What ``tune --format json`` told, after a look whether it is what its schema says."""
    told: dict[str, Any] = json.loads(text)
    Draft202012Validator(SCHEMA, registry=REGISTRY).validate(told)
    return told
