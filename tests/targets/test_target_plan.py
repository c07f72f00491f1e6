"""``mixlist.plan_for_target``, the counterpart of ``apply --target`` in Python."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

import mixlist
from mixlist.errors import UsageError

# The list of TensorRT has Mish in float32 and float16, and not in bfloat16.
GRAPH = """<ir_version: 10, opset_import: ["": 22]>
g (float[4,4] x, float[4,4] w) => (float[4,4] z) {
    [product] a = MatMul (x, w)
    [mish] z = Mish (a)
}"""
POLICY = mixlist.load_policy(precision_mode_v2="mixed_bfloat16", gray_policy="promote")


def test_nodes_without_a_kernel_stay_as_authored_and_the_model_is_checked(tmp_path: Path) -> None:
    """Rule S13.2"""
    model = onnx.parser.parse_model(GRAPH)
    use = mixlist.plan_for_target(mixlist.resolve(model, POLICY), "tensorrt")
    assert [(n.name, n.has_kernel, n.otherwise) for n in use.low_nodes] == [
        ("./product", True, None),
        ("./mish", False, "refusal"),
    ]
    assert [node.name for node in use.kept] == ["./mish"] and use.refused == ()
    assert {node.name: node.precision for node in use.plan.nodes} == {"product": "bfloat16", "mish": "float32"}
    assert repr(use).endswith("for tensorrt: kept nodes 1, refused nodes 0>")
    result = mixlist.rewrite(model, use.plan)
    check = use.check_model(result.model)
    assert check is not None and check.is_accepted
    result.save(tmp_path / "mixed.onnx")
    assert use.check_model(tmp_path / "mixed.onnx") == check


def test_a_target_that_is_not_strongly_typed_checks_no_model() -> None:
    model = onnx.parser.parse_model(GRAPH)
    use = mixlist.plan_for_target(mixlist.resolve(model, POLICY), "cpu")
    assert use.check_model(mixlist.rewrite(model, use.plan).model) is None


def test_wrong_arguments_are_refused_with_advice() -> None:
    model = onnx.parser.parse_model(GRAPH)
    with pytest.raises(TypeError, match=r"plan is a Policy: pass the Plan that mixlist\.resolve"):
        mixlist.plan_for_target(POLICY, "tensorrt")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="there is no target tensor-rt"):
        mixlist.plan_for_target(mixlist.resolve(model, POLICY), "tensor-rt")
