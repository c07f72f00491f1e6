"""Rule S4.38: which nodes are position arithmetic, and what a policy makes of them."""

from __future__ import annotations

import gc
import random
import weakref
from collections import Counter

import numpy as np
import onnx
import onnx.inliner
import pytest
from onnx.reference import ReferenceEvaluator

import mixlist
from mixlist.lists.policy import GrayPolicy
from mixlist.resolver import Plan, Resolver
from mixlist.resolver.decisions import GraphSolution
from mixlist.resolver.reasons import find_rule
from tests.resolver.test_incremental_solver import EXAMPLES, Both
from tests.support.builders import apply, customise, keep, model, policy
from tests.support.resolver_cases import nodes, one, precisions
from tests.support.rotary import ARITHMETIC, ROTARY, late_positions

MATRIX = {"white": ["MatMul", "Mul", "Add", "Einsum", "Expand"], "protect": ["positions"]}
HEAD = "g (int64[N] n, float[N] x, bool[N] m, uint8[N] b) => (float[N] y)"
CONSTANTS = "<float k = {0.125}, float one = {1}, int64 zero = {0}, float[4] table = {1, 2, 3, 4}>"


def rules_of(body: str, **settings: object) -> dict[str, str]:
    """The rules by node name, where every operator is white."""
    white = ["Add", "Concat", "Cos", "CumSum", "Div", "Exp", "Mul", "Pow", "Sin", "Sub", "Where"]
    options: dict[str, object] = {"white": white, "protect": ["positions"], **settings}
    text = f"{HEAD} {CONSTANTS} {{ {body} }}"
    return {name: decision.rule for name, decision in nodes(text, **options).items()}


def test_a_rotary_embedding_stays_as_authored() -> None:
    """Rule S4.38: A position computation stays as authored."""
    decisions = nodes(ROTARY, **MATRIX)
    assert {name for name, each in decisions.items() if each.rule == "position"} == set(ARITHMETIC)
    assert {decisions[name].precision for name in ARITHMETIC} == {"float32"}
    assert {decisions[name].precision for name in ("scale", "left", "right", "sum")} == {"float16"}
    unprotected = precisions(ROTARY, **{**MATRIX, "protect": []})
    assert {unprotected[name] for name in ARITHMETIC} == {"float16"}


def test_the_reason_says_which_integers_reach_which_reader() -> None:
    decisions = nodes(ROTARY, **MATRIX)
    source = "which come from the integers of 'position_ids'"
    exact = "float16 is exact only for integers up to 2048: it stays float32 (S4.38)"
    assert decisions["angles"].reason == f"it computes positions for Cos cos, {source}, and {exact}"
    assert decisions["sin"].reason == f"it reads positions, {source}, and {exact}"
    assert decisions["place"].reason == (
        "it computes an operand of the positions that Cos cos reads: it stays float32 (S4.38)"
    )
    assert "up to 256" in one(ROTARY, "angles", mode="mixed_bfloat16", **MATRIX).reason


@pytest.mark.parametrize("mode", ["mixed_float16", "mixed_bfloat16"])
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
        # Positions that are counted: bools as DETR counts them, and integers of a Range.
        ("p = Cast<to = 1> (m) [c] c = CumSum (p, zero) [a] a = Mul (c, k) [r] y = Sin (a)", "c a r"),
        ("i = CumSum (n, zero) p = Cast<to = 1> (i) [a] a = Mul (p, k) [r] y = Sin (a)", "a r"),
        # What computes an operand of the arithmetic is part of it.
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
def test_what_is_position_arithmetic(body: str, protected: str) -> None:
    """Rule S4.38: A position computation stays as authored."""
    rules = rules_of(body)
    assert {name for name, rule in rules.items() if rule == "position"} == set(protected.split())
    assert "position" not in rules_of(body, protect=[]).values()


