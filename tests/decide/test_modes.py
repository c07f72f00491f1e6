"""The modes without lists (Rules S3.4 to S3.7): force, origin, raise and cube."""

from __future__ import annotations

import pytest

import mixlist
from mixlist.decide import Resolver
from tests.support.builders import keep, model, policy
from tests.support.resolver_cases import decide_nodes, find_precisions

TEXT = """g (float[2,2] x, float16[2,2] h) => (float[2,2] y, float16[2,2] z) <float[2,2] w = {1,2,3,4}> {
  [m] a = MatMul(x, w) [r] y = Relu(a) [s] z = Relu(h)
}"""


def test_force_lowers_all_nodes_that_can_be_low() -> None:
    """Rule S3.4: fp16 forces float16."""
    decisions = decide_nodes(TEXT, mode="fp16", black=["MatMul"])
    assert {n: (d.list, d.precision, d.rule) for n, d in decisions.items() if n != "s"} == {
        "m": ("none", "float16", "mode"),
        "r": ("none", "float16", "mode"),
    }
    assert decisions["s"].precision == "float16"


def test_force_leaves_a_node_whose_constant_does_not_fit() -> None:
    """Rule S3.4: fp16 forces float16."""
    text = "g (float[4] x) => (float[4] y) <float k = {1000000}> { [n] y = Min(x, k) }"
    assert decide_nodes(text, mode="fp16")["n"].rule == "constant"


def test_node_rules_win_over_force() -> None:
    assert find_precisions(TEXT, mode="fp16", rules=keep("m")) == {"m": "float32", "r": "float16", "s": "float16"}


def test_origin_changes_nothing() -> None:
    """Rule S3.5: origin changes nothing."""
    decisions = decide_nodes(TEXT, mode="origin", white=["MatMul", "Relu"])
    assert {n: d.precision for n, d in decisions.items()} == {"m": "float32", "r": "float32", "s": "float16"}
    assert not any(d.changed for d in decisions.values())


def test_raise_brings_low_nodes_up_to_float32() -> None:
    """Rule S3.6: cube_fp16in_fp32out brings nodes up to float32."""
    decisions = decide_nodes(TEXT, mode="cube_fp16in_fp32out", white=["MatMul"])
    assert {n: d.precision for n, d in decisions.items()} == {"m": "float32", "r": "float32", "s": "float32"}
    assert decisions["s"].changed


def test_allow_fp32_to_bf16_keeps_matrix_operators_too() -> None:
    """Rule S3.5: origin changes nothing. ``op_dtype_selection_strategy_allow_fp32_to_bf16.cc`` tries float32 first."""
    text = "g (float[2,2] x) => (float[2,2] y) <float[2,2] w = {1, 2, 3, 4}> { [m] h = MatMul(x, w) [r] y = Relu(h) }"
    plan = mixlist.resolve(model(text), mixlist.load_policy("ascend910b", precision_mode="allow_fp32_to_bf16"))
    assert {decision.name: decision.precision for decision in plan.nodes} == {"m": "float32", "r": "float32"}


def test_cube_lowers_the_cube_ops_and_nothing_else() -> None:
    """Rule S3.7: allow_fp32_to_fp16 lowers the matrix operators."""
    text = """g (float[1,2,2,2] x) => (float[4,4] y) <float[2,2,1,1] w = {1,2,3,4}, float[2,4] v = {1,2,3,4,5,6,7,8}> {
      [c] a = Conv(x, w) [t] b = ConvTranspose(a, w) [r] d = Relu(b) s = Constant<value=int64[2] {4,2}>()
      [f] e = Reshape(d, s) [g] h = Gemm(e, v) [m] j = MatMul(e, v) [s] y = Sum(h, j, h) }"""
    precision_of = find_precisions(text, mode="allow_fp32_to_fp16", white=["Relu"], black=["Conv"])
    low = {name for name, precision in precision_of.items() if precision == "float16"}
    assert low == {"c", "t", "g", "m"}


@pytest.mark.parametrize("low", ["float16", "bfloat16"])
def test_raise_brings_both_low_types_up(low: str) -> None:
    text = (
        f'<ir_version: 8, opset_import: ["" : 17]> g ({low}[4] x) => ({low}[4] y) {{ [e] e = Exp(x) [n] y = Neg(e) }}'
    )
    assert find_precisions(text, mode="cube_fp16in_fp32out") == {"e": "float32", "n": "float32"}


@pytest.mark.parametrize("first_mode", ["cube_fp16in_fp32out", "mixed_float16"])
def test_a_resolver_keeps_nothing_of_an_earlier_policy(first_mode: str) -> None:
    """The exponent stays bfloat16 under lists (Rule S4.9); only the mode that raises may convert it (Rule S3.6)."""
    text = "g (float[4] x, bfloat16[4] p) => (float[4] y) { [n] y = Pow(x, p) }"
    original = model(text)
    second_mode = "mixed_float16" if first_mode == "cube_fp16in_fp32out" else "cube_fp16in_fp32out"
    resolver = Resolver(original)
    for mode in (first_mode, second_mode):
        plan, fresh_plan = resolver.plan(policy(mode=mode)), mixlist.resolve(original, policy(mode=mode))
        assert plan.nodes == fresh_plan.nodes
        expected = mixlist.rewrite(original, fresh_plan).model.SerializeToString()
        assert mixlist.rewrite(original, plan).model.SerializeToString() == expected
