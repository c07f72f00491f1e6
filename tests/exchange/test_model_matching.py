"""Nodes of two models are matched by their name, their output or their place, and never guessed (Rule S11.1)."""

from __future__ import annotations

import onnx
import pytest

from mixlist.exchange.model_matching import match_models
from mixlist.model.naming import node_ref
from tests.support.builders import model
from tests.support.package import build_graph
from tests.support.scopes import subgraphs

PROJECTIONS = """
g (float[2, 4] x) => (float[2, 2] y)
<float[4, 4] a = {1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4},
 float[4, 4] b = {2, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4}>
{ [query] q = MatMul(x, a) [key] k = MatMul(x, b) [turn] t = Transpose <perm = [1, 0]> (k) [scores] y = MatMul(q, t) }
"""


def match(original: onnx.ModelProto, mixed: onnx.ModelProto) -> dict[str, str]:
    """Return the names of the matched nodes, by the name of the node of the original."""
    first, second = build_graph(original), build_graph(mixed)
    names: dict[str, str] = {}
    for node, partner in match_models(first, second).partners.items():
        names[str(node_ref(node))] = str(node_ref(partner))
    return names


def forget_names(proto: onnx.ModelProto, *, constants: bool = True) -> onnx.ModelProto:
    """Return a copy in which all nodes and all inner tensors have other names; the interface stays."""
    renamed = onnx.ModelProto()
    renamed.CopyFrom(proto)
    kept = {info.name for info in (*proto.graph.input, *proto.graph.output)}
    kept |= set() if constants else {tensor.name for tensor in proto.graph.initializer}
    pending = [renamed.graph]
    while pending:
        graph = pending.pop()
        for tensor in graph.initializer:
            tensor.name = tensor.name if tensor.name in kept else f"new_{tensor.name}"
        for node in graph.node:
            node.name = ""
            node.input[:] = [name if name in kept or not name else f"new_{name}" for name in node.input]
            node.output[:] = [name if name in kept or not name else f"new_{name}" for name in node.output]
            pending.extend(body for _, body in subgraphs(node))
        if graph is not renamed.graph:
            for info in (*graph.input, *graph.output):
                info.name = f"new_{info.name}"
    return renamed