def test_the_grid_of_grid_sample() -> None:
    text = """g (float[1, 3, 8, 8] x, int64[1, 4, 4, 2] at) => (float[1, 3, 4, 4] y)
      <float k = {0.25}, float one = {1}> {
      p = Cast<to = 1> (at) [a] a = Mul (p, k) [b] b = Sub (a, one) [r] y = GridSample (x, b) }"""
    decisions = nodes(text, white=["Mul", "Sub", "GridSample"], protect=["positions"])
    assert [decisions[name].rule for name in "abr"] == ["position"] * 3
    turned = """g (int64[1, 1, 4, 4] at, float[1, 4, 4, 2] grid) => (float[1, 1, 4, 4] y) <float k = {0.25}> {
      p = Cast<to = 1> (at) [a] a = Mul (p, k) [r] y = GridSample (a, grid) }"""
    rules = {
        name: each.rule for name, each in nodes(turned, white=["Mul", "GridSample"], protect=["positions"]).items()
    }
    assert rules["a"] == rules["r"] == "white"  # an image of integers is no grid


def test_what_is_found_lives_as_long_as_the_model() -> None:
    resolver = Resolver(model(ROTARY))
    resolver.plan(policy(**MATRIX))
    graph = weakref.ref(resolver.graph)
    del resolver
    gc.collect()
    assert graph() is None


def test_node_rules_win() -> None:
    text = f"{HEAD} {CONSTANTS} {{ p = Cast<to = 1> (n) [a] a = Mul (p, k) [r] y = Sin (a) }}"
    rules = (customise("a", ["float16", "float16"], ["float16"]), *keep("r"))
    decisions = nodes(text, white=["Mul", "Sin"], protect=["positions"], rules=rules)
    assert (decisions["a"].rule, decisions["a"].precision) == ("node-rule", "float16")
    assert decisions["r"].rule == "node-rule"


def test_shape_arithmetic_keeps_its_rule() -> None:
    text = """g (float[N] x) => (float[N] y) <float k = {0.5}, int64 zero = {0}, int64 one = {1}> {
      n = Size (x) i = Range (zero, n, one) p = Cast<to = 1> (i) [a] a = Mul (p, k) [r] y = Sin (a) }"""
    decisions = nodes(text, white=["Mul", "Sin"], protect=["positions"])
    assert [decisions[name].rule for name in "ar"] == ["shape", "shape"]


@pytest.mark.parametrize("gray", ["ascend", "between", "black-wins", "promote"])
def test_every_gray_policy(gray: GrayPolicy) -> None:
    decisions = nodes(ROTARY, white=["MatMul", "Add"], black=["Cos"], gray_policy=gray, protect=["positions"])
    assert {name for name, each in decisions.items() if each.rule == "position"} == set(ARITHMETIC)


@pytest.mark.parametrize(
    ("mode", "rule"), [("fp16", "position"), ("allow_fp32_to_fp16", "position"), ("origin", "mode")]
)
def test_modes(mode: str, rule: str) -> None:
    assert one(ROTARY, "angles", mode=mode, protect=["positions"]).rule == rule


def test_through_bodies() -> None:
    text = f"""{HEAD.replace("float[N] y", "float[M, N] y")} {CONSTANTS} {{ p = Cast<to = 1> (n)
      count = Constant<value_int = 3> () go = Constant<value = bool {{1}}> () [if] q = If (go)
        <then_branch = t () => (float[N] a) {{ [a] a = Mul (p, k) }},
         else_branch = e () => (float[N] o) {{ [o] o = Add (p, k) }}>
      [loop] state, y = Loop (count, go, q)
        <body = l (int64 i, bool c, float[N] s) => (bool d, float[N] next, float[N] out)
          {{ d = Identity (c) j = Cast<to = 1> (i) [step] next = Add (s, j) [r] out = Sin (s) }}> }}"""
    decisions = nodes(text, white=["Mul", "Add", "Sin"], protect=["positions"])
    rules = {name.rpartition("/")[2]: each.rule for name, each in decisions.items()}
    assert [rules[name] for name in ("a", "o", "step", "r")] == ["position"] * 4
    data = text.replace("Mul (p, k)", "Mul (p, x)")  # data enters in one branch
    assert "position" not in {
        each.rule for each in nodes(data, white=["Mul", "Add", "Sin"], protect=["positions"]).values()
    }


