"""The warnings that save users: names that cannot mean what they say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mixlist.diagnostics import Diagnostic
from mixlist.lists.load import load_policy
from mixlist.ops.name_warnings import find_name_warnings

MODEL = {("", "Conv"): 2, ("", "MatMul"): 1, ("com.microsoft", "Gelu"): 1, ("", "Softmax"): 1}


@pytest.fixture
def checked(tmp_path: Path) -> Any:
    def check(ops_info: str, *names: str, **more: Any) -> list[Diagnostic]:
        text = json.dumps({"black-list": {"to-add": names}})
        (tmp_path / "mix.json").write_text(text)
        found = find_name_warnings(
            load_policy(ops_info, tmp_path / "mix.json"), more.get("model"), more.get("functions", ())
        )
        assert all(f.severity == "warning" and f.line == 1 and text[f.column - 1] == '"' for f in found if f.column)
        assert all(f.path == str(tmp_path / "mix.json") for f in found)
        return found

    return check


def told(findings: list[Diagnostic]) -> list[tuple[str, str]]:
    return [(f.code, str(f.hint)) for f in findings]


def test_a_name_from_the_other_space(checked: Any) -> None:
    """Rule S5.6: Names that mean something else warn."""
    assert told(checked("ascend910b", "Conv")) == [("ML404", "there it is Conv2D or Conv3D")]
    assert told(checked("ascend910b", "Softmax")) == [("ML404", "there it is SoftmaxV2")]
    assert told(checked("ascend910b", "Attention")) == [("ML404", "it has no Ascend counterpart")]
    assert told(checked("onnx", "Conv2D")) == [("ML404", "there it is Conv")]
    assert told(checked("onnx", "AddLayerNorm")) == [("ML404", "no ONNX operator becomes it")]


@pytest.mark.parametrize(
    ("name", "there"),
    [("MatMul", "BatchMatMulV2"), ("Div", "RealDiv"), ("Gather", "GatherV2"), ("Slice", "StridedSliceV2")],
)
def test_a_name_of_both_spaces_that_means_another_op(checked: Any, name: str, there: str) -> None:
    """Rule S5.6: Names that mean something else warn."""
    assert told(checked("ascend910b", name)) == [("ML405", f"to mean the ONNX operator, name {there}")]
    assert checked("onnx", name) == []


def test_the_same_op_in_both_spaces_is_no_trap(checked: Any) -> None:
    assert checked("ascend910b", "Add", "Relu", "Conv2D", "SoftmaxV2", "BatchMatMulV2") == []


def test_an_op_absent_from_the_model(checked: Any) -> None:
    assert checked("onnx", "LSTM") == []  # no model, nothing to miss it in
    assert told(checked("onnx", "LSTM", model=MODEL)) == [("ML406", "it changes nothing there")]
    assert told(checked("onnx", "ConvTranspose", model=MODEL)) == [("ML406", "it changes nothing there")]
    assert told(checked("onnx", "Matmul", model=MODEL)) == [("ML406", "the model has MatMul")]
    assert checked("onnx", "Conv", "com.microsoft::Gelu", "Gelu", "ai.onnx::MatMul", model=MODEL) == []
    assert [f.code for f in checked("onnx", "ai.onnx::Gelu", model=MODEL)] == ["ML406"]


def test_presence_is_by_ascend_name_in_an_ascend_library(checked: Any) -> None:
    assert checked("ascend910b", "Conv2D", "SoftmaxV2", model=MODEL) == []
    assert [f.code for f in checked("ascend910b", "ReduceSum", model=MODEL)] == ["ML406"]


def test_one_finding_is_enough_for_a_name_of_the_other_space(checked: Any) -> None:
    assert [f.code for f in checked("ascend910b", "MatMul", "Conv", model=MODEL)] == ["ML405", "ML404"]


def test_functions_and_control_flow(checked: Any) -> None:
    assert told(checked("onnx", "MyBlock", functions=["MyBlock"], model=MODEL)) == [
        ("ML407", "name the op types inside")
    ]
    assert [f.code for f in checked("onnx", "If", "Loop", "Scan", "SequenceMap")] == ["ML408"] * 4
    assert [f.code for f in checked("ascend910b", "If")] == ["ML408"]


def test_findings_stand_in_file_order(checked: Any) -> None:
    found = checked("onnx", "Loop", "Conv2D", "LSTM", "If", model=MODEL)
    assert [f.column for f in found] == sorted(f.column for f in found)


def test_the_librarys_own_names_are_not_warned_about() -> None:
    assert find_name_warnings(load_policy("ascend910b"), MODEL) == []
    assert find_name_warnings(load_policy("onnx"), MODEL, ["MatMul"]) == []
