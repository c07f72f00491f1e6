"""Results of models with masks: no row becomes NaN, and all ways to apply a policy agree (Rules S4.34 to S4.37)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mixlist
from mixlist.lists.policy import Policy
from tests.support.attention import Attention, attention, attentions, mask_policies
from tests.support.builders import model, policy
from tests.support.contract import check_idempotent
from tests.support.evaluation import run_ort, run_reference
from tests.support.gate_comparison import PROFILE, GateComparison, draw_edits
from tests.support.mask_cases import WHITE, WHITE_WITH_SOFTMAX, has_nan
from tests.support.package import emulate, load_model
from tests.support.rewriter_cases import case

# A decoder as torch exports it: the padding is filled into a causal mask.
DECODER = """g (float[1,1,4,4] x, float[1,1,4,4] k, int64[1,4] mask, int64[4] square) => (float[1,1,4,4] y)
  <float low = {-3.4028235e38}, float zero = {0.0}, float scale = {0.5}, int64 above = {1}, int64[2] axes = {1, 2}> {
  filled = MAKE upper = Trilu<upper=1>(filled, above)
  wide = Cast<to=1>(mask) padding = Unsqueeze(wide, axes) sum = Add(upper, padding) is_padding = Equal(sum, zero)
  masked = Where(is_padding, low, upper) part = Reshape(masked, square) merged = Identity(part)
  s = MatMul(x, k) scaled = Mul(s, scale) [add] a = Add(scaled, merged) [softmax] p = Softmax(a) y = MatMul(p, x) }"""
MAKE = {
    "ConstantOfShape": "ConstantOfShape<value=float[1] {-3.4028235e38}>(square)",
    "Expand": "Expand(low, square)",
}


@pytest.mark.parametrize("made_by", MAKE)
@pytest.mark.parametrize("softmax", ["black", "white"])
def test_a_decoder_as_torch_exports_it(made_by: str, softmax: str) -> None:
    """Rule S4.37: No NaN from a fully masked row."""
    proto = model(DECODER.replace("MAKE", MAKE[made_by]))
    random = np.random.default_rng(0)
    feed = {name: random.normal(size=(1, 1, 4, 4)).astype(np.float32) for name in ("x", "k")}
    feed |= {"mask": np.array([[0, 1, 1, 0]]), "square": np.array([1, 1, 4, 4])}  # row 0 sees only itself
    assert not has_nan(run_ort(proto, feed))
    lists = {"white": [*WHITE, "Softmax"]} if softmax == "white" else {"white": WHITE, "black": ["Softmax"]}
    for protect in (["masks"], []):
        mixed = mixlist.rewrite(proto, mixlist.resolve(proto, policy(**lists, protect=protect))).model
        assert has_nan(run_ort(emulate(load_model(mixed)), feed)) == (not protect)


@PROFILE
@given(attentions(), mask_policies())
def test_no_row_becomes_nan(attention_case: Attention, rules: Policy) -> None:
    """Rule S4.37: No NaN from a fully masked row."""
    if has_nan(run_ort(attention_case.model, attention_case.feed)):
        return  # two masks of float32's lowest value are -infinity in float32 already
    mixed = mixlist.rewrite(attention_case.model, mixlist.resolve(attention_case.model, rules)).model
    assert not has_nan(run_ort(emulate(load_model(mixed)), attention_case.feed))
    check_idempotent(mixed, lambda before: mixlist.rewrite(before, mixlist.resolve(before, rules)).model)


@pytest.mark.parametrize("constant", ["-1e9", "-40000"])
def test_applying_again_changes_nothing(constant: str) -> None:
    """Rule S7.9: a kept node reads the mask in range of a low node, and a mask in float16 is still a mask."""
    text = """g (float[4] x, bool[4] b, int64[4] mask) => (float[4] y, float[4] z)
      <float c = {CONSTANT}, float t = {10.0}> {
      [w] w = Where(b, x, c) [m] m = Mul(w, t) [s] y = Softmax(m) [r] z = Relu(w) }""".replace("CONSTANT", constant)
    result = case(text, white=["Where", "Mul", "Softmax"], protect=["masks"])
    assert [result.nodes[name].rule for name in "ms"] == ["mask", "mask"]
    again = mixlist.resolve(result.after, result.plan.policy)
    assert [d.precision for d in again.nodes if d.op_type == "Softmax"] == ["float32"]


@pytest.mark.parametrize("shared", ["product", "choice"])
@pytest.mark.parametrize("black", [[], ["Softmax"]])
def test_no_row_becomes_nan_in_float16_itself(shared: str, black: list[str]) -> None:
    """Rule S4.37: No NaN from a fully masked row."""
    attention_case = attention(shared, ["add", "where"], -3.4028235e38)
    for protect in (["masks"], []):
        white = [op for op in WHITE_WITH_SOFTMAX if op not in black]
        rules = policy(white=white, black=black, constants="ieee", protect=protect)
        mixed = mixlist.rewrite(attention_case.model, mixlist.resolve(attention_case.model, rules)).model
        assert has_nan(run_reference(mixed, attention_case.feed)) == (not protect)


@settings(PROFILE, max_examples=PROFILE.max_examples // 4)
@given(attentions(), mask_policies(), st.data())
def test_trials_round_as_the_rewritten_model_does(
    attention_case: Attention, rules: Policy, data: st.DataObject
) -> None:
    if rules.mode.action != "lists":
        return
    bench = GateComparison(attention_case.model, rules, attention_case.feed)
    try:
        for _ in range(3):
            bench.compare(draw_edits(data, (*bench.candidates(), *bench.nodes())))
    finally:
        bench.close()
