"""Masks that enter or leave a function are treated as in the inlined model (Rules S4.31, S4.34 to S4.37)."""

from __future__ import annotations

import time

import numpy as np
import onnx.inliner
import pytest

import mixlist
from mixlist.emulation.emulate import emulate
from mixlist.graph.load import load_model
from mixlist.lists.policy import Constants, Policy
from mixlist.resolver.plan import Plan
from tests.support.builders import model, policy
from tests.support.contract import check_idempotent
from tests.support.evaluation import run_ort
from tests.support.mask_cases import has_nan, outcomes_under_protection
from tests.support.reference import decide
from tests.support.reference_compare import differences
from tests.support.resolver_cases import decide_nodes
from tests.support.rewriter_cases import case


def model_with_functions(main: str, bodies: list[str], constants: str, outputs: str = "") -> str:
    """Return a model in ONNX text of a main graph and functions of the domain l."""
    head = f"g (float[4] s, bool[4] mask) => (float[4] y{outputs}) <float zero = {{0}}, {constants}>"
    nested = "".join(f'<domain: "l", opset_import: ["" : 17, "l" : 1]> {body}\n' for body in bodies)
    return f'<ir_version: 8, opset_import: ["" : 17, "l" : 1]> {head} {{ {main} }} {nested}'


def resolve_and_verify(text: str, rules: Policy) -> Plan:
    """Resolve a model; assert that it and its inlined form agree with the reference and make no masked row NaN."""
    for proto in (model(text), onnx.inliner.inline_local_functions(model(text))):
        plan = mixlist.resolve(proto, rules)
        assert not differences(plan, decide(proto, rules))
        feed = {"s": np.ones(4, np.float32), "mask": np.zeros(4, bool)}
        mixed = mixlist.rewrite(proto, plan).model
        check_idempotent(mixed, lambda before: mixlist.rewrite(before, mixlist.resolve(before, rules)).model)
        for original, result in zip(run_ort(proto, feed), run_ort(emulate(load_model(mixed)), feed), strict=True):
            assert not np.isnan(original).any() and not np.isnan(result).any()
    return mixlist.resolve(model(text), rules)


def precisions_by_name(plan: Plan) -> dict[str, str]:
    """Return the precisions by node name, without the scope."""
    return {node.name: node.precision for node in plan.nodes}


# --- magnitudes ---
@pytest.mark.parametrize(("first", "second"), [("-6e8", "-1e9"), ("-1e9", "-6e8")])
def test_calls_with_masks_of_similar_magnitude_are_decided_apart(first: str, second: str) -> None:
    """Rule S4.35: -6e8 times 1e-4 is in the range of float16, and -1e9 times 1e-4 is not, whichever comes first."""
    main = """ma = Where(mask, zero, a) mb = Where(mask, zero, b) ca = l.F(ma) cb = l.F(mb)
      [wa] wa = Where(mask, s, ca) [wb] wb = Where(mask, s, cb) y = Softmax(wa) z = Softmax(wb)"""
    body = "F (m) => (r) { k = Constant<value_float=0.0001>() [mul] r = Mul(m, k) }"
    text = model_with_functions(main, [body], f"float a = {{{first}}}, float b = {{{second}}}", ", float[4] z")
    plan = resolve_and_verify(text, policy(white=["Where", "Mul"], black=["Softmax"], protect=["masks"]))
    by_size = {first: precisions_by_name(plan)["wa"], second: precisions_by_name(plan)["wb"]}
    assert by_size == {"-6e8": "float16", "-1e9": "float32"}
    assert sum(node.op_type == "Mul" for node in plan.nodes) == 1  # both read a mask out of range


