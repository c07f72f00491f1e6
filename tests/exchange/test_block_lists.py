"""The smallest block lists, and the exceptions that they need, for ort, onnxconverter and modelopt."""

from __future__ import annotations

import re
import shlex

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import parser

import mixlist
from mixlist.exchange.export import export
from mixlist.exchange.export_result import ExportResult
from tests.support.builders import apply, keep, model, policy

CHAIN = """g (float[4, 4] x) => (float[4, 4] y) <float[4, 4] w = {1,2,3,4,1,2,3,4,1,2,3,4,1,2,3,4}> {
 [first] a = MatMul(x, w) [e] b = Exp(a) [second] y = MatMul(b, w) }"""
BLOCK_TOOLS = ("ort", "onnxconverter")
TOOLS = (*BLOCK_TOOLS, "modelopt")


def reasons(result: ExportResult) -> dict[str, str]:
    """Return the reason of each exception, by the name of the node."""
    return {str(item.node): item.why for item in result.exceptions}


def lists(result: ExportResult) -> tuple[list[str], list[str]]:
    """Return the list of op types and the list of names, whatever the tool calls them."""
    keys = (
        ("op_types_to_exclude", "nodes_to_exclude")
        if result.tool == "modelopt"
        else ("op_block_list", "node_block_list")
    )
    op_types, names = (result.lists[key] for key in keys)
    assert isinstance(op_types, list) and isinstance(names, list)
    return op_types, names


@pytest.mark.parametrize("tool", TOOLS)
def test_an_op_type_whose_nodes_all_stay_high_is_listed_as_op_type(tool: str) -> None:
    result = export(model(CHAIN), policy(white=["MatMul"], black=["Exp"]), tool)
    assert lists(result) == (["Exp"], [])
    assert not result.exceptions


@pytest.mark.parametrize(("tool", "name"), [*((tool, "second") for tool in BLOCK_TOOLS), ("modelopt", "^second$")])
def test_a_node_of_an_op_type_with_low_nodes_is_listed_by_name(tool: str, name: str) -> None:
    result = export(model(CHAIN), policy(white=["MatMul", "Exp"], rules=keep("second")), tool)
    assert lists(result) == ([], [name])


def test_modelopt_gets_names_as_anchored_regular_expressions() -> None:
    graph = "g (float[2] x) => (float[2] y) { [low] a = Neg(x) [high] y = Neg(a) }"
    named = model(graph)
    named.graph.node[0].name, named.graph.node[1].name = "/model.10/Neg_1", "/model.1/Neg(0)"
    result = export(named, policy(white=["Neg"], rules=keep("/model.1/Neg(0)")), "modelopt")
    assert result.lists["nodes_to_exclude"] == [r"^/model\.1/Neg\(0\)$"]
    assert r"'^/model\.1/Neg\(0\)$'" in result.call


NAMES = st.text(st.sampled_from("ab01/._[]+*?()|^$\\\\-{} "), min_size=1, max_size=8)


@given(high=NAMES, low=NAMES)
def test_the_regular_expression_of_a_name_matches_this_name_only(high: str, low: str) -> None:
    graph = model("g (float[2] x) => (float[2] y) { [low] a = Neg(x) [high] y = Neg(a) }")
    plan = mixlist.resolve(graph, policy(white=["Neg"], rules=keep("high")))
    for planned, name in zip(plan.solution.graph.nodes, (low, high), strict=True):
        planned.proto.name = name
    nodes_to_exclude = lists(export(None, plan, "modelopt"))[1]
    # AutoCast calls re.match with each one. The shell must give it the same texts as the JSON.
    assert [bool(re.match(nodes_to_exclude[0], name)) for name in (low, high)] == [low == high, True]
    assert nodes_to_exclude[0] in shlex.split(export(None, plan, "modelopt").call.replace("\\\n", " "))


@pytest.mark.parametrize("tool", TOOLS)
def test_an_unnamed_node_that_no_list_can_hold_is_an_exception(tool: str) -> None:
    graph = model("g (float[2] x) => (float[2] y) { [low] a = Neg(x) b = Exp(a) y = Neg(b) }")
    # float32 for the second Neg: gray after a black Exp. The first one is white by its node rule.
    result = export(graph, policy(black=["Exp"], white=["Neg"], rules=keep("Neg_0")), tool)
    assert lists(result) == (["Exp"], [])
    assert "has no name, so that no list can hold it" in reasons(result)["Neg_0"]
    assert "give every node a name" in reasons(result)["Neg_0"]