CALLED = """
<ir_version: 8, opset_import: ["" : 17, "d" : 1]>
g (int64[N] n, float[N] x) => (float[N] y, float[N] z) <float k = {0.125}> {
  p = Cast<to = 1> (n) [rotate] y = d.Turn (p, k) [other] z = d.Turn (x, k)
}
<domain: "d", opset_import: ["" : 17, "d" : 1]> Turn (v, f) => (w) { [scaled] a = d.Scale (v, f) [r] w = Sin (a) }
<domain: "d", opset_import: ["" : 17]> Scale (v, f) => (w) { [a] w = Mul (v, f) }
"""


def test_a_function_is_judged_as_if_it_were_inlined() -> None:
    plan = mixlist.resolve(model(CALLED), policy(white=["Mul", "Sin"], protect=["positions"]))
    told = {(each.scope, each.name): each.rule for each in plan.nodes if each.rule in ("position", "white")}
    assert told == {
        ("function:d:Turn#0", "r"): "position",
        ("function:d:Turn#1", "r"): "white",
        ("function:d:Scale#0", "a"): "position",
        ("function:d:Scale#1", "a"): "white",
    }


def test_a_function_that_only_counts_and_one_that_only_reads() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "d" : 1]>
    g (int64[N] n) => (float[N] y, float[N] z) <float k = {0.125}> {
      p = d.Scale (n, k) [read] y = d.Read (p) q = d.Scale (n, k) [z] z = Exp (q) }
    <domain: "d", opset_import: ["" : 17]> Scale (v, f) => (w) { c = Cast<to = 1> (v) [a] w = Mul (c, f) }
    <domain: "d", opset_import: ["" : 17]> Read (v) => (w) { [r] w = Sin (v) }"""
    plan = mixlist.resolve(model(text), policy(white=["Mul", "Sin", "Exp"], protect=["positions"]))
    told = sorted((each.scope, each.rule) for each in plan.nodes if each.name in "arz")
    assert told == [
        ("", "white"),
        ("function:d:Read", "position"),
        ("function:d:Scale#0", "position"),
        ("function:d:Scale#1", "white"),
    ]


def _random_body(rng: random.Random, floats: list[str], integers: list[str], functions: int, size: int) -> list[str]:
    """Lines of random operators over tensors of one shape; names are numbered, and ``floats`` grows."""
    lines = []
    for at in range(size):
        made, one, two = f"t{at}", rng.choice(floats), rng.choice(floats)
        if functions and rng.random() < 0.3:
            line = f"{made} = d.F{rng.randrange(functions)} ({one}, {two}, {rng.choice(integers)})"
        else:
            line = made + " = " + rng.choice([
                f"Cast<to = 1> ({rng.choice(integers)})", f"Mul ({one}, {two})", f"Add ({one}, {two})", f"Exp ({one})",
                f"Sin ({one})", f"Cos ({one})", f"Neg ({one})", f"Identity ({one})", "Constant<value_float = 0.5> ()",
            ])  # fmt: skip
        lines.append(line)
        floats.append(made)
    return lines


def _random_calls(seed: int) -> onnx.ModelProto:
    """A model with functions that call each other, over float and integer inputs."""
    rng = random.Random(seed)
    functions = []
    for at in range(3):
        floats = ["u", "v"]
        body = _random_body(rng, floats, ["i"], at, 4)
        functions.append(
            f'<domain: "d", opset_import: ["" : 17, "d" : 1]> F{at} (u, v, i) => (w)\n'
            f"{{ {' '.join(body)} w = {rng.choice(['Mul', 'Add'])} ({rng.choice(floats)}, {floats[-1]}) }}"
        )
    floats = ["x", "k"]
    body = _random_body(rng, floats, ["n", "m"], 3, 9)
    outputs = [name for name in floats[2:] if rng.random() < 0.3] or floats[-1:]
    shown = ", ".join(f"float[N] {name}" for name in outputs)
    head = '<ir_version: 8, opset_import: ["" : 17, "d" : 1]>'
    return model(
        f"{head} g (float[N] x, int64[N] n, bool[N] m) => ({shown}) <float[1] k = {{2}}> {{ {' '.join(body)} }}\n"
        + "\n".join(functions),
        check=False,
    )


def _rules_of_calls(plan: Plan) -> Counter[tuple[str, str]]:
    """How often each operator was decided by each rule, where a function counts for each call."""

    def count(solution: GraphSolution) -> Counter[tuple[str, str]]:
        found: Counter[tuple[str, str]] = Counter()
        for node in solution.graph.nodes:
            if node.function is None:
                found[node.op_type, find_rule(solution, node)] += 1
            else:
                found += count(solution.callees[node.id])
        return found

    return count(plan.solution.solutions[0])


@pytest.mark.parametrize("gray", ["ascend", "promote"])
def test_inlining_functions_changes_no_rule(gray: GrayPolicy) -> None:
    """Rule S4.38: A position computation stays as authored, for each call as if it were inlined."""
    lists = policy(white=["Mul", "Sin", "Exp"], black=["Cos"], protect=["positions"], gray_policy=gray)
    protected = 0
    for seed in range(EXAMPLES):
        proto = _random_calls(seed)
        called = _rules_of_calls(mixlist.resolve(proto, lists))
        inlined = _rules_of_calls(mixlist.resolve(onnx.inliner.inline_local_functions(proto), lists))
        assert called == inlined, seed
        protected += sum(number for (_, rule), number in called.items() if rule == "position")
    assert protected > EXAMPLES / 2


def test_a_policy_that_does_not_protect_warns() -> None:
    """Rule S4.34: a library that models an engine warns where positions become low precision."""
    options = {"white": ["MatMul", "Mul", "Sin"], "protect": ["masks"]}
    (warning,) = mixlist.resolve(model(ROTARY), policy(**options)).warnings
    assert warning.code == "ML507"
    assert "the positions that Cos cos reads are float16 at MatMul angles" in warning.message
    assert "--protect positions" in str(warning.hint)
    (warning,) = mixlist.resolve(model(CALLED), policy(**options)).warnings
    assert "are float16 at Sin function:d:Turn/r" in warning.message
    for protect, lists in ((["positions"], ["MatMul"]), ([], ["Add"])):
        assert mixlist.resolve(model(ROTARY), policy(white=lists, protect=protect)).warnings == ()
    assert mixlist.resolve(model(ROTARY), policy(mode="origin")).warnings == ()


@pytest.mark.parametrize("text", [ROTARY, CALLED])
def test_tune_decides_alike(text: str) -> None:
    lists = policy(white=["MatMul", "Mul", "Sin"], protect=["positions"])
    both = Both(model(text), lists)
    edits = [unit.edit for unit in both.units()]
    assert edits
    for edit in edits:
        both.compare(frozenset([edit]))
    both.compare(frozenset(edits[:3]))
    both.compare(frozenset())
    assert both.halfway


@pytest.mark.parametrize("gray", ["ascend", "between", "black-wins", "promote"])
def test_tune_decides_random_calls_alike(gray: GrayPolicy) -> None:
    lists = policy(white=["Mul", "Sin"], black=["Cos"], protect=["positions"], gray_policy=gray)
    for seed in range(1 + EXAMPLES // 20):
        rng = random.Random(seed)
        both = Both(_random_calls(seed), lists)
        edits = [unit.edit for unit in both.units()]
        for _ in range(4):
            both.compare(frozenset(edit for edit in edits if rng.random() < 0.4))