@pytest.mark.parametrize("depth", [8, 40])
def test_functions_that_call_functions_twice_share_decisions(depth: int) -> None:
    """Rule S4.35: 2^40 calls add a mask; after 2,000 combinations of masks, magnitudes are not followed."""
    bodies = [f"F{k} (s, b) => (y) {{ t = l.F{k - 1}(s, b) y = l.F{k - 1}(t, b) }}" for k in range(1, depth)]
    bodies.append("F0 (s, b) => (y) { y = Add(s, b) }")
    main = f"[w] b = Where(mask, zero, low) t = l.F{depth - 1}(s, b) y = Softmax(t)"
    text = model_with_functions(main, bodies, "float low = {-1e9}")
    started = time.perf_counter()
    rules = policy(white=["Add", "Where"], protect=["masks"])
    decisions = mixlist.resolve(model(text, check=False), rules).nodes
    assert {node.precision for node in decisions if node.op_type == "Add"} == {"float32"}
    assert len(decisions) < depth**2 * 4  # 2**depth nodes after inlining
    assert time.perf_counter() - started < 60


# --- constant arguments ---
CONSTANTS: list[Constants] = ["keep", "ieee", "clamp"]
SCALED = """F (s, mask, p) => (y) { z = Constant<value_float=0.0>() c = Constant<value_float=-30000.0>()
  [k] k = Where(mask, z, c) [m] m = Mul(k, p) [w] w = Where(mask, s, m) [sm] y = Softmax(w) }"""


@pytest.mark.parametrize("constants", CONSTANTS)
def test_a_factor_that_is_an_argument_has_the_value_of_the_call(constants: Constants) -> None:
    """Rule S4.36: -30000 times 10 is out of range, and -30000 times 1 is not."""
    text = model_with_functions(
        "y = l.F(s, mask, p) z = l.F(s, mask, q)", [SCALED], "float p = {10}, float q = {1}", ", float[4] z"
    )
    rules = policy(white=["Where", "Mul"], black=["Softmax"], protect=["masks"], constants=constants)
    plan = resolve_and_verify(text, rules)
    assert sorted(node.precision for node in plan.nodes if node.name == "m") == ["float16", "float32"]


def test_calls_with_factors_of_one_effect_share_their_decisions() -> None:
    """Rule S4.31: the mask is out of range times 10 and times 20."""
    text = model_with_functions(
        "y = l.F(s, mask, p) z = l.F(s, mask, q)", [SCALED], "float p = {10}, float q = {20}", ", float[4] z"
    )
    plan = resolve_and_verify(text, policy(white=["Where", "Mul"], black=["Softmax"], protect=["masks"]))
    assert [node.precision for node in plan.nodes if node.name == "m"] == ["float32"]


@pytest.mark.parametrize("nested", [False, True])
def test_a_mask_that_a_function_computes_of_its_arguments(nested: bool) -> None:
    """Rule S4.36: a mask that another operator computes from constants has no constant to reduce."""
    body = "F (s, mask, p) => (y) { [k] k = Sqrt(p) [n] n = Neg(k) [w] w = Where(mask, s, n) [sm] y = Softmax(w) }"
    outer = "G (s, mask, p) => (y) { y = l.F(s, mask, p) }"
    call = "l.G" if nested else "l.F"
    main = f"y = {call}(s, mask, p) z = {call}(s, mask, q)"
    text = model_with_functions(main, [body, outer], "float p = {1e10}, float q = {25}", ", float[4] z")
    plan = resolve_and_verify(text, policy(white=["Where", "Sqrt", "Neg", "Softmax"], protect=["masks"]))
    assert sorted(node.precision for node in plan.nodes if node.name == "w") == ["float16", "float32"]


