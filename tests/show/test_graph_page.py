"""The data of the graph page: nodes, tensors, edges, Casts, groups, differences."""

from __future__ import annotations

from typing import Any

import onnx
import pytest

import mixlist
from mixlist.model.protos import nodes_in
from mixlist.show.graph_page import make_page_data
from tests.support.builders import loop_model, model, policy

IF_MODEL = """g (bool c, float[N, 4] x) => (float[N, 4] y) {
   [enc__Exp] e = Exp (x)
   [enc__MatMul] m = MatMul (e, w)
   [enc__If] i = If (c) <
     then_branch = t () => (float[N, 4] to) { [enc__Relu] to = Relu (m) },
     else_branch = f () => (float[N, 4] fo) { [inner] fo = Exp (m) }>
   [head__Add] a = Add (i, x)
   [head__Exp] y = Exp (a)
}"""


def if_model() -> onnx.ModelProto:
    built = model(IF_MODEL, check=False)
    for node in nodes_in(built.graph):
        if "__" in node.name:  # ONNX's parser allows no slashes in names
            node.name = "/" + node.name.replace("__", "/")
    built.graph.initializer.append(onnx.helper.make_tensor("w", 1, [4, 4], [0.5] * 16))
    onnx.checker.check_model(built, full_check=True)
    return built


def page_data(**lists: Any) -> dict[str, Any]:
    return make_page_data(mixlist.resolve(if_model(), policy(**lists)))


def rows(data: dict[str, Any], table: str) -> list[dict[str, Any]]:
    return [dict(zip(data[table], row, strict=True)) for row in zip(*data[table].values(), strict=True)]


@pytest.fixture
def data() -> dict[str, Any]:
    return page_data(white=["MatMul"], black=["Exp"])


def test_nodes_are_those_of_the_plan_and_the_terminals(data: dict[str, Any]) -> None:
    plan = mixlist.resolve(if_model(), policy(white=["MatMul"], black=["Exp"]))
    assert data["nodes"]["name"] == [node.name for node in plan.nodes] + ["c", "x", "y"]
    assert data["node_count"] == len(plan.nodes)
    assert data["input_count"] == 2
    for row, node in zip(rows(data, "nodes"), plan.nodes, strict=False):
        texts = [data["texts"][row[name]] for name in ("scope", "op", "list", "precision", "rule", "reason")]
        assert texts == [node.scope, node.op_type, node.list, node.precision, node.rule, node.reason]


def test_an_output_has_the_type_that_the_mixed_model_gives_it() -> None:
    data = page_data(white=["MatMul", "Exp"])
    row = rows(data, "nodes")[data["nodes"]["name"].index("y")]
    assert data["texts"][row["precision"]] == "float32"
    (edge,) = [edge for edge in rows(data, "edges") if data["nodes"]["name"][edge["node"]] == "y"]
    assert data["texts"][data["tensors"]["type"][edge["tensor"]]] == "float16"
    assert (edge["cast"], data["texts"][edge["type"]]) == (1, "float32")


def test_groups_follow_scopes_and_bodies(data: dict[str, Any]) -> None:
    groups = data["groups"]
    names = {
        name: groups["label"][group] for name, group in zip(data["nodes"]["name"], data["nodes"]["group"], strict=True)
    }
    assert names["/enc/MatMul"] == names["/enc/If"] == "enc"
    assert names["inner"] == "If: else_branch"
    assert names["/enc/Relu"] == "If: then_branch"
    then = groups["label"].index("If: then_branch")
    assert groups["label"][groups["parent"][then]] == "enc"
    assert groups["kind"][then] == "body"


def test_edges_have_types_shapes_and_new_casts(data: dict[str, Any]) -> None:
    tensors, texts, nodes = rows(data, "tensors"), data["texts"], data["nodes"]["name"]
    edges = {
        (tensors[edge["tensor"]]["name"], nodes[edge["node"]]): (edge["cast"], texts[edge["type"]])
        for edge in rows(data, "edges")
    }
    assert edges["e", "/enc/MatMul"] == (1, "float16")
    assert edges["w", "/enc/MatMul"] == (2, "float16")
    assert edges["x", "/enc/Exp"] == (0, "float32")
    assert ("to", "/enc/If") in edges
    assert ("m", "inner") in edges
    by_name = {tensor["name"]: tensor for tensor in tensors}
    assert texts[by_name["m"]["shape"]] == "[N, 4]"
    assert texts[by_name["m"]["type"]] == "float16"
    assert texts[by_name["w"]["shape"]] == "[4, 4]"
    assert by_name["w"]["producer"] == -1
    assert nodes[by_name["x"]["producer"]] == "x"


def test_a_loop_gives_its_body_the_inputs() -> None:
    data = make_page_data(mixlist.resolve(loop_model(), policy(white=["Mul"], black=["Exp"])))
    nodes, texts, tensors = data["nodes"]["name"], data["texts"], {row["name"]: row for row in rows(data, "tensors")}
    for name in ("c", "s"):
        assert (nodes[tensors[name]["producer"]], tensors[name]["body_input"]) == ("loop", 1)
    assert (nodes[tensors["l"]["producer"]], tensors["l"]["body_input"]) == ("loop", 0)
    assert (tensors["n"]["producer"], tensors["n"]["body_input"]) == (-1, 0)
    number = data["tensors"]["name"].index("s")
    edges = [edge for edge in rows(data, "edges") if edge["tensor"] == number]
    assert {(nodes[edge["node"]], edge["cast"], texts[edge["type"]]) for edge in edges} == {("square", 1, "float16")}


def test_a_dimension_that_is_a_long_formula_is_an_ellipsis() -> None:
    built = loop_model("much_longer_than_any_name_of_a_size")
    data = make_page_data(mixlist.resolve(built, policy(white=["Mul"])))
    row = rows(data, "tensors")[data["tensors"]["name"].index("x")]
    assert data["texts"][row["shape"]] == "[…, 4]"


def test_the_number_of_casts_is_that_of_rewrite(data: dict[str, Any]) -> None:
    plan = mixlist.resolve(if_model(), policy(white=["MatMul"], black=["Exp"]))
    casts = {(edge["tensor"], edge["type"]) for edge in rows(data, "edges") if edge["cast"] == 1}
    assert len(casts) == mixlist.rewrite(if_model(), plan).casts_inserted > 0


def test_differences_have_both_reasons() -> None:
    first = mixlist.resolve(if_model(), policy(white=["MatMul"], black=["Exp"]))
    second = mixlist.resolve(if_model(), policy(black=["MatMul", "Exp"]))
    data = make_page_data(first, None, second)
    differences = data["differences"]["nodes"]
    assert "/enc/MatMul" in {data["nodes"]["name"][entry["node"]] for entry in differences}
    by_ref = {node.ref: node for node in second.nodes}
    for entry in differences:
        name, scope = data["nodes"]["name"][entry["node"]], data["texts"][data["nodes"]["scope"][entry["node"]]]
        other = by_ref[scope, name]  # type: ignore[index]
        assert data["texts"][entry["reason"]] == other.reason
        assert data["texts"][entry["precision"]] == other.precision
    assert data["differences"]["casts"] == mixlist.rewrite(if_model(), second).casts_inserted
