"""Rules S4.29 and S4.30: the type that sequences share, under every gray policy, and its reasons."""

from __future__ import annotations

import onnx
import pytest

from mixlist.resolver import Decision
from mixlist.rewriter import rewrite
from tests.support.builders import customize
from tests.support.resolver_cases import decide_nodes, resolve_text

LOW, HIGH = "float16", "float32"
LISTS = {"white": ["Exp"], "black": ["Log"]}
TEXT = """g (float[4] x) => (float[4] y) <int64 i = {{0}}> {{
  [w] w = Exp(x) [b] b = Log(x) [c] s = SequenceConstruct({0}) [a] t = SequenceAt(s, i) [n] y = {1}(t) }}"""


def decide(put_in: str, reader: str, **settings: object) -> dict[str, Decision]:
    return decide_nodes(TEXT.format(put_in, reader), **{**LISTS, **settings})


@pytest.mark.parametrize(
    ("gray_policy", "put_in", "reader", "expected"),
    [
        ("ascend", "w, b", "Neg", LOW),
        ("ascend", "b, w", "Neg", HIGH),
        ("promote", "w, b", "Neg", HIGH),
        ("promote", "w, x", "Neg", HIGH),
        ("promote", "w, w", "Neg", LOW),
        ("between", "w, w", "Neg", HIGH),
        ("between", "w, w", "Exp", LOW),
        ("between", "x, w", "Exp", LOW),
        ("between", "w, b", "Exp", HIGH),
        ("between", "x, x", "Exp", HIGH),
    ],
)
def test_a_sequence_follows_the_gray_policy(gray_policy: str, put_in: str, reader: str, expected: str) -> None:
    """Rule S4.30: Sequences follow the gray policy."""
    decisions = decide(put_in, reader, gray_policy=gray_policy)
    assert dict(decisions["c"].outputs) == {"s": f"seq({expected})"}
    assert (decisions["c"].precision, decisions["a"].precision) == (expected, expected)


@pytest.mark.parametrize("gray_policy", ["promote", "between"])
def test_the_result_is_a_valid_model(gray_policy: str) -> None:
    for put_in, reader in (("w, b", "Neg"), ("x, w", "Exp"), ("w, w", "Exp")):
        plan = resolve_text(TEXT.format(put_in, reader), gray_policy=gray_policy, **LISTS)
        onnx.checker.check_model(rewrite(plan.solution.loaded, plan).model, full_check=True)


@pytest.mark.parametrize("gray_policy", ["promote", "between"])
def test_white_black_and_node_rules_on_the_operators_still_vote(gray_policy: str) -> None:
    """Rule S4.30: Sequences follow the gray policy."""
    by_white = decide("x, x", "Exp", gray_policy=gray_policy, white=["Exp", "SequenceConstruct"])
    assert by_white["c"].precision == LOW
    by_black = decide("w, w", "Exp", gray_policy=gray_policy, black=["SequenceAt"])
    assert by_black["c"].precision == HIGH
    rule = customize("c", ["float32", "float32"], ["float32"])
    by_rule = decide("w, w", "Exp", gray_policy=gray_policy, rules=(rule,))
    assert (by_rule["c"].precision, by_rule["a"].precision) == (HIGH, HIGH)


@pytest.mark.parametrize(("gray_policy", "expected"), [("ascend", HIGH), ("promote", HIGH)])
def test_the_gray_policy_looks_through_one_cast(gray_policy: str, expected: str) -> None:
    """Rules S4.29 and S4.30: a vote under ascend looks through no Cast, the one gray node of the others does."""
    text = """g (float[4] x) => (float[4] t) <int64 i = {0}> {
      w = Exp(x) c = Cast<to = 1>(w) n = Neg(x) [s] s = SequenceConstruct(c, n) t = SequenceAt(s, i) }"""
    assert decide_nodes(text, gray_policy=gray_policy, **LISTS)["s"].precision == expected


@pytest.mark.parametrize("gray_policy", ["ascend", "promote"])
def test_a_gray_operator_that_reads_constants_only_has_no_vote(gray_policy: str) -> None:
    """Rule S4.29: A gray node that has no such input has no vote."""
    text = """g (float[4] x) => (float[4] y) <float[4] k = {1, 2, 3, 4}, int64 i = {0}> {
      w = Exp(x) [s] s = SequenceConstruct(k, k) t = SequenceInsert(s, w) e = SequenceAt(t, i) y = Neg(e) }"""
    assert decide_nodes(text, gray_policy=gray_policy, white=["Exp", "SequenceInsert"])["s"].precision == LOW