def insert_casts(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy in which each output of a node is float16 and a Cast to float32 has its old name."""
    changed = onnx.ModelProto()
    changed.CopyFrom(proto)
    nodes = []
    for node in changed.graph.node:
        (output,) = node.output
        node.output[:] = [f"{output}_low"]
        down = onnx.helper.make_node("Cast", [f"{output}_low"], [f"{output}_half"], to=onnx.TensorProto.FLOAT16)
        nodes += [node, down, onnx.helper.make_node("Cast", [f"{output}_half"], [output], to=onnx.TensorProto.FLOAT)]
    changed.graph.ClearField("node")
    changed.graph.node.extend(nodes)
    return changed


def test_nodes_match_by_their_names_although_their_tensors_have_other_names() -> None:
    original = model("g (float[2] x) => (float[2] y) { [a] h = Exp(x) [b] y = Relu(h) }")
    mixed = model("g (float[2] x) => (float[2] y) { [a] other = Exp(x) [b] y = Relu(other) }")
    assert match(original, mixed) == {"a": "a", "b": "b"}


def test_one_name_of_two_operators_is_no_match() -> None:
    original = model("g (float[2] x) => (float[2] y) { [a] h = Exp(x) [b] y = Relu(h) }")
    mixed = model("g (float[2] x) => (float[2] y) { [b] h = Exp(x) [a] y = Relu(h) }")
    assert match(original, mixed) == {"a": "b", "b": "a"}  # by their outputs


def test_nodes_without_names_match_by_their_outputs_through_casts() -> None:
    original = model("g (float[2] x) => (float[2] y) { h = Exp(x) y = Relu(h) }")
    mixed = insert_casts(original)
    for number, node in enumerate(mixed.graph.node):
        node.name = f"named{number}"
    assert match(original, mixed) == {"Exp_0": "named0", "Relu_0": "named3"}


def test_nodes_match_by_their_place_if_no_name_is_left() -> None:
    original = model(
        "g (float[2] x) => (float[2] y) { [a] h = Exp(x) [b] i = Relu(h) [c] j = Exp(i) [d] y = Add(i, j) }"
    )
    assert match(original, forget_names(original)) == {"a": "Exp_0", "b": "Relu_0", "c": "Exp_1", "d": "Add_0"}


def test_attributes_tell_nodes_apart() -> None:
    original = model(
        "g (float[2, 2] x) => (float[2, 2] y)"
        " { [a] h = Softmax<axis=0>(x) [b] i = Softmax<axis=1>(x) [c] y = Sub(h, i) }"
    )
    swapped = model(
        "g (float[2, 2] x) => (float[2, 2] y) { i = Softmax<axis=1>(x) h = Softmax<axis=0>(x) y = Sub(h, i) }"
    )
    for node in swapped.graph.node[:2]:
        node.output[0] = f"new_{node.output[0]}"
    swapped.graph.node[2].input[:] = ["new_h", "new_i"]
    assert match(original, swapped) == {"a": "Softmax_1", "b": "Softmax_0", "c": "Sub_0"}


@pytest.mark.parametrize("constants", [True, False], ids=["renamed weights", "kept weights"])
def test_nodes_that_differ_in_weights_only_match_by_the_nodes_that_read_them(constants: bool) -> None:
    original = model(PROJECTIONS)
    mixed = forget_names(original, constants=constants)
    expected = {"query": "MatMul_0", "key": "MatMul_1", "turn": "Transpose_0", "scores": "MatMul_2"}
    assert match(original, mixed) == expected


def test_twins_that_nothing_tells_apart_do_not_match() -> None:
    original = model("g (float[2] x) => (float[2] y) { [a] h = Exp(x) [b] i = Exp(x) [c] y = Sum(h, i) }")
    mixed = model("g (float[2] x) => (float[2] y) { k = Exp(x) j = Exp(x) l = Sum(j, k) y = Neg(l) }")
    assert match(original, mixed) == {}


def test_a_node_that_is_missing_gives_no_wrong_match() -> None:
    original = model("g (float[2] x) => (float[2] y) { [inner] h = Relu(x) [outer] i = Relu(h) [last] y = Exp(i) }")
    mixed = model("g (float[2] x) => (float[2] y) { j = Relu(x) y = Exp(j) }")
    assert match(original, mixed) == {"inner": "Relu_0", "last": "Exp_0"}


def test_identities_and_casts_that_a_tool_removes_do_not_matter() -> None:
    original = model(
        "g (float[2] x) => (float[2] y) { [a] h = Identity(x) [b] i = Exp(h) [c] j = Identity(i) [d] y = Relu(j) }"
    )
    mixed = model("g (float[2] x) => (float[2] y) { k = Exp(x) y = Relu(k) }")
    assert match(original, mixed) == {"b": "Exp_0", "d": "Relu_0"}


def test_an_operator_that_a_converter_of_opsets_replaces_matches_by_its_names() -> None:
    original = model(
        '<ir_version: 8, opset_import: ["" : 9]> g (float[1, 1, 2, 2] x) => (float[1, 1, 4, 4] y)'
        " <float[4] s = {1, 1, 2, 2}> { [up] y = Upsample(x, s) }"
    )
    mixed = model(
        "g (float[1, 1, 2, 2] x) => (float[1, 1, 4, 4] y) <float[4] s = {1, 1, 2, 2}>"
        ' { [up] y = Resize<mode="nearest">(x, "", s) }'
    )
    assert match(original, mixed) == {"up": "up"}
    mixed.graph.node[0].name = "other"
    assert match(original, mixed) == {}


BRANCHES = """
g (bool c, float[2] x) => (float[2] y) {
    [if] y = If (c) <then_branch = t () => (float[2] a) { [in] a = Exp(x) },
                     else_branch = e () => (float[2] b) { [in] b = Relu(x) }>
}
"""


def test_bodies_match_with_the_node_that_has_them() -> None:
    original = model(BRANCHES)
    named = match(original, original)
    assert named == {name: name for name in ("if", "if/then_branch/in", "if/else_branch/in")}
    unnamed = match(original, forget_names(original))
    assert unnamed == {
        "if": "If_0",
        "if/then_branch/in": "If_0/then_branch/Exp_0",
        "if/else_branch/in": "If_0/else_branch/Relu_0",
    }


def test_large_models_are_matched_in_one_pass() -> None:
    """Every node of a chain without names reads only the node before it."""
    count = 3000
    operators = ["Exp", "Relu", "Neg"]
    nodes = [onnx.helper.make_node(operators[i % 3], [f"v{i}" if i else "x"], [f"v{i + 1}"]) for i in range(count)]
    ends = [onnx.helper.make_tensor_value_info(name, 1, [2]) for name in ("x", f"v{count}")]
    graph = onnx.helper.make_graph(nodes, "g", ends[:1], ends[1:])
    chain = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    assert len(match(chain, forget_names(chain))) == count
