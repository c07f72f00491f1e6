"""Test that models are linked, sorted and typed, and that invalid graphs are refused."""

from __future__ import annotations

import onnx
import onnx.parser
import pytest
from onnx import helper

import mixlist
from mixlist.errors import ModelError, UsageError
from mixlist.model import dtypes
from mixlist.model.build import build_graph
from tests.support.builders import model, policy

HEAD = '<ir_version: 8, opset_import: ["" : 17]> '
CUSTOM = """<ir_version: 8, opset_import: ["" : 17, "my.domain" : 1]>
g (float[4] x) => (float[4] y) { [e] e = Exp(x) [c] c = my.domain.Thing(e) [r] r = Relu(c) [m] y = Exp(r) }"""


def test_unsorted_nodes_are_sorted_stably() -> None:
    """Rule S4.10: One decision per node, in topological order."""
    proto = model("g (float[4] x) => (float[4] y) { [a] a = Exp(x) [b] b = Relu(x) [c] y = Add(a, b) }")
    nodes = list(proto.graph.node)
    del proto.graph.node[:]
    proto.graph.node.extend([nodes[2], nodes[1], nodes[0]])
    graph = build_graph(proto)
    assert [n.proto.name for n in graph.nodes] == ["b", "a", "c"]
    written = mixlist.rewrite(proto, mixlist.resolve(proto, policy(white=["Exp"]))).model
    onnx.checker.check_model(written, full_check=True)
    assert [n.name for n in written.graph.node if n.op_type != "Cast"] == ["b", "a", "c"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[a] a = Add(x, b) [b] b = Relu(a) [c] y = Exp(b)", "cycle through node 'a'"),
        ("[a] y = Add(x, nowhere)", "node 'a' .Add. reads 'nowhere', which nothing defines"),
        ("[a] y = Relu(x) [b] y = Exp(x)", "tensor 'y' is defined twice"),
    ],
)
def test_an_invalid_graph_is_refused(text: str, message: str) -> None:
    proto = onnx.parser.parse_model(HEAD + f"g (float[4] x) => (float[4] y) {{ {text} }}")
    with pytest.raises(ModelError, match=message):
        build_graph(proto)


def test_an_unknown_operator_stays_as_authored_and_its_neighbors_are_rewritten() -> None:
    proto = model(CUSTOM)
    plan = mixlist.resolve(proto, policy(white=["Exp"]))
    decisions = {n.name: n for n in plan.nodes}
    # The declared type of the graph output proves what r custom_inputs.
    assert (decisions["e"].precision, decisions["r"].precision) == ("float16", "float32")
    assert decisions["c"].rule == "schema" and "no schema is known for my.domain::Thing" in decisions["c"].reason
    written = mixlist.rewrite(proto, plan).model
    custom_inputs = {i: n.op_type for n in written.graph.node for i in n.input if n.op_type == "Thing"}
    assert list(custom_inputs) == ["e_float32"]  # the custom operator custom_inputs float32, as authored
    onnx.checker.check_model(written)


@pytest.mark.parametrize("type_source", ["hint", "value_info"])
def test_a_hint_or_value_info_gives_the_type_of_a_custom_output(type_source: str) -> None:
    """Rule S4.12: Types that no schema gives come from hints and declarations."""
    proto = model(CUSTOM)
    hints = {"c": "float32"} if type_source == "hint" else None
    if type_source == "value_info":
        proto.graph.value_info.append(helper.make_tensor_value_info("c", 1, [4]))
    plan = mixlist.resolve(proto, policy(white=["Exp", "Relu"]), type_hints=hints)
    assert {n.name: n.precision for n in plan.nodes}["r"] == "float16"
    written = mixlist.rewrite(proto, plan).model
    assert next(n.input[0] for n in written.graph.node if n.op_type == "Relu") == "c_float16"


def test_a_hint_that_is_no_type_is_refused() -> None:
    with pytest.raises(UsageError, match="'float12' is no tensor type"):
        mixlist.resolve(model(CUSTOM), policy(), type_hints={"c": "float12"})


def test_a_container_type_needs_its_closing_parenthesis() -> None:
    with pytest.raises(UsageError, match="'seq\\(float32' is no tensor type"):
        mixlist.resolve(model(CUSTOM), policy(), type_hints={"c": "seq(float32"})


def test_names_of_types_are_parsed_back() -> None:
    for value_type in (1, 10, 16, 11, 7, 9, 8, ("seq", 1), ("optional", ("seq", 10))):
        assert dtypes.parse_name(dtypes.type_name(value_type)) == value_type


def test_contrib_schemas_are_those_of_the_installed_runtime() -> None:
    import json
    import sys
    from pathlib import Path

    root = Path(__file__).parents[2]
    sys.path.insert(0, str(root / "tools"))
    try:
        from make_contrib_schemas import make
    finally:
        sys.path.pop(0)
    stored = json.loads((root / "mixlist" / "model" / "data" / "contrib_schemas.json").read_text())
    installed = make()
    if stored["source"] != installed["source"]:
        pytest.skip(f"the file is of {stored['source']}; another version is installed")
    assert stored["schemas"] == installed["schemas"]
