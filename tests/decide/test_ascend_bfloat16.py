"""bfloat16 nodes become float16: all under fp16 (Rule S3.4), white ones with a library in Ascend names (Rule S3.8)."""

from __future__ import annotations

from typing import Any

import onnx
import pytest

import mixlist
from mixlist.decide import Decision
from tests.support.builders import apply, model
from tests.support.package import GRAY_POLICIES

TEXT = """<ir_version: 8, opset_import: ["" : 17]>
g (bfloat16[2,2] x) => (bfloat16[2,2] y) <bfloat16[2,2] w = {1, 2, 3, 4}> {
  [m] a = MatMul(x, w) [r] b = Transpose(a) [s] y = Softmax(b) }"""


def decide(text: str = TEXT, **arguments: Any) -> dict[str, Decision]:
    plan = mixlist.resolve(model(text), mixlist.load_policy(**arguments))
    return {node.name: node for node in plan.nodes}


def test_a_white_node_becomes_float16() -> None:
    """Rule S3.8: A white bfloat16 node becomes float16 with an Ascend library."""
    decisions = decide(ops_info="ascend910b")
    assert (decisions["m"].precision, decisions["m"].rule, decisions["m"].changed) == ("float16", "white", True)
    assert decisions["m"].reason.endswith("(S3.8)")
    assert [decisions[name].outputs for name in "rs"] == [{"b": "bfloat16"}, {"y": "bfloat16"}]


@pytest.mark.parametrize(
    "arguments",
    [
        {"ops_info": "onnx"},
        {"ops_info": "ascend910b", "precision_mode_v2": "mixed_bfloat16"},
        {"ops_info": "ascend910b", "precision_mode_v2": "origin"},
    ],
)
def test_a_white_node_stays_bfloat16_with_another_library_or_mode(arguments: dict[str, Any]) -> None:
    """Rule S3.8: A white bfloat16 node becomes float16 with an Ascend library."""
    assert decide(**arguments)["m"].outputs == {"a": "bfloat16"}


@pytest.mark.parametrize("library", ["ascend910b", "onnx"])
def test_the_mode_fp16_lowers_bfloat16(library: str) -> None:
    """Rule S3.4: fp16 forces float16."""
    decisions = decide(ops_info=library, precision_mode_v2="fp16")
    assert [node.outputs for node in decisions.values()] == [{"a": "float16"}, {"b": "float16"}, {"y": "float16"}]
    assert decisions["m"].reason == "precision mode fp16 makes it float16 (S3.4)"
    mixed_model = apply(model(TEXT), mixlist.load_policy(ops_info=library, precision_mode_v2="fp16"))
    onnx.checker.check_model(mixed_model, full_check=True)
    assert [node.op_type for node in mixed_model.graph.node] == ["Cast", "MatMul", "Transpose", "Softmax", "Cast"]


@pytest.mark.parametrize("gray_policy", GRAY_POLICIES)
def test_the_result_is_valid_and_applying_again_changes_nothing(gray_policy: str) -> None:
    rules = mixlist.load_policy(ops_info="ascend910b", gray_policy=gray_policy)
    mixed_model = apply(model(TEXT), rules)
    onnx.checker.check_model(mixed_model, full_check=True)
    assert {tensor.name: tensor.data_type for tensor in mixed_model.graph.initializer} == {
        "w": onnx.TensorProto.FLOAT16
    }
    assert [node.op_type for node in mixed_model.graph.node] == ["Cast", "MatMul", "Cast", "Transpose", "Softmax"]
    assert apply(mixed_model, rules).SerializeToString() == mixed_model.SerializeToString()


def test_a_constant_beyond_float16_keeps_the_node_in_bfloat16() -> None:
    """Rule S4.7: Constants out of range keep the authored type."""
    decisions = decide(TEXT.replace("{1, 2", "{100000, 2"), ops_info="ascend910b", constants="keep")
    assert (decisions["m"].precision, decisions["m"].rule) == ("bfloat16", "constant")
