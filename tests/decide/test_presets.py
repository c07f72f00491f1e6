"""Each built-in library does on a small graph what its framework documents."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import pytest

import mixlist
from mixlist.lists import presets

HEAD = '<ir_version: 10, opset_import: ["" : 17]>\n'


def precisions(text: str, ops_info: str, **options: str) -> dict[str, str]:
    """The precision of each node, by its first output; names that the header gives no value are weights."""
    model = onnx.parser.parse_model(HEAD + text)
    for value_info in model.graph.value_info:
        shape = [dim.dim_value for dim in value_info.type.tensor_type.shape.dim]
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(shape, np.float32), value_info.name))
    plan = mixlist.resolve(model, mixlist.load_policy(ops_info, **options))  # type: ignore[arg-type]
    return {next(iter(node.outputs)): node.precision for node in plan.nodes}


VISION = """
net (float[1, 3, 8, 8] x) => (float[1, 4] p) <float[4, 3, 3, 3] w, float[4] s, float[4] b, float[4] m, float[4] v> {
  conv = Conv(x, w)
  norm = BatchNormalization(conv, s, b, m, v)
  relu = Relu(norm)
  mean = ReduceMean<axes = [2, 3], keepdims = 0>(relu)
  twice = Add(mean, mean)
  p = Softmax(twice)
}
"""
LOW, HIGH = "float16", "float32"


@pytest.mark.parametrize(
    ("name", "low"),
    [
        ("onnx", ["conv", "norm", "relu", "mean", "twice", "p"]),
        ("mindspore-o0", []),
        ("mindspore-o1", ["conv", "relu"]),
        ("mindspore-o2", ["conv", "relu", "mean", "twice", "p"]),
        ("mindspore-o3", ["conv", "norm", "relu", "mean", "twice", "p"]),
        ("nnabla-half", ["conv", "relu", "twice"]),
    ],
)
def test_which_nodes_of_a_vision_network_are_low(name: str, low: list[str]) -> None:
    precision_of = precisions(VISION, name)
    assert set(precision_of.values()) == {LOW if node in low else HIGH for node in precision_of}
    assert [node for node, precision in precision_of.items() if precision == LOW] == low


@pytest.mark.parametrize("name", [name for name in presets.names() if name.startswith("ascend")])
def test_ascend_white_black_and_gray(name: str) -> None:
    text = """
    net (float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y) <float[4, 3, 3, 3] w> {
      conv = Conv(x, w)
      relu = Relu(conv)
      logs = LogSoftmax(relu)
      y = Sigmoid(logs)
    }
    """
    assert presets.load(name).lists["Conv2DV2" if name == "ascend950" else "Conv2D"] == "white"
    expected = HIGH if presets.load(name).lists["LogSoftmaxV2"] == "black" else LOW
    assert precisions(text, name) == {"conv": LOW, "relu": LOW, "logs": expected, "y": expected}


def test_ascend910b_keeps_a_reduction_by_the_flag_of_its_ascend_name() -> None:
    """Rule S5.7: Apart from Square, names are matched before fusion."""
    text = """
    net (float[2, 8] x) => (float[2, 8] y) <float[8, 8] w, int64[1] axes = {1}> {
      product = MatMul(x, w)
      sum = ReduceSum<keepdims = 1>(product, axes)
      y = Div(product, sum)
    }
    """
    assert precisions(text, "ascend910b") == {"product": LOW, "sum": HIGH, "y": LOW}
    assert precisions(text, "ascend310p") == {"product": LOW, "sum": LOW, "y": LOW}  # that chip has no such flag


def test_mindspore_o2_keeps_losses() -> None:
    text = """
    net (float[2, 8] x, int64[2] label) => (float loss) <float[8, 8] w> {
      logits = Gemm(x, w)
      loss = SoftmaxCrossEntropyLoss(logits, label)
    }
    """
    assert precisions(text, "mindspore-o2") == {"logits": LOW, "loss": HIGH}
    assert precisions(text, "mindspore-o3") == {"logits": LOW, "loss": LOW}
    assert precisions(text, "nnabla-half") == {"logits": LOW, "loss": HIGH}


def test_tensorflow_infer_ops_are_low_only_between_allow_ops() -> None:
    text = """
    net (float[8, 8] x) => (float[8, 8] last, float[8, 8] risky) <float[8, 8] w> {
      first = MatMul(x, w)
      inner = Add(first, w)
      clear = Relu(inner)
      second = MatMul(clear, w)
      last = Add(second, w)
      power = Exp(second)
      unsafe = Add(power, w)
      third = MatMul(unsafe, w)
      risky = Identity(third)
    }
    """
    precision_of = precisions(text, "tensorflow", gray_policy="between")
    assert [precision_of[name] for name in ("first", "inner", "clear", "second", "third")] == [LOW] * 5
    assert precision_of["power"] == HIGH
    assert precision_of["unsafe"] == HIGH  # its own example: in Exp -> Add the Add is unsafe due to the Exp
    assert precision_of["last"] == HIGH  # nothing after it asks for low precision


def test_tensorflow_clear_ops_are_low_beside_a_low_op() -> None:
    text = """
    net (float[8, 8] x) => (float[64] y) <float[8, 8] w, int64[1] flat = {-1}> {
      product = MatMul(x, w)
      y = Reshape(product, flat)
    }
    """
    assert precisions(text, "tensorflow", gray_policy="between") == {"product": LOW, "y": LOW}


def test_pytorch_promotes_to_the_widest() -> None:
    text = """
    net (float[8, 8] x) => (float[8, 8] a, float[8, 8] b, float[8, 8] c) <float[8, 8] w> {
      product = MatMul(x, w)
      a = Add(product, x)
      b = Mul(product, product)
      soft = Softmax(product)
      c = Add(product, soft)
    }
    """
    precision_of = precisions(text, "pytorch", gray_policy="promote")
    assert precision_of == {"product": LOW, "a": HIGH, "b": LOW, "soft": HIGH, "c": HIGH}


@pytest.mark.parametrize("name", presets.names())
def test_a_framework_keeps_no_node_because_of_a_constant(name: str) -> None:
    """Rule S4.19: autocast keeps no operator because of a number, and an Ascend engine clamps."""
    default = "keep" if name == "onnx" else "clamp" if name.startswith("ascend") else "ieee"
    assert mixlist.load_policy(name).constants == default
    assert mixlist.load_policy(name, constants="keep").constants == "keep"


def test_an_epsilon_is_lost_as_under_autocast() -> None:
    text = """
    net (float[8, 8] x) => (float[8, 8] y) <float[8, 8] w, float eps = {1e-8}> {
      low = MatMul(x, w)
      scale = Add(low, eps)
      y = Sub(low, scale)
    }
    """
    assert precisions(text, "pytorch", gray_policy="ascend")["scale"] == LOW
    assert precisions(text, "pytorch", gray_policy="ascend", constants="keep")["scale"] == HIGH
