"""``schemas/check.json`` describes exactly the fields of a report in JSON."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import pytest
from jsonschema import Draft202012Validator, ValidationError

from mixlist.checker.result import CheckReport, NodeError, NodeFinding, OutputFinding, TensorRange
from mixlist.show.check_document import KINDS
from tests.support.check_reports import FAILING, PASSING, finding, large
from tests.support.package import data_folder

SCHEMA = json.loads((data_folder("schemas") / "check.json").read_text("utf-8"))
VALIDATOR = Draft202012Validator(SCHEMA)


@pytest.mark.parametrize("report", [FAILING, PASSING, large(200)], ids=["failing", "passing", "large"])
def test_reports_are_valid_and_strict_json(report: CheckReport) -> None:
    text = json.dumps(report.to_json(), allow_nan=False)
    VALIDATOR.validate(json.loads(text))


def test_every_kind_is_known_to_the_schema_and_to_the_reports() -> None:
    assert set(SCHEMA["$defs"]["kind"]["enum"]) == set(KINDS)
    for kind in KINDS:
        VALIDATOR.validate(replace(PASSING, nodes=(finding("n", kind),)).to_json())


@pytest.mark.parametrize(
    ("value", "part"),
    [
        (NodeFinding, "node"),
        (OutputFinding, "output"),
        (TensorRange, "tensor"),
        (NodeError, "layer"),
    ],
)
def test_every_field_is_described(value: type, part: str) -> None:
    described = SCHEMA["$defs"][part]
    names = {"pass" if field.name == "passed" else field.name for field in fields(value)}
    assert described["properties"].keys() == set(described["required"]) == names


def test_every_field_of_the_report_is_described() -> None:
    names = {field.name for field in fields(CheckReport)} | {"format"}
    assert SCHEMA["properties"].keys() == set(SCHEMA["required"]) == names


def test_wrong_values_are_refused() -> None:
    valid = PASSING.to_json()
    for wrong_field in ({"verdict": "maybe"}, {"exception_rate": 2}, {"limits": {"speed": 1}}, {"batches": None}):
        with pytest.raises(ValidationError):
            VALIDATOR.validate(valid | wrong_field)
