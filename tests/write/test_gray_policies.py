"""The gray policies where values pass through control flow and sequences (Rules S4.22 and S4.24)."""

from __future__ import annotations

import pytest

from tests.support.rewriter_cases import case

LISTS = {"white": ["Exp"], "black": ["Log"]}
X = {"x": [0.5, 1.0, 1.5, 2.0]}


def test_paths_of_between_pass_loops_and_end_at_calls() -> None:
    loop = """g (float[4] x, int64 m) => (float[4] y) <bool go = {1}> { [v] v = Exp(x)
      z = Loop(m, go, v) <body = b (int64 i, bool c, float[4] s) => (bool d, float[4] t) {
        d = Identity(c) [r] t = Relu(s) }>
      [n] y = Exp(z) }"""
    result = case(loop, gray_policy="between", feeds={**X, "m": 2}, **LISTS)
    assert result.nodes["Loop_0/body/r"].precision == "float16" and result.casts == [">y", "x>float16"]
    call = """<ir_version: 8, opset_import: ["" : 17, "f" : 1]>
      g (float[4] x) => (float[4] y) { [v] v = Exp(x) [s] s = Relu(v) z = f.F(s) [n] y = Exp(z) }
      <domain: "f", opset_import: ["" : 17]> F (a) => (b) { [r] b = Relu(a) }"""
    result = case(call, gray_policy="between", feeds=X, **LISTS)
    assert result.nodes["s"].precision == "float32"


def test_between_keeps_a_node_high_whose_constant_does_not_fit() -> None:
    text = """g (float[4] x) => (float[4] y) <float[4] k = {1,2,3,1000000}> {
      [v] v = Exp(x) [a] a = Add(v, k) [w] y = Exp(a) }"""
    result = case(text, gray_policy="between", **LISTS)
    assert result.nodes["a"].rule == "constant" and result.low == {"v", "w"}


@pytest.mark.parametrize(("order", "precision"), [("w, l", "float32"), ("l, w", "float32"), ("w, w", "float16")])
def test_promote_takes_the_widest_in_a_body(order: str, precision: str) -> None:
    text = f"""g (float[4] x, bool c) => (float[4] y) {{ w = Exp(x) l = Log(x)
      [i] z = If(c) <then_branch = t () => (float[4] p) {{ [a] p = Add({order}) }},
                     else_branch = e () => (float[4] q) {{ [b] q = Relu(w) }}> [n] y = Neg(z) }}"""
    result = case(text, gray_policy="promote", feeds={**X, "c": True}, **LISTS)
    assert result.nodes["i/then_branch/a"].precision == precision
    assert result.nodes["n"].precision == precision


def test_promote_of_both_low_types_is_float32() -> None:
    text = (
        """g (float16[4] h, bfloat16[4] b) => (float[4] y) { a = Cast<to=1>(h) c = Cast<to=1>(b) [n] y = Add(a, c) }"""
    )
    result = case(text, gray_policy="promote", runtime=False, **LISTS)
    assert result.nodes["n"].precision == "float32" and not result.casts
