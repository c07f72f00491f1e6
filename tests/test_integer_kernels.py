"""Rewritten quantized models keep the integer kernels that ONNX Runtime's CPU provider fuses (Rule S4.41).

``tests/corpus/test_quantized.py`` counts them in real models.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import onnx
import pytest

import mixlist
from tests.support.builders import model
from tests.support.integer_kernels import count_integer_kernels

OPSETS = (17, 19, 21)
SCALES = "float s = {0.05}, uint8 z = {0}, int8 e = {0}, float t = {0.1}, float[2] n = {0.1, 0.2}, int8[2] o = {0, 0}, "
SCALES += "float t_bias = {0.005}, float[2] n_bias = {0.005, 0.01}"  # the products of the other scales
# A product of a quantized tensor and a quantized weight: {0} is the input, {1} the output, {2} the weight's name.
PRODUCT = """{1}v = DequantizeLinear <axis = 1> (w, {2}) {1}p = MatMul ({0}, {1}v)
{1}q = QuantizeLinear ({1}p, s, z) {1} = DequantizeLinear ({1}q, s, z)"""
QUANTIZE = "{1}q = QuantizeLinear ({0}, s, z) {1} = DequantizeLinear ({1}q, s, z)"
GRANULARITY = {"tensor": "t, e", "channel": "n, o"}


def build(body: str, opset: int, *, shape: str = "2, 2") -> onnx.ModelProto:
    weights = "int8[2, 2] w = {1, 2, 3, 4}, int8[2, 2, 1, 1] c = {1, 2, 3, 4}, int32[2] b = {1, 2}, int32 zero = {0}"
    head = f'<ir_version: 8, opset_import: ["" : {opset}]> g (float[{shape}] x) => (uint8[{shape}] yq)'
    return model(f"{head} <{SCALES}, {weights}> {{ {body} }}")


def convolution(opset: int, weight: str, *, preprocessing: str = "i0 = Identity (x)") -> onnx.ModelProto:
    """Return Conv and Relu with a weight and bias that are quantized, and a quantized Add and MaxPool behind them.

    ``preprocessing`` makes ``i0``, which is quantized, from the input ``x``.
    """
    body = f"""{preprocessing} {QUANTIZE.format("i0", "i")} cw = DequantizeLinear <axis = 0> (c, {weight})
    cb = DequantizeLinear <axis = 0> (b, {weight[0]}_bias) k = Conv (i, cw, cb) r = Relu (k)
    {QUANTIZE.format("r", "j")} a = Add (j, i) {QUANTIZE.format("a", "l")}
    m = MaxPool <kernel_shape = [1, 1]> (l) {QUANTIZE.format("m", "y")}"""
    return build(body, opset, shape="1, 2, 4, 4")


def attention(opset: int, weight: str) -> onnx.ModelProto:
    """Return the attention of one head, which is not quantized, between quantized products."""
    body = f"""{QUANTIZE.format("x", "i")} {PRODUCT.format("i", "h", weight)}
    hs = Mul (h, t) ht = Transpose <perm = [1, 0]> (hs) scores = MatMul (hs, ht) p = Softmax (scores)
    sum = MatMul (p, h)
    {QUANTIZE.format("sum", "u")} {PRODUCT.format("u", "y", weight)}"""
    return build(body, opset)


def movers(opset: int, weight: str) -> onnx.ModelProto:
    """Return a product with value movers before and behind it, through which ONNX Runtime moves the quantization."""
    body = f"""{QUANTIZE.format("x", "i")} wv = DequantizeLinear <axis = 1> (w, {weight})
    it = Transpose <perm = [1, 0]> (i) k = MatMul (it, wv) r = Relu (k) rt = Transpose <perm = [1, 0]> (r)
    {QUANTIZE.format("rt", "y")}"""
    return build(body, opset)


def pooling(opset: int, weight: str) -> onnx.ModelProto:
    """Return a Conv, a Relu and a MaxPool, with no quantization between them."""
    body = f"""{QUANTIZE.format("x", "i")} cw = DequantizeLinear <axis = 0> (c, {weight}) k = Conv (i, cw) r = Relu (k)
    m = MaxPool <kernel_shape = [1, 1]> (r) {QUANTIZE.format("m", "y")}"""
    return build(body, opset, shape="1, 2, 4, 4")


CONVOLUTION = Counter(QLinearConv=1, QLinearAdd=1)
NETS = [(convolution, CONVOLUTION), (attention, Counter(QLinearMatMul=2)), (movers, Counter(QLinearMatMul=1))]
NETS += [(pooling, Counter(QLinearConv=1))]


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("weight", GRANULARITY.values(), ids=GRANULARITY)
@pytest.mark.parametrize(("build_net", "kernels"), NETS, ids=[net.__name__ for net, _ in NETS])
def test_no_integer_kernel_is_lost(build_net, kernels: Counter[str], weight: str, opset: int, tmp_path: Path) -> None:
    """Rule S4.41: A quantized unit stays as authored."""
    original = build_net(opset, weight)
    assert count_integer_kernels(original, tmp_path) == kernels
    plans = {text: mixlist.resolve(original, mixlist.load_policy(protect=text)) for text in ("quantized", "none")}
    after = {
        text: count_integer_kernels(mixlist.rewrite(original, plan).model, tmp_path) for text, plan in plans.items()
    }
    assert after["quantized"] == kernels
    assert after["none"].total() < kernels.total()
    low = [node.name for node in plans["quantized"].nodes if node.precision == "float16"]
    assert len(low) == (4 if build_net is attention else 0), low  # of the attention, what is no unit


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("weight", GRANULARITY.values(), ids=GRANULARITY)
def test_float_preprocessing_brings_no_cast_into_a_unit(weight: str, opset: int, tmp_path: Path) -> None:
    """Rule S4.41: the preprocessing is low precision, also the first QuantizeLinear where its opset has float16."""
    preprocessing = "[sub] c0 = Sub (x, t) [div] i0 = Div (c0, t)"
    original = convolution(opset, weight, preprocessing=preprocessing)
    plan = mixlist.resolve(original, mixlist.load_policy("mindspore-o3", protect="quantized"))
    mixed = mixlist.rewrite(original, plan).model
    assert isinstance(mixed, onnx.ModelProto)
    assert {node.name: node.precision for node in plan.nodes if node.op_type in ("Sub", "Div")} == {
        "sub": "float16",
        "div": "float16",
    }
    assert count_integer_kernels(mixed, tmp_path) == CONVOLUTION
    unit_names = {node.name for node in plan.nodes if node.rule == "quantized"}
    cast_outputs = {node.output[0] for node in mixed.graph.node if node.op_type == "Cast"}
    cast_readers = {node.name for node in mixed.graph.node if not cast_outputs.isdisjoint(node.input)}
    assert len(unit_names) > 6 and cast_readers.isdisjoint(unit_names)