# --- constants that a mask is computed from ---
COMPUTED = {
    "a power": ("[k] k = Pow(p, three)", "-50"),
    "the input of a root": ("[j] j = Mul(p, p) [r] r = Sqrt(j) [k] k = Neg(r)", "1e6"),
    "a quotient": ("[k] k = Div(one, p)", "-1e-9"),
    "a root in range of a square that is not": ("[j] j = Mul(p, p) [r] r = Sqrt(j) [k] k = Neg(r)", "20000"),
    "a factor": ("[j] j = Mul(p, p) [r] r = Sqrt(j) [k] k = Mul(c, r)", "300"),
}
CHOSEN = "[w] w = Where(mask, s, k) [sm] y = Softmax(w)"
CONSTANT = "three = Constant<value_float=3.0>() one = Constant<value_float=1.0>() c = Constant<value_float=-10000.0>()"
PLACES: dict[str, tuple[str, list[str]]] = {
    "in the function": ("y = l.F(s, mask, p)", [f"F (s, mask, p) => (y) {{ {CONSTANT} BODY {CHOSEN} }}"]),
    "behind two borders": (
        "y = l.G(s, mask, p)",
        ["G (s, mask, p) => (y) { y = l.F(s, mask, p) }", f"F (s, mask, p) => (y) {{ {CONSTANT} BODY {CHOSEN} }}"],
    ),
    "before the function": (f"{CONSTANT} BODY y = l.F(s, mask, k)", [f"F (s, mask, k) => (y) {{ {CHOSEN} }}"]),
    "in another function": (f"k = l.K(p) {CHOSEN}", [f"K (p) => (k) {{ {CONSTANT} BODY }}"]),
    "from one function into another": (
        "k = l.K(p) y = l.F(s, mask, k)",
        [f"K (p) => (k) {{ {CONSTANT} BODY }}", f"F (s, mask, k) => (y) {{ {CHOSEN} }}"],
    ),
}


@pytest.mark.parametrize("constants", CONSTANTS)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("method", COMPUTED)
def test_a_mask_that_is_computed_from_constants_stays_finite(method: str, place: str, constants: Constants) -> None:
    """Rules S4.36, S4.37: the nodes that compute it stay as authored, whatever `--constants` says."""
    main, bodies = PLACES[place]
    code, number = COMPUTED[method]
    text = model_with_functions(
        main.replace("BODY", code), [b.replace("BODY", code) for b in bodies], f"float p = {{{number}}}"
    )
    white = ["Where", "Mul", "Pow", "Sqrt", "Neg", "Div"]
    plan = resolve_and_verify(text, policy(white=white, black=["Softmax"], protect=["masks"], constants=constants))
    assert {name: p for name, p in precisions_by_name(plan).items() if name in ("j", "r", "k")} == {
        "a power": {"k": "float32"},
        "the input of a root": {"j": "float32", "r": "float32", "k": "float32"},
        "a quotient": {"k": "float32"},
        "a root in range of a square that is not": {"j": "float32", "r": "float32", "k": "float16"},
        "a factor": {"j": "float32", "r": "float32", "k": "float32"},
    }[method]


def test_calls_that_compute_no_mask_convert_their_constants() -> None:
    """Rule S4.19: 0.001 cubed becomes zero in float16; Rule S4.36: -50 cubed is a mask."""
    body = f"F (s, mask, p) => (y) {{ {CONSTANT} [k] k = Pow(p, three) {CHOSEN} }}"
    text = model_with_functions(
        "y = l.F(s, mask, p) z = l.F(s, mask, q)", [body], "float p = {-50}, float q = {1e-3}", ", float[4] z"
    )
    plan = resolve_and_verify(
        text, policy(white=["Where", "Pow"], black=["Softmax"], protect=["masks"], constants="ieee")
    )
    assert sorted(node.precision for node in plan.nodes if node.name == "k") == ["float16", "float32"]


def test_the_reason_names_the_constant_that_a_mask_is_computed_from() -> None:
    """Rules S4.33, S4.34: the reason under protection, and a warning without."""
    text = model_with_functions(f"{CONSTANT} [k] k = Pow(p, three) {CHOSEN}", [], "float p = {-50}")
    rules = [policy(white=["Pow"], black=["Softmax"], protect=protect, constants="ieee") for protect in (["masks"], [])]
    plan = mixlist.resolve(model(text), rules[0])
    assert next(node for node in plan.nodes if node.name == "k").reason == (
        "white by library test (Pow), but constant 'k' reaches 125000, which float16 turns into infinity, and a mask "
        "is computed from it: it stays float32 (S4.36)"
    )
    assert not plan.warnings
    (warning,) = mixlist.resolve(model(text), rules[1]).warnings
    assert warning.code == "ML508"
    assert (
        "constant 'k' reaches 125000, which float16 turns into infinity, and a mask is computed from it"
        in warning.message
    )


