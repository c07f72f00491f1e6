"""Operators that ONNX does not define: their types come from value_info, ONNX Runtime's schemas or a hint, if any."""

from __future__ import annotations

import onnx.parser
import pytest
from onnx import helper

import mixlist
from tests.support.builders import model
from tests.support.rewriter_cases import case

LISTS = {"white": ["Exp"], "black": ["Log"]}
HEAD = '<ir_version: 8, opset_import: ["" : 17, "my.domain" : 1]>'
CHAIN = f"""{HEAD} g (float[4] x) => (float[4] y) {{
  [e] e = Exp(x) [c] c = my.domain.Thing(e) [r] r = Relu(c) [w] w = Exp(r) [l] y = Log(w) }}"""


def test_a_custom_operator_without_types_reads_its_authored_types() -> None:
    """Rule S4.14: Operators without a schema stay as authored."""
    result = case(CHAIN.replace("y = Log(w)", "y = my.domain.Thing(w)"), **LISTS)
    assert result.nodes["c"].rule == "schema" and "no schema is known" in result.nodes["c"].reason
    assert result.low == {"e"}  # the types that Relu and the second Exp read are not known
    assert result.casts == ["e>float32", "x>float16"]


@pytest.mark.parametrize(
    ("op_type", "message", "hint"),
    [
        ("Reluu", "no operator Reluu at opset 17: 2 nodes stay as authored", "did you mean Relu"),
        ("Gelu", "no operator Gelu at opset 17", "an opset that has Gelu"),
        ("VoxelPlugin_TRT", "no operator VoxelPlugin_TRT at opset 17", "only a runtime that has it"),
    ],
)
def test_an_operator_that_onnx_does_not_have_is_a_warning(op_type: str, message: str, hint: str) -> None:
    """Rule S4.14; one of a domain of its own is none."""
    text = f"{HEAD} g (float[4] x) => (float[4] y) {{ a = {op_type}(x) b = my.domain.Thing(a) y = {op_type}(b) }}"
    (warning,) = (
        w for w in mixlist.resolve(onnx.parser.parse_model(text), mixlist.load_policy()).warnings if w.code == "ML413"
    )
    assert message in warning.message and hint in (warning.hint or "")


@pytest.mark.parametrize("source", ["hint", "value_info"])
def test_the_readers_of_a_custom_operator_are_decided_if_its_type_is_known(source: str) -> None:
    proto = model(CHAIN)
    if source == "value_info":
        proto.graph.value_info.append(helper.make_tensor_value_info("c", 1, [4]))
    result = case(proto, hints={"c": "float32"} if source == "hint" else None, **LISTS)
    assert result.nodes["r"].precision == "float32"  # it follows the authored type of the operator
    assert result.low == {"e", "w"}
    assert result.casts == ["e>float32", "r>float16", "w>float32", "x>float16"]


def test_the_declared_type_of_a_graph_output_counts_for_its_readers() -> None:
    text = f"""{HEAD} g (float[4] x) => (float[4] c, float[4] y) {{
      [c] c = my.domain.Thing(x) [w] w = Exp(c) [l] y = Log(w) }}"""
    result = case(text, **LISTS)
    assert result.low == {"w"} and result.casts == ["c>float16", "w>float32"]


def test_a_hint_may_give_a_low_type() -> None:
    text = CHAIN.replace("Log(w)", "Cast<to=1>(w)")
    result = case(text, hints={"c": "float16"}, **LISTS)
    assert result.low >= {"e", "r", "w"} and result.casts == ["e>float32", "x>float16"]


def test_a_hint_does_not_override_a_schema() -> None:
    result = case(CHAIN, hints={"c": "float32", "e": "int64"}, **LISTS)
    assert result.makes("e") == ["float16"]


def test_a_constant_that_a_custom_operator_reads_keeps_its_type() -> None:
    text = f"""{HEAD} g (float[4] x) => (float[4] y) <float[4] k = {{1,2,3,4}}> {{
      [w] w = Exp(x) [m] m = Mul(w, k) [c] y = my.domain.Thing(m, k) }}"""
    result = case(text, **LISTS)
    assert result.initializers() == {"k": "float32", "k_float16": "float16"}
    assert result.casts == ["m>float32", "x>float16"]


