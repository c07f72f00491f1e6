"""Parse the JSON result of ``tune`` and check it against its schema."""

from __future__ import annotations

import json
from typing import Any

from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from tests.support.package import data_folder

SCHEMAS = [json.loads(path.read_text("utf-8")) for path in sorted(data_folder("schemas").glob("*.json"))]
REGISTRY = Registry().with_resources((schema["$id"], Resource.from_contents(schema)) for schema in SCHEMAS)
(SCHEMA,) = [schema for schema in SCHEMAS if schema["$id"] == "urn:mixlist:schema:tune:1"]


def parse_tune_result(text: str) -> dict[str, Any]:
    """Return the output of ``tune --format json``; raise ValidationError if it does not follow its schema."""
    tune_result: dict[str, Any] = json.loads(text)
    Draft202012Validator(SCHEMA, registry=REGISTRY).validate(tune_result)
    return tune_result
