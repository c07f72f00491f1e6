"""Constants, in all ways in which a model can hold them: converted and not cast, once per type that is read."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import mixlist
from mixlist.write import rewrite_in_place
from tests.support.builders import model, policy
from tests.support.mask_cases import WHERE, WHITE_WITH_SOFTMAX
from tests.support.rewriter_cases import case
from tests.support.scopes import dtype_name

LISTS = {"white": ["Exp"], "black": ["Log"]}
X = {"x": [0.5, 1.0, 1.5, 2.0]}
VALUES = [1.5, 2.5]


def sparse(name: str, values: Iterable[float] = VALUES) -> onnx.SparseTensorProto:
    """Return [0, 1.5, 0, 2.5] as a sparse tensor."""
    stored_values = list(values)
    return helper.make_sparse_tensor(
        helper.make_tensor(name, TensorProto.FLOAT, [2], stored_values),
        helper.make_tensor("", TensorProto.INT64, [2], [1, 3]),
        [4],
    )


def with_constant(node: onnx.NodeProto, *readers: str) -> onnx.ModelProto:
    """Return a model with w = Exp(x), c made by ``node``, and one output per reader of these."""
    size = 2 if node.attribute[0].name in ("value", "value_floats") else 4
    outputs = ", ".join(f"float[{size}] y{k}" for k, _ in enumerate(readers))
    body = " ".join(f"[n{k}] y{k} = {reader}" for k, reader in enumerate(readers))
    proto = model(f"g (float[{size}] x) => ({outputs}) {{ c = Constant<value_float=1.0>() [w] w = Exp(x) {body} }}")
    proto.graph.node[0].CopyFrom(node)
    return proto


def constant_values(proto: onnx.ModelProto) -> dict[str, tuple[str, list[float]]]:
    """Return type and values of each Constant of the main graph; of sparse ones the stored values."""
    constants = {}
    for node in proto.graph.node:
        if node.op_type == "Constant":
            attribute = node.attribute[0]
            if attribute.name == "value_float":
                constants[node.output[0]] = ("float32", [attribute.f])
            elif attribute.name == "value_floats":
                constants[node.output[0]] = ("float32", list(attribute.floats))
            else:
                tensor = attribute.t if attribute.name == "value" else attribute.sparse_tensor.values
                array = numpy_helper.to_array(tensor).astype(np.float64)
                constants[node.output[0]] = (dtype_name(tensor.data_type), array.ravel().tolist())
    return constants


FORMS = {
    "value": (helper.make_node("Constant", [], ["c"], value=helper.make_tensor("t", 1, [2], [1.5, 2.5])), VALUES),
    "value_float": (helper.make_node("Constant", [], ["c"], value_float=1.5), [1.5]),
    "value_floats": (helper.make_node("Constant", [], ["c"], value_floats=[1.5, 2.5]), VALUES),
    "sparse_value": (helper.make_node("Constant", [], ["c"], sparse_value=sparse("")), VALUES),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_constant_that_only_low_nodes_read_is_converted_in_place(form: str) -> None:
    node, values = FORMS[form]
    result = case(with_constant(node, "Mul(w, c)"), check=False, **LISTS)
    assert constant_values(result.after) == {"c": ("float16", values)}
    assert result.casts == [">y0", "x>float16"]


@pytest.mark.parametrize("form", FORMS)
def test_a_constant_that_both_sides_read_exists_in_both_types(form: str) -> None:
    """Rule S7.6: A constant exists once per type that is read."""
    node, values = FORMS[form]
    result = case(with_constant(node, "Mul(w, c)", "Sub(x, c)"), check=False, **LISTS)
    assert constant_values(result.after) == {"c": ("float32", values), "c_float16": ("float16", values)}
    assert result.reads("n0") == ["float16", "float16"] and result.reads("n1") == ["float32", "float32"]
    assert result.casts == [">y0", "x>float16"]


@pytest.mark.parametrize("form", FORMS)
def test_a_constant_that_only_high_nodes_read_keeps_its_bytes(form: str) -> None:
    node, _ = FORMS[form]
    result = case(with_constant(node, "Sub(x, c)"), check=False, **LISTS)
    assert next(n for n in result.after.graph.node if n.op_type == "Constant") == node


def sparse_initializer(*readers: str) -> onnx.ModelProto:
    """Return the model of ``with_constant`` with c as a sparse initializer."""
    proto = with_constant(FORMS["value_float"][0], *readers)
    del proto.graph.node[0]
    proto.graph.sparse_initializer.append(sparse("c"))
    return proto


def test_a_sparse_initializer_is_converted_in_place_or_copied() -> None:
    low = case(sparse_initializer("Mul(w, c)"), check=False, **LISTS).after.graph.sparse_initializer
    assert [(s.values.name, s.values.data_type) for s in low] == [("c", TensorProto.FLOAT16)]
    both = case(sparse_initializer("Mul(w, c)", "Sub(x, c)"), check=False, **LISTS)
    kinds = [(s.values.name, s.values.data_type) for s in both.after.graph.sparse_initializer]
    assert kinds == [("c", TensorProto.FLOAT), ("c_float16", TensorProto.FLOAT16)]
    assert both.casts == [">y0", "x>float16"]


def test_a_sparse_constant_out_of_range_keeps_its_reader_high() -> None:
    proto = sparse_initializer("Mul(w, c)")
    proto.graph.sparse_initializer[0].CopyFrom(sparse("c", [1.5, 1e6]))
    result = case(proto, check=False, **LISTS)
    assert result.nodes["n0"].rule == "constant" and result.casts == ["w>float32", "x>float16"]


def test_initializers_in_every_layout_of_numbers() -> None:
    text = """g (float[2] x) => (float[2] y) <float[2] a = {1.5, 2.5}> {
      [w] w = Exp(x) [m] m = Mul(w, a) [n] y = Mul(m, b) }"""
    proto = model(text.replace("Mul(m, b)", "Mul(m, a)"))
    proto.graph.node[2].input[1] = "b"
    proto.graph.initializer.append(numpy_helper.from_array(np.array(VALUES, np.float32), "b"))
    assert proto.graph.initializer[0].float_data and proto.graph.initializer[1].raw_data
    result = case(proto, feeds={"x": [1, 2]}, **LISTS)
    assert result.initializers() == {"a": "float16", "b": "float16"}
    assert [numpy_helper.to_array(t).tolist() for t in result.after.graph.initializer] == [VALUES, VALUES]


def test_a_copy_has_the_authored_values_if_the_model_is_rewritten_in_place() -> None:
    """Rules S4.36, S7.6: one reader wants the constant as it is, which becomes infinite, another one its mask."""
    text = WHERE.replace("=> (float[4,4] y)", "=> (float[4,4] y, float[4,4] z)").replace(" }", " z = Max(x, c) }")
    lists = policy(white=[*WHITE_WITH_SOFTMAX, "Max"], protect=["masks"], constants="ieee")
    result = rewrite_in_place(mixlist.resolve(model(text), lists))
    values = {tensor.name: float(numpy_helper.to_array(tensor)) for tensor in result.proto.graph.initializer}
    assert values == {"c": -np.inf, "c_mask_float16": -32752.0}


def test_a_low_constant_in_int32_data_is_raised_for_a_high_node() -> None:
    text = """g (float16[2] x) => (float16[2] y) <float16[2] a = {3, 5}> { [w] y = Add(x, a) }"""
    result = case(text, mode="cube_fp16in_fp32out")
    assert result.initializers() == {"a": "float32"}
    assert numpy_helper.to_array(result.after.graph.initializer[0]).tolist() == [3.0, 5.0]
    assert result.casts == [">y", "x>float32"]


def test_a_constant_that_a_node_computes_is_cast() -> None:
    """A gray node with only constant inputs keeps its type. Its result is no initializer, so it needs a Cast."""
    text = """g (float[4] x) => (float[4] y) <float[4] k = {1,2,3,4}> {
      [r] r = Relu(k) [w] w = Exp(x) [m] y = Mul(w, r) }"""
    result = case(text, feeds=X, **LISTS)
    assert result.low == {"w", "m"} and result.casts == [">y", "r>float16", "x>float16"]


def test_zero_size_constants_and_inputs() -> None:
    text = """g (float[0,4] x) => (float[0,4] y, float[0] z) <float[0,4] k = {}, float[0] e = {}> {
      [w] w = Exp(x) [a] y = Add(w, k) [b] z = Exp(e) }"""
    result = case(text, feeds={"x": np.zeros((0, 4))}, **LISTS)
    assert result.low == {"w", "a", "b"}
    assert result.initializers() == {"k": "float16", "e": "float16"}


def test_one_constant_in_two_slots_of_a_node_that_want_two_types() -> None:
    text = (
        "g (float[1,1,2,2] x) => (float[1,1,N,M] y) <float[4] s = {1,1,2,2}> { [w] w = Exp(x) [z] y = Resize(w, s, s) }"
    )
    result = case(text, runtime=False, **LISTS)
    assert result.reads("z") == ["float16", "float16", "float32"]
    assert result.initializers() == {"s": "float32", "s_float16": "float16"}


def test_special_values_survive() -> None:
    proto = model("g (float[6] x) => (float[6] y) <float[6] k = {1,2,3,4,5,6}> { [w] w = Exp(x) [a] y = Add(w, k) }")
    special = np.array([-0.0, 0.0, np.inf, -np.inf, np.nan, 6e-8], np.float32)
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(special, "k"))
    result = case(proto, **LISTS)
    half = numpy_helper.to_array(result.after.graph.initializer[0])
    assert half.dtype == np.float16
    assert np.signbit(half[0]) and not np.signbit(half[1])
    assert half[2] == np.inf and half[3] == -np.inf and np.isnan(half[4]) and half[5] == np.float16(6e-8)


@pytest.mark.parametrize(
    ("constants", "low", "value"), [("keep", False, 1e6), ("ieee", True, np.inf), ("clamp", True, 65504.0)]
)
def test_a_constant_that_overflows_is_kept_or_converted_by_the_policy(constants: str, low: bool, value: float) -> None:
    """Rule S4.19: ieee and clamp convert every constant."""
    text = "g (float[4] x) => (float[4] y) <float[4] k = {1,2,3,1000000}> { [w] w = Exp(x) [m] y = Mul(w, k) }"
    result = case(text, constants=constants, **LISTS)
    assert ("m" in result.low) is low
    assert numpy_helper.to_array(result.after.graph.initializer[0])[3] == value


def test_in_ascend_names_constants_are_clamped_by_default(tmp_path: Path) -> None:
    """Rule S4.19: ``--is_weight_clip`` of atc is on by default; it keeps no guard and no mask."""
    text = """g (float[4] x) => (float[4] y) <float[4] k = {1, 2, 3, 1000000}, float[1] e = {1e-12}> {
        [m] h = Mul(x, k) [a] g = Add(h, e) [d] y = Div(h, g) }"""
    source = model(text)
    source.graph.initializer.append(numpy_helper.from_array(np.array([-np.inf, 1, 2, 3], np.float32), "mask"))
    source.graph.node.append(helper.make_node("Add", ["y", "mask"], ["z"], "s"))
    source.graph.output[0].name = "z"
    (tmp_path / "lists.json").write_text('{"white-list": {"to-add": ["Mul", "Add", "RealDiv", "Div"]}}')
    for constants in (None, "clamp", "keep", "ieee"):
        lists = mixlist.load_policy("ascend310p", mixlist=tmp_path / "lists.json", constants=constants)
        plan = mixlist.resolve(source, lists)
        result = mixlist.rewrite(source, plan)
        values = {t.name: numpy_helper.to_array(t).tolist() for t in result.model.graph.initializer}
        low = {decision.name for decision in plan.nodes if decision.precision == "float16"}
        if constants == "keep":
            assert low == {"s"}
        else:
            assert low == {"m", "a", "d", "s"}
            largest = np.inf if constants == "ieee" else 65504.0
            assert values["k"][3] == largest and values["mask"][0] == -largest
    assert mixlist.load_policy("onnx").constants == "keep"


def test_an_epsilon_that_would_become_zero_keeps_its_node_high() -> None:
    text = "g (float[4] x) => (float[4] y) <float e = {1e-9}> { [w] w = Exp(x) [a] y = Add(w, e) }"
    result = case(text, **LISTS)
    assert result.nodes["a"].rule == "constant"
    assert case(text, constants="ieee", **LISTS).low == {"w", "a"}


@pytest.mark.parametrize("kind", ["loop", "if"])
def test_a_constant_out_of_range_that_control_flow_passes_on_is_not_converted(kind: str) -> None:
    """The initial value of a state, or the output of a branch, is converted only if it fits."""
    inner = {
        "loop": """[l] z = Loop(m, go, k) <body = b (int64 i, bool c, float[4] s) => (bool d, float[4] t)
          { d = Identity(c) [e] t = Exp(s) }>""",
        "if": """[l] z = If(go) <then_branch = b () => (float[4] p) { p = Identity(k) },
          else_branch = e () => (float[4] q) { [e] q = Exp(x) }>""",
    }[kind]
    text = f"""g (float[4] x, int64 m) => (float[4] y) <bool go = {{1}}, float[4] k = {{1,2,3,100000}}> {{
      {inner} [n] y = Neg(z) }}"""
    result = case(text, **LISTS)
    assert "n" not in result.low
    assert result.initializers()["k"] == "float32"


@pytest.mark.parametrize(("op", "is_reported"), [("Div", True), ("Mul", False)])
def test_zeros_before_an_operator_that_is_sensitive_to_them_are_reported(op: str, is_reported: bool) -> None:
    """Rule S7.8: a constant of several values is converted, even if one of them becomes zero."""
    numbers = ", ".join(["1e-9", *["1"] * 10])
    result = case(
        f"g (float[11] x) => (float[11] y) <float[11] k = {{{numbers}}}> {{ [n] y = {op}(x, k) }}", white=[op]
    )
    assert result.low == {"n"}
    warnings = mixlist.rewrite(result.before, result.plan).warnings
    messages = (
        ["1 of 11 nonzero values of constant 'k' became zero, and Div n reads the constant"] if is_reported else []
    )
    assert [(w.code, w.message) for w in warnings] == [("ML503", message) for message in messages]


def test_constants_of_one_name_are_reported_one_by_one() -> None:
    text = """g (float[4] x, bool c) => (float[4] y) { w = Exp(x)
      y = If(c) <then_branch = t () => (float[4] p) <float[4] k = {1,2,3,1000000}> { p = Mul(w, k) },
                 else_branch = e () => (float[4] q) <float[4] k = {1,2,3,4}> { q = Mul(w, k) }> }"""
    original = model(text, check=False)
    result = mixlist.rewrite(original, mixlist.resolve(original, policy(constants="ieee", **LISTS)))
    assert sorted((r.name, r.overflowed, r.max_abs) for r in result.constants)[-1] == ("k", 1, 1e6)
    assert len(result.constants) == 2
    assert any("'k' reaches 1e+06" in w.message for w in result.warnings)


def test_external_constants_of_one_name_are_reported_one_by_one(tmp_path: Path) -> None:
    """Both branches have a constant k; each is streamed and reported."""
    numbers = np.array([1, 2, 3, 1e6, 1, 2, 3, 4], np.float32)
    (tmp_path / "w.bin").write_bytes(numbers.tobytes())
    proto = model(
        """g (float[4] x, bool c) => (float[4] y) { w = Exp(x)
      y = If(c) <then_branch = t () => (float[4] p) <float[4] k = {1,2,3,4}> { p = Mul(w, k) },
                 else_branch = e () => (float[4] q) <float[4] k = {1,2,3,4}> { q = Mul(w, k) }> }""",
        check=False,
    )
    for attribute in proto.graph.node[1].attribute:
        tensor = attribute.g.initializer[0]
        tensor.ClearField("float_data")
        tensor.data_location = TensorProto.EXTERNAL
        offset = "0" if attribute.name == "then_branch" else "16"
        for key, value in (("location", "w.bin"), ("offset", offset), ("length", "16")):
            tensor.external_data.add(key=key, value=value)
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    plan = mixlist.resolve(tmp_path / "m.onnx", policy(constants="ieee", **LISTS))
    result = mixlist.rewrite(tmp_path / "m.onnx", plan)
    result.save(tmp_path / "out.onnx")
    assert sorted((r.name, r.overflowed) for r in result.constants) == [("k", 0), ("k", 1)]


@pytest.mark.parametrize(
    ("last", "body", "elem"), [(4, "Mul(w, s)", "float16"), (1e6, "Mul(w, s)", "float32"), (4, "Log(s)", "float32")]
)
def test_a_constant_scan_input_is_converted_and_not_cast_slice_by_slice(last: float, body: str, elem: str) -> None:
    text = f"""g (float[2,4] x) => (float[2,4] z) <float[2,4] k = {{1,2,3,4,1,2,3,{last}}}> {{
      [s] z = Scan<num_scan_inputs=2, body = b (float[4] r, float[4] s) => (float[4] t) {{
        [w] w = Exp(r) [m] t = {body} }}>(x, k) }}"""
    result = case(text, feeds={"x": [[0.1] * 4] * 2} if last == 4 else None, **LISTS)
    assert result.initializers() == {"k": elem}
    assert ("s/body: s>float16" in result.casts) is (last != 4)  # a constant that does not fit is cast in the body


def test_a_constant_that_only_readers_of_every_type_read_is_kept() -> None:
    text = """g (float[4] x) => (float[4] y) <float[4] k = {1, 2, 3, 4}> {
      [s] s = Shape(k) [w] w = Exp(x) [y] y = Expand(w, s) }"""
    result = case(text, feeds={"x": [0.5, 1.0, 1.5, 2.0]}, white=["Exp"])
    assert [(t.name, t.data_type) for t in result.after.graph.initializer] == [("k", TensorProto.FLOAT)]
