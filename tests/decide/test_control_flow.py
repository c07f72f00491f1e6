"""Control flow, sequences and functions: one type for each value that crosses a border (Rules S4.25 to S4.31)."""

from __future__ import annotations

import onnx
import pytest

from mixlist.write import rewrite
from tests.support.resolver_cases import decide_nodes, find_precisions, resolve_text

LOW, HIGH = "float16", "float32"

IF = """g (float[4] x, bool c) => (float[4] y) {{
  [w] w = Exp(x)
  [i] z = If(c) <then_branch = t () => (float[4] p) {{ [t] p = {0} }},
                 else_branch = e () => (float[4] q) {{ [e] q = {1} }}>
  [n] y = Neg(z)
}}"""
LISTS = {"white": ["Exp"], "black": ["Log"]}


@pytest.mark.parametrize(
    ("then_branch", "else_branch", "expected"),
    [
        ("Exp(x)", "Exp(x)", LOW),
        ("Exp(x)", "Log(x)", HIGH),
        ("Log(x)", "Exp(x)", HIGH),
        ("Relu(w)", "Relu(w)", LOW),
        ("Relu(w)", "Relu(x)", HIGH),
    ],
)
def test_an_if_output_is_low_only_if_all_branches_give_low(then_branch: str, else_branch: str, expected: str) -> None:
    """Rule S4.26: An If output needs all branches."""
    decisions = decide_nodes(IF.format(then_branch, else_branch), **LISTS)
    assert (decisions["i"].precision, decisions["i"].rule) == ("none", "control-flow")
    assert dict(decisions["i"].outputs) == {"z": expected}
    assert decisions["n"].precision == expected


def test_each_output_of_an_if_is_decided_alone() -> None:
    text = """g (float[4] x, bool c) => (float[4] y, float[4] z) {
      [i] a, b = If(c) <then_branch = t () => (float[4] p, float[4] q) { p = Exp(x) q = Log(x) },
                        else_branch = e () => (float[4] r, float[4] s) { r = Exp(x) s = Exp(x) }>
      [m] y = Neg(a) [n] z = Neg(b) }"""
    decisions = decide_nodes(text, **LISTS)
    assert dict(decisions["i"].outputs) == {"a": LOW, "b": HIGH}
    assert (decisions["m"].precision, decisions["n"].precision) == (LOW, HIGH)


def test_the_producer_of_a_captured_value_is_the_outer_one() -> None:
    """Rule S4.25: Control flow carries no precision."""
    decisions = decide_nodes(IF.format("Relu(w)", "Relu(w)"), **LISTS)
    assert decisions["i/then_branch/t"].precision == LOW
    assert decisions["i/then_branch/t"].follows[0] == "w"


def test_naming_control_flow_in_a_list_warns() -> None:
    """Rule S4.25: Control flow carries no precision."""
    for target in ("white", "black"):
        warnings = resolve_text(IF.format("Relu(x)", "Relu(x)"), edits={"If": target}).warnings
        assert any("If" in w.message for w in warnings), target


LOOP = """g (float[4] x, int64 m) => (float[4] y) <bool go = {{1}}, float[4] k = {{0,0,0,0}}> {{
  [w] w = Exp(x) [b] b = Log(x)
  [l] z = Loop(m, go, {0}) <body = body (int64 i, bool c, float[4] s) => (bool c, float[4] t) {{ [n] t = {1} }}>
  [o] y = Neg(z)
}}"""


@pytest.mark.parametrize(
    ("start", "step", "expected"),
    [
        ("w", "Relu(s)", LOW),
        ("b", "Relu(s)", HIGH),
        ("x", "Relu(s)", HIGH),
        ("w", "Exp(s)", LOW),
        ("w", "Log(s)", HIGH),
        ("x", "Exp(s)", HIGH),
        ("k", "Exp(s)", LOW),
        ("k", "Log(s)", HIGH),
        ("k", "Relu(s)", HIGH),
        ("w", "Add(s, b)", LOW),
        ("w", "Add(b, s)", HIGH),
        ("k", "Add(s, w)", HIGH),
        ("k", "Add(w, s)", LOW),
    ],
)
def test_a_loop_state_has_one_type(start: str, step: str, expected: str) -> None:
    """Rules S4.27, S4.28."""
    decisions = decide_nodes(LOOP.format(start, step), **LISTS)
    assert dict(decisions["l"].outputs) == {"z": expected}
    assert decisions["o"].precision == expected