# --- a softmax that reads an argument ---
@pytest.mark.parametrize("constants", CONSTANTS)
@pytest.mark.parametrize("body", ["[sm] y = Softmax(s)", "y = l.H(s)"])
def test_a_softmax_that_reads_the_mask_of_an_argument_is_high(body: str, constants: Constants) -> None:
    """Rule S4.36: a mask that enters a function has no constant to reduce."""
    bodies = [f"F (s) => (y) {{ {body} }}", "H (s) => (y) { t = l.I(s) [sm] y = Softmax(t) }", "I (s) => (s) { }"]
    text = model_with_functions("[w] b = Where(mask, s, c) y = l.F(b)", bodies, "float c = {-1e9}")
    rules = policy(white=["Softmax", "Where"], protect=["masks"], constants=constants)
    plan = mixlist.resolve(model(text, check=False), rules)
    assert precisions_by_name(plan)["sm"] == precisions_by_name(plan)["w"] == "float32"
    assert not differences(plan, decide(model(text, check=False), rules))


def test_a_mask_that_becomes_infinite_behind_a_call_keeps_nothing() -> None:
    """Rule S4.35: the Cast makes -1e9 infinite, so no rule keeps the nodes of the function before the Cast."""
    main = """[w] b = Where(mask, zero, c) r = l.H(b) [a] a = Add(s, r) [t] t = Add(a, d) e = Cast<to=10>(t)
      f = Cast<to=1>(e) y = Softmax(f)"""
    text = model_with_functions(main, ["H (b) => (y) { [h] y = Mul(b, b) }"], "float c = {-60000}, float d = {-1e9}")
    rules = policy(white=["Where", "Mul", "Add"], black=["Softmax"], protect=["masks"], constants="ieee")
    plan = mixlist.resolve(model(text), rules)
    assert {precisions_by_name(plan)[name] for name in ("w", "h", "a", "t")} == {"float16"}
    assert not differences(plan, decide(model(text), rules))


