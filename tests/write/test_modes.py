"""Modes without lists, and free inputs and outputs, with branches, loops, calls and sequences."""

from __future__ import annotations

import pytest
from onnx import TensorProto

from tests.support.rewriter_cases import Case, case

LISTS = {"white": ["Exp"], "black": ["Log"]}
FREE = {"keep_io_types": False}
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
    ("nodes", "input_type", "casts"),
    [
        ("[w] y = Exp(x)", LOW, []),
        ("[l] y = Log(x)", HIGH, []),
        ("s = Shape(x) [w] y = Exp(x)", LOW, []),  # Shape reads every type
        ("i = Cast<to=7>(x) [w] y = Exp(x)", HIGH, ["x>float16"]),  # the Cast to integers must read the exact number
        ("h = Cast<to=10>(x) [w] y = Exp(x)", HIGH, []),  # Exp reads the user's Cast
        ("q = SequenceConstruct(x) i = Constant<value=int64 {0}>() [w] y = SequenceAt(q, i)", HIGH, []),
    ],
)
def test_a_free_input_is_low_if_all_readers_want_it(nodes: str, input_type: int, casts: list[str]) -> None:
    result = case(f"g (float[4] x) => (float[4] y) {{ {nodes} }}", options=FREE, **LISTS)
    assert io_types(result)[0] == [input_type] and result.casts == casts


def test_a_free_output_has_the_type_of_its_producer() -> None:
    text = "g (float[4] x) => (float[4] y, float[4] z, float[4] u) { [w] y = Exp(x) [l] z = Log(y) [v] u = Exp(y) }"
    result = case(text, options=FREE, **LISTS)
    assert io_types(result) == ([LOW], [LOW, HIGH, LOW]) and result.casts == ["y>float32"]


def test_a_free_input_that_starts_a_state_votes_high() -> None:
    text = """g (float[4] x, int64 m) => (float[4] y) <bool go = {1}> {
      y = Loop(m, go, x) <body = b (int64 i, bool c, float[4] s) => (bool d, float[4] t)
        { d = Identity(c) [e] t = Exp(s) }> }"""
    result = case(text, options=FREE, **LISTS)
    assert io_types(result)[0] == [HIGH, TensorProto.INT64]
    assert result.casts == ["Loop_0/body: s>float16", "Loop_0/body: t>float32"]


def test_free_inputs_without_a_reader_keep_their_types() -> None:
    text = "g (float[4] x, float[4] u, float[4] v) => (float[4] v, float[4] y) { [w] y = Exp(x) }"
    result = case(text, options=FREE, **LISTS)
    assert io_types(result) == ([LOW, HIGH, HIGH], [HIGH, LOW])


def test_an_input_that_is_also_an_output_is_kept_by_name() -> None:
    text = "g (float[4] x) => (float[4] x, float[4] y) { [w] y = Exp(x) }"
    result = case(text, options={**FREE, "keep_io": ["x"]}, **LISTS)
    assert io_types(result) == ([HIGH], [HIGH, LOW]) and result.casts == ["x>float16"]
