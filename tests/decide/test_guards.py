"""Guards of divisions and logarithms: which ones are raised, and which nodes they keep (Rule S4.43)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

import mixlist
from tests.support.builders import apply, customize, model, policy
from tests.support.reference import Reference
from tests.support.reference_compare import differences
from tests.support.resolver_cases import decide_nodes

WHITE = ["Abs", "Add", "Clip", "Div", "Exp", "Expand", "Log", "Max", "Mul", "Neg", "Pow", "Reciprocal"]
WHITE += ["ReduceL2", "ReduceMean", "Sqrt", "Sub", "Where", "Sum", "Min", "Relu", "Split", "Concat", "Pad", "Dropout"]
WHITE += ["Ceil", "ConstantOfShape", "ReduceSum"]
HEAD = "g (float[N,4] x, float[N,4] z, float[M,4] w, int64[2] shape, bool[N,4] b, bool p) => (float[N,4] y)"
CONSTANTS = """<float e = {1e-12}, float e9 = {1e-9}, float e6 = {1e-6}, float e4 = {1e-4}, float half = {0.5},
float two = {2}, float m = {-0.5}, float big = {1e4}, float neg = {-1e-12}, float one = {1}, float below = {0.9999999},
float nearer = {0.99999994}, float zero = {0}, float[1,4] row = {1e-12, 1, 1, 1}, int64[4] pads = {0, 0, 1, 0},
float[1,4] flat = {1e-12, 1e-12, 1e-12, 1e-12}, int64[1] start = {0}, int64[1] stop = {2}>"""


def kept_nodes(body: str, **settings: object) -> str:
    """Return the names of the nodes that a guard keeps, for a body in which every operator is white."""
    options: dict[str, object] = {"white": WHITE, **settings}
    decisions = decide_nodes(f"{HEAD} {CONSTANTS} {{ {body} }}", **options)
    return " ".join(name.rpartition("/")[2] for name, decision in decisions.items() if decision.rule == "guard")


@pytest.mark.parametrize(
    ("body", "kept"),
    [
        # The guards
        # A Clip or Max that is not raised, because of another reader, or of what reads it or bounds it
        ("[g] c = Clip(x, e) [l] y = Log(c)", "g l"),
        ("[g] c = Max(e, x) [s] s = Sqrt(c) [d] y = Div(z, s)", "g s"),
        ("[g] c = Clip(x, e) [d] y = Div(z, c) [n] n = Neg(c)", "g d"),
        ("[g] c = Clip(x, e) [d] y = Div(z, c) [i] i = Identity(c)", "g d"),  # which nothing reads
        ("[g] c = Clip(x, e) [d] y = Div(z, c) [q] q = Div(c, z)", "g d"),
        ("[g] c = Clip(x, e) [d] y = Div(z, c) [o] o = Clip(z, c)", "g d"),
        ("[g] y = Clip(x, e) [d] d = Div(z, y)", "g d"),  # an output of the graph
        ("[g] c = Clip(x, e, one) [d] y = Div(z, c)", "g d"),
        ("[g] c = Max(x, row) [d] y = Div(z, c)", "g d"),
        ("[g] c = Clip(x, e) [h] h = Expand(c, shape) [m] s = Mul(h, z) [d] y = Div(z, h)", "g h d"),
        ("[g] c = Max(x, e) [q] q = Cast<to = 10>(c) [h] h = Cast<to = 1>(q) [r] r = Log(c) [d] y = Div(z, h)", "g r"),
        ("k = Shape(x) [t] t = Expand(e, k) [g] c = Max(x, t) [d] y = Div(z, c)", "t g d"),
        (
            "[i] h = If(p)<then_branch = t () => (float[N,4] u) { [g] u = Max(x, e) },"
            " else_branch = f () => (float[N,4] v) { [n] v = Neg(x) }> [d] y = Div(z, h)",
            "d g",
        ),
        ("[g] c = Add(x, e) [d] y = Div(z, c)", "g d"),
        ("[g] c = Add(x, neg) [d] y = Div(z, c)", ""),
        ("[g] c = Sub(x, e) [d] y = Div(z, c)", ""),
        ("[g] c = Add(x, e6) [d] y = Div(z, c)", ""),  # float16 holds 1e-6
        ("[g] c = Add(x, z) [d] y = Div(z, c)", ""),
        ("[g] c = Clip(x, , e) [d] y = Div(z, c)", ""),  # an upper bound is no guard
        # The nodes that fail
        ("[g] c = Add(x, e) [l] y = Log(c)", "g l"),
        ("[g] c = Add(x, e) [p] y = Pow(c, m)", "g p"),
        ("[g] c = Add(x, e) [p] y = Pow(c, two)", ""),
        ("[g] c = Add(x, e) [p] y = Pow(c, zero)", ""),  # one
        ("[g] c = Add(x, e) [p] y = Pow(c, z)", ""),  # the exponent is not known
        ("[g] c = Add(x, e) [p] y = Pow(z, c)", ""),
        ("[g] c = Add(x, e) [p] r = Pow(two, c) [d] y = Div(z, r)", ""),
        ("[g] c = Add(x, row) [d] y = Div(z, c)", "g d"),  # the smallest element counts
        ("[g] c = Max(x, one) [m] s = Mul(c, e) [d] y = Div(z, s)", ""),  # 1 is no guard
        ("[g] c = Max(x, zero) [d] y = Div(z, c)", ""),
        ("[g] c = Add(x, e) [d] y = Div(z, c) [n] n = Neg(c) [l] l = Log(n)", "g d n l"),
        ("[g] c = Add(x, e) [d] y = Div(c, z)", ""),
        ("[g] c = Add(x, e) [n] y = Neg(c)", ""),
        # What carries the guarded value
        ("[g] c = Add(x, e) [h] h = Expand(c, shape) [d] y = Div(z, h)", "g h d"),
        ("[g] c = Add(x, e) [h] h = ReduceMean(c) [d] y = Div(z, h)", "g h d"),
        ("[g] c = Add(x, e) [h] h = ReduceSum(c) [d] y = Div(z, h)", "g h d"),  # as in slot attention
        ("[g] c = Add(x, e) [q] h = Cast<to = 1>(c) [d] y = Div(z, h)", "g d"),
        ("[g] c = Add(x, e) [h] h = Clip(c, , big) [d] y = Div(z, h)", "g h d"),
        ("[g] c = Add(x, e) [h] h = Neg(c) [d] y = Div(z, h)", "g h d"),
        ("[g] c = Add(x, e) [h] h = Abs(c) [d] y = Div(z, h)", "g h d"),
        ("[g] c = Add(x, e) [h] h = Relu(c) [d] y = Div(z, h)", "g h d"),
        ("[g] c = Add(x, e) [h] h = Dropout(c) [d] y = Div(z, h)", "g h d"),
        ("[g] c = Add(x, e) [h] h = Where(b, c, z) [d] y = Div(z, h)", "g h d"),
        ("[g] c = Add(x, e) [h] h, q = Split<axis = 0>(c) [d] y = Div(w, q)", "g h d"),
        ("[g] c = Add(x, e) [h] h = Concat<axis = 0>(z, c) [d] y = Div(z, h)", "g h d"),
        ("[g] c = Add(x, e) [h] h = Pad(c, pads) [d] y = Div(z, h)", "g h d"),
        ("[g] c = Add(x, e) [h] h = Ceil(c) [d] y = Div(z, h)", "g h d"),
        ("[g] c = Max(x, e) [h] h = Min(c, big) [d] y = Div(z, h)", "g h d"),
        ("[g] c = Sum(x, e) [d] y = Div(z, c)", "g d"),
        ("[g] c = Add(x, e) [h] h = Sum(c, e9, e6) [d] y = Div(z, h)", "g h"),
        ("[g] c = Add(x, e) [h] h = Sum(c, z) [d] y = Div(z, h)", ""),
        ("k = Shape(x) [t] t = Expand(e, k) [g] c = Add(x, t) [d] y = Div(z, c)", "t g d"),
        (
            "k = Shape(x) [t] t = ConstantOfShape<value = float[1] {1e-12}>(k) [g] c = Max(x, t) [d] y = Div(z, c)",
            "g d",
        ),
        ("k = Shape(x) t = ConstantOfShape(k) [g] c = Max(x, t) [d] y = Div(z, c)", ""),  # zeros
        ("k = Shape(x) [t] t = Expand(e, k) [q] q = Cast<to = 1>(t) [g] c = Add(x, q) [d] y = Div(z, c)", "t g d"),
        ("q = Shape(x) [t] t = Tile(row, q) [g] c = Add(x, t) [d] y = Div(w, c)", "t g d"),
        ("[t] t = Expand(e, shape) [r] r = Reshape(t, shape) [g] c = Add(x, r) [d] y = Div(z, c)", "t r g d"),
        ("[t] t = Expand(x, shape) [g] c = Add(z, t) [d] y = Div(z, c)", ""),
        # Two guards: the smaller one counts
        ("[g] c = Add(x, e) [h] h = Add(z, e4) [j] j = Concat<axis = 0>(h, c) [d] y = Div(w, j)", "g j d"),
        ("[g] c = Add(x, e) [h] h = Add(z, e4) [j] j = Max(c, h) [d] y = Div(w, j)", "g j d"),
        ("[g] c = Add(x, e) [h] h = Add(z, e4) [j] j = Min(h, c) [d] y = Div(w, j)", "g j d"),
        ("[g] c = Add(x, e) [h] h = Add(z, e4) [j] j = Add(h, c) [d] y = Div(w, j)", "g j"),
        ("[g] c = Add(x, e4) [h] h = Add(z, e4) [q] q = Div(c, h) [m] s = Mul(q, e9) [d] y = Div(w, s)", ""),
        ("[g] c = Add(x, e) [r] r = Reciprocal(c) [j] j = Concat<axis = 0>(r, c) [d] y = Div(w, j)", "g r j d"),
        ("[g] c = Add(x, e) [r] r = Reciprocal(c) [a] s = Add(r, c) [d] y = Mul(w, s)", "g r"),
        # A Cast of the author has rounded the guard away
        ("[g] c = Add(x, e) [q] q = Cast<to = 10>(c) [h] h = Cast<to = 1>(q) [d] y = Div(z, h)", ""),
        ("[g] c = Add(x, e) [l] y = Log(c) [q] q = Cast<to = 10>(c) [h] h = Cast<to = 1>(q) [d] r = Div(z, h)", "g l"),
        # A guarded value of zero is none
        ("[g] c = Max(x, e4) [m] h = Mul(c, zero) [d] y = Div(z, h)", ""),
        ("[g] c = Max(x, e4) [m] h = Mul(c, neg) [d] y = Div(z, h)", ""),
        # A guard in a branch, and one before it
        (
            "[i] h = If(p)<then_branch = t () => (float[N,4] u) { [g] u = Add(x, e) },"
            " else_branch = f () => (float[N,4] v) { [n] v = Neg(x) }> [d] y = Div(z, h)",
            "d g",
        ),
        (
            "[i] n, h = If(p)<then_branch = t () => (float[N,4] r, float[N,4] u) { r = Neg(x) [g] u = Add(x, e) },"
            " else_branch = f () => (float[N,4] s, float[N,4] v) { s = Abs(x) v = Neg(x) }> [d] y = Div(z, h)",
            "d g",
        ),
        (
            "[g] c = Add(x, e) [i] y = If(p)<then_branch = t () => (float[N,4] u) { [d] u = Div(z, c) },"
            " else_branch = f () => (float[N,4] v) { [n] v = Neg(x) }>",
            "g d",
        ),
        # Guards that keep values below one; float16 has no number between 0.9995 and 1
        ("[g] c = Clip(x, , below) [s] s = Sub(one, c) [l] y = Log(s)", "g s"),
        ("[g] c = Min(x, below) [s] s = Sub(one, c) [d] y = Div(z, s)", "g s"),
        ("[g] c = Min(x, below) [m] n = Max(c, e6) [s] s = Sub(one, n) [d] y = Div(z, s)", "g m s"),
        ("[g] c = Min(x, nearer) [s] s = Sub(one, c) [l] y = Log(s)", "g s"),
        ("[g] c = Min(x, below) [s] s = Sub(one, c) [m] t = Mul(s, e4) [l] y = Log(t)", "g s m l"),
        ("[g] c = Min(x, one) [s] s = Sub(one, c) [l] y = Log(s)", ""),
        ("[g] c = Min(x, z) [s] s = Sub(one, c) [l] y = Log(s)", ""),
        ("[g] c = Min(x, below) [s] s = Sub(c, one) [l] y = Log(s)", ""),
        ("[g] c = Min(x, below) [h] h = Relu(c) [s] s = Sub(one, h) [l] y = Log(s)", "g h s"),
        ("[g] c = Min(x, half) [s] s = Sub(one, c) [l] y = Log(s)", ""),
        ("[g] c = Min(x, below) [s] s = Sub(two, c) [l] y = Log(s)", ""),
        ("[g] c = Min(x, below) [l] y = Log(c)", ""),
        ("[g] c = Min(x, below) [a] a = Neg(c) [s] s = Sub(one, a) [l] y = Log(s)", "g a s"),
        ("[g] c = Add(x, e) [s] s = Sqrt(c) [d] y = Div(z, s)", "g s"),  # Div reads 1e-6
        ("[g] c = Add(x, e) [p] s = Pow(c, half) [d] y = Div(z, s)", "g p"),
        ("[g] c = Add(x, e) [a] s = Add(c, e6) [d] y = Div(z, s)", "g a"),
        ("[g] c = Add(x, e) [a] s = Add(c, z) [d] y = Div(z, s)", ""),
        ("[g] c = Add(x, e) [a] s = Max(c, z) [d] y = Div(z, s)", "g a d"),
        ("[g] c = Add(x, e) [a] s = Max(c, e6) [d] y = Div(z, s)", ""),  # Max is raised
        ("[g] c = Add(x, e9) [m] s = Mul(c, big) [d] y = Div(z, s)", "g m"),
        ("[g] c = Add(x, e6) [m] s = Mul(e4, c) [d] y = Div(z, s)", "m d"),
        ("[g] c = Add(x, e9) [m] s = Div(c, e4) [d] y = Div(z, s)", "g m"),
        ("[g] c = Add(x, e6) [m] s = Div(c, big) [d] y = Div(z, s)", "m d"),
        # Products of two guarded values, as in a cosine similarity
        ("[g] c = Max(x, e4) [h] h = Max(z, e4) [m] s = Mul(c, h) [d] y = Div(z, s)", "m d"),
        ("[g] c = Max(x, e4) [m] s = Mul(c, z) [d] y = Div(z, s)", ""),
        # Reciprocals: zero times infinity
        ("[g] c = Add(x, e) [s] s = Sqrt(c) [r] r = Reciprocal(s) [m] y = Mul(z, r)", "g s r m"),
        ("[g] c = Add(x, e) [s] s = Sqrt(c) [r] r = Div(one, s) [m] y = Mul(z, r)", "g s r m"),
        ("[g] c = Add(x, e) [p] r = Pow(c, m) [m] y = Mul(z, r)", "g p m"),
        ("[g] c = Add(x, e4) [r] r = Div(one, c) [m] y = Mul(z, r)", ""),
        ("[g] c = Add(x, e4) [r] r = Div(big, c) [m] y = Mul(z, r)", "r m"),
        ("[g] c = Add(x, e6) [r] r = Reciprocal(c) [q] q = Reciprocal(r) [d] y = Div(z, q)", "r q"),
        ("[g] c = Add(x, e6) [r] r = Reciprocal(c) [s] s = Mul(r, r) [a] y = Add(z, s)", ""),
        ("[g] c = Add(x, e6) [r] r = Reciprocal(c) [s] s = Mul(r, r) [m] y = Mul(z, s)", "r s m"),
        ("[g] c = Add(x, e6) [r] r = Reciprocal(c) [m] y = Mul(half, r)", ""),
        ("[g] c = Add(x, e4) [r] r = Reciprocal(c) [m] y = Mul(z, r)", ""),  # 1e4 is in range
        ("[g] c = Add(x, e6) [r] r = Reciprocal(c) [m] y = Mul(z, r)", "r m"),
        ("[g] c = Add(x, e6) [r] r = Reciprocal(c) [a] y = Add(z, r)", ""),
    ],
)
def test_a_guard_keeps_what_the_low_type_would_undo(body: str, kept: str) -> None:
    """Rule S4.43: A guard of a division stays with its division."""
    assert kept_nodes(body) == kept


def raised_constants(body: str, head: str = HEAD, **settings: object) -> str:
    """Return the type and number of each bound of a Clip or Max that is not 1e-12 any more in the rewritten model.

    Every operator is white. The decisions are also those of the reference, and a second rewrite changes nothing.
    """
    options: dict[str, Any] = {"white": WHITE, **settings}
    network = model(f"{head} {CONSTANTS} {{ {body} }}")
    plan = mixlist.resolve(network, policy(**options))
    reference = Reference(network, policy(**options))
    reference.solve()
    assert differences(plan, {node: reference.decided(node) for node in reference.nodes}) == []
    result = mixlist.rewrite(network, plan)
    again = mixlist.rewrite(result.model, mixlist.resolve(result.model, policy(**options)))
    assert again.model.SerializeToString(deterministic=True) == result.model.SerializeToString(deterministic=True)
    bounds = {name for node in result.model.graph.node if node.op_type in ("Clip", "Max") for name in node.input}
    arrays = [numpy_helper.to_array(tensor) for tensor in result.model.graph.initializer if tensor.name in bounds]
    raised = [f"{array.dtype} {float(array.max()):.4g}" for array in arrays if f"{float(array.max()):.4g}" != "1e-12"]
    assert ("(S4.43)" in " ".join(decision.reason for decision in plan.nodes)) == any(
        r.raised for r in result.constants
    )
    return ", ".join(sorted(raised))


RAISED = "float16 6.104e-05"


@pytest.mark.parametrize(
    ("body", "settings", "raised"),
    [
        ("c = Clip(x, e) y = Div(z, c)", {}, RAISED),
        ("c = Max(x, e) y = Div(z, c)", {}, RAISED),
        ("c = Max(e, x) y = Div(z, c)", {}, RAISED),
        ("c = Max(x, e, e9) y = Div(z, c)", {}, f"{RAISED}, {RAISED}"),
        ("c = Clip(x, e6) y = Div(z, c)", {}, RAISED),  # a subnormal number of float16
        ("c = Clip(x, e4) y = Div(z, c)", {}, "float16 0.0001"),
        ("c = Clip(x, e) y = Reciprocal(c)", {}, RAISED),
        ("c = Max(x, flat) y = Div(z, c)", {}, RAISED),
        ("c = Max(x, zero) y = Div(z, c)", {}, "float16 0"),
        ("c = Max(x, e, one) y = Div(z, c)", {}, "float32 1"),
        ("c = Max(x, e) h = Slice(c, start, stop) y = Div(w, h)", {}, RAISED),
        ("c = Clip(x, e) h = Expand(c, shape) q = Cast<to = 1>(h) i = Identity(q) y = Div(z, i)", {}, RAISED),
        ("c = Clip(x, e) y = Div(z, c) h = Reshape(c, shape) r = Reciprocal(h)", {}, RAISED),
        # Another reader of the constant keeps it
        ("c = Clip(x, e) d = Div(z, c) o = Where(b, z, e) y = Add(d, o)", {}, RAISED),
        ("c = Clip(x, e) y = Div(z, c)", {"constants": "clamp"}, RAISED),
        ("c = Clip(x, e) y = Div(z, c)", {"mode": "fp16"}, RAISED),
        (
            "c = Clip(x, e) y = Div(z, c)",
            {"mode": "mixed_bfloat16"},
            "bfloat16 1.002e-12",
        ),  # a normal number of bfloat16
        ("c = Clip(x, e) y = Div(z, c)", {"constants": "ieee"}, "float16 0"),
        ("c = Clip(x, e) y = Div(z, c)", {"mode": "origin"}, ""),
        # A Clip in float32 is raised before a Cast to float16, and stays where nothing is float16
        ("c = Clip(x, e) y = Div(z, c)", {"white": ["Div"], "black": ["Clip"]}, "float32 6.104e-05"),
        ("c = Clip(x, e) y = Div(z, c)", {"white": ["Clip"], "black": ["Div"]}, RAISED),
        ("c = Clip(x, e) y = Div(z, c)", {"white": [], "black": ["Clip", "Div"]}, ""),
    ],
)
def test_a_guard_that_only_divisions_read_is_raised(body: str, settings: dict[str, object], raised: str) -> None:
    """Rule S4.43: the constant becomes the smallest normal number of the low type, and no node stays."""
    assert raised_constants(body, **settings) == raised
    assert kept_nodes(body, **settings) == ""


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"constants": "clamp"}, "g d"),
        ({"constants": "ieee"}, ""),
        ({"constants": "clamp", "space": "ascend"}, ""),  # the engine keeps no guard
        ({"mode": "mixed_bfloat16"}, ""),  # bfloat16 holds 1e-12
        ({"mode": "fp16"}, "g d"),
        ({"mode": "origin"}, ""),
        ({"white": [], "black": ["Div"]}, "g d"),
        ({"rules": (customize("d", ["float16", "float16"], ["float16"]),)}, "g"),
    ],
)
def test_the_policy_decides_whether_guards_are_kept(settings: dict[str, object], kept: str) -> None:
    assert kept_nodes("[g] c = Add(x, e) [d] y = Div(z, c)", **settings) == kept


@pytest.mark.parametrize(
    "body", ["Clip<min = 1e-12>(x) y = Div(x, c)", "Clip<max = 0.9999999>(x) y = Sub(one, c) z = Log(y)"]
)
def test_a_clip_with_attributes_is_a_guard(body: str) -> None:
    text = f"g (float[N] x) => (float[N] y) <float one = {{1}}> {{ c = {body} }}"
    decisions = decide_nodes(f'<ir_version: 5, opset_import: ["" : 10]> {text}', white=["Clip", "Div", "Sub", "Log"])
    assert [decision.rule for decision in decisions.values()][:2] == ["guard", "guard"]


def test_an_upper_bound_that_torch_leaves_out_is_none() -> None:
    network = model(f"{HEAD} {CONSTANTS} {{ c = Clip(x, e) y = Div(z, c) }}")
    network.graph.node[0].input.append("")
    plan = mixlist.resolve(network, policy(white=WHITE))
    assert "is raised to 6.10352e-05" in plan.nodes[0].reason and plan.nodes[1].precision == "float16"


def test_a_bound_that_the_caller_may_replace_is_not_raised() -> None:
    """The stored number of an initializer that is a graph input is a default."""
    text = f"{HEAD.replace('bool p', 'bool p, float e')} {CONSTANTS} {{ [g] c = Clip(x, e) [d] y = Div(z, c) }}"
    decisions = decide_nodes(text, white=WHITE)
    assert [decisions[name].rule for name in "gd"] == ["guard", "guard"]


def test_the_reason_names_the_guard_and_the_reader() -> None:
    decisions = decide_nodes(f"{HEAD} {CONSTANTS} {{ [g] c = Add(x, e) [d] y = Div(z, c) }}", white=["Add", "Div"])
    assert decisions["g"].reason == (
        "Add g keeps Div d from a division by 0 by a value that is 1e-12 here, and 0 in float16:"
        " it stays float32 (S4.43)"
    )
    assert decisions["d"].reason.startswith("Add g keeps this node from a division by 0 ")
    texts = {
        "[g] c = Add(x, many) [d] y = Div(z, c)": "a value that is 1.23457e-12 here, and 0 in float16",
        "[g] c = Min(x, below) [s] s = Sub(one, c) [l] y = Log(s)": "log(0) by a value that is 0.99999988 here, and 1",
    }
    for body, text in texts.items():
        constants = CONSTANTS.replace("float e9", "float many = {1.234567e-12}, float e9")
        assert text in decide_nodes(f"{HEAD} {constants} {{ {body} }}", white=WHITE)["g"].reason
    inverted = "[g] c = Add(x, e6) [r] r = Reciprocal(c) [m] y = Mul(z, r)"
    reason = decide_nodes(f"{HEAD} {CONSTANTS} {{ {inverted} }}", white=WHITE)["r"].reason
    assert "Add g keeps Mul m from 0 times infinity" in reason and "and infinity in float16" in reason


EYE = "float[4,4] eye = {1,0,0,0, 0,1,0,0, 0,0,1,0, 0,0,0,1}"
NORMS = {
    "normalize": "n = ReduceL2(m, a) c = Clip(n, e) k = Shape(m) h = Expand(c, k) d = Div(m, h)",
    "cosine similarity": "n = ReduceL2(m, a) r = ReduceL2(q, a) c = Clip(n, e) f = Clip(r, e) u = Div(m, c)"
    " v = Div(q, f) p = Mul(u, v) s = ReduceSum(p, a) d = Mul(s, w)",
    "RMSNorm": "s = Pow(m, two) v = ReduceMean(s, a) c = Add(v, e) r = Sqrt(c) n = Div(m, r) d = Mul(n, w)",
    "LayerNorm": "u = ReduceMean(m, a) b = Sub(m, u) s = Pow(b, two) v = ReduceMean(s, a) c = Add(v, e) r = Sqrt(c)"
    " n = Div(b, r) d = Mul(n, w)",
    "BatchNorm": "u = ReduceMean(m, a0) b = Sub(m, u) s = Mul(b, b) v = ReduceMean(s, a0) c = Add(v, e) r = Sqrt(c)"
    " n = Div(b, r) d = Mul(n, w)",
}


@pytest.mark.parametrize("body", NORMS.values(), ids=NORMS)
def test_norms_of_zeros_and_of_small_rows_stay_right(body: str) -> None:
    """Under the default lists, each node in the type that it gets, as onnx.reference computes it."""
    head = "g (float[4,4] x, float[4,4] z) => (float[4,4] y) <float e = {1e-12}, float two = {2}, int64[1] a = {1},"
    text = f'<ir_version: 8, opset_import: ["" : 18]> {head} int64[1] a0 = {{0}}, float[4] w = {{1, 2, 3, 0.5}}, {EYE}>'
    norm = model(f"{text} {{ m = MatMul(x, eye) q = MatMul(z, eye) {body} y = MatMul(d, eye) }}")
    low = apply(norm, mixlist.load_policy())
    x = np.array([[0, 0, 0, 0], [1e-4, 1e-4, 1e-4, 1e-4], [1e-4, -2e-4, 1e-4, 0], [1, 2, -3, 4]], np.float32)
    feeds = {"x": x, "z": np.flip(x, 1).copy()}
    (expected,) = ReferenceEvaluator(norm).run(None, feeds)
    (result,) = ReferenceEvaluator(low).run(None, feeds)
    assert np.isfinite(result).all()
    assert np.linalg.norm(result - expected) < 0.01 * np.linalg.norm(expected)


@pytest.mark.parametrize("constants", ["keep", "clamp"])
@pytest.mark.parametrize(
    "body",
    [
        "n = ReduceL2<axes = [1]>(x) c = Clip(n, e) k = Shape(x) h = Expand(c, k) y = Div(x, h)",
        "s = Mul(x, x) c = Add(s, e) n = Sqrt(c) y = Div(x, n)",
        "s = Mul(x, x) c = Add(s, e) n = Sqrt(c) r = Reciprocal(n) y = Mul(x, r)",
        "n = ReduceL2<axes = [1]>(x) c = Add(n, e) y = Div(x, c)",
        "n = ReduceL2<axes = [1]>(x) c = Add(n, e) d = Dropout(c) r = Relu(d) m = Neg(r) a = Abs(m) y = Div(x, a)",
        "n = ReduceL2<axes = [1]>(x) m = Max(n, e) c = Min(m, top) y = Div(x, c)",
        "n = ReduceL2<axes = [1]>(x) k = Shape(n) f = Expand(e, k) c = Add(n, f) y = Div(x, c)",
        "n = ReduceL2<axes = [1]>(x) k = Shape(n) f = ConstantOfShape<value = float[1] {1e-12}>(k) c = Sum(n, f)"
        " y = Div(x, c)",
        "n = ReduceL2<axes = [1]>(x) c = Add(n, e) j = Concat<axis = 1>(c, n) p, q = Split<axis = 1>(j) y = Div(x, p)",
        "t = Clip(x, low, below) s = Sub(top, t) y = Log(s)",
    ],
)
def test_a_row_of_zeros_has_no_nan(body: str, constants: str) -> None:
    """The normalization of every sentence embedding: a row of zeros divides zero by the guard."""
    head = "g (float[2,4] x) => (float[2,4] y) <float e = {1e-12}, float low = {0.5}, float below = {0.9999999}"
    head += ", float top = {1}>"
    normalize = model(f"{head} {{ {body} }}")
    low = apply(normalize, policy(white=[*WHITE, "Shape"], constants=constants))  # type: ignore[arg-type]
    x = np.array([[0, 0, 0, 0], [1, 2, 3, 4]], np.float32)
    (expected,) = ReferenceEvaluator(normalize).run(None, {"x": x})
    (result,) = ReferenceEvaluator(low).run(None, {"x": x})
    assert np.isfinite(expected).all()
    np.testing.assert_allclose(result, expected, rtol=2e-3)
    assert "Cast" in {node.op_type for node in low.graph.node}


def test_operators_of_other_domains_are_not_understood() -> None:
    """A node without outputs, and operators that have the names of others."""
    head = '<ir_version: 8, opset_import: ["" : 17, "other" : 1]> g (float[4] x) => (float[4] y, float[4] r)'
    text = f"{head} <float e = {{1e-12}}> {{ [g] c = Max(x, e) [d] y = Div(x, c) r = other.Reciprocal(c) }}"
    plan = mixlist.resolve(model(text, check=False), policy(white=WHITE))
    assert [decision.name for decision in plan.nodes if decision.rule == "guard"] == ["g", "d"]
    text = (
        f"{head.replace(', float[4] r', '')} <float e = {{1e-12}}> {{"
        " [g] c = Add(x, e) [p] p = other.Pow(c) [r] r = other.Abs(c) [d] y = Div(p, r) [u] u = Unknown(c) }"
    )
    network = model(text, check=False)
    del network.graph.node[-1].output[:]
    plan = mixlist.resolve(network, policy(white=WHITE))
    assert [decision.name for decision in plan.nodes if decision.rule == "guard"] == []
