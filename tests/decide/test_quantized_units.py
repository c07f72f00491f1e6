"""Quantized units: which nodes belong to one, and how a policy treats them (Rules S4.41, S4.42)."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

import mixlist
from mixlist.diagnostics import FilePlace
from tests.support.builders import apply, customize, keep, model, policy
from tests.support.package import NodeRule
from tests.support.resolver_cases import decide_nodes, resolve_text

EXAMPLES = int(os.environ.get("MIXLIST_EXAMPLES", "15"))
HEAD = """<ir_version: 10, opset_import: ["" : 19]>
g (int8[2,2] q, int8[1,2,2] q3, float[2,2] f, int64[2] i) => (float[2,2] y)
<float s = {0.5}, int8 z = {0}, int8[2,2] w = {1, 2, 3, 4}, float[2] b = {1, 2}, float[2,2] k = {1, 2, 3, 4}>"""
X = "[dx] x = DequantizeLinear (q, s, z) [dw] v = DequantizeLinear (w, s, z)"
CUBE = "[de] e = DequantizeLinear (q3, s, z)"
WHITE = ["Add", "Concat", "DequantizeLinear", "Gemm", "MatMul", "Mul", "Neg", "QuantizeLinear", "Relu", "Transpose"]
WHITE += ["MaxPool", "Resize"]


def rules_of(body: str, **settings: object) -> dict[str, str]:
    """Return the rules by node name, where all operators are white and the graph output is ``Neg(f)``."""
    options: dict[str, object] = {"white": WHITE, "protect": ["quantized"], **settings}
    text = f"{HEAD} {{ {X} {body} [other] y = Neg (f) }}"
    return {name: decision.rule for name, decision in decide_nodes(text, **options).items()}


@pytest.mark.parametrize(
    ("body", "unit"),
    [
        ("[m] m = MatMul (x, v) [q] r = QuantizeLinear (m, s, z)", "dx dw m q"),
        ("[m] m = MatMul (x, v) [c] c = Relu (m) [q] r = QuantizeLinear (c, s, z)", "dx dw m c q"),
        ("[m] m = MatMul (x, v) [t] t = Transpose (m) [c] c = Relu (t) [q] r = QuantizeLinear (c, s)", "dx dw m t c q"),
        ("[t] t = Transpose (v) [m] m = MatMul (x, t) [q] r = QuantizeLinear (m, s, z)", "dx dw t m q"),
        ("[t] t = Transpose (x) [m] m = MatMul (t, v) [q] r = QuantizeLinear (m, s, z)", "dx dw t m q"),
        # A constant that is not quantized: runtimes quantize a bias themselves.
        ("[m] m = Gemm (x, v, b) [q] r = QuantizeLinear (m, s, z)", "dx dw m q"),
        # An operator without a weight, and one with two results to quantize.
        ("[m] m = Neg (x) [q] r = QuantizeLinear (m, s, z)", "dx m q"),
        ("[m] m = Neg (x) [q] r = QuantizeLinear (m, s, z) [p] o = QuantizeLinear (m, s, z)", "dx m q p"),
        # A further reader that is not quantized does not dissolve the unit, and is no part of it.
        ("[m] m = Neg (x) [q] r = QuantizeLinear (m, s, z) [o] o = Neg (m)", "dx m q"),
        # Concat is an operator of its own, because it reads two floats that are no constants.
        ("[m] m = Concat <axis = 0> (x, x) [q] r = QuantizeLinear (m, s, z)", "dx m q"),
        ("[m] m = Neg (x) [c] c = Concat <axis = 0> (m, f) [q] r = QuantizeLinear (c, s, z)", ""),
        # Runtimes move the quantization through MaxPool.
        (
            f"{CUBE} [m] m = Neg (e) [c] c = MaxPool <kernel_shape = [1]> (m) [q] r = QuantizeLinear (c, s, z)",
            "de m c q",
        ),
        (
            f"{CUBE} [t] t = MaxPool <kernel_shape = [1]> (e) [m] m = Neg (t) [q] r = QuantizeLinear (m, s, z)",
            "de t m q",
        ),
        # The scales of Resize are always float32, so they are no data.
        (
            '[j] j = Cast <to = 1> (i) [m] m = Resize <mode = "nearest"> (x, , j) [q] r = QuantizeLinear (m, s, z)',
            "dx m q",
        ),
        # Rule S4.42: no QuantizeLinear, a reader of a dequantized weight alone, a result that is only a scale.
        ("[m] m = MatMul (x, v) [c] c = Relu (m)", ""),
        ("[m] m = MatMul (f, v) [q] r = QuantizeLinear (m, s, z)", ""),
        ("[m] m = MatMul (x, f) [q] r = QuantizeLinear (m, s, z)", ""),
        ("[m] m = Neg (k) [q] r = QuantizeLinear (m, s, z)", ""),
        ("[m] m = ReduceMax <keepdims = 0> (x) [q] r = QuantizeLinear (f, m, z)", ""),
        # A Cast is no part of a unit: the author asked for its type.
        ("[c] c = Cast <to = 1> (x) [m] m = Neg (c) [q] r = QuantizeLinear (m, s, z)", ""),
        # Mul carries no values, so MatMul does not reach QuantizeLinear.
        ("[m] m = MatMul (x, v) [c] c = Mul (m, k) [q] r = QuantizeLinear (c, s, z)", ""),
    ],
)
def test_a_unit_is_one_operator_between_dequantize_and_quantize(body: str, unit: str) -> None:
    """Rules S4.41 and S4.42."""
    rules = rules_of(body)
    assert {name for name, rule in rules.items() if rule == "quantized"} == set(unit.split())
    assert "quantized" not in rules_of(body, protect=[]).values()


def test_operators_of_the_contrib_domain_quantize_too() -> None:
    """Rule S4.41: onnxruntime.quantization writes these for int16 and int4 before opset 21."""
    text = HEAD.replace('"" : 19', '"" : 17, "com.microsoft" : 1')
    body = """x = com.microsoft.DequantizeLinear (q, s, z) [m] m = Neg (x)
    r = com.microsoft.QuantizeLinear (m, s, z) [other] y = Neg (f)"""
    rules = {
        name: d.rule for name, d in decide_nodes(f"{text} {{ {body} }}", white=["Neg"], protect=["quantized"]).items()
    }
    assert (rules["m"], rules["other"]) == ("quantized", "white")


def test_a_unit_may_lie_in_a_body() -> None:
    """Rule S4.41: a unit is in one graph, with its bodies."""
    text = """<ir_version: 10, opset_import: ["" : 19]>
    g (int8[2] q, bool c) => (int8[2] r) <float s = {0.5}, int8 z = {0}> {
      [d] x = DequantizeLinear (q, s, z)
      [i] r = If (c) <then_branch = t () => (int8[2] a) { [m] n = Neg (x) [q] a = QuantizeLinear (n, s, z) },
                      else_branch = e () => (int8[2] b) { [k] b = Identity (q) }>
    }"""
    rules = {
        name.split("/")[-1]: d.rule for name, d in decide_nodes(text, white=["Neg"], protect=["quantized"]).items()
    }
    assert {name: rules[name] for name in "dm"} == {"d": "quantized", "m": "quantized"}


UNIT = f"{HEAD} {{ {X} [m] m = MatMul (x, v) [q] r = QuantizeLinear (m, s, z) [o] y = DequantizeLinear (r, s, z) }}"


def test_the_reason_names_the_unit() -> None:
    decisions = decide_nodes(UNIT, white=["MatMul"], black=["DequantizeLinear"], protect=["quantized"])
    ends = "from dx to q, which an integer kernel can compute: it stays float32 (S4.41)"
    part = f"it is part of the quantized unit of MatMul m, {ends}"
    assert {decisions[name].reason for name in ("dx", "dw", "q")} == {part}
    assert decisions["m"].reason == f"it is the operator of a quantized unit, {ends}"
    assert decisions["o"].rule == "black"


@pytest.mark.parametrize("rule", [customize("m", ["float16"], []), customize("dx", [], ["float16"])])
def test_a_node_rule_moves_the_whole_unit(rule: NodeRule) -> None:
    """Rule S4.41: no Cast is inside the unit before or after."""
    rules = (rule,)
    decisions = decide_nodes(UNIT, black=["DequantizeLinear", "QuantizeLinear"], protect=["quantized"], rules=rules)
    named = rule.pattern
    assert {decisions[name].precision for name in ("dx", "dw", "m", "q")} == {"float16"}
    assert {n for n in ("dx", "dw", "m", "q") if decisions[n].rule == "quantized"} == {"dx", "dw", "m", "q"} - {named}
    assert decisions["q"].reason == (
        "it is part of the quantized unit of MatMul m, which customize_dtypes makes float16 at another node "
        "(custom.cfg:1:1; S4.41)"
    )
    mixed = apply(model(UNIT), policy(protect=["quantized"], rules=rules))
    assert not any(node.op_type == "Cast" for node in mixed.graph.node)


def test_a_node_rule_that_keeps_a_node_moves_nothing() -> None:
    rules = keep("m")
    decisions = decide_nodes(UNIT, white=WHITE, protect=["quantized"], rules=rules)
    assert [decisions[name].rule for name in ("dx", "m", "q")] == ["quantized", "node-rule", "quantized"]
    assert {decision.precision for name, decision in decisions.items() if name != "o"} == {"float32"}


def test_a_node_of_two_units_moves_with_both() -> None:
    """Rule S4.41: A node of several units moves only if all of its units move in the same way."""
    body = f"""{HEAD} {{ {X} [m] m = MatMul (x, v) [qm] r = QuantizeLinear (m, s, z)
    [n] n = Neg (x) [qn] o = QuantizeLinear (n, s, z) [other] y = Neg (f) }}"""
    precisions = {}
    for names in ("m", "mn"):
        rules = tuple(customize(name, ["float16"], []) for name in names)
        decisions = decide_nodes(body, protect=["quantized"], rules=rules)
        precisions[names] = {name: decisions[name].precision for name in ("dx", "dw", "qm", "qn")}
    assert precisions["m"] == {"dx": "float32", "dw": "float16", "qm": "float16", "qn": "float32"}
    assert set(precisions["mn"].values()) == {"float16"}


def test_the_rule_for_the_first_node_of_a_unit_decides() -> None:
    """Rule S4.41: also if the second rule names a node that an earlier unit shares."""
    text = """<ir_version: 10, opset_import: ["" : 19]>
    g (int8[2] q) => (int8[2] r, int8[2] o) <float s = {0.5}, float16 h = {14336}, int8 z = {0}> {
    [d] x = DequantizeLinear (q, s, z) [e] y = DequantizeLinear (q, h, z)
    [n] m = Neg (y) [qn] r = QuantizeLinear (m, h, z) [p] w = Pow (x, y) [qp] o = QuantizeLinear (w, s, z) }"""
    rules = (customize("e", [], ["float32"]), customize("d", [], ["float16"]))
    decisions = decide_nodes(text, protect=["quantized"], rules=rules)
    assert {name: decision.precision for name, decision in decisions.items()} == {
        "d": "float16",
        "e": "float32",
        "n": "float32",
        "qn": "float32",
        "p": "float16",
        "qp": "float16",
    }


def test_the_reason_names_the_rule_that_moves_the_unit() -> None:
    """A rule before it that gives its node the authored type moves nothing."""
    rules = (
        replace(customize("dx", [], ["float32"]), place=FilePlace("first.cfg", 1, 1)),
        customize("m", ["float16"], []),
    )
    decisions = decide_nodes(UNIT, protect=["quantized"], rules=rules)
    assert decisions["q"].precision == "float16" and "(custom.cfg:1:1; S4.41)" in decisions["q"].reason


def test_an_unprotected_unit_warns() -> None:
    """Rule S4.41: a unit whose operator becomes low precision warns (ML510)."""
    plan = resolve_text(UNIT, white=["MatMul"])
    (warning,) = [finding for finding in plan.warnings if finding.code == "ML510"]
    assert warning.message == (
        "MatMul m is float16 between DequantizeLinear and QuantizeLinear: no integer kernel computes it"
    )
    assert "protect='quantized'" in str(warning.hint)
    assert not resolve_text(UNIT, white=["MatMul"], protect=["quantized"]).warnings
    assert not resolve_text(UNIT, white=["Neg"]).warnings


def test_the_default_library_protects_units() -> None:
    """Rule S4.34: Protections are part of the policy."""
    for library, precision in (("onnx", "float32"), ("ascend910b", "float16"), ("pytorch", "float16")):
        plan = mixlist.resolve(model(UNIT), mixlist.load_policy(library))
        assert next(node.precision for node in plan.nodes if node.name == "m") == precision
        assert ("ML510" in {finding.code for finding in plan.warnings}) == (precision == "float16")
