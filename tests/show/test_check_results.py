"""The report of a check, matched with the nodes and tensors of a plan."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

import mixlist
from mixlist.errors import FileError, UsageError
from mixlist.show.check_results import read_check_report
from mixlist.show.graph_page import make_page_data
from tests.support.builders import model, policy

MODEL = "g (float[4] x) => (float[4] y) { [e] a = Exp (x) [m] y = Relu (a) }"
FINDING = {"scope": "", "name": "e", "op_type": "Exp", "tensor": "a", "kind": "overflow", "first": True, "count": 3}
FINDING |= {"batches": [0, 2], "max_abs_fp32": 7e4, "max_abs_low": "inf"}
FINDING |= {
    "list": "white",
    "source": "white by x (Exp)",
    "suggestion": "{}",
    "low_source": None,
    "input": "",
    "inside": False,
}
RANGE = {"scope": "", "tensor": "a", "node": "e", "op_type": "Exp", "low": True, "minimum": -3.0, "maximum": 2.0}
RANGE |= {"low_minimum": "-inf", "low_maximum": 2.0, "nan": False, "low_nan": False}
OUTPUT = {"name": "y", "pass": False, "normalized_error": None}
ERROR = {"scope": "", "name": "m", "op_type": "Relu", "normalized_error": 1e-3, "source": "s", "suggestion": ""}
REPORT: dict[str, Any] = {"format": "mixlist.check/1", "model": "m.onnx", "verdict": "fail", "reasons": ["because"]}
REPORT |= {"precision": "float16", "nodes": [FINDING], "outputs": [OUTPUT], "tensors": [RANGE], "layerwise": [ERROR]}


def check_data(report: dict[str, Any], white: tuple[str, ...] = ("Exp", "Relu")) -> dict[str, Any]:
    data: dict[str, Any] = make_page_data(mixlist.resolve(model(MODEL), policy(white=white)), report)["check"]
    return data


def changed(part: str, **values: Any) -> dict[str, Any]:
    report = copy.deepcopy(REPORT)
    report[part][0] |= values
    return report


def test_findings_ranges_and_errors_have_the_numbers_of_their_nodes() -> None:
    data = check_data(REPORT)
    (finding,), (error,), (tensor_range,) = data["findings"], data["errors"], data["ranges"]
    assert (finding["node"], finding["kind"], finding["first"], finding["batches"]) == (0, "overflow", True, 2)
    assert (finding["reference"], finding["mixed"]) == (7e4, "inf")
    assert (error["node"], error["error"]) == (1, 1e-3)
    assert (tensor_range["reference"], tensor_range["mixed"]) == (3.0, "inf")
    assert data["outputs"] == [{"name": "y", "passed": False, "error": None}]
    assert data["warnings"] == []


def test_names_that_the_model_lacks_are_counted() -> None:
    (warning,) = check_data(changed("nodes", name="other"))["warnings"]
    assert warning == "1 nodes or tensors of the check are not in this model, for example other."


def test_a_check_under_other_lists_is_named() -> None:
    (warning,) = check_data(REPORT, white=("Relu",))["warnings"]
    assert "made under other lists" in warning
    (warning,) = check_data(REPORT | {"precision": "bfloat16"})["warnings"]
    assert "the low type was another one" in warning


def test_a_check_of_another_model_is_refused() -> None:
    report = changed("nodes", name="n") | {"tensors": [], "layerwise": []}
    with pytest.raises(UsageError, match=r"is about another model: .* has no node or tensor 'n'"):
        check_data(report)


@pytest.mark.parametrize(
    "report",
    [
        {key: value for key, value in REPORT.items() if key != "layerwise"},
        REPORT | {"nodes": 3},
        REPORT | {"nodes": [None]},
        changed("nodes", max_abs_low="many"),
        changed("nodes", name=["e"]),
        changed("tensors", minimum=None),
    ],
)
def test_an_incomplete_report_is_refused(report: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="the report of the check is not complete"):
        check_data(report)


def test_only_the_json_of_a_check_is_read(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    with pytest.raises(FileError, match="no such file"):
        read_check_report(path)
    for text in ("", "[1]", "{}", '{"format": "mixlist.resolve/1"}', "\x00", "[" * 100_000):
        path.write_text(text)
        with pytest.raises(UsageError, match="this is not"):
            read_check_report(path)
    path.write_text(json.dumps(REPORT))
    assert read_check_report(path) == REPORT
