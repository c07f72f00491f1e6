"""Test that unknown types are proven by the tensors around them (Rules S4.12 and S4.39)."""

from __future__ import annotations

import onnx
import pytest
from hypothesis import given, settings

from mixlist.model import build, dtypes
from mixlist.model.build import build_graph
from mixlist.model.graph import Graph, Node
from tests.support.builders import model
from tests.support.graphs import Case, cases
from tests.test_properties import EXAMPLES

HEAD = '<ir_version: 8, opset_import: ["" : 17, "c" : 1, "f" : 1, "com.microsoft" : 1]>\n'
WEIGHT = "<float[2,2] w = {1,2,3,4}, int64 n = {3}, bool go = {1}>"


def types_in(text: str, hints: dict[str, dtypes.Type] | None = None) -> dict[str, str]:
    """Return the types by tensor name, of the main graph and its bodies."""
    return type_names(build_graph(model(HEAD + text, check=False), hints, allow_clashes=True))


def type_names(graph: Graph) -> dict[str, str]:
    return {value.name: dtypes.type_name(value.type) for value in graph.values}


@pytest.mark.parametrize(
    ("body", "proven"),
    [
        ("u = c.Foo(x) y = MatMul(u, w)", "u y"),
        ("u = c.Foo(x) a = Relu(u) b = Neg(a) y = MatMul(b, w)", "u a b y"),
        ("u = c.Foo(x) v = c.Foo(u) a = Add(u, v) b = Mul(v, w) y = Neg(a)", "u v a b y"),
        ("u = c.Foo(x) a = Relu(u) y = Exp(a) b = MatMul(a, w)", "u a y b"),
        ("u = c.Foo(x) s = SequenceConstruct(u, w) v = c.Foo(s) y = Add(v, w)", "v y"),
        ("u, k = c.Foo(x) y = com.microsoft.BiasGelu(u, w)", "u y"),
    ],
)
def test_a_type_parameter_proves_unknown_types(body: str, proven: str) -> None:
    """Rule S4.39: Unknown types are unified first."""
    tensor_types = types_in(f"g (float[2,2] x) => (y) {WEIGHT} {{ {body} }}")
    assert {name: tensor_types[name] for name in proven.split()} == dict.fromkeys(proven.split(), "float32")


def test_a_slot_that_admits_one_type_has_this_type() -> None:
    """Rule S4.39: Unknown types are unified first."""
    tensor_types = types_in("g (float[2,2] x) => (y) { u, v = c.Foo(x) a = Reshape(x, u) y = Where(v, a, a) }")
    assert (tensor_types["u"], tensor_types["v"], tensor_types["y"]) == ("int64", "bool", "float32")


def test_a_type_that_nothing_proves_stays_unknown() -> None:
    tensor_types = types_in("g (float[2,2] x) => (y) { u = c.Foo(x) a = Add(u, u) y = c.Foo(a) }")
    assert (tensor_types["u"], tensor_types["a"], tensor_types["y"]) == ("unknown", "unknown", "unknown")


def test_tensors_that_contradict_each_other_prove_nothing() -> None:
    text = "g (float[2,2] x, int64[2,2] k) => (y) { u = c.Foo(x) y = Sum(u, x, k) }"
    assert types_in(text)["u"] == "unknown"


@pytest.mark.parametrize(
    "body",
    [
        """y = If(go) <then_branch = t () => (p) { p = Relu(u) }, else_branch = e () => (q) { q = Mul(w, w) }>""",
        """z = Loop(n, go, u) <body = b (int64 i, bool c, s) => (bool c, t) { t = MatMul(s, w) }> y = Neg(z)""",
        """z = Loop(n, go, u) <body = b (int64 i, bool c, s) => (bool c, t) { t = c.Foo(s) }> y = MatMul(z, w)""",
        """z, o = Scan <num_scan_inputs = 1, body = b (s, r) => (t, k) { t = Identity(s) k = Add(r, s) }> (w, u)
           y = Neg(o)""",
    ],
)
def test_a_type_moves_into_and_out_of_a_body(body: str) -> None:
    """Rule S4.39: Unknown types are unified first."""
    tensor_types = types_in(f"g (float[2,2] x) => (y) {WEIGHT} {{ u = c.Foo(x) {body} }}")
    inside = {name: tensor_types[name] for name in tensor_types if name not in ("n", "go", "i", "c")}
    assert inside == dict.fromkeys(inside, "float32")


@pytest.mark.parametrize(
    ("producer", "body_node", "proven"),
    [("c.Foo(x)", "Neg(e)", "u"), ("SequenceConstruct(x)", "c.Foo(e)", "q")],
)
def test_a_type_moves_into_and_out_of_a_sequence_map(producer: str, body_node: str, proven: str) -> None:
    """Rule S4.39: such types go forward and back through nodes and control flow."""
    tensor_types = types_in(
        f"""g (float[2,2] x, bool c) => (y) {{
        u = {producer} q = SequenceMap(u) <body = b (e) => (t) {{ t = {body_node} }}>
        y = If(c) <then_branch = t () => (p) {{ p = Identity({proven}) }},
                   else_branch = e () => (k) {{ k = SequenceConstruct(x) }}> }}"""
    )
    assert [tensor_types[name] for name in "uqet"] == ["seq(float32)", "seq(float32)", "float32", "float32"]