@pytest.mark.parametrize("tool", ["ort", "modelopt"])
def test_a_low_node_that_shares_the_name_of_a_listed_node_is_an_exception(tool: str) -> None:
    text = "g (float[2] x) => (float[2] y) { [same] a = Neg(x) [n] b = Neg(a) [other] y = Exp(b) }"
    graph, lists_of_model = model(text), policy(white=["Exp", "Neg"], rules=keep("same"))
    assert not export(graph, lists_of_model, tool).exceptions
    graph.graph.node[2].name = "same"  # a node rule cannot name it now, so the plan is made before
    plan = mixlist.resolve(model(text), lists_of_model)
    for planned in plan.solution.graph.nodes:
        planned.proto.name = graph.graph.node[planned.position].name
    assert "has the name of a node that stays high precision" in reasons(export(None, plan, tool))["same"]


def test_op_types_of_two_domains_count_as_one() -> None:
    text = """<ir_version: 8, opset_import: ["" : 20, "com.microsoft" : 1]>
    g (float[2] x) => (float[2] y) { [a] b = Gelu(x) [c] y = com.microsoft.Gelu(b) }"""
    result = export(model(text, check=False), policy(white=["Gelu"], black=["com.microsoft::Gelu"]), "ort")
    assert lists(result) == ([], ["c"])


@pytest.mark.parametrize(("tool", "stays"), [("ort", False), ("onnxconverter", True), ("modelopt", False)])
def test_a_low_resize_is_an_exception_where_the_tool_would_convert_its_scales(tool: str, stays: bool) -> None:
    graph = model(
        """g (float[1, 1, 2, 2] x) => (float[1, 1, 4, 4] y) <float[4] s = {1, 1, 2, 2}> { [r] y = Resize(x, , s) }"""
    )
    result = export(graph, policy(white=["Resize"]), tool)
    assert (lists(result)[0] == ["Resize"]) == stays
    assert ("its input 2 must be float32" in reasons(result).get("r", "")) == stays


@pytest.mark.parametrize("tool", TOOLS)
def test_a_cast_to_float32_is_listed_because_the_tools_would_change_or_replace_it(tool: str) -> None:
    # Neg keeps the Cast in float32 (S4.45).
    graph = model(
        "g (int64[2] x) => (float[2] y, float[2] z) { [c] a = Cast<to = 1>(x) [e] y = Exp(a) [n] z = Neg(a) }"
    )
    # With this op type in its list, onnxconverter-common casts its own Casts without end.
    listed = (["Neg"], ["c"]) if tool == "onnxconverter" else (["Cast", "Neg"], [])
    assert lists(export(graph, policy(white=["Exp"], black=["Neg"]), tool)) == listed
    # Without it the Cast makes float16 in the plan, too.
    alone = model("g (int64[2] x) => (float[2] y) { [c] a = Cast<to = 1>(x) [e] y = Exp(a) }")
    assert lists(export(alone, policy(white=["Exp"]), tool)) == ([], [])


def test_a_constant_that_a_high_node_reads_is_listed() -> None:
    graph = model(
        """g (float[1] x) => (float[1] y) {
        [k] k = Constant<value = float[1] {1e-9}>() [a] b = Add(x, k) [e] y = Exp(b) }"""
    )
    assert lists(export(graph, policy(white=["Exp"], black=["Add"]), "ort")) == (["Add", "Constant"], [])


def test_a_shared_initializer_is_no_exception_because_the_program_copies_it() -> None:
    graph = model("g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { [a] b = Add(x, w) [m] y = Mul(b, w) }")
    for tool in TOOLS:
        assert not export(graph, policy(white=["Mul"], black=["Add"]), tool).exceptions


def test_a_shared_initializer_of_a_body_is_an_exception() -> None:
    graph = model(
        """g (float[2] x, bool c) => (float[2] y) { [i] y = If(c) <
        then_branch = t () => (float[2] o) <float[2] w = {1, 2}> { [a] b = Add(x, w) [m] o = Mul(b, w) },
        else_branch = e () => (float[2] q) { [r] q = Mul(x, x) }> }"""
    )
    lists_of_model = policy(white=["Mul"], black=["Add"])
    assert "reads its initializer 'w' too" in reasons(export(graph, lists_of_model, "ort"))["i/then_branch/a"]
    result = export(graph, lists_of_model, "onnxconverter")
    assert "a float32 node reads its initializer 'w' too" in reasons(result)["i/then_branch/m"] and not result.is_valid