@pytest.mark.parametrize("gray_policy", ["ascend", "promote"])
def test_a_node_after_a_value_that_no_vote_decides_stays_as_authored(gray_policy: str) -> None:
    """A float16 constant that a loop only passes on is decided last. (Once, t was float32 and read float16.)"""
    text = """g (float[1,4] x) => (float[1,4] y) <float16[4] w = {1,2,3,4}, int64 n = {3}, bool go = {1}> {
      [l] y, a = Loop(n, go, x, w) <body = body (int64 i, bool on, float[1,4] s, float16[4] k)
        => (bool more, float[1,4] t, float16[4] k) {
          [more] more = Identity(on) [c] c = Cast<to=1>(k) [p] p = Log(s) [t] t = Add(c, p) }> }"""
    plan = resolve_text(text, black=["Log"], gray_policy=gray_policy)
    mixed_model = rewrite(plan.solution.loaded, plan).model
    onnx.checker.check_model(mixed_model, full_check=True)
    node = next(node for node in plan.nodes if node.name == "t")
    assert (node.precision, dict(node.outputs)) == (HIGH, {"t": HIGH})
    assert ("no input decides its type" in plan.explain("t")[0].reason) == (gray_policy == "ascend")


def test_a_node_behind_undecided_values_becomes_wider_once_their_types_are_known() -> None:
    """Rules S4.24, S4.28: only a node that would become low precision later stays as authored."""
    text = """g (float[4] x) => (float[4] y, float16[4] a, float[4] b, float16[3,4] z)
      <float16[4] w = {1,2,3,4}, float[4] v = {1,2,3,4}, int64 n = {3}, bool go = {1}> {
      [l] y, a, b, z = Loop(n, go, x, w, v) <body = body (int64 i, bool on, float[4] s, float16[4] k, float[4] e)
        => (bool on, float[4] t, float16[4] k, float[4] e, float16[4] p) { [t] t = Log(s) [p] p = Pow(k, e) }> }"""
    decisions = decide_nodes(text, black=["Log"], gray_policy="promote")
    assert dict(decisions["l"].outputs) == {"y": HIGH, "a": LOW, "b": HIGH, "z": HIGH}
    assert decisions["l/body/p"].precision == HIGH
    assert decide_nodes(text, black=["Log"])["l/body/p"].precision == LOW


def test_a_node_that_also_reads_an_undecided_value_stays_low() -> None:
    """Rule S4.28: the type of ``e``, which no vote decides, changes nothing for a node that follows another value."""
    text = """g (float[4] x) => (float[4] y, float[4] b, float[3,1] z)
      <float[4] v = {1,2,3,4}, int64 n = {3}, bool go = {1}> {
      [l] y, b, z = Loop(n, go, x, v) <body = body (int64 i, bool on, float[4] s, float[4] e)
        => (bool on, float[4] t, float[4] e, float[1] d) {
          [t] t = Log(s) [q] q = Exp(s) [n] u, , d = LayerNormalization(q, e) }> }"""
    assert find_precisions(text, **LISTS)["l/body/n"] == LOW


def test_states_that_swap_share_a_type() -> None:
    text = """g (float[4] x) => (float[4] y, float[4] z) <int64 m = {3}, bool go = {1}> {
      [w] w = Exp(x)
      [l] a, b = Loop(m, go, START) <body = body (int64 i, bool c, float[4] s, float[4] t) =>
         (bool c, float[4] t, float[4] s) { }>
      [p] y = Neg(a) [q] z = Neg(b) }"""
    mixed = find_precisions(text.replace("START", "w, x"), **LISTS)
    assert (mixed["p"], mixed["q"]) == (HIGH, HIGH)
    low = find_precisions(text.replace("START", "w, w"), **LISTS)
    assert (low["p"], low["q"]) == (LOW, LOW)


