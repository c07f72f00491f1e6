"""Masks that a fused attention reads: S4.35 and S4.36 hold as before a Softmax."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

import mixlist
from tests.support.builders import apply, model, policy

HEAD = '<ir_version: 10, opset_import: ["" : 23, "com.microsoft" : 1]>'
INPUTS = "float[1,2,3,8] q, float[1,2,3,8] k, float[1,2,3,8] v, bool[1,1,3,3] keep"
PACKED = "float[1,3,16] q, float[1,3,16] k, float[1,3,16] v, bool[1,1,3,3] keep"
GROUPED = f"{PACKED}, float[1,2,0,8] pk, float[1,2,0,8] pv, int32[1] s, int32 t"
MASK = "<float zero = {0}, float low = {-3.4e38}> { [w] m = Where(keep, zero, low)"
QKV = "[1,3,16] x, float[16,48] k, bool[1,1,3,3] keep) => (float[1,3,16] y)"
ATTENTIONS = {
    "Attention-23": f"g ({INPUTS}) => (float[1,2,3,8] y) {MASK} [a] y = Attention(q, k, v, m) }}",
    "Attention": f"g (float{QKV} {MASK} [a] y = com.microsoft.Attention<num_heads = 2>(x, k, , , , m) }}",
    "MultiHeadAttention": f"g ({PACKED}) => (float[1,3,16] y) {MASK}"
    " [a] y = com.microsoft.MultiHeadAttention<num_heads = 2>(q, k, v, , , m) }",
    "GroupQueryAttention": f"g ({GROUPED}) => (float[1,3,16] y, float[1,2,3,8] nk, float[1,2,3,8] nv) {MASK}"
    " [a] y, nk, nv = com.microsoft.GroupQueryAttention<num_heads = 2, kv_num_heads = 2>"
    "(q, k, v, pk, pv, s, t, , , , m) }",
}
# The mask is an initializer that the attention reads itself.
DIRECT = (
    f"g ({INPUTS}) => (float[1,2,3,8] y) "
    f"<float[1,1,3,3] m = {{0,-3.4e38,0,0,0,0,0,0,0}}> {{ [a] y = Attention(q, k, v, m) }}"
)


def masked(body: str) -> onnx.ModelProto:
    """Return the model of an attention."""
    return model(HEAD + body, check=False)


def smallest_constant(network: onnx.ModelProto) -> float:
    """Return the smallest number of all weights and Constants."""
    tensors = [*network.graph.initializer, *(n.attribute[0].t for n in network.graph.node if n.op_type == "Constant")]
    return min(float(numpy_helper.to_array(tensor).astype(np.float64).min()) for tensor in tensors)


@pytest.mark.parametrize("body", [*ATTENTIONS.values(), DIRECT], ids=[*ATTENTIONS, "direct"])
def test_the_mask_of_a_low_attention_is_reduced(body: str) -> None:
    lists = policy(white=["Attention", "MultiHeadAttention", "GroupQueryAttention"], protect=["masks"])
    mixed = apply(masked(body), lists)
    assert smallest_constant(mixed) == -32752


def test_scores_are_added_inside_of_the_attention() -> None:
    """A mask of -65504 is in the range, but not with scores; one of -30000 is."""
    lists = policy(white=["Attention"], protect=["masks"])
    for number, expected in ((-65504, -32752), (-30000, -30000)):
        body = ATTENTIONS["Attention-23"].replace("-3.4e38", str(number))
        assert smallest_constant(apply(masked(body), lists)) == expected


def test_the_mask_of_a_float32_attention_stays_as_authored() -> None:
    lists = policy(white=["Where"], black=["Attention"], protect=["masks"])
    decisions = {
        d.name: (d.precision, d.rule) for d in mixlist.resolve(masked(ATTENTIONS["Attention-23"]), lists).nodes
    }
    assert decisions == {"w": ("float32", "mask"), "a": ("float32", "black")}


def test_a_mask_that_cannot_be_reduced_keeps_the_attention() -> None:
    """An output of the graph is the mask too."""
    body = ATTENTIONS["Attention-23"].replace("[1,2,3,8] y)", "[1,2,3,8] y, float[1,1,3,3] m)")
    lists = policy(white=["Where", "Attention"], protect=["masks"])
    decisions = {d.name: (d.precision, d.rule) for d in mixlist.resolve(masked(body), lists).nodes}
    assert decisions == {"w": ("float32", "mask"), "a": ("float32", "mask")}


def test_other_inputs_of_an_attention_are_no_masks() -> None:
    """Values of -1e30 are values: they make a weighted sum."""
    body = ATTENTIONS["Attention-23"].replace("Attention(q, k, v, m)", "Attention(q, k, m)")
    lists = policy(white=["Attention"], protect=["masks"])
    assert smallest_constant(apply(masked(body), lists)) < -1e38


def test_without_the_protection_a_mask_warns() -> None:
    plan = mixlist.resolve(masked(ATTENTIONS["MultiHeadAttention"]), policy(white=["MultiHeadAttention", "Where"]))
    assert [warning.code for warning in plan.warnings] == ["ML508"]


def test_a_fully_masked_row_does_not_vanish() -> None:
    """onnx.reference computes the written model. A row whose mask is -infinity is zeros, in older versions NaN."""
    network = masked(ATTENTIONS["Attention-23"])
    rng = np.random.default_rng(0)
    feed = {name: rng.standard_normal((1, 2, 3, 8)).astype(np.float32) for name in "qkv"}
    feed["keep"] = np.array([[[[1, 1, 0], [0, 0, 0], [1, 1, 1]]]], bool)
    unprotected = apply(network, policy(white=["Attention", "Where"], constants="ieee"))
    with np.errstate(invalid="ignore"):
        (broken,) = ReferenceEvaluator(unprotected).run(None, feed)
    assert not np.nan_to_num(broken[:, :, 1]).any()
    (exact,) = ReferenceEvaluator(network).run(None, feed)
    (mixed,) = ReferenceEvaluator(apply(network, policy(white=["Attention", "Where"], protect=["masks"]))).run(
        None, feed
    )
    assert np.isfinite(mixed).all() and mixed[:, :, 1].all()
    np.testing.assert_allclose(mixed[:, :, [0, 2]], exact[:, :, [0, 2]], atol=0.01)
