"""Small networks of standard operators, and the fused forms that ONNX Runtime's optimizers make of them.

The encoder is a BERT of one layer; the decoder has a causal mask and two activations; the third network is
convolutional. Their graphs have the operators that exporters write, which the optimizers look for.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import ArrayLike
from onnx import TensorProto, helper, numpy_helper

WIDTH, HEADS, INNER, WORDS, LENGTH = 32, 2, 64, 50, 8


class _Writer:
    """The nodes and weights of a network."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(0)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def add(self, op: str, *inputs: str, out: str | None = None, **attributes: Any) -> str:
        """Add a node, and return the name of its output."""
        name = f"{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [out or f"{name}_out"], name=name, **attributes))
        return out or f"{name}_out"

    def constant(self, numbers: ArrayLike, dtype: type = np.float32) -> str:
        """Add an initializer, and return its name."""
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.array(numbers, dtype), name))
        return name

    def random_weight(self, *shape: int, scale: float = 1.0) -> str:
        """Add a random initializer, scaled for a sum over all axes but the last."""
        return self.constant(self.random.normal(size=shape) * scale / np.sqrt(np.prod(shape[:-1])))

    def linear(self, data: str, rows: int, columns: int, scale: float = 1.0) -> str:
        product = self.add("MatMul", data, self.random_weight(rows, columns, scale=scale))
        return self.add("Add", self.random_weight(columns), product)

    def normalize(self, data: str) -> str:
        """Add a layer normalization in the operators of opset 16."""
        centered = self.add("Sub", data, self.add("ReduceMean", data, axes=[-1]))
        variance = self.add("ReduceMean", self.add("Pow", centered, self.constant(2.0)), axes=[-1])
        root = self.add("Sqrt", self.add("Add", variance, self.constant(1e-5)))
        scaled = self.add("Mul", self.add("Div", centered, root), self.constant(np.ones(WIDTH)))
        return self.add("Add", scaled, self.constant(np.zeros(WIDTH)))

    def heads(self, data: str, order: list[int]) -> str:
        """Split the last axis into heads."""
        split = self.add("Reshape", data, self.constant([0, 0, HEADS, WIDTH // HEADS], np.int64))
        return self.add("Transpose", split, perm=order)

    def join(self, weights: str, value: str) -> str:
        """Multiply the attention weights by the value, and join the heads."""
        turned = self.add("Transpose", self.add("MatMul", weights, value), perm=[0, 2, 1, 3])
        return self.linear(self.add("Reshape", turned, self.constant([0, 0, WIDTH], np.int64)), WIDTH, WIDTH)

    def model(self, inputs: dict[str, tuple[int, list[Any]]], outputs: dict[str, list[Any]]) -> onnx.ModelProto:
        input_infos = [helper.make_tensor_value_info(name, *info) for name, info in inputs.items()]
        output_infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in outputs.items()]
        graph = helper.make_graph(self.nodes, "network", input_infos, output_infos, self.weights)
        proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.checker.check_model(proto, full_check=True)
        return proto


def make_encoder(scale: float = 1.0) -> onnx.ModelProto:
    """Return a BERT of one layer. ``scale`` multiplies the up projection, and divides the down projection."""
    w = _Writer()
    # The optimizers of ONNX Runtime look for two nodes here, and for the bias in the first slot of an Add.
    mask = w.add("Unsqueeze", "attention_mask", w.constant([1], np.int64))
    mask = w.add("Unsqueeze", mask, w.constant([2], np.int64))
    inverse = w.add("Sub", w.constant(1.0), w.add("Cast", mask, to=TensorProto.FLOAT))
    penalty = w.add("Mul", inverse, w.constant(-10000.0))
    words = w.add("Gather", w.constant(w.random.normal(size=(WORDS, WIDTH))), "input_ids")
    hidden = w.normalize(w.add("Add", words, w.random_weight(1, LENGTH, WIDTH)))
    query = w.heads(w.linear(hidden, WIDTH, WIDTH), [0, 2, 1, 3])
    key = w.heads(w.linear(hidden, WIDTH, WIDTH), [0, 2, 3, 1])
    value = w.heads(w.linear(hidden, WIDTH, WIDTH), [0, 2, 1, 3])
    scores = w.add("Div", w.add("MatMul", query, key), w.constant(np.sqrt(WIDTH // HEADS)))
    weights = w.add("Softmax", w.add("Add", scores, penalty), axis=-1)
    hidden = w.normalize(w.add("Add", w.join(weights, value), hidden))
    up = w.linear(hidden, WIDTH, INNER, scale)
    erf = w.add("Erf", w.add("Div", up, w.constant(np.sqrt(2))))
    gelu = w.add("Mul", w.add("Mul", up, w.add("Add", erf, w.constant(1.0))), w.constant(0.5))
    hidden = w.normalize(w.add("Add", w.linear(gelu, INNER, WIDTH, 1 / scale), hidden))
    w.add("MatMul", hidden, w.random_weight(WIDTH, WORDS), out="y")
    ids = TensorProto.INT64, ["batch", LENGTH]
    return w.model({"input_ids": ids, "attention_mask": ids}, {"y": ["batch", LENGTH, WORDS]})


def make_causal_decoder() -> onnx.ModelProto:
    """Return a decoder layer with a causal mask of the lowest float32, GELU by tanh, and GELU by sigmoid."""
    w = _Writer()
    hidden = w.add("Gather", w.constant(w.random.normal(size=(WORDS, WIDTH))), "input_ids")
    normed = w.normalize(hidden)
    query = w.heads(w.linear(normed, WIDTH, WIDTH), [0, 2, 1, 3])
    key = w.heads(w.linear(normed, WIDTH, WIDTH), [0, 2, 3, 1])
    value = w.heads(w.linear(normed, WIDTH, WIDTH), [0, 2, 1, 3])
    scores = w.add("Mul", w.add("MatMul", query, key), w.constant(0.25))
    causal = w.constant(np.tril(np.ones((1, 1, LENGTH, LENGTH))), np.bool_)
    masked = w.add("Where", causal, scores, w.constant(np.finfo(np.float32).min))
    hidden = w.add("Add", hidden, w.join(w.add("Softmax", masked, axis=-1), value))
    up = w.linear(w.normalize(hidden), WIDTH, INNER)
    cube = w.add("Mul", w.add("Pow", up, w.constant(3.0)), w.constant(0.044715))
    tanh = w.add("Tanh", w.add("Mul", w.add("Add", up, cube), w.constant(np.sqrt(2 / np.pi))))
    fast = w.add("Mul", w.add("Mul", up, w.constant(0.5)), w.add("Add", tanh, w.constant(1.0)))
    quick = w.add("Mul", up, w.add("Sigmoid", w.add("Mul", up, w.constant(1.702))))
    hidden = w.add("Add", hidden, w.linear(w.add("Add", fast, quick), INNER, WIDTH))
    w.add("MatMul", w.normalize(hidden), w.random_weight(WIDTH, WORDS), out="y")
    return w.model({"input_ids": (TensorProto.INT64, ["batch", LENGTH])}, {"y": ["batch", LENGTH, WORDS]})


def make_convolutions() -> onnx.ModelProto:
    """Return two convolutions with activations, and two dense layers."""
    w = _Writer()
    hidden, kernel = "x", {"pads": [1] * 4}
    for channels, op in ((3, "Relu"), (16, "LeakyRelu")):
        weight = w.random_weight(16, channels, 3, 3, scale=4)
        hidden = w.add(op, w.add("Conv", hidden, weight, w.random_weight(16), **kernel))
    pooled = w.add("Flatten", w.add("GlobalAveragePool", hidden))
    dense = w.add("Relu", w.add("Gemm", pooled, w.random_weight(16, 16), w.random_weight(16)))
    w.add("Gemm", dense, w.random_weight(16, 10), w.random_weight(10), out="y")
    return w.model({"x": (TensorProto.FLOAT, ["batch", 3, 8, 8])}, {"y": ["batch", 10]})


def save_optimized(proto: onnx.ModelProto, path: Path, level: onnxruntime.GraphOptimizationLevel) -> None:
    """Write the model that an inference session of ONNX Runtime makes of ``proto`` on a CPU."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = level
    options.optimized_model_filepath = str(path)
    onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])


def save_fused(proto: onnx.ModelProto, path: Path) -> None:
    """Write the model that ``onnxruntime.transformers.optimizer`` makes of an encoder or decoder."""
    from onnxruntime.transformers import optimizer

    copy = onnx.ModelProto.FromString(proto.SerializeToString())  # the optimizer changes its argument
    fused = optimizer.optimize_model(copy, model_type="bert", num_heads=HEADS, hidden_size=WIDTH, opt_level=0)
    fused.save_model_to_file(str(path))