def test_an_operator_whose_inference_crashes_without_types_is_read_by_its_schema() -> None:
    """ONNX's inference of these reads the type of an input that has none, and ends the process."""
    head = '<ir_version: 10, opset_import: ["" : 21, "c" : 1, "ai.onnx.ml" : 3]>'
    text = """g (float[2,2] x) => (y) { u, v, w = c.Foo(x) e = EyeLike<dtype = 1>(u)
      m = RegexFullMatch<pattern = "a">(v) d = ai.onnx.ml.DictVectorizer<string_vocabulary = ["a"]>(w) y = Not(m) }"""
    tensor_types = type_names(build_graph(model(head + text, check=False)))
    assert (tensor_types["e"], tensor_types["d"], tensor_types["m"], tensor_types["y"]) == (
        "unknown",
        "unknown",
        "bool",
        "bool",
    )


def test_hints_and_declarations_come_first() -> None:
    """Rule S4.12: Types that no schema gives come from hints and declarations."""
    body = "{ u = c.Foo(x) a = Neg(u) y = c.Foo(a) }"
    assert types_in(f"g (float[2,2] x) => (y) <double[2,2] u> {body}")["a"] == "float64"
    assert types_in(f"g (float[2,2] x) => (y) <double[2,2] u> {body}", {"u": dtypes.FLOAT16})["a"] == "float16"


@pytest.mark.parametrize("version", [11, 13, 17])
def test_an_operator_of_onnx_runtime_in_the_standard_domain_has_a_schema(version: int) -> None:
    """Rule S4.39: Unknown types are unified first."""
    head = f'<ir_version: 7, opset_import: ["" : {version}, "c" : 1]>'
    text = "g (float[2,4] x, float[4] s) => (y) { u = c.Foo(x) a = SimplifiedLayerNormalization(u, s) y = Neg(a) }"
    graph = build_graph(model(head + text, check=False))
    tensor_types = type_names(graph)
    assert (tensor_types["a"], tensor_types["y"]) == ("float32", "float32")
    assert graph.nodes[1].signature is not None and graph.nodes[1].signature.schema is not None


def custom_inputs(original: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy with a custom operator behind each float input of the graph; nothing declares its output type."""
    copy = onnx.ModelProto()
    copy.CopyFrom(original)
    copy.opset_import.add(domain="c", version=1)
    del copy.graph.value_info[:]
    floats = [i.name for i in copy.graph.input if i.type.tensor_type.elem_type in dtypes.MIXABLE]
    for index, name in enumerate(set(floats) - {tensor.name for tensor in copy.graph.initializer}):
        for graph_input in copy.graph.input:
            if graph_input.name == name:
                graph_input.name = f"input_{index}"
        node = onnx.helper.make_node("Foo", [f"input_{index}"], [name], domain="c")
        copy.graph.node.insert(0, node)
    return copy


@settings(max_examples=EXAMPLES // 4, deadline=None, derandomize=True)
@given(cases())
def test_proven_types_are_right(case: Case) -> None:
    """Rule S4.39: a proven type is the type of the value in the model where every type is known."""
    right, proven = type_names(build_graph(case.model)), type_names(build_graph(custom_inputs(case.model)))
    wrong = {name: (proven[name], right[name]) for name in right if proven.get(name) not in ("unknown", right[name])}
    assert not wrong


def test_the_time_is_linear(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each node is visited a few times, though the type is proven at the end of the chain."""
    length, visits = 1000, []
    nodes = [onnx.helper.make_node("Foo", ["x"], ["t0"], domain="c")]
    nodes += [onnx.helper.make_node("Add", [f"t{i}", f"t{i}"], [f"t{i + 1}"]) for i in range(length)]
    nodes.append(onnx.helper.make_node("MatMul", [f"t{length}", "w"], ["y"]))
    weight = onnx.helper.make_tensor("w", onnx.TensorProto.FLOAT, [1, 1], [1.0])
    graph_input = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 1])
    graph = onnx.helper.make_graph(nodes, "g", [graph_input], [onnx.ValueInfoProto(name="y")], [weight])
    imports = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("c", 1)]

    retype = build._type_node_again

    def retype_and_count(graph: Graph, node: Node) -> None:
        visits.append(node)
        retype(graph, node)

    monkeypatch.setattr(build, "_type_node_again", retype_and_count)
    built = build_graph(onnx.helper.make_model(graph, opset_imports=imports))
    assert all(value.type == dtypes.FLOAT for value in built.values)
    assert len(visits) <= 4 * length
