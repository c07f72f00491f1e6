"""Constants that nodes compute are judged by their value, however they are written (Rules S4.7, S4.20)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx.inliner
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

import mixlist
from tests.support.builders import apply, model, policy
from tests.support.resolver_cases import decide_node, decide_nodes, resolve_text

# Nodes that compute a constant k beyond the range of float16; w = 1000, shape = {4}.
COMPUTED = {
    "a product": "k = Mul(w, w)",
    "two steps": "a = Mul(w, w) k = Add(a, w)",
    "a Cast of integers": "k = Cast<to=1>(large)",
    "a mover of a product": "a = Mul(w, w) k = Expand(a, shape)",
    "a part of it": "a = Mul(w, w) k = Concat<axis=0>(ones, a)",
    "ConstantOfShape": "k = ConstantOfShape<value=float[1] {100000}>(shape)",
    "Range": "k = Range(zero, most, step)",
    "a reduction": "a = Mul(w, ones) b = Mul(a, w) k = ReduceSum(b)",
    "an output that is not the first": "a = Mul(w, steps) b, k = Split<axis=0, num_outputs=2>(a)",
    "a second output": "a = Mul(w, steps) m = Mul(a, w) k, i = TopK(m, two)",
}
GRAPH = """<ir_version: 10, opset_import: ["" : 18]>
g (float[1] x) => (float[N] y) <float[1] w = {{1000}}, int64[1] large = {{100000}}, int64[1] shape = {{4}},
  float zero = {{0}}, float most = {{200000}}, float step = {{50000}}, float[4] ones = {{1, 1, 1, 1}},
  float[8] steps = {{1, 2, 3, 4, 5, 6, 7, 100}}, int64[1] two = {{4}}> {{ {} [a] y = Add(x, k) }}"""


@pytest.mark.parametrize("nodes_text", COMPUTED.values(), ids=COMPUTED)
def test_a_computed_constant_out_of_range_keeps_its_reader_high(nodes_text: str) -> None:
    """Rule S4.20: Computed constants are judged by their value."""
    text = GRAPH.format(nodes_text)
    decision = decide_node(text, "a", white=["Add"])
    assert (decision.precision, decision.rule) == ("float32", "constant")
    assert "which float16 turns into infinity: it stays float32 (S4.7)" in decision.reason
    original, feed = model(text), {"x": np.ones(1, np.float32)}
    (expected,) = ReferenceEvaluator(original).run(None, feed)
    (mixed,) = ReferenceEvaluator(apply(original, policy(white=["Add"]))).run(None, feed)
    np.testing.assert_array_equal(mixed, expected)
    assert np.abs(expected).max() > 65504
    assert decide_node(text, "a", white=["Add"], mode="mixed_bfloat16").precision == "bfloat16"


def test_a_bias_that_a_node_fills_in_keeps_its_reader_high() -> None:
    text = """g (float[2,2] x) => (float[2,2] y) <float[2,2] w = {1, 1, 1, 1}, int64[1] shape = {2}> {
      [m] m = MatMul(x, w) k = ConstantOfShape<value=float[1] {-100000}>(shape) [a] y = Add(m, k) }"""
    decisions = decide_nodes(text, white=["MatMul", "Add"])
    assert (decisions["m"].precision, decisions["a"].precision) == ("float16", "float32")


def test_a_node_whose_own_constant_result_does_not_fit_stays_high() -> None:
    text = """g (float[4] x) => (float[4] y, float[4] z) <float w = {1000}, float tiny = {0.0001}, float one = {1}> {
      [large] k = Mul(w, w) [fits] f = Mul(w, one) [small] e = Mul(tiny, tiny)
      [l] l = Log(k) s = Sqrt(e) a = Mul(x, l) y = Mul(a, s) z = Mul(x, f) }"""
    decisions = decide_nodes(text, white=["Mul"])
    assert (decisions["large"].precision, decisions["large"].rule) == ("float32", "constant")
    assert "reaches 1e+06" in decisions["large"].reason
    assert (decisions["fits"].precision, decisions["fits"].rule) == ("float16", "white")
    assert (decisions["small"].precision, decisions["small"].rule) == ("float32", "constant")


@pytest.mark.parametrize(
    ("nodes_text", "precision"),
    [
        ("k = Mul(small, small)", "float32"),
        ("k = ConstantOfShape<value=float[1] {0.00000001}>(shape)", "float32"),
        ("a = Mul(small, small) k = Mul(a, several)", "float32"),
        ("k = Identity(epsilons)", "float32"),
        ("k = Concat<axis=0>(epsilon, epsilon)", "float32"),
        ("k = Identity(several)", "float16"),
        ("k = Identity(vanishing)", "float32"),
        ("k = ConstantOfShape<value=float[1] {0}>(shape)", "float16"),
        ("k = ConstantOfShape<value=float[1] {100000}>(none)", "float16"),
        ("k = Range(nothing, nothing, epsilon0)", "float16"),
    ],
)
def test_a_constant_whose_values_all_become_zero_stays(nodes_text: str, precision: str) -> None:
    """Rule S4.7: Constants out of range keep the authored type."""
    text = f"""<ir_version: 10, opset_import: ["" : 18]>
      g (float[1] x) => (float[N] y) <float[1] small = {{0.0001}}, float[2] epsilons = {{1e-8, 1e-8}},
      float[1] epsilon = {{1e-8}}, float[2] several = {{1e-8, 1}},
      float[3] vanishing = {{1e-8, 0, -2e-9}}, int64[1] shape = {{4}}, int64[1] none = {{0}},
      float nothing = {{0}}, float epsilon0 = {{1e-8}}> {{ {nodes_text} [a] y = Add(x, k) }}"""
    assert decide_node(text, "a", white=["Add"]).precision == precision


# --- values that are not known ---

UNKNOWN = {
    "too large": ("b = Expand(w, many) k = Mul(b, b)", "results of Expand with more than 1048576 elements"),
    "no operator of ONNX": ("k = com.microsoft.Gelu(w)", "Gelu is an operator of com.microsoft"),
    "a body": (
        "k = If(yes) <then_branch = t () => (float[1] p) { p = Mul(w, w) }, "
        "else_branch = e () => (float[1] q) { q = Identity(w) }>",
        "the bodies of If",
    ),
    "a sparse tensor": ("b = ReduceMax(s) k = Mul(b, b)", "sparse tensors"),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_value_that_is_not_known_fits_with_a_warning(name: str) -> None:
    nodes_text, reason = UNKNOWN[name]
    text = f"""<ir_version: 10, opset_import: ["" : 18, "com.microsoft" : 1]>
      g (float[N] x) => (float[N] y) <float[1] w = {{1000}}, int64[1] many = {{1048577}}, bool yes = {{1}}>
      {{ {nodes_text} [a] y = Add(x, k) }}"""
    proto = model(text, check=False)
    values, indices = onnx.helper.make_tensor("s", 1, [1], [1000.0]), onnx.helper.make_tensor("", 7, [1], [1])
    proto.graph.sparse_initializer.append(onnx.helper.make_sparse_tensor(values, indices, [4]))
    plan = mixlist.resolve(proto, policy(white=["Add"]))
    assert next(d for d in plan.nodes if d.name == "a").precision == "float16"
    (warning,) = (w for w in plan.warnings if w.code == "ML504")
    assert "constant 'k'" in warning.message and reason in warning.message
    assert not mixlist.resolve(proto, policy(black=["Add"])).warnings  # nothing that becomes low reads it


@pytest.mark.parametrize("opset", [13, 21])
@pytest.mark.parametrize(("scale", "precision"), [(0.01, "float16"), (1000.0, "float32")])
def test_dequantized_weights_are_judged_without_a_warning(opset: int, scale: float, precision: str) -> None:
    text = f"""<ir_version: 10, opset_import: ["" : {opset}]>
      g (float[1, 2] x) => (float[1, 2] y) <int8[2, 2] q = {{100, 2, 3, 4}}, float s = {{{scale}}}, int8 z = {{1}}> {{
      w = DequantizeLinear(q, s, z) [m] y = MatMul(x, w) }}"""
    plan = resolve_text(text, white=["MatMul"])
    assert next(d for d in plan.nodes if d.name == "m").precision == precision
    assert not plan.warnings


def test_a_large_dequantized_weight_is_bounded_at_any_size() -> None:
    proto = model("""<ir_version: 10, opset_import: ["" : 17]>
      g (float[1, 1024] x) => (float[1, 1025] y) <float s = {1}, int8[1] q = {1}> {
      w = DequantizeLinear(q, s) [m] y = MatMul(x, w) }""", check=False)  # fmt: skip
    weight = np.ones((1024, 1025), np.int8)
    weight[0, 0] = 127
    proto.graph.initializer[1].CopyFrom(onnx.numpy_helper.from_array(weight, "q"))
    plan = mixlist.resolve(proto, policy(white=["MatMul"]))
    assert next(d for d in plan.nodes if d.name == "m").precision == "float16" and not plan.warnings


def test_range_is_computed_in_closed_form_at_any_size() -> None:
    text = """g (float[N] x) => (float[N] y) <float zero = {0}, float most = {3000000}, float one = {1}> {
      k = Range(zero, most, one) [a] y = Add(x, k) }"""
    decision = decide_node(text, "a", white=["Add"])
    assert (decision.precision, decision.rule) == ("float32", "constant") and "reaches 3e+06" in decision.reason


def test_a_long_chain_of_computed_constants_is_evaluated_once() -> None:
    """A chain of thousands of nodes, each read by a node that becomes low."""
    count = 1500
    steps = " ".join(f"c{n + 1} = Add(c{n}, w) y{n + 1} = Sub(y{n}, c{n + 1})" for n in range(count))
    text = f"g (float[4] y0) => (float[4] y{count}) <float c0 = {{0}}, float w = {{50}}> {{ {steps} }}"
    precisions = [d.precision for d in resolve_text(text, white=["Sub"]).nodes if d.op_type == "Sub"]
    assert precisions == ["float16"] * 1310 + ["float32"] * (count - 1310)  # 1311 * 50 = 65550


def test_onnx_reference_is_imported_only_if_it_is_needed(tmp_path: Path) -> None:
    """The import takes longer than a small resolve."""
    for name, nodes_text in (("plain", "k = Transpose(w)"), ("computed", "k = Mul(w, w)")):
        text = f"g (float[1] x) => (float[1] y) <float[1] w = {{1000}}> {{ {nodes_text} y = Add(x, k) }}"
        onnx.save(model(text), tmp_path / f"{name}.onnx")
    policy_text = "mixlist.load_policy('pytorch', precision_mode_v2=sys.argv[2], constants='keep')"
    run = f"import sys, mixlist; mixlist.resolve(sys.argv[1], {policy_text})"
    for name, mode, imported in (("plain", "fp16", False), ("computed", "origin", False), ("computed", "fp16", True)):
        code = f"{run}; assert ('onnx.reference' in sys.modules) is {imported}"
        path = str(tmp_path / f"{name}.onnx")
        subprocess.run([sys.executable, "-c", code, path, mode], check=True, cwd=Path(__file__).parents[2])


# --- functions ---


def test_a_shape_without_elements_is_read() -> None:
    """Rule S4.20: the shape of a scalar, as exporters write it, has no bytes."""
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float x) => (float y) <float k = {300}> {
      r = Reshape(k, s) m = Mul(k, k) a = Add(r, m) y = Max(x, a) }"""
    proto = onnx.parser.parse_model(text)
    proto.graph.initializer.append(numpy_helper.from_array(np.zeros(0, np.int64), "s"))
    plan = mixlist.resolve(proto, policy(white=["Max"]))
    assert [(d.precision, d.rule) for d in plan.nodes if d.op_type == "Max"] == [("float32", "constant")]
    assert plan.warnings == ()