def test_a_custom_operator_in_a_branch_keeps_the_if_high() -> None:
    for typed in ("float[4] ", ""):
        text = f"""{HEAD} g (float[4] x, bool c) => (float[4] y) {{ [w] w = Exp(x)
          [i] z = If(c) <then_branch = t () => ({typed}p) {{ [t] p = my.domain.Thing(w) }},
                         else_branch = e () => ({typed}q) {{ [e] q = Relu(w) }}> [n] y = Neg(z) }}"""
        result = case(text, check=False, **LISTS)
        assert result.low == {"w", "i/else_branch/e"}
        assert result.casts == ["i/else_branch: q>float32", "w>float32", "x>float16"]


def test_a_custom_operator_in_a_loop_keeps_the_state_high() -> None:
    text = f"""{HEAD} g (float[4] x, int64 m) => (float[4] y) <bool go = {{1}}> {{ [w] w = Exp(x)
      [l] y = Loop(m, go, w) <body = b (int64 i, bool c, float[4] s) => (bool d, float[4] t)
        {{ d = Identity(c) [t] t = my.domain.Thing(s) }}> }}"""
    result = case(text, **LISTS)
    assert result.casts == ["w>float32", "x>float16"]


def test_lists_reach_into_the_bodies_of_a_custom_operator() -> None:
    text = f"""{HEAD} g (float[4] x) => (float[4] y) {{ [w] w = Exp(x) [c] y = my.domain.Thing<
      body = b (float[4] a) => (float[4] r) {{ [v] v = Relu(w) [e] f = Exp(a) [s] r = Add(f, v) }}>(w) }}"""
    result = case(text, check=False, **LISTS)
    assert {"w", "c/body/e"} <= result.low
    assert result.nodes["c/body/e"].outputs == {"f": "float16"}
    assert result.casts == [
        "c/body: a>float16",
        "c/body: r>float32",
        "w>float32",
        "x>float16",
    ]  # the body keeps its types at its inputs and outputs


def test_a_graph_of_custom_operators_alone_is_untouched() -> None:
    text = """<ir_version: 8, opset_import: ["my.domain" : 1]>
      g (float[4] x) => (float[4] y) { [c] y = my.domain.Thing(x) }"""
    result = case(text, check=False, **LISTS)
    assert not result.casts and [o.domain for o in result.after.opset_import] == ["my.domain"]


# --- operators of ONNX Runtime ---

MS = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>'


def test_operators_of_onnx_runtime_have_schemas() -> None:
    text = f"""{MS} g (float[2,4] x, float[4] b) => (float[2,4] y) {{
      [e] e = Exp(x) [f] f = com.microsoft.FastGelu(e, b) [g] g = com.microsoft.Gelu(f) [l] y = Log(g) }}"""
    result = case(text, feeds={"x": [[0.1] * 4] * 2, "b": [1, 2, 3, 4]}, **LISTS)
    assert result.low == {"e", "f", "g"}
    assert result.casts == ["b>float16", "g>float32", "x>float16"]


def test_a_list_may_name_a_domain() -> None:
    text = f"""{MS} g (float[2,4] x) => (float[2,4] y) {{ [g] g = com.microsoft.Gelu(x) [l] y = Log(g) }}"""
    assert case(text, white=["com.microsoft::Gelu"], black=["Log"]).low == {"g"}
    assert not case(text, white=["my.domain::Gelu"], black=["Log"]).low


def test_bfloat16_needs_a_cast_to_bfloat16() -> None:
    """Gelu of ONNX Runtime takes bfloat16, but Cast makes bfloat16 only from opset 13 on."""
    text = MS.replace("17", "11") + " g (float[2,4] x) => (float[2,4] y) { [g] y = com.microsoft.Gelu(x) }"
    result = case(text, mode="mixed_bfloat16", white=["Gelu"])
    assert not result.casts and result.nodes["g"].rule == "schema"


def test_operators_of_the_ml_domain() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 3]>
      g (float[1,4] x) => (float[1,4] y) { [w] w = Exp(x)
      [s] y = ai.onnx.ml.Scaler<offset=[0.0,0.0,0.0,0.0], scale=[1.0,1.0,1.0,1.0]>(w) }"""
    result = case(text, white=["Exp", "Scaler"])
    assert result.low == {"w"} and result.casts == ["w>float32", "x>float16"]


def test_operators_of_the_training_domain() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "ai.onnx.preview.training" : 1]>
      g (float r, int64 t, float[4] x, float[4] d, float[4] v) => (float[4] y, float[4] u) { [w] w = Exp(x)
      [m] y, u = ai.onnx.preview.training.Momentum<
        alpha=0.9, beta=1.0, mode="standard", norm_coefficient=0.001>(r, t, w, d, v) }"""
    result = case(text, runtime=False, white=["Exp", "Momentum"])
    assert result.low == {"w"} and result.casts == ["w>float32", "x>float16"]
