"""The reference in float64 (``--reference-type float64``), where operators have float64 kernels."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import mixlist
from mixlist.checker.emulation import widen_to_float64
from mixlist.errors import UsageError
from tests.support.builders import model, policy
from tests.support.local_workers import InProcessExecutor
from tests.support.package import load_model

# 1e8 + 1 is 1e8 in float32: the difference is 0 there, and 1 in float64.
TEXT = """g (float[2] x) => (float[2] y) <float[1] big = {1e8}>
{ [a] a = Add(x, big) [s] y = Sub(a, big) }"""


def test_float64_shows_an_error_that_float32_has_too() -> None:
    feed = {"x": np.ones(2, np.float32)}
    float32_report = mixlist.check(model(TEXT), policy(), [feed])
    float64_report = mixlist.check(model(TEXT), policy(), [feed], reference_type="float64")
    assert float32_report.outputs[0].max_abs_error == 0 and float32_report.passes_without_low
    assert float64_report.outputs[0].max_abs_error == 1 and float64_report.verdict == "fail"


def test_operators_without_a_float64_kernel_get_casts() -> None:
    text = """g (float[1,1,2,2] x) => (float[1,1,4,4] y) <float[4] scales = {1,1,2,2}, float[1,1,1,1] w = {1}> {
      [c] c = Conv(x, w) [r] r = Resize(c, , scales) [k] k = Constant<value_float=2.0>() [m] y = Mul(r, k) }"""
    proto = model(text)
    float64_model = widen_to_float64(load_model(proto), lambda node: node.op_type != "Conv")
    onnx.checker.check_model(float64_model, full_check=True)
    inferred = onnx.shape_inference.infer_shapes(float64_model, strict_mode=True)
    kinds = {i.name: i.type.tensor_type.elem_type for i in (*inferred.graph.value_info, *inferred.graph.output)}
    assert kinds["c"] == kinds["r"] == kinds["y"] == onnx.TensorProto.DOUBLE
    feed = {"x": np.random.default_rng(0).standard_normal((1, 1, 2, 2)).astype(np.float32)}
    report = mixlist.check(proto, policy(), [feed], reference_type="float64")
    assert report.outputs[0].max_abs_error < 1e-6


def test_constants_that_shape_inference_reads_stay_constants() -> None:
    """PaddlePaddle exports Resize with sizes and with empty scales: shape inference reads both only from a Constant."""
    text = """g (float[1,1,2,2] x) => (float[1,1,4,4] y) {
      roi = Constant<value=float[0] {}>() scales = Constant<value=float[0] {}>()
      sizes = Constant<value_ints=[1,1,4,4]>() [h] h = HardSwish(x) [r] y = Resize(h, roi, scales, sizes) }"""
    feed = {"x": np.random.default_rng(0).standard_normal((1, 1, 2, 2)).astype(np.float32)}
    report = mixlist.check(model(text), policy(), [feed], reference_type="float64")
    assert report.outputs[0].max_abs_error < 1e-6
    assert any("HardSwish (1), Resize (1)" in w.message for w in report.warnings)


@pytest.mark.parametrize(("op", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_recurrent_operators_stay_float32_with_a_warning(op: str, gates: int) -> None:
    text = f"""g (float[3,1,2] x, float[1,{gates},2] w, float[1,{gates},1] r) => (float[3,1,1,1] y) {{
      [n] a = {op}<hidden_size=1>(x, w, r) [k] y = Neg(a) }}"""
    rng = np.random.default_rng(0)
    shapes = {"x": (3, 1, 2), "w": (1, gates, 2), "r": (1, gates, 1)}
    feed = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    report = mixlist.check(model(text), policy(), [feed], reference_type="float64")
    assert [w.message for w in report.warnings if op in w.message] == [
        f"the float64 reference computes operators in float32 that have no float64 kernel in ONNX Runtime: {op} (1)"
    ]
    assert report.outputs[0].max_abs_error < 1e-6
    assert not any(op in w.message for w in mixlist.check(model(text), policy(), [feed]).warnings)


def test_values_beyond_float32_are_preexisting() -> None:
    feed = {"x": np.array([1e20, 2.0], np.float32)}
    text = "g (float[2] x) => (float[2] y) { [m] y = Mul(x, x) }"
    report = mixlist.check(model(text), policy(white=["Mul"], mode="mixed_bfloat16"), [feed], reference_type="float64")
    assert [n.kind for n in report.nodes] == ["preexisting"] and report.exception_rate == 0


@pytest.mark.parametrize("reference_type", ["float32", "float64"])
def test_a_float32_node_beyond_float32_is_preexisting(reference_type: str) -> None:
    """Values on both sides, so that they are no mask."""
    feed = {"x": np.array([1e20, -2e20], np.float32), "z": np.array([1e5, 1.0], np.float32)}
    text = "g (float[2] x, float[2] z) => (float[2] y, float[2] r) { a = Abs(x) [m] y = Mul(x, a) [r] r = Relu(z) }"
    report = mixlist.check(model(text), policy(white=["Relu"]), [feed], reference_type=reference_type)
    assert {(finding.name, finding.kind) for finding in report.nodes} == {("m", "preexisting"), ("r", "overflow")}


def test_a_float64_node_beyond_float32_is_finite() -> None:
    feed = {"x": np.array([1e100, -1e100]), "z": np.array([1e5, 1.0], np.float32)}
    text = "g (double[2] x, float[2] z) => (double[2] y, float[2] r) { [m] y = Mul(x, x) [r] r = Relu(z) }"
    report = mixlist.check(model(text), policy(white=["Relu"]), [feed], reference_type="float64")
    assert {(finding.name, finding.kind) for finding in report.nodes} == {("r", "overflow")}


# The float16 part of ``x``, and the rest, which float32 holds.
SPLIT = """g (float[4] x) => (float[4] y) <float k = {1000}> {
  h = Cast<to = 10>(x) c = Cast<to = 1>(h) lo = Sub(x, c) y = Mul(lo, k) }"""


def test_the_reference_has_the_casts_of_the_author() -> None:
    """Rule S8.1: a low Sub loses the rest whole, and nothing is lost where no node is lowered."""
    feed = {"x": np.array([1.0003, 1.2004, 1.7777, 1.9001], np.float32)}
    high = mixlist.check(model(SPLIT), policy(mode="origin"), [feed])
    assert high.verdict == "inconclusive" and high.outputs[0].normalized_error == 0
    assert high.reasons == (
        "every limit is kept, because the lists change nothing",
        "reference_type='float32' of check compares the model with its form in float32",
    )
    assert mixlist.check(model(SPLIT), policy(white=["Mul"]), [feed]).verdict == "pass"
    low = mixlist.check(model(SPLIT), policy(white=["Sub", "Mul"]), [feed])
    assert low.verdict == "fail" and low.outputs[0].normalized_error == 1
    in_float32 = mixlist.check(model(SPLIT), policy(mode="origin"), [feed], reference_type="float32")
    assert in_float32.verdict == "fail"  # without the Casts, nothing is left of the rest


def test_a_search_compares_with_the_casts_of_the_author() -> None:
    """Rule S8.1: the trials have the reference of the checks."""
    feed = {"x": np.array([1.0003, 1.2004, 1.7777, 1.9001], np.float32)}
    report = mixlist.tune(model(SPLIT), policy(white=["Sub", "Mul"]), [feed], executor=InProcessExecutor())
    assert (report.verdict, [edit.op for edit in report.edits]) == ("pass", ["Sub"])


@pytest.mark.parametrize("reference_type", ["authored", "float32"])
def test_a_float16_node_of_the_author_that_overflows(reference_type: str) -> None:
    """Rules S8.1, S8.40: no list changes it, and the float32 form shows it."""
    text = """g (float[2] x) => (float[2] y, float[2] z) {
      h = Cast<to = 10>(x) [m] m = Mul(h, h) y = Cast<to = 1>(m) [n] z = Mul(x, x) }"""
    feed = {"x": np.array([300, 1], np.float32)}
    lists, black = policy(white=[], black=["Mul"]), {"reference_type": reference_type}
    report = mixlist.check(model(text), lists, [feed], **black)  # type: ignore[arg-type]
    assert report.verdict == ("inconclusive" if reference_type == "authored" else "fail")
    assert next(node for node in report.nodes if node.name == "m").kind == (
        "preexisting" if reference_type == "authored" else "overflow"
    )


def test_an_unknown_reference_type_is_refused() -> None:
    with pytest.raises(UsageError, match="reference type 'float16' is not known"):
        mixlist.check(model(TEXT), policy(), [], reference_type="float16")


def test_a_mixed_model_that_is_given_has_its_own_low_type() -> None:
    source = model("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    lists = policy(white=["Relu"], mode="mixed_bfloat16")
    mixed = mixlist.rewrite(source, mixlist.resolve(source, lists)).model
    feed = {"x": np.array([1, 2], np.float32)}
    assert mixlist.check(source, policy(), [feed], mixed_model=mixed).precision == "bfloat16"


@pytest.mark.parametrize(("outside", "inside"), [("float16", "float"), ("float", "float16"), ("bfloat16", "float")])
def test_a_mixed_model_may_have_another_interface(outside: str, inside: str) -> None:
    """Rule S7.3: The batches are in the types of the original, as ``apply --io`` writes the other one."""
    original = model(f"g ({outside}[2] x) => ({outside}[2] y) {{ y = Relu(x) }}")
    mixed = mixlist.rewrite(original, mixlist.resolve(original, policy(mode="fp16"), io="low")).model
    if inside == "float":
        plan = mixlist.resolve(original, policy(mode="origin"), io="float32")
        mixed = mixlist.rewrite(original, plan).model
    report = mixlist.check(original, policy(), [{"x": np.array([1, 2], np.float32)}], mixed_model=mixed)
    assert report.outputs[0].passed and report.outputs[0].max_abs_error == 0