def test_paths_of_between_pass_sequences_that_control_flow_collects() -> None:
    text = """g (float[4] x) => (float[4] y) <int64 i = {0}> {
      [c] s = SequenceConstruct(x, x)
      [m] r = SequenceMap<body = b (float[4] e) => (float[4] f) { [k] f = STEP(e) }>(s)
      [a] t = SequenceAt(r, i) [n] y = Exp(t) }"""
    low = decide_nodes(text.replace("STEP", "Exp"), gray_policy="between", **LISTS)
    assert (low["a"].precision, low["c"].precision) == (LOW, HIGH)
    high = decide_nodes(text.replace("STEP", "Relu"), gray_policy="between", **LISTS)
    assert high["a"].precision == HIGH


def test_promote_in_a_loop() -> None:
    text = """g (float[4] x, int64 n) => (float[4] y) <bool go = {1}, int64 i = {0}> {
      [w] w = Exp(x) [b] b = Log(x) [c] s = SequenceConstruct(w)
      [l] r = Loop(n, go, s) <body = body (int64 k, bool on, seq(float[4]) p) => (bool on, seq(float[4]) q) {
        [e] e = SequenceAt(p, k) [j] j = Neg(e) [h] q = SequenceInsert(p, WHAT) }>
      [a] t = SequenceAt(r, i) [m] y = Neg(t) }"""
    settings = {"gray_policy": "promote", **LISTS}
    low = decide_nodes(text.replace("WHAT", "j"), **settings)
    assert {low[name].precision for name in ("c", "l/body/e", "l/body/j", "l/body/h", "a", "m")} == {LOW}
    high = decide_nodes(text.replace("WHAT", "b"), **settings)
    assert {high[name].precision for name in ("c", "l/body/e", "l/body/j", "l/body/h", "a", "m")} == {HIGH}
    assert high["c"].follows == ("b", "b")


@pytest.mark.parametrize("gray_policy", ["promote"])
def test_the_reason_names_the_tensor_that_decided(gray_policy: str) -> None:
    """Rule S4.33: Every decision carries its reason."""
    decisions = decide("w, b", "Neg", gray_policy=gray_policy)
    for name in ("c", "a"):
        assert decisions[name].follows == ("b", "b")
        assert decisions[name].rule == "follow"
        assert "float32, the type of 'b', an output of b (S4.29, S4.30)" in decisions[name].reason


def test_the_reason_names_the_node_whose_vote_won() -> None:
    """Rule S4.33: Every decision carries its reason."""
    decisions = decide("w, w", "Neg", white=["Exp", "SequenceConstruct"], black=["Log", "SequenceAt"])
    assert (decisions["c"].precision, decisions["c"].rule) == (HIGH, "control-flow")
    assert "share one type: float32, the type of 't', an output of a (S4.29)" in decisions["c"].reason
    gray = decide("w, w", "Neg", black=["Log", "SequenceAt"])
    assert (gray["c"].rule, gray["c"].follows) == ("control-flow", ("a", "a"))
    assert resolve_text(TEXT.format("w, w", "Neg"), white=["Exp"], black=["SequenceAt"]).explain("c")[-1].name == "a"


def test_a_sequence_of_the_other_low_type_stays() -> None:
    text = "g (float16[4] x) => (float16[4] y) { [c] s = Optional(x) [a] y = OptionalGetElement(s) }"
    for gray_policy in ("ascend", "promote", "between"):
        decisions = decide_nodes(text, mode="mixed_bfloat16", gray_policy=gray_policy, white=["Optional"])
        assert decisions["a"].outputs["y"] == "float16"


@pytest.mark.parametrize(("declared", "expected"), [("float16", "float16"), ("float", "float32")])
def test_a_custom_operator_does_not_join_the_types_of_its_sequences(declared: str, expected: str) -> None:
    """Rules S4.14 and S4.29: the sequences that it reads and makes can have two types, each as authored."""
    text = f"""<ir_version: 8, opset_import: ["" : 17, "my" : 1]>
    g (float[4] x, float[4] z, int64 i) => ({declared}[4] y) <seq({declared}[4]) t> {{
      [e] e = Exp(x) [s] s = SequenceConstruct(e, z) [custom] t = my.Sort(s) [at] y = SequenceAt(t, i) }}"""
    plan = resolve_text(text, mode="fp16")
    nodes = {decision.name: decision for decision in plan.nodes}
    assert nodes["s"].outputs == {"s": "seq(float32)"}
    assert nodes["custom"].outputs == {"t": f"seq({expected})"}
    assert nodes["at"].outputs == {"y": expected}
    rewritten = rewrite(plan.solution.loaded, plan).proto
    casts = [node.input[0] for node in rewritten.graph.node if node.op_type == "Cast"]
    assert casts == ["x", "e"]
