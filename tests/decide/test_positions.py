"""Position arithmetic: which nodes belong to it, and how a policy treats them (Rule S4.38)."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import onnx
import onnx.inliner
import pytest
from onnx.reference import ReferenceEvaluator

import mixlist
from mixlist.decide import Resolver
from tests.support.builders import apply, customize, keep, model, policy
from tests.support.package import GRAY_POLICIES, GrayPolicy
from tests.support.resolver_cases import decide_node, decide_nodes, find_precisions
from tests.support.rotary import ARITHMETIC, ROTARY, late_positions
from tests.support.versions import release

MATRIX = {"white": ["MatMul", "Mul", "Add", "Einsum", "Expand"], "protect": ["positions"]}
HEAD = "g (int64[N] n, float[N] x, bool[N] m, uint8[N] b) => (float[N] y)"
CONSTANTS = """<float k = {0.125}, float one = {1}, int64 zero = {0}, float[4] table = {1, 2, 3, 4},
int64[1,1] rows = {0}>"""


def rules_of(body: str, **settings: object) -> dict[str, str]:
    """Return the rules by node name for a body in which every operator is white."""
    white = ["Add", "Concat", "Cos", "CumSum", "Div", "Exp", "Mul", "Pow", "ScatterElements", "ScatterND", "Sin", "Sub"]
    white += ["Where"]
    options: dict[str, object] = {"white": white, "protect": ["positions"], **settings}
    text = f"{HEAD} {CONSTANTS} {{ {body} }}"
    return {name: decision.rule for name, decision in decide_nodes(text, **options).items()}


def test_a_rotary_embedding_stays_as_authored() -> None:
    """Rule S4.38: A position computation stays as authored."""
    decisions = decide_nodes(ROTARY, **MATRIX)
    assert {name for name, decision in decisions.items() if decision.rule == "position"} == set(ARITHMETIC)
    assert {decisions[name].precision for name in ARITHMETIC} == {"float32"}
    assert {decisions[name].precision for name in ("left", "right", "sum")} == {"float16"}
    unprotected = find_precisions(ROTARY, **{**MATRIX, "protect": []})
    assert {unprotected[name] for name in ARITHMETIC} == {"float16"}


def test_the_reason_says_which_integers_reach_which_reader() -> None:
    decisions = decide_nodes(ROTARY, **MATRIX)
    source = "which come from the integers of 'position_ids'"
    exact = "float16 is exact only for integers up to 2048: it stays float32 (S4.38)"
    assert decisions["angles"].reason == f"it computes positions for Cos cos, {source}, and {exact}"
    assert decisions["sin"].reason == f"it reads positions, {source}, and {exact}"
    assert decisions["scale"].reason == (
        "it scales the result of Cos cos, which reads positions: it stays float32 (S4.38)"
    )
    assert decisions["place"].reason == (
        "it computes an operand of the positions that Cos cos reads: it stays float32 (S4.38)"
    )
    assert "up to 256" in decide_node(ROTARY, "angles", mode="mixed_bfloat16", **MATRIX).reason


# Before version 1.23, onnx.reference multiplies no bfloat16 matrices.
BFLOAT16_PRODUCTS = pytest.mark.skipif(release(onnx.__version__) < (1, 23), reason="onnx.reference before onnx 1.23")


@pytest.mark.parametrize("mode", ["mixed_float16", pytest.param("mixed_bfloat16", marks=BFLOAT16_PRODUCTS)])
def test_cosines_at_late_positions_are_exact(mode: str) -> None:
    original, feed = model(ROTARY), late_positions()
    original.graph.output.add(name="c").type.tensor_type.elem_type = 1
    expected = ReferenceEvaluator(original).run(["c"], feed)[0]
    errors = {}
    for protect in ((), ("positions",)):
        mixed = apply(original, policy(white=["MatMul"], black=["Cos", "Sin"], mode=mode, protect=protect))
        errors[protect] = np.abs(ReferenceEvaluator(mixed).run(["c"], feed)[0] - expected).max()
    assert errors["positions",] == 0
    assert errors[()] > 0.9


@pytest.mark.parametrize(
    ("body", "protected"),
    [
        # The example of the rule: integers that arithmetic carries to a reader.
        ("p = Cast<to = 1> (n) [a] a = Mul (p, k) [r] y = Sin (a)", "a r"),
        ("p = Cast<to = 1> (n) [r] y = Cos (p)", "r"),
        ("p = Cast<to = 1> (n) [a] a = Div (p, k) [s] s = Sub (a, one) [r] y = Sin (s)", "a s r"),
        ("p = Cast<to = 1> (n) [a] a = Concat<axis = 0> (p, p) [r] y = Cos (a)", "a r"),
        ("p = Cast<to = 1> (n) [a] a = Where (m, p, k) [r] y = Cos (a)", "a r"),
        # Qwen3-VL writes the angles of height and width into those of time.
        ("p = Cast<to = 1> (n) [a] a = Mul (p, k) [w] w = ScatterElements (a, n, p) [r] y = Sin (w)", "a w r"),
        ("p = Cast<to = 1> (n) [w] w = ScatterND (p, rows, p) [r] y = Cos (w)", "w r"),
        ("p = Cast<to = 1> (n) [w] w = ScatterND (p, rows, x) [r] y = Cos (w)", ""),
        # Positions that are counted: bools as DETR counts them, and integers of a Range.
        ("p = Cast<to = 1> (m) [c] c = CumSum (p, zero) [a] a = Mul (c, k) [r] y = Sin (a)", "c a r"),
        ("i = CumSum (n, zero) p = Cast<to = 1> (i) [a] a = Mul (p, k) [r] y = Sin (a)", "a r"),
        # A node that computes an operand of the arithmetic is part of the arithmetic.
        ("p = Cast<to = 1> (n) [f] f = Exp (k) [a] a = Mul (p, f) [r] y = Sin (a)", "f a r"),
        (
            "p = Cast<to = 1> (n) z = Size (x) s = Cast<to = 1> (z) f = Sqrt (s) [a] a = Mul (p, f) [r] y = Sin (a)",
            "a r",
        ),
        # The nodes after a reader follow the lists.
        ("p = Cast<to = 1> (n) [a] a = Mul (p, k) [r] s = Sin (a) [z] y = Mul (s, x)", "a r"),
        # No reader, or other operators on the way.
        ("p = Cast<to = 1> (b) [a] y = Div (p, k)", ""),
        ("p = Cast<to = 1> (n) [a] a = Mul (p, k) [w] w = Pow (a, k) [r] y = Sin (w)", ""),
        ("p = Cast<to = 1> (m) [a] a = Sub (one, p) [w] w = Mul (a, k) [z] y = Add (x, w)", ""),
        # Data takes part: no position.
        ("[a] a = Mul (x, k) [r] y = Sin (a)", ""),
        ("p = Cast<to = 1> (n) [a] a = Mul (p, x) [r] y = Sin (a)", ""),
        ("p = Cast<to = 1> (n) [a] a = Mul (p, k) [w] w = Add (a, x) [r] y = Sin (w)", ""),
        ("[a] a = CumSum (x, zero) [r] y = Sin (a)", ""),
        # A row of a float table that data picks is data.
        ("p = Cast<to = 1> (m) t = Gather (table, n) [a] a = Mul (t, p) [r] y = Sin (a)", ""),
        ("[g] t = Gather (table, n) [a] a = Mul (t, k) [r] y = Sin (a)", ""),
    ],
)
def test_position_arithmetic_is_recognized(body: str, protected: str) -> None:
    """Rule S4.38: A position computation stays as authored."""
    rules = rules_of(body)
    assert {name for name, rule in rules.items() if rule == "position"} == set(protected.split())
    assert "position" not in rules_of(body, protect=[]).values()


def test_the_grid_of_grid_sample_is_a_reader() -> None:
    text = """g (float[1, 3, 8, 8] x, int64[1, 4, 4, 2] at) => (float[1, 3, 4, 4] y)
      <float k = {0.25}, float one = {1}> {
      p = Cast<to = 1> (at) [a] a = Mul (p, k) [b] b = Sub (a, one) [r] y = GridSample (x, b) }"""
    decisions = decide_nodes(text, white=["Mul", "Sub", "GridSample"], protect=["positions"])
    assert [decisions[name].rule for name in "abr"] == ["position"] * 3
    turned = """g (int64[1, 1, 4, 4] at, float[1, 4, 4, 2] grid) => (float[1, 1, 4, 4] y) <float k = {0.25}> {
      p = Cast<to = 1> (at) [a] a = Mul (p, k) [r] y = GridSample (a, grid) }"""
    rules = {
        name: decision.rule
        for name, decision in decide_nodes(turned, white=["Mul", "GridSample"], protect=["positions"]).items()
    }
    assert rules["a"] == rules["r"] == "white"  # an image of integers is no grid


def test_the_positions_of_a_model_are_freed_with_the_model() -> None:
    resolver = Resolver(model(ROTARY))
    resolver.plan(policy(**MATRIX))
    graph = weakref.ref(resolver.graph)
    del resolver
    gc.collect()
    assert graph() is None


def test_node_rules_win_over_positions() -> None:
    text = f"{HEAD} {CONSTANTS} {{ p = Cast<to = 1> (n) [a] a = Mul (p, k) [r] y = Sin (a) }}"
    rules = (customize("a", ["float16", "float16"], ["float16"]), *keep("r"))
    decisions = decide_nodes(text, white=["Mul", "Sin"], protect=["positions"], rules=rules)
    assert (decisions["a"].rule, decisions["a"].precision) == ("node-rule", "float16")
    assert decisions["r"].rule == "node-rule"


def test_shape_arithmetic_keeps_its_rule() -> None:
    text = """g (float[N] x) => (float[N] y) <float k = {0.5}, int64 zero = {0}, int64 one = {1}> {
      n = Size (x) i = Range (zero, n, one) p = Cast<to = 1> (i) [a] a = Mul (p, k) [r] y = Sin (a) }"""
    decisions = decide_nodes(text, white=["Mul", "Sin"], protect=["positions"])
    assert [decisions[name].rule for name in "ar"] == ["shape", "shape"]


@pytest.mark.parametrize("gray", GRAY_POLICIES)
def test_positions_are_protected_under_every_gray_policy(gray: GrayPolicy) -> None:
    decisions = decide_nodes(ROTARY, white=["MatMul", "Add"], black=["Cos"], gray_policy=gray, protect=["positions"])
    assert {name for name, decision in decisions.items() if decision.rule == "position"} == set(ARITHMETIC)


@pytest.mark.parametrize(
    ("mode", "rule"), [("fp16", "position"), ("allow_fp32_to_fp16", "position"), ("origin", "mode")]
)
def test_positions_are_protected_in_modes_that_lower_nodes(mode: str, rule: str) -> None:
    assert decide_node(ROTARY, "angles", mode=mode, protect=["positions"]).rule == rule


def test_positions_are_followed_through_bodies() -> None:
    text = f"""{HEAD.replace("float[N] y", "float[M, N] y")} {CONSTANTS} {{ p = Cast<to = 1> (n)
      count = Constant<value_int = 3> () go = Constant<value = bool {{1}}> () [if] q = If (go)
        <then_branch = t () => (float[N] a) {{ [a] a = Mul (p, k) }},
         else_branch = e () => (float[N] o) {{ [o] o = Add (p, k) }}>
      [loop] state, y = Loop (count, go, q)
        <body = l (int64 i, bool c, float[N] s) => (bool d, float[N] next, float[N] out)
          {{ d = Identity (c) j = Cast<to = 1> (i) [step] next = Add (s, j) [r] out = Sin (s) }}> }}"""
    decisions = decide_nodes(text, white=["Mul", "Add", "Sin"], protect=["positions"])
    rules = {name.rpartition("/")[2]: decision.rule for name, decision in decisions.items()}
    assert [rules[name] for name in ("a", "o", "step", "r")] == ["position"] * 4
    data = text.replace("Mul (p, k)", "Mul (p, x)")  # data enters in one branch
    assert "position" not in {
        decision.rule for decision in decide_nodes(data, white=["Mul", "Add", "Sin"], protect=["positions"]).values()
    }


def test_a_policy_that_does_not_protect_warns() -> None:
    """Rule S4.34: a library that models an engine warns where positions become low precision."""
    options = {"white": ["MatMul", "Mul", "Sin"], "protect": ["masks"]}
    (warning,) = mixlist.resolve(model(ROTARY), policy(**options)).warnings
    assert warning.code == "ML507"
    assert "the positions that Cos cos reads are float16 at Expand place" in warning.message
    assert "protect='positions'" in str(warning.hint)
    for protect, lists in ((["positions"], ["MatMul"]), ([], ["Add"])):
        assert mixlist.resolve(model(ROTARY), policy(white=lists, protect=protect)).warnings == ()
    assert mixlist.resolve(model(ROTARY), policy(mode="origin")).warnings == ()
