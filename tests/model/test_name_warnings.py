"""Warnings about names in a modify_mixlist file that have no effect, or another meaning than the user may think."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mixlist import load_policy
from mixlist.diagnostics import Diagnostic
from mixlist.model.name_warnings import find_name_warnings, names_in_lists

MODEL = [("", "Conv", None), ("", "MatMul", None), ("com.microsoft", "Gelu", None), ("", "Softmax", None)]


@pytest.fixture
def find_warnings(tmp_path: Path) -> Any:
    def check(ops_info: str, *names: str, **more: Any) -> list[Diagnostic]:
        text = json.dumps({"black-list": {"to-add": names}})
        (tmp_path / "mix.json").write_text(text)
        policy = load_policy(ops_info, tmp_path / "mix.json")
        model_names = names_in_lists(policy, more["model"]) if "model" in more else None
        warnings = find_name_warnings(policy, model_names, more.get("functions", ()))
        assert all(f.severity == "warning" and f.line == 1 and text[f.column - 1] == '"' for f in warnings if f.column)
        assert all(f.path == str(tmp_path / "mix.json") for f in warnings)
        return warnings

    return check


def hints(findings: list[Diagnostic]) -> list[tuple[str, str]]:
    return [(finding.code, str(finding.hint)) for finding in findings]


def test_a_name_from_the_other_space(find_warnings: Any) -> None:
    """Rule S5.6: Names that mean something else warn."""
    assert hints(find_warnings("ascend910b", "Conv")) == [("ML404", "there it is Conv2D or Conv3D")]
    assert hints(find_warnings("ascend910b", "Softmax")) == [("ML404", "there it is SoftmaxV2")]
    assert hints(find_warnings("ascend910b", "Attention")) == [("ML404", "it has no Ascend counterpart")]
    assert hints(find_warnings("onnx", "Conv2D")) == [("ML404", "there it is Conv")]
    assert hints(find_warnings("onnx", "AddLayerNorm")) == [("ML404", "no ONNX operator becomes it")]


@pytest.mark.parametrize(
    ("name", "ascend_name"),
    [("MatMul", "BatchMatMulV2"), ("Div", "RealDiv"), ("Gather", "GatherV2"), ("Slice", "StridedSliceV2")],
)
def test_a_name_of_both_spaces_that_means_another_op(find_warnings: Any, name: str, ascend_name: str) -> None:
    """Rule S5.6: Names that mean something else warn."""
    assert hints(find_warnings("ascend910b", name)) == [("ML405", f"to mean the ONNX operator, name {ascend_name}")]
    assert find_warnings("onnx", name) == []


def test_a_name_with_one_meaning_in_both_spaces_does_not_warn(find_warnings: Any) -> None:
    assert find_warnings("ascend910b", "Add", "Relu", "Conv2D", "SoftmaxV2", "BatchMatMulV2") == []


def test_an_op_absent_from_the_model(find_warnings: Any) -> None:
    assert find_warnings("onnx", "LSTM") == []  # without a model, absence is not checked
    assert hints(find_warnings("onnx", "LSTM", model=MODEL)) == [("ML406", "it changes nothing there")]
    assert hints(find_warnings("onnx", "ConvTranspose", model=MODEL)) == [("ML406", "it changes nothing there")]
    assert hints(find_warnings("onnx", "Matmul", model=MODEL)) == [("ML406", "the model has MatMul")]
    assert find_warnings("onnx", "Conv", "com.microsoft::Gelu", "Gelu", "ai.onnx::MatMul", model=MODEL) == []
    assert [f.code for f in find_warnings("onnx", "ai.onnx::Gelu", model=MODEL)] == ["ML406"]


def test_with_an_ascend_library_the_model_has_ascend_names(find_warnings: Any) -> None:
    assert find_warnings("ascend910b", "Conv2D", "SoftmaxV2", model=MODEL) == []
    assert [f.code for f in find_warnings("ascend910b", "ReduceSum", model=MODEL)] == ["ML406"]


def test_a_name_of_the_other_space_does_not_warn_about_its_absence_too(find_warnings: Any) -> None:
    assert [f.code for f in find_warnings("ascend910b", "MatMul", "Conv", model=MODEL)] == ["ML405", "ML404"]


def test_functions_and_control_flow(find_warnings: Any) -> None:
    assert hints(find_warnings("onnx", "MyBlock", functions=["MyBlock"], model=MODEL)) == [
        ("ML407", "mixlist apply --inline-functions replaces the calls by these nodes")
    ]
    assert [f.code for f in find_warnings("onnx", "If", "Loop", "Scan", "SequenceMap")] == ["ML408"] * 4
    assert [f.code for f in find_warnings("ascend910b", "If")] == ["ML408"]


def test_warnings_are_in_the_order_of_the_file(find_warnings: Any) -> None:
    warnings = find_warnings("onnx", "Loop", "Conv2D", "LSTM", "If", model=MODEL)
    assert [f.column for f in warnings] == sorted(f.column for f in warnings)


def test_names_of_the_library_alone_do_not_warn() -> None:
    assert find_name_warnings(load_policy("ascend910b"), names_in_lists(load_policy("ascend910b"), MODEL)) == []
    assert find_name_warnings(load_policy("onnx"), names_in_lists(load_policy("onnx"), MODEL), ["MatMul"]) == []