# --- a mask inside a function ---
def test_a_mask_in_the_body_of_a_function() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "f" : 1]>
      g (float[4,4] x, bool[4,4] b) => (float[4,4] y) { [low] l = Exp(x) y = f.F(l, b) }
      <domain: "f", opset_import: ["" : 17]> F (s, b) => (p) {
        c = Constant<value_float=-1e9>() [where] a = Where(b, c, s) [softmax] p = Softmax(a) }"""
    high = outcomes_under_protection(text, white=["Exp", "Where"], black=["Softmax"])
    assert high["function:f:F/where"] == "mask"
    result = case(text, white=["Exp", "Where", "Softmax"], protect=["masks"])
    assert {"function:f:F/where", "function:f:F/softmax"} <= result.low


# --- the routes of a mask through calls ---
FUNCTIONS = """<ir_version: 8, opset_import: ["" : 17, "l" : 1]>
  g (float[1,2,4,4] s, bool[4] mask) => (float[1,2,4,4] y) {{ zero = Constant<value_float=0.0>()
    low = Constant<value_float=-3.4e38>() {main} }}
  <domain: "l", opset_import: ["" : 17]> F {function}
  <domain: "l", opset_import: ["" : 17, "l" : 1]> Outer (s, b) => (y) {{ [inner] y = l.F(s, b) }}
  <domain: "l", opset_import: ["" : 17]> Make (mask) => (b) {{ zero = Constant<value_float=0.0>()
    low = Constant<value_float=-3.4e38>() [w] b = Where(mask, zero, low) }}"""
BODY = "(s, b) => (y) { [a] sc = Add(s, b) [sm] y = Softmax<axis=-1>(sc) }"
CROSSING = {
    "into a function": (BODY, "[w] b = Where(mask, zero, low) [call] y = l.F(s, b)"),
    "into a function that a function calls": (BODY, "[w] b = Where(mask, zero, low) [call] y = l.Outer(s, b)"),
    "a constant into a function": (BODY.replace("Add(s, b)", "Max(s, b)"), "[call] y = l.F(s, low)"),
    "out of a function": (BODY, "b = l.Make(mask) [a] sc = Add(s, b) [sm] y = Softmax<axis=-1>(sc)"),
    "out of one function into another": (BODY, "b = l.Make(mask) y = l.F(s, b)"),
    "through a function": (
        "(s, b) => (y) { [a] y = Add(s, b) }",
        "[w] b = Where(mask, zero, low) [call] t = l.F(s, b) [sm] y = Softmax<axis=-1>(t)",
    ),
}


def crossing_model(route: str) -> str:
    """Return a model in ONNX text whose mask takes a route of CROSSING."""
    function, main = CROSSING[route]
    return FUNCTIONS.format(main=main, function=function)


@pytest.mark.parametrize("route", CROSSING)
@pytest.mark.parametrize("low", [True, False])
@pytest.mark.parametrize("protect", [["masks"], []])
def test_a_mask_is_followed_through_functions(route: str, low: bool, protect: list[str]) -> None:
    """Rule S4.37: No NaN from a fully masked row. Rule S4.34: without protection this warns."""
    lists = {"white": ["Add", "Max", "Where", *(["Softmax"] if low else [])], "black": [] if low else ["Softmax"]}
    before = model(crossing_model(route))
    plan = mixlist.resolve(before, policy(**lists, constants="ieee", protect=protect))
    feed = {"s": np.ones((1, 2, 4, 4), np.float32), "mask": np.zeros(4, bool)}
    assert not has_nan(run_ort(before, feed))
    mixed = mixlist.rewrite(before, plan).model
    assert has_nan(run_ort(emulate(load_model(mixed)), feed)) == (not protect and "constant" not in route)
    assert {d.op_type: d.precision for d in plan.nodes}["Softmax"] == ("float16" if low and not protect else "float32")
    codes = {warning.code for warning in plan.warnings}
    assert codes == (set() if protect else {"ML508"})


def test_calls_without_a_mask_are_low_and_share_their_decisions() -> None:
    """Rule S4.31: only the call with a mask out of range has a specialization of its own."""
    main = "[w] b = Where(mask, zero, low) t = l.F(s, s) u = l.F(s, b) v = l.F(s, s) y = Max(t, u, v)"
    plan = mixlist.resolve(
        model(FUNCTIONS.format(main=main, function=BODY)), policy(white=["Add", "Where", "Softmax"], protect=["masks"])
    )
    assert sorted(d.precision for d in plan.nodes if d.op_type == "Add") == ["float16", "float32"]


def test_a_mask_that_only_a_function_has_is_reduced_there() -> None:
    """Rule S4.36: A mask before a low-precision softmax becomes half the lowest value."""
    function = """(s, b) => (y) { low = Constant<value_float=-1e9>() [w] a = Where(b, s, low)
      [sm] y = Softmax<axis=-1>(a) }"""
    decisions = decide_nodes(
        FUNCTIONS.format(main="t = l.F(s, mask) y = l.F(t, mask)", function=function),
        white=["Where", "Softmax"],
        protect=["masks"],
    )
    assert {decisions[name].precision for name in decisions if name.endswith(("/w", "/sm"))} == {"float16"}


def test_a_large_constant_that_a_function_reads_elsewhere_is_no_mask() -> None:
    function = "(s, b, w) => (y) { [a] sc = Add(s, b) [sm] p = Softmax<axis=-1>(sc) y = Mul(p, w) }"
    main = """few = Constant<value_float=-10000.0>() [w] b = Where(mask, zero, few) [here] t = Add(s, b)
      [own] u = Softmax<axis=-1>(t) y = l.F(u, b, low)"""
    text = FUNCTIONS.format(main=main, function=function).replace("Outer (s, b)", "Outer (s, b, w)")
    decisions = decide_nodes(
        text.replace("l.F(s, b)", "l.F(s, b, w)"), white=["Add", "Where", "Softmax"], protect=["masks"]
    )
    assert {d.precision for d in decisions.values() if d.op_type in ("Add", "Softmax")} == {"float16"}


def test_arguments_that_a_function_does_not_have_carry_no_mask() -> None:
    main = "[w] b = Where(mask, zero, low) y = l.F(s, zero, b, b)"
    decisions = decide_nodes(
        FUNCTIONS.format(main=main, function=BODY), white=["Add", "Where", "Softmax"], protect=["masks"]
    )
    assert {d.precision for d in decisions.values() if d.op_type in ("Add", "Softmax")} == {"float16"}
