"""The names of nodes in node rules and ``--explain`` (Rules S6.4, S6.5), and the chain to the node that decided."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

import mixlist
from mixlist.decide import Plan
from mixlist.errors import UsageError
from mixlist.model.naming import scoped_name
from mixlist.model.protos import nodes_in
from tests.support.builders import customize, keep, model, policy
from tests.support.graphs import Case, cases
from tests.support.resolver_cases import decide_nodes, resolve_text
from tests.test_properties import EXAMPLES

TWICE = """g (float[4] x, bool c) => (float[4] y, float[4] z) {
  [fc] a = Exp(x) [fc_n] y = Neg(a)
  [i] z = If(c) <then_branch = t () => (float[4] p) { [fc] p = Exp(x) },
                 else_branch = e () => (float[4] q) { [fc_n] q = Neg(a) }> }"""
# ONNX text cannot write these names.
SLASHES = {"fc_n": "/fc/n", "fc_in_i": "i/then_branch/fc"}
BOTH = ("fc", "i/then_branch/fc")


def with_slashes(text: str, **settings: Any) -> Plan:
    """Resolve a model after its nodes got the names with slashes."""
    named = model(text)
    for node in nodes_in(named.graph):
        node.name = SLASHES.get(node.name, node.name)
    return mixlist.resolve(named, policy(**settings))


def names_kept_by_rules(*names: str) -> list[str]:
    """Return the nodes that keep_dtype rules of these names decide."""
    decisions = with_slashes(TWICE, white=["Exp", "Neg"], rules=keep(*names)).nodes
    return [str(node.ref) for node in decisions if node.rule == "node-rule"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fc", [*BOTH]),
        ("./fc", ["fc"]),
        ("i/then_branch/fc", ["i/then_branch/fc"]),
        (".//fc/n", ["/fc/n"]),
        ("./f*", ["fc"]),
        ("./*", ["fc", "/fc/n"]),
    ],
)
def test_a_rule_for_the_main_graph_only(name: str, expected: list[str]) -> None:
    """Rule S6.5: ./NAME means the main graph."""
    assert names_kept_by_rules(name) == expected


def test_a_rule_of_customize_dtypes_for_the_main_graph_only() -> None:
    """Rule S6.5: ./NAME means the main graph."""
    decisions = decide_nodes(TWICE, rules=(customize("./fc", ["float16"], ["float16"]),))
    assert [decisions[name].precision for name in BOTH] == ["float16", "float32"]


def test_a_rule_for_the_main_graph_that_names_nothing_warns() -> None:
    """Rule S6.6: A rule without a node warns or fails."""
    (warning,) = resolve_text(TWICE, rules=keep("./p")).warnings
    assert warning.code == "ML305"


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("/fc/m", "did you mean /fc/n?"),
        (".//fc/m", "did you mean .//fc/n?"),
        ("optype::Exp", "did you mean OpType::Exp?"),
        ("Exp", "to keep all nodes of this op type, write OpType::Exp"),
        ("zzzz", "'mixlist resolve MODEL --format csv' lists all nodes"),
    ],
)
def test_a_line_of_keep_dtype_without_a_node_has_a_hint_with_a_similar_name(line: str, hint: str) -> None:
    """Rule S6.6: A rule without a node warns or fails."""
    (warning,) = with_slashes(TWICE, rules=keep(line)).warnings
    assert (warning.code, warning.hint) == ("ML305", hint)


def test_explain_suggests_names_that_it_accepts() -> None:
    """Rule S6.5: ./NAME means the main graph."""
    plan = with_slashes(TWICE, white=["Exp"])
    with pytest.raises(UsageError, match="several nodes are called 'fc'") as caught:
        plan.explain("fc")
    assert caught.value.hint == "choose one of ./fc, i/then_branch/fc"
    scopes = [plan.explain(text)[0].scope for text in caught.value.hint.removeprefix("choose one of ").split(", ")]
    assert scopes == ["", "i/then_branch"]
    assert plan.explain(".//fc/n")[0].scope == ""


def test_explain_takes_the_name_of_a_tensor_that_no_node_has() -> None:
    """Rule S6.5: ./NAME means the main graph."""
    plan = resolve_text("g (float[4] x) => (float[4] y) { [a] t = Exp(x) [t2] y = Neg(t) }")
    assert plan.explain("t")[0].name == "a" and plan.explain("y")[0].name == "t2"
    with pytest.raises(UsageError, match="no node and no tensor that a node makes is called 'zzzz'") as caught:
        plan.explain("zzzz")
    assert caught.value.hint == "mixlist resolve --all lists all nodes"


def test_a_name_with_slashes_does_not_hide_a_node_of_a_body() -> None:
    text = """g (float[4] x, bool c) => (float[4] y, float[4] z) {
      [fc_in_i] y = Exp(x)
      [i] z = If(c) <then_branch = t () => (float[4] p) { [fc] p = Neg(x) },
                     else_branch = e () => (float[4] q) { q = Abs(x) }> }"""
    plan = with_slashes(text)
    assert plan.explain("i/then_branch/fc")[0].op_type == "Neg"
    assert plan.explain("./i/then_branch/fc")[0].op_type == "Exp"


def test_the_chain_does_not_confuse_nodes_of_one_name() -> None:
    text = """g (float[4] x, int64 m) => (float[4] y) <bool go = {1}> {
      [a] a = Exp(x) [b] b = Log(x)
      [b2] y = Loop(m, go, x) <body = body (int64 i, bool c, float[4] s) => (bool c, float[4] t) {
        [b] v = Neg(a) [a] t = Relu(v) }> }"""
    chain = resolve_text(text, white=["Exp"], black=["Log"]).explain("b2/body/a")
    assert [(node.scope, node.name) for node in chain] == [("b2/body", "a"), ("b2/body", "b"), ("", "a")]
    assert chain[0].follows == ("b", "a")


def test_the_chain_ends_at_a_node_that_cannot_follow() -> None:
    """Rule S4.33: a gray node that its schema keeps as authored follows no other node."""
    text = """<ir_version: 8, opset_import: ["" : 9]>
    g (float[2,3,4,4] x) => (float[2,3,4,4] y) {
      [w] a = Relu(x) [n] b = MeanVarianceNormalization(a) [r] y = Neg(b) }"""
    decisions = decide_nodes(text, white=["Relu"])
    assert (decisions["n"].follows, decisions["r"].follows) == ((), ("n", "n"))


@settings(max_examples=EXAMPLES // 4, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(cases())
def test_explain_ends_at_the_node_that_follows_names(case: Case) -> None:
    """Rule S4.33: ``follows`` and ``--explain`` agree on the node that decided."""
    for gray_policy in ("ascend", "promote"):
        rules = policy(white=["MatMul", "Exp", "Mul"], black=["Add"], gray_policy=gray_policy)  # type: ignore[arg-type]
        plan = mixlist.resolve(case.model, rules)
        for node in plan.nodes:
            chain = plan.explain(scoped_name(node.ref))
            assert chain[0] is node
            if node.decider is not None:
                assert chain[-1].ref == node.decider and node.follows[1] == chain[-1].name
            elif node.follows:  # a graph input, or an argument of a function
                assert chain[-1].producer is None and node.follows[1] == chain[-1].follows[0]
            else:
                assert len(chain) == 1


def test_a_graph_input_or_constant_is_no_node_and_the_error_names_its_readers() -> None:
    text = "g (float[2] x, float[2] unread) => (float[2] y) <float[2] w = {1, 2}> { [m] a = Mul(x, w) [e] y = Exp(a) }"
    plan = mixlist.resolve(model(text), policy())
    with pytest.raises(UsageError, match="'x' is an input of the graph: no node makes it") as caught:
        plan.explain("x")
    assert caught.value.hint == "explain a node that reads it: ./m"
    with pytest.raises(UsageError, match="'w' is a constant of the graph"):
        plan.explain("w")
    with pytest.raises(UsageError) as caught:
        plan.explain("unread")
    assert caught.value.hint == "no node reads it"
