"""Modes without lists, and free inputs and outputs, with branches, loops, calls and sequences."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto

import mixlist
from tests.support.builders import model, policy
from tests.support.rewriter_cases import Case, case

LISTS = {"white": ["Exp"], "black": ["Log"]}
FREE = {"io": "low"}
RAISE = "cube_fp16in_fp32out"

LOW_MODELS = {
    "plain": "g (float16[4] x) => (float16[4] y) { a = Exp(x) y = Log(a) }",
    "loop": """g (float16[4] x, int64 m) => (float16[4] y) <bool go = {1}, float16[4] k = {1,2,3,4}> {
      y = Loop(m, go, x) <body = b (int64 i, bool c, float16[4] s) => (bool d, float16[4] t)
        { d = Identity(c) t = Add(s, k) }> }""",
    "loop from a constant": """g (float16[4] x, int64 m) => (float16[4] y) <bool go = {1}, float16[4] k = {1,2,3,4}> {
      y = Loop(m, go, k) <body = b (int64 i, bool c, float16[4] s) => (bool d, float16[4] t)
        { d = Identity(c) t = Add(s, x) }> }""",
    "branches": """g (float16[4] x, bool c) => (float16[4] y) {
      y = If(c) <then_branch = t () => (float16[4] p) { p = Exp(x) },
                 else_branch = e () => (float16[4] q) { q = Log(x) }> }""",
    "fixed slot": """g (float16[1,1,2,2] x) => (float16[1,1,4,4] y) <float[4] s = {1,1,2,2}> { y = Resize(x, , s) }""",
}


@pytest.mark.parametrize("name", LOW_MODELS)
def test_raise_brings_a_low_model_up_between_two_casts(name: str) -> None:
    result = case(LOW_MODELS[name], mode=RAISE)
    assert result.casts == [">y", "x>float32"]
    assert not result.low
    assert TensorProto.FLOAT16 not in {t.data_type for t in result.after.graph.initializer}
    assert not case(LOW_MODELS[name], mode="origin").casts


def test_raise_keeps_the_users_roundings() -> None:
    text = "g (float16[4] x) => (float16[4] y) { [a] a = Cast<to=1>(x) [b] b = Cast<to=10>(a) [e] y = Exp(b) }"
    result = case(text, mode=RAISE)
    assert result.casts == [">y", "b>float32"] and result.makes("b") == ["float16"]


def test_raise_keeps_calls_and_shape_arithmetic() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "f" : 1]> g (float16[2,4] x) => (float16[2,4] y, float16[N] z) {
      [e] e = Exp(x) y = f.F(e) s = Shape(x) f = Cast<to=10>(s) [q] z = Sqrt(f) }
      <domain: "f", opset_import: ["" : 17]> F (a) => (b) { b = Neg(a) }"""
    result = case(text, mode=RAISE)
    assert result.casts == ["e>float16", "x>float32"]
    assert (result.nodes["q"].rule, result.nodes["q"].precision) == ("shape", "float16")


def test_cube_lowers_four_operators_and_nothing_else() -> None:
    text = """g (float[2,2] x, float[2,2] w) => (float[2,2] y) <float[2,2] b = {1,2,3,4}> {
      [m] m = MatMul(x, w) [a] a = Add(m, b) [g] h = Gemm(a, w, b) [r] y = Relu(h) }"""
    result = case(text, mode="allow_fp32_to_fp16", feeds={"x": [[1, 0], [0, 1]], "w": [[1, 2], [3, 4]]})
    assert result.low == {"m", "g"}
    assert result.casts == ["a>float16", "h>float32", "m>float32", "w>float16", "x>float16"]
    assert result.initializers() == {"b": "float32", "b_float16": "float16"}


