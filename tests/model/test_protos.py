"""Test that every walk visits the bodies in attributes of type GRAPH and GRAPHS, also nested and in functions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import GraphProto, ModelProto, TensorProto, helper, numpy_helper

import mixlist
from mixlist.benchmark.executed_graph import compare_graphs
from mixlist.checker.instrument import Instrumenter
from mixlist.errors import ModelError
from mixlist.model.build import build_graph
from mixlist.model.graph import linked_scopes, protos_by_scope
from mixlist.model.inferred_shapes import copy_without_weights
from mixlist.model.load import add_type_hints, load_model
from mixlist.model.naming import names_in
from mixlist.model.protos import bodies_of, names_read_by, nodes_in, scopes_in, tensors_in_model, walk_messages
from mixlist.model.shape_propagation import propagate_shapes
from tests.support.builders import model, policy
from tests.support.package import emulate

HEAD = '<ir_version: 10, opset_import: ["" : 19, "my.domain" : 1, "my.functions" : 1]>'
TEXT = f"""{HEAD} g (float[4] x, bool c) => (float[4] y) {{
  [e] e = Exp(x)
  [choose] q = my.domain.Choose(e)
  [if] i = If(c) <
    then_branch = t () => (float[4] u) {{ [inner] n = my.domain.Choose(e) [u] u = Neg(n) }},
    else_branch = f () => (float[4] v) {{ [v] v = Relu(e) }}>
  [call] z = my.functions.F(i)
  [l] y = Log(z) }}
