"""Opsets from 7 to the newest one of ONNX Runtime, bfloat16 at each of them, and conversion to another opset."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import mixlist
from mixlist.errors import ModelError, UsageError
from mixlist.model.onnx_conversion import convert_opset, inline_functions
from mixlist.model.schema import next_opset_allowing
from tests.support.builders import model, policy
from tests.support.contract import check_contract
from tests.support.rewriter_cases import case
from tests.support.versions import newest_opset

LISTS = {"white": ["MatMul"], "black": ["Softmax"]}
NEWEST = min(26, newest_opset())  # ONNX Runtime 1.31 reads opset 26, older versions end earlier

NET = """<ir_version: {ir}, opset_import: ["" : {opset}]>
g (float[2,4] x) => (float[2,4] y, float[2,4] z) <float[4,4] w = {{{w}}}, float[4] b = {{1,2,3,4}}> {{
  [m] m = MatMul(x, w) [a] a = Add(m, b) [r] r = Relu(a) [d] d = Dropout(r) [t] t = Transpose<perm=[1,0]>(d)
  [u] u = Transpose<perm=[1,0]>(t) [s] y = Softmax<axis=1>(u) [n] n = Mul(r, r) [c] c = Concat<axis=0>(n, n)
  [k] k = Sigmoid(n) [z] z = Sub(k, x) }}"""


@pytest.mark.parametrize("opset", range(7, NEWEST + 1))
def test_a_small_net_at_every_opset(opset: int) -> None:
    text = NET.format(ir=3 if opset < 9 else 8, opset=opset, w=",".join(["0.5"] * 16))
    if opset < 9:  # IR 3: initializers are inputs
        text = text.replace("(float[2,4] x)", "(float[2,4] x, float[4,4] w, float[4] b)")
    result = case(text, feeds={"x": np.ones((2, 4))}, **LISTS)
    assert result.low == {"m", "a", "r", "d", "t", "u", "n", "c", "k", "z"}
    overridden = ["b>float16", "w>float16"] if opset < 9 else []
    assert result.casts == sorted([">z", "u>float32", "x>float16", *overridden])


@pytest.mark.parametrize("opset", range(13, NEWEST + 1))
def test_bfloat16_at_every_opset(opset: int) -> None:
    text = NET.format(ir=8, opset=opset, w=",".join(["0.5"] * 16))
    result = case(text, mode="mixed_bfloat16", **LISTS)
    assert result.low == {"m", "a", "r", "d", "t", "u", "n", "c", "k", "z"}


@pytest.mark.parametrize("opset", [1, 5, 6])
def test_opsets_below_7_are_refused_with_a_hint(opset: int) -> None:
    """Rule S7.15: before opset 6 a Cast names its type by a text."""
    proto = model(NET.format(ir=3, opset=opset, w=",".join(["0.5"] * 16)), check=False)
    with pytest.raises(ModelError, match=f"opset {opset}; mixlist handles opsets from 7 on") as error:
        mixlist.resolve(proto, policy(**LISTS))
    assert "--opset" in (error.value.hint or "")


OLD_FUNCTION = """<ir_version: 8, opset_import: ["" : 17, "f" : 1]> g (float[4] x) => (float[4] y) { y = f.F(x) }
  <domain: "f", opset_import: ["" : OPSET]> F (a) => (b) { c = Elu(a) BODY }"""


def test_a_function_of_another_opset_is_not_inlined() -> None:
    proto = model(OLD_FUNCTION.replace("OPSET", "6").replace("BODY", "b = Selu(c)"), check=False)
    with pytest.raises(
        ModelError, match="onnx cannot inline f:F: the opset is another one than that of the model"
    ) as error:
        inline_functions(proto)
    assert "leave out inline_functions=" in (error.value.hint or ""), error.value


def test_the_functions_of_an_invalid_model_are_not_inlined() -> None:
    invalid = model(OLD_FUNCTION.replace("OPSET", "5").replace("BODY", "b = Exp(c)"), check=False)
    with pytest.raises(ModelError, match="the model is not valid") as error:  # Elu is another operator at opset 17
        inline_functions(invalid)
    assert not error.value.hint


def test_a_model_below_opset_7_can_be_converted_and_then_resolved() -> None:
    text = """<ir_version: 3, opset_import: ["" : 5]> g (float[4] x) => (float[4] y) { t = Exp(x) y = Sigmoid(t) }"""
    assert case(convert_opset(model(text, check=False), 13), white=["Exp"]).low == {"Exp_0", "Sigmoid_0"}


def test_before_opset_13_nothing_knows_bfloat16_and_the_reason_says_since_when() -> None:
    text = NET.format(ir=7, opset=12, w=",".join(["0.5"] * 16))
    result = case(text, mode="mixed_bfloat16", white=["MatMul", "Add"])
    assert not result.low and not result.casts
    assert (result.nodes["m"].rule, result.nodes["r"].rule) == ("schema", "follow")
    assert "opset 13 would allow it" in result.nodes["m"].reason


def test_slots_without_bfloat16_stay_high_among_low_ones() -> None:
    """CumSum learned bfloat16 with opset 14."""
    text = """<ir_version: 8, opset_import: ["" : 13]> g (float[4] x) => (float[4] y) <int64 a = {0}> {
      [m] m = Add(x, x) [c] c = CumSum(m, a) [n] y = Mul(m, c) }"""
    result = case(text, mode="mixed_bfloat16", white=["Add", "CumSum"])
    assert result.low == {"m", "n"}
    assert result.casts == [">y", "c>bfloat16", "m>float32", "x>bfloat16"]
    assert "opset 14 would allow it" in result.nodes["c"].reason


@pytest.mark.parametrize(("opset", "carried"), [(13, "float32"), (16, "bfloat16")])
def test_control_flow_carries_bfloat16_only_where_its_schema_does(opset: int, carried: str) -> None:
    text = f"""<ir_version: 8, opset_import: ["" : {opset}]>
      g (float[4] x, int64 m) => (float[4] y) <bool go = {{1}}> {{
      [w] w = Exp(x) [l] z = Loop(m, go, w) <body = b (int64 i, bool c, float[4] s) => (bool d, float[4] t)
        {{ d = Identity(c) [t] t = Mul(s, s) }}> [n] y = Neg(z) }}"""
    result = case(text, mode="mixed_bfloat16", white=["Exp"])
    assert result.makes("l") == [carried]
    assert result.nodes["n"].precision == carried


# --- another opset, on request ---


def test_converting_first_lets_a_node_be_low() -> None:
    before = model("""<ir_version: 8, opset_import: ["" : 13]> g (float[4] x) => (float[4] y) <int64 a = {0}> {
      [m] m = Add(x, x) [c] y = CumSum(m, a) }""")
    rules = policy(mode="mixed_bfloat16", white=["Add", "CumSum"])
    converted = convert_opset(before, 14)
    plan = mixlist.resolve(converted, rules)
    result = mixlist.rewrite(converted, plan)
    check_contract(converted, result, plan)
    assert [n.precision for n in plan.nodes] == ["bfloat16", "bfloat16"]
    assert before.opset_import[0].version == 13  # untouched


def _function(proto: onnx.ModelProto) -> None:
    proto.opset_import.add(domain="f", version=1)
    function = helper.make_function(
        "f", "F", ["a"], ["b"], [helper.make_node("Relu", ["a"], ["b"])], [helper.make_opsetid("", 14)]
    )
    proto.functions.append(function)
    proto.graph.node[0].domain, proto.graph.node[0].op_type = "f", "F"


def _sparse(proto: onnx.ModelProto) -> None:
    values, indices = helper.make_tensor("k", 1, [1], [1.0]), helper.make_tensor("", 7, [1], [1])
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [4]))


CHANGES: dict[str, Callable[[onnx.ModelProto], object]] = {
    "model-local functions": _function,
    "quantization annotations": lambda p: p.graph.quantization_annotation.add(tensor_name="y"),
    "training information": lambda p: p.training_info.add(),
    "denotations": lambda p: setattr(p.graph.input[0].type, "denotation", "TENSOR"),
    "sparse initializers": _sparse,
}


@pytest.mark.parametrize("content", CHANGES)
def test_a_conversion_that_would_drop_content_is_refused(content: str) -> None:
    proto = model('<ir_version: 10, opset_import: ["" : 14]> g (float[4] x) => (float[4] y) { y = Relu(x) }')
    CHANGES[content](proto)
    with pytest.raises(ModelError, match=content):
        convert_opset(proto, 17)


def test_content_that_the_converter_keeps_is_not_refused() -> None:
    proto = model('<ir_version: 8, opset_import: ["" : 14]> g (float[4] x) => (float[4] y) { y = Relu(x) }')
    proto.doc_string = proto.graph.doc_string = proto.graph.node[0].doc_string = "kept"
    proto.metadata_props.add(key="author", value="somebody")
    converted = convert_opset(proto, 17)
    assert converted.opset_import[0].version == 17
    assert (converted.doc_string, converted.graph.node[0].doc_string) == ("kept", "kept")
    assert converted.metadata_props == proto.metadata_props


@pytest.mark.parametrize("opset", [6, 10_000])
def test_an_opset_that_cannot_be_is_wrong_usage(opset: int) -> None:
    with pytest.raises(UsageError, match=f"opset={opset}"):
        convert_opset(model("g (float[4] x) => (float[4] y) { y = Relu(x) }"), opset)


def test_an_opset_that_the_converter_cannot_reach() -> None:
    with pytest.raises(ModelError, match="cannot convert the model to opset 7"):
        convert_opset(model("g (float[4] x) => (float[4] y) { y = Relu(x) }"), 7)


def test_subgraphs_are_converted_too() -> None:
    proto = model("""<ir_version: 6, opset_import: ["" : 11]> g (float[1,4] x, bool c) => (float[4] y) {
      y = If(c) <then_branch = t () => (float[4] p) { p = Squeeze<axes=[0]>(x) },
                 else_branch = e () => (float[4] q) { q = Squeeze<axes=[0]>(x) }> }""")
    converted = convert_opset(proto, 13)
    onnx.checker.check_model(converted, full_check=True)
    assert case(converted, white=["Squeeze"]).low == {"If_0/then_branch/Squeeze_0", "If_0/else_branch/Squeeze_0"}
    assert converted.graph.input[0].type.tensor_type.elem_type == TensorProto.FLOAT


def test_no_opset_is_advised_if_only_inference_refuses() -> None:
    assert next_opset_allowing("", "Softmax", 11, 16) == 13
    assert next_opset_allowing("", "MeanVarianceNormalization", 17, 10) is None