def test_force_lowers_all_nodes_but_shape_arithmetic_and_calls() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "f" : 1]> g (float[2,4] x, bool c) => (float[2,4] y, float[N] z) {
      [i] a = If(c) <then_branch = t () => (float[2,4] p) { [e] p = Exp(x) },
                     else_branch = e () => (float[2,4] q) { [l] q = Log(x) }>
      y = f.F(a) s = Shape(x) f = Cast<to=1>(s) [q] z = Sqrt(f) }
      <domain: "f", opset_import: ["" : 17]> F (a) => (b) { [n] b = Neg(a) }"""
    result = case(text, mode="fp16")
    assert result.low == {"i/then_branch/e", "i/else_branch/l"}
    assert result.casts == ["a>float32", "x>float16"]


# --- free inputs and outputs ---


def io_types(result: Case) -> tuple[list[int], list[int]]:
    """Return the element types of the inputs and of the outputs of the rewritten model."""
    graph = result.after.graph
    return tuple([v.type.tensor_type.elem_type for v in side] for side in (graph.input, graph.output))  # type: ignore[return-value]


LOW, HIGH = TensorProto.FLOAT16, TensorProto.FLOAT


@pytest.mark.parametrize(
    ("nodes", "casts"),
    [
        ("[w] y = Exp(x)", []),
        ("[w] h = Exp(x) [l] y = Log(x)", [">y", "x>float32"]),
        ("[w] h = Exp(x) [l] y = Log(h)", [">y", "h>float32"]),
        ("s = Shape(x) [w] y = Exp(x)", []),  # Shape reads every type
        ("i = Cast<to=7>(x) [w] y = Exp(x)", []),  # a Cast of the user reads every type
        ("h = Cast<to=10>(x) [w] y = Exp(x)", []),
    ],
)
def test_free_inputs_and_outputs_are_low(nodes: str, casts: list[str]) -> None:
    """Rule S7.3: --io chooses the type of the interface."""
    result = case(f"g (float[4] x) => (float[4] y) {{ {nodes} }}", options=FREE, **LISTS)
    assert io_types(result) == ([LOW], [LOW]) and sorted(result.casts) == casts


def test_a_gray_node_follows_a_free_input() -> None:
    """Rule S7.3: --io chooses the type of the interface."""
    result = case("g (float[4] x) => (float[4] y) { [n] a = Neg(x) [l] y = Log(x) }", options=FREE, **LISTS)
    assert result.low == {"n"} and result.casts == [">y", "x>float32"]


def test_the_default_of_a_free_input_and_other_types_stay() -> None:
    """Rule S4.16: An initializer that is also an input is a constant with a fixed type."""
    text = """g (float[4] x, float k, double[4] d) => (float[4] y, double[4] z) <float k = {2}> {
      [w] a = Exp(x) [m] y = Mul(a, k) z = Neg(d) }"""
    result = case(text, options=FREE, **LISTS)
    assert io_types(result) == ([LOW, HIGH, TensorProto.DOUBLE], [LOW, TensorProto.DOUBLE])


def test_a_free_input_that_starts_a_state_makes_it_low() -> None:
    text = """g (float[4] x, int64 m) => (float[4] y) <bool go = {1}> {
      y = Loop(m, go, x) <body = b (int64 i, bool c, float[4] s) => (bool d, float[4] t)
        { d = Identity(c) [e] t = Exp(s) }> }"""
    result = case(text, options=FREE, **LISTS)
    assert io_types(result) == ([LOW, TensorProto.INT64], [LOW])
    assert not result.casts


def test_free_inputs_without_a_reader_change_too() -> None:
    text = "g (float[4] x, float[4] u, float[4] v) => (float[4] v, float[4] y) { [w] y = Exp(x) }"
    result = case(text, options=FREE, **LISTS)
    assert io_types(result) == ([LOW, LOW, LOW], [LOW, LOW]) and not result.casts


def test_an_input_that_is_also_an_output_is_kept_by_name() -> None:
    text = "g (float[4] x) => (float[4] x, float[4] y) { [w] y = Exp(x) }"
    result = case(text, options={**FREE, "keep_io": ["x"]}, **LISTS)
    assert io_types(result) == ([HIGH], [HIGH, LOW]) and result.casts == ["x>float16"]


def test_one_layer_is_low_under_origin(tmp_path: Path) -> None:
    """Rule S3.5: MindSpore's ``net.dense.to_float(mstype.float16)``, for ``apply`` and ``check``."""
    (tmp_path / "one.txt").write_text("fc::InputDtype:float16,float16,OutputDtype:float16\n")
    lists = mixlist.load_policy(precision_mode_v2="origin", customize_dtypes=tmp_path / "one.txt")
    text = "g (float[2,2] x) => (float[2,2] y) <float[2,2] w = {1, 2, 3, 4}> { [fc] h = MatMul(x, w) [r] y = Relu(h) }"
    plan = mixlist.resolve(model(text), lists)
    assert {decision.name: decision.precision for decision in plan.nodes} == {"fc": "float16", "r": "float32"}
    assert mixlist.rewrite(model(text), plan).low == 1
    report = mixlist.check(model(text), lists, data=[{"x": np.full((2, 2), 3e4, np.float32)}])
    assert report.verdict == "fail" and report.nodes[0].name == "fc"


@pytest.mark.parametrize("mode", ["origin", "fp16"])
def test_a_low_interface_becomes_float32(mode: str) -> None:
    """Rule S7.3: The nodes stay as they are, between Casts."""
    text = (
        "g (float16[4] x, float[4] k, double[4] d) => (float16[4] y, double[4] z) { a = Exp(x) y = Log(a) z = Neg(d) }"
    )
    result = case(text, mode=mode, options={"io": "float32"})
    assert io_types(result) == ([HIGH, HIGH, TensorProto.DOUBLE], [HIGH, TensorProto.DOUBLE])
    assert sorted(result.casts) == [">y", "x>float16"]
    kept = case(text, mode=mode, options={"io": "float32", "keep_io": ["y"]})
    assert io_types(kept)[1] == [LOW, TensorProto.DOUBLE] and kept.casts == ["x>float16"]


def test_origin_changes_the_interface_alone() -> None:
    """Rule S7.3: float16 outside, float32 inside."""
    result = case("g (float[4] x) => (float[4] y) { a = Exp(x) y = Log(a) }", mode="origin", options=FREE)
    assert io_types(result) == ([LOW], [LOW]) and sorted(result.casts) == [">y", "x>float32"]


@pytest.mark.parametrize(("mode", "expected"), [("fp16", LOW), ("mixed_float16", TensorProto.BFLOAT16)])
def test_the_other_low_type_changes_in_the_mode_that_changes_nodes(mode: str, expected: int) -> None:
    """Rules S3.4 and S7.3."""
    text = "g (bfloat16[4] x, float[4] u) => (bfloat16[4] y, float[4] v) { y = Neg(x) v = Neg(u) }"
    original = model(text)
    graph = mixlist.rewrite(original, mixlist.resolve(original, policy(mode=mode), io="low")).proto.graph
    for side in (graph.input, graph.output):
        assert [value.type.tensor_type.elem_type for value in side] == [expected, LOW]