<domain: "my.functions", opset_import: ["" : 18, "my.domain" : 1]> F (x) => (r) {{
  [fe] s = Exp(x) [fc] t = my.domain.Choose(s) [fl] r = Log(t) }}"""
DECIDED = policy(white=["Exp"], black=["Log", "Neg", "Relu"])
HOLDERS = ("choose", "inner", "fc")  # the nodes with bodies in an attribute of type GRAPHS


def body(name: str, tensor: str) -> GraphProto:
    """Return a body with a node that makes ``tensor`` and a node that has another body."""
    output_info = helper.make_tensor_value_info(f"{name}_out", TensorProto.FLOAT, [4])
    deepest = helper.make_graph([helper.make_node("Neg", ["x"], [f"{tensor}_deep"])], f"{name}_deep", [], [output_info])
    deepest.output[0].name = f"{tensor}_deep"
    weight = numpy_helper.from_array(np.arange(4, dtype=np.float32), f"{name}_weight")
    nodes = [
        helper.make_node("Add", ["x", f"{name}_weight"], [tensor], name=f"{name}_add"),
        helper.make_node("Choose", [tensor], [f"{name}_out"], name=f"{name}_choose", domain="my.domain", one=deepest),
    ]
    return helper.make_graph(nodes, name, [], [output_info], [weight])


def example(tensor: str = "b") -> ModelProto:
    """Return TEXT with two bodies in an attribute of type GRAPHS of each holder; the bodies make ``tensor``."""
    proto = model(TEXT, check=False)
    for node in list(all_nodes(proto)):
        if node.name in HOLDERS:
            graphs = [body(f"{node.name}_{k}", tensor if k == 0 else f"{tensor}_{k}") for k in range(2)]
            node.attribute.append(helper.make_attribute("several", graphs))
    return proto


def all_nodes(proto: ModelProto) -> list[onnx.NodeProto]:
    """Return the nodes of the main graph and of the functions, with those of all bodies."""
    return list(nodes_in(proto.graph, *proto.functions))


def all_graphs(proto: ModelProto) -> list[GraphProto]:
    """Return the main graph and all bodies, also those in functions."""
    return [m for m in walk_messages(proto.graph, *proto.functions) if isinstance(m, GraphProto)]


def by_name(proto: ModelProto, name: str) -> onnx.NodeProto:
    """Return the node with this name."""
    return next(node for node in all_nodes(proto) if node.name == name)


# --- the walks ---


def test_walks_follow_the_order_of_the_file() -> None:
    proto = example()
    assert [graph.name for graph in bodies_of(by_name(proto, "choose"))] == ["choose_0", "choose_1"]
    assert [graph.name for graph in bodies_of(by_name(proto, "if"))] == ["t", "f"]
    main = ["g", "choose_0", "choose_0_deep", "choose_1", "choose_1_deep", "t", "inner_0", "inner_0_deep"]
    main += ["inner_1", "inner_1_deep", "f"]
    assert [scope.name for scope in scopes_in(proto.graph)] == main
    function = ["fc_0", "fc_0_deep", "fc_1", "fc_1_deep"]
    assert [scope.name for scope in all_graphs(proto)] == [*main, *function]
    named = [node.name for node in nodes_in(proto.graph) if node.name]
    assert named[:6] == ["e", "choose", "choose_0_add", "choose_0_choose", "choose_1_add", "choose_1_choose"]
    assert named[-4:] == ["u", "v", "call", "l"]


def test_a_model_without_nodes_has_one_scope() -> None:
    proto = ModelProto()
    assert len(all_graphs(proto)) == 1 and not all_nodes(proto)


def nested(depth: int, several: bool) -> ModelProto:
    """Return a model of bodies in bodies; ``several``: in attributes of type GRAPHS instead of GRAPH."""
    graph = GraphProto(name="0", node=[helper.make_node("Neg", ["x"], ["y0"], name="n0")])
    for level in range(1, depth):
        node = helper.make_node("Custom", [], [f"y{level}"], name=f"n{level}", domain="my.domain")
        attribute = node.attribute.add(name="body", type=10 if several else 5)
        if several:
            attribute.graphs.append(graph)
        else:
            attribute.g.CopyFrom(graph)
        graph = GraphProto(name=str(level), node=[node])
    return ModelProto(graph=graph)


@pytest.mark.parametrize("several", [False, True])
def test_a_deeply_nested_model(several: bool) -> None:
    proto = nested(30, several)  # protobuf reads messages nested up to 100 deep: three for each body
    assert [scope.name for scope in all_graphs(proto)] == [str(level) for level in reversed(range(30))]
    assert [node.name for node in all_nodes(proto)] == [f"n{level}" for level in reversed(range(30))]
    assert {f"y{level}" for level in range(30)} <= set(names_in(proto.graph))


def test_linked_scopes_and_their_messages() -> None:
    proto = example()
    graph = build_graph(proto)
    copy = ModelProto.FromString(proto.SerializeToString())
    messages = protos_by_scope(graph.root, copy.graph)
    assert [message.name for message in messages.values()] == ["g", "t", "f"]
    assert list(messages) == list(linked_scopes(graph.root))
    assert all(message is not scope.proto and message == scope.proto for scope, message in messages.items())


# --- the code that uses the walks ---


def test_counts_of_nodes_include_bodies() -> None:
    proto = example()
    nodes_per_body = len(["add", "choose", "deep"])
    assert len(all_nodes(proto)) == 8 + 3 + 2 * nodes_per_body * len(HOLDERS)
    changes = compare_graphs(proto, proto)
    assert changes.nodes == changes.optimised_nodes == len(all_nodes(proto)) - 3 - 2 * nodes_per_body


def test_a_new_tensor_gets_no_name_of_a_tensor_in_a_body() -> None:
    used_name = "e_float32"

    def cast_outputs(proto: ModelProto) -> set[str]:
        mixed = mixlist.rewrite(proto, mixlist.resolve(proto, DECIDED)).model
        return {name for node in all_nodes(mixed) if node.op_type == "Cast" for name in node.output}

    assert used_name in cast_outputs(example())
    new_names = cast_outputs(example(used_name))
    assert not {used_name, f"{used_name}_1", f"{used_name}_deep"} & new_names
    assert f"{used_name}_2" in new_names


@pytest.mark.parametrize("used_name", ["e_exact", "e_minimum"])
def test_a_statistic_gets_no_name_of_a_tensor_in_a_body(used_name: str) -> None:
    def instrumented_tensors(proto: ModelProto) -> set[str]:
        mixed = mixlist.rewrite(proto, mixlist.resolve(proto, DECIDED)).model
        rounded = emulate(load_model(mixed))
        assert holders(rounded) == holders(proto)
        return {name for node in Instrumenter(rounded).run().proto.graph.node for name in node.output}

    assert used_name in instrumented_tensors(example())
    new_names = instrumented_tensors(example(used_name))
    assert used_name not in new_names and f"{used_name}_2" in new_names


def holders(proto: ModelProto) -> dict[str, list[str]]:
    """Return the names of the bodies of each node with an attribute of type GRAPHS."""
    return {node.name: [graph.name for graph in bodies_of(node)] for node in all_nodes(proto) if node.name in HOLDERS}


def test_weights_in_bodies_become_external_and_inline_again(tmp_path: Path) -> None:
    proto = example()
    names = sorted(f"{holder}_{k}_weight" for holder in HOLDERS for k in range(2))
    assert sorted(tensor.name for tensor in tensors_in_model(proto)) == names
    for tensor in tensors_in_model(proto):  # large enough to leave the model
        tensor.CopyFrom(numpy_helper.from_array(np.full(1024, len(tensor.name), np.float32), tensor.name))
    (tmp_path / "external").mkdir()
    result = mixlist.rewrite(proto, mixlist.resolve(proto, DECIDED))
    result.save(tmp_path / "external" / "out.onnx", external_data="yes")
    external_path = tmp_path / "external" / "out.onnx"
    external = onnx.load(external_path, load_external_data=False)
    assert all(tensor.data_location == TensorProto.EXTERNAL for tensor in tensors_in_model(external))
    result = mixlist.rewrite(external_path, mixlist.resolve(external_path, DECIDED))
    result.save(tmp_path / "inline.onnx", external_data="no")
    inline = list(tensors_in_model(onnx.load(tmp_path / "inline.onnx", load_external_data=False)))
    assert sorted(tensor.name for tensor in inline) == names
    assert all((numpy_helper.to_array(tensor) == len(tensor.name)).all() for tensor in inline)


def declare(proto: ModelProto) -> None:
    """Declare a shape in every scope."""
    for scope in all_graphs(proto):
        scope.value_info.append(helper.make_tensor_value_info("declared", TensorProto.FLOAT, [-1, "n"]))


def test_a_copy_for_shape_inference_has_no_declared_shapes_in_bodies() -> None:
    proto = example()
    declare(proto)
    assert all(not scope.value_info for scope in scopes_in(copy_without_weights(proto, keep_declared=False).graph))
    for scope in scopes_in(copy_without_weights(proto).graph):
        (value_info,) = scope.value_info
        assert not value_info.type.tensor_type.shape.dim[0].HasField("dim_value")


def test_shapes_of_a_graph_with_bodies_are_found() -> None:
    proto = example()
    declare(proto)
    graph = build_graph(proto)
    known_shapes = propagate_shapes(graph, {"n": 3}, {})
    assert {name: known_shapes.shape_of(graph.root.values[name]) for name in ("x", "e", "q")} == {
        "x": (4,),
        "e": (4,),
        "q": None,
    }


def test_type_hints_are_declared_in_bodies() -> None:
    hinted = add_type_hints(load_model(example()), {"b_deep": "float16", "b": "float32"}).proto
    declared = {scope.name: sorted(value_info.name for value_info in scope.value_info) for scope in all_graphs(hinted)}
    for holder in ("choose", "inner"):
        assert declared[f"{holder}_0"] == ["b"] and declared[f"{holder}_1"] == []
    assert declared["g"] == [] and declared["inner_0_deep"] == []  # the output of a graph has a type already
    assert declared["fc_0"] == []  # nothing in a function is read or declared


@pytest.mark.parametrize("body_name", ["inner_1_deep", "fc_0"])
def test_an_invalid_tensor_in_a_body_is_refused(body_name: str) -> None:
    proto = example()
    graph = next(scope for scope in all_graphs(proto) if scope.name == body_name)
    assert isinstance(graph, GraphProto)
    graph.initializer.append(TensorProto(name="bad", data_type=99))
    with pytest.raises(ModelError, match="'bad' has element type 99"):
        load_model(proto)


def test_names_read_by_a_node_include_its_bodies() -> None:
    assert {"e", "x", "b", "choose_0_weight", "b_1_deep"} <= set(names_read_by(by_name(example(), "choose")))