def test_a_scan_output_has_the_type_of_the_collected_value() -> None:
    text = """g (float[4] x) => (float[4] y, float[3,4] z) <int64 m = {3}, bool go = {1}> {
      [l] a, b = Loop(m, go, x) <body = body (int64 i, bool c, float[4] s) => (bool c, float[4] t, float[4] u)
        { t = Relu(s) u = Exp(s) }>
      [p] y = Neg(a) [q] z = Neg(b) }"""
    decisions = decide_nodes(text, **LISTS)
    assert dict(decisions["l"].outputs) == {"a": HIGH, "b": LOW}
    assert (decisions["p"].precision, decisions["q"].precision) == (HIGH, LOW)


SCAN = """g (float[3,4] x) => (float[4] y, float[3,4] z) <float[4] k = {{0,0,0,0}}> {{
  [w] w = Exp(x)
  [s] a, b = Scan<num_scan_inputs=1, body = body (float[4] s, float[4] r) => (float[4] t, float[4] u)
    {{ [m] t = {1} [n] u = Relu(r) }}>(k, {0})
  [p] y = Neg(a) [q] z = Neg(b)
}}"""


@pytest.mark.parametrize(
    ("rows", "step", "state", "collected"),
    [
        ("w", "Add(s, r)", HIGH, LOW),
        ("w", "Add(r, s)", LOW, LOW),
        ("x", "Exp(s)", LOW, HIGH),
        ("x", "Log(s)", HIGH, HIGH),
    ],
)
def test_a_scan_decides_states_and_collected_values_apart(rows: str, step: str, state: str, collected: str) -> None:
    decisions = decide_nodes(SCAN.format(rows, step), **LISTS)
    assert dict(decisions["s"].outputs) == {"a": state, "b": collected}
    assert (decisions["p"].precision, decisions["q"].precision) == (state, collected)


def test_nested_loops_are_solved_together() -> None:
    """Rule S4.28: States are decided by the greatest fixpoint."""
    text = """g (float[4] x) => (float[4] y) <int64 m = {3}, bool go = {1}> {
      [w] w = Exp(x)
      [o] z = Loop(m, go, w) <body = outer (int64 i, bool c, float[4] s) => (bool c, float[4] t) {
        [p] t = Loop(m, go, s) <body = inner (int64 j, bool d, float[4] u) => (bool d, float[4] v) { [n] v = STEP(u) }>
      }>
      [q] y = Neg(z) }"""
    low = decide_nodes(text.replace("STEP", "Relu"), **LISTS)
    assert (low["o/body/p/body/n"].precision, low["q"].precision) == (LOW, LOW)
    high = decide_nodes(text.replace("STEP", "Log"), **LISTS)
    assert (high["q"].precision, dict(high["o"].outputs)) == (HIGH, {"z": HIGH})


# -- names ----------------------------------------------------------------------------------------
def test_nodes_without_a_name_are_numbered_by_type_and_scope() -> None:
    text = """g (float[4] x, bool c) => (float[4] y) {
      a = Relu(x) [Relu_1] b = Relu(a) d = Relu(b) e = Neg(d)
      y = If(c) <then_branch = t () => (float[4] p) { p = Relu(e) },
                 else_branch = e () => (float[4] q) { q = Neg(e) }> }"""
    names = list(decide_nodes(text))
    inside = ["If_0/then_branch/Relu_0", "If_0/else_branch/Neg_0"]
    assert set(names) == {"Relu_0", "Relu_1", "Relu_2", "Neg_0", "If_0", *inside}
    assert [name for name in names if "/" not in name] == ["Relu_0", "Relu_1", "Relu_2", "Neg_0", "If_0"]