BRANCHES = """g (float[2] x, bool c) => (float[2] y) { [a] a = Exp(x)
 [i] y = If(c) <then_branch = t () => (float[2] o) { [p] p = Exp(a) [n] o = Neg(p) },
  else_branch = e () => (float[2] q) { [r] q = Exp(a) }> }"""


def test_nodes_in_bodies_are_exceptions_of_each_tool_by_its_own_reason() -> None:
    mixed = policy(white=["Exp"], black=["Neg"])
    assert "writes its Casts into the main graph" in reasons(export(model(BRANCHES), mixed, "ort"))["i/then_branch/n"]
    inside = reasons(export(model(BRANCHES), mixed, "modelopt"))
    assert inside.keys() >= {"i/then_branch/p", "i/else_branch/r"} and "a" not in inside
    assert lists(export(model(BRANCHES), policy(white=["Exp", "Neg"]), "ort")) == ([], [])


def test_a_body_without_low_nodes_is_kept_by_blocking_its_node() -> None:
    high = policy(black=["Exp", "Neg"])
    result = export(model(BRANCHES), high, "onnxconverter")
    assert lists(result)[0] == ["Exp", "If", "Neg"]
    assert "reads 'a', which the tool converts" in reasons(result)["i/then_branch/p"]


def test_a_bfloat16_plan_is_refused_by_tools_for_float16() -> None:
    low = policy(white=["Exp"], mode="mixed_bfloat16")
    for tool in BLOCK_TOOLS:
        with pytest.raises(mixlist.MixlistError, match=r"converts to float16 only.*\n.*modelopt"):
            export(model(CHAIN), low, tool)
    assert export(model(CHAIN), low, "modelopt").arguments["low_precision_type"] == "bf16"


LAYER_NORM = """<ir_version: 8, opset_import: ["" : 13]> g (float[2, 4] x) => (float[2, 4] y)
<float two = {2}, float eps = {1e-5}, float[4] s = {1, 1, 1, 1}> {
 [m] m = ReduceMean<axes = [-1]>(x) [d] d = Sub(x, m) [p] p = Pow(d, two) [v] v = ReduceMean<axes = [-1]>(p)
 [a] a = Add(v, eps) [q] q = Sqrt(a) [n] n = Div(d, q) [w] y = Mul(n, s) }"""


def test_a_layer_normalization_that_autocast_fuses_stays_in_float32_with_its_nodes() -> None:
    graph = onnx.shape_inference.infer_shapes(parser.parse_model(LAYER_NORM))
    ops = ("ReduceMean", "Sub", "Pow", "Add", "Sqrt", "Div", "Mul")
    result = export(graph, policy(black=ops), "modelopt")
    assert "LayerNormalization" in lists(result)[0]
    assert set(reasons(result)) == set("mdpvaqnw")
    assert "in float32" in reasons(result)["q"]
    assert "LayerNormalization" not in lists(export(graph, policy(white=ops), "modelopt"))[0]
    # AutoCast converts the model to opset 22 for bfloat16. There the axes are no attribute, and AutoCast fuses nothing.
    assert not export(graph, policy(black=ops, mode="mixed_bfloat16"), "modelopt").exceptions
    del graph.graph.node[0].attribute[:]
    assert not export(graph, policy(black=ops), "modelopt").exceptions


def test_the_note_on_opsets_names_the_one_to_which_autocast_converts() -> None:
    graph = model(
        """<ir_version: 8, opset_import: ["" : 13]> g (float[2] x) => (float[2] y) <float s = {0.1}, uint8 z = {0}> {
        [q] a = QuantizeLinear(x, s, z) [d] y = DequantizeLinear(a, s, z) }"""
    )
    assert "from opset 13 to 19 first" in export(graph, policy(), "modelopt").notes[-1]


def test_casts_of_the_model_that_autocast_merges_or_removes_are_exceptions() -> None:
    graph = model(
        """g (int64[2] i, float[2] x) => (float[2] y, float16[2] z) {
        [c] a = Cast<to = 1>(i) [e] y = Exp(a) [h] z = Cast<to = 10>(x) }"""
    )
    found = reasons(export(graph, policy(white=["Exp"], black=["Cast"]), "modelopt"))
    assert "merges it" in found["c"] and "removes Casts" in found["h"]
    # Without a black Cast, the plan merges it, too (Rule S4.45).
    found = reasons(export(graph, policy(white=["Exp"]), "modelopt"))
    assert "c" not in found and "removes Casts" in found["h"]


def test_a_cast_whose_value_reaches_low_nodes_behind_removed_casts_is_an_exception() -> None:
    graph = model(
        """g (int64[2] i) => (float[2] y, float[2] z) {
        [c] a = Cast<to = 1>(i) [f] b = Cast<to = 1>(a) [n] y = Neg(b) [e] z = Exp(a) }"""
    )
    why = reasons(export(graph, policy(white=["Neg"], black=["Exp"]), "modelopt"))
    # AutoCast removes f, so that its own Cast for n follows c and is merged with it.
    assert why["c"].endswith("lets e read its input: the result can be invalid")
    assert "removes Casts" in why["f"] and "n" not in why
    assert "c" not in reasons(export(graph, policy(black=["Exp", "Neg"]), "modelopt"))


# The second Exp and its Casts are float16 in the model.
FLOAT16_PART = """<ir_version: 8, opset_import: ["" : 22]> g (float[4] x) => (float[4] y) {
 [e] a = Exp(x) [h] b = Cast<to = 10>(a) [s] c = Exp(b) [g] d = Cast<to = 1>(c) [n] y = Neg(d) }"""


def test_float16_parts_of_the_model_are_exceptions_where_a_tool_changes_them() -> None:
    graph, black = model(FLOAT16_PART), policy(white=["Neg"], black=["Exp"])
    # The op type Exp would make s float32, too.
    by_name = {tool: export(graph, black, tool) for tool in TOOLS}
    assert lists(by_name["modelopt"])[1] == ["^e$"] and lists(by_name["onnxconverter"])[1] == ["e", "g"]
    assert lists(by_name["ort"]) == (["Cast", "Exp"], [])  # this tool leaves float16 parts as they are
    assert {tool: set(reasons(result)) for tool, result in by_name.items()} == {
        "ort": set(),
        "onnxconverter": {"h", "g"},
        "modelopt": {"h", "g"},
    }
    assert reasons(by_name["onnxconverter"])["g"].endswith("casts it to float32")
    # In float16 lists, the Cast h reads float16, except where the op type Cast is listed.
    low = policy(white=["Neg", "Exp"])
    assert "makes its input 0 float32; the plan has float16" in reasons(export(graph, low, "ort"))["h"]
    assert set(reasons(export(graph, low, "onnxconverter"))) == {"g"}
    bfloat16 = reasons(export(graph, policy(white=["Neg"], black=["Exp"], mode="mixed_bfloat16"), "modelopt"))
    assert "AutoCast makes float32" in bfloat16["s"]
    low = policy(white=["Neg", "Exp"], mode="mixed_bfloat16")
    assert "AutoCast makes bfloat16" in reasons(export(graph, low, "modelopt"))["s"]


def test_casts_of_mixlist_do_not_make_their_readers_float16_parts() -> None:
    """Export of a model that mixlist wrote: all of its nodes keep their types."""
    mixed = apply(model(CHAIN), policy(white=["MatMul"], black=["Exp"]))
    assert any(node.op_type == "Cast" for node in mixed.graph.node)
    for tool in TOOLS:
        assert not reasons(export(mixed, policy(white=["MatMul"], black=["Exp"]), tool)).get("e")


def test_a_float16_node_that_shares_the_name_of_a_listed_node_is_removed_with_its_casts() -> None:
    graph = model(FLOAT16_PART)
    graph.graph.node[2].name = "e"
    why = reasons(export(graph, policy(white=["Neg"], black=["Exp"]), "onnxconverter"))
    assert "the tool removes it together with the Cast that it adds before e" in why["h"]
    assert why["e"].endswith("casts it to float32, and the result is invalid")


def test_a_reduced_mask_is_an_exception_because_tools_clamp_it() -> None:
    graph = model(
        """g (float[1, 4] x) => (float[1, 4] y) <float[1, 4] k = {0, 0, 0, -1000000000}> {
        [a] s = Add(x, k) [p] y = Softmax(s) }"""
    )
    for tool in TOOLS:
        result = export(graph, policy(white=["Add", "Softmax"], protect=["masks"]), tool)
        assert "fully masked row can become NaN" in reasons(result)["a"]
