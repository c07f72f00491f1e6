"""Small decoders of ONNX Runtime's fused operators, as its exporter of language models writes them.

A layer is grouped-query attention with rotary positions and a cache, and a gated network. The norms add to the residual
sum. The weights are float32, or blocks of 4 bits with a scale each (MatMulNBits).
"""

from __future__ import annotations

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

VOCABULARY, WIDTH, INNER, HEADS, CACHE_HEADS, MOST_WORDS = 64, 64, 96, 4, 2, 32
HEAD_SIZE = WIDTH // HEADS
BLOCK = 32  # weights that share a scale


class _Writer:
    """The nodes and weights of a decoder; ``bits`` is 32, or 4 for the matrices of the layers."""

    def __init__(self, bits: int) -> None:
        self.bits = bits
        self.random = np.random.default_rng(0)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def add(self, op_type: str, inputs: list[str], outputs: list[str], domain: str = "", **attributes: object) -> str:
        """Add a node with the name of its first output, which is returned."""
        self.nodes.append(helper.make_node(op_type, inputs, outputs, outputs[0], domain=domain, **attributes))
        return outputs[0]

    def weight(self, name: str, array: NDArray[np.generic]) -> str:
        """Add an initializer; return its name."""
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def product(self, data: str, name: str, rows: int, columns: int) -> str:
        """Add the product with a random matrix of (rows, columns)."""
        matrix = (self.random.normal(size=(rows, columns)) / np.sqrt(rows)).astype(np.float32)
        if self.bits == 32:
            return self.add("MatMul", [data, self.weight(f"{name}.weight", matrix)], [name])
        blocks = matrix.T.reshape(columns, rows // BLOCK, BLOCK)
        scales = np.abs(blocks).max(-1) / 7
        numbers = np.round(blocks / scales[..., None]).astype(np.int64) + 8  # 8 represents zero
        packed = (numbers[..., ::2] | numbers[..., 1::2] << 4).astype(np.uint8)
        inputs = [
            data,
            self.weight(f"{name}.weight_4bit", packed),
            self.weight(f"{name}.scales", scales.reshape(-1).astype(np.float32)),
        ]
        sizes = {"K": rows, "N": columns, "bits": 4, "block_size": BLOCK}
        return self.add("MatMulNBits", inputs, [name], "com.microsoft", **sizes)

    def skip_norm(self, residual: str, data: str, name: str, *, is_last: bool = False) -> tuple[str, str]:
        """Add data to the residual, and normalize the sum; return the names of the normalized sum and of the sum."""
        gain = self.weight(f"{name}.gain", np.ones(WIDTH, np.float32))
        outputs = [name] if is_last else [name, "", "", f"{name}.sum"]
        normed = self.add(
            "SkipSimplifiedLayerNormalization", [residual, data, gain], outputs, "com.microsoft", epsilon=1e-6
        )
        return normed, outputs[-1]


def _attention(writer: _Writer, normed: str, layer: str) -> str:
    """Add the attention of a layer with its cache; return the name of its result."""
    rotated = []
    for part, heads in (("q", HEADS), ("k", CACHE_HEADS)):
        projected = writer.product(normed, f"{layer}.{part}", WIDTH, heads * HEAD_SIZE)
        inputs = [projected, "position_ids", "cos_cache", "sin_cache"]
        rotated.append(writer.add("RotaryEmbedding", inputs, [f"{layer}.{part}.rotary"], "com.microsoft"))
    value = writer.product(normed, f"{layer}.v", WIDTH, CACHE_HEADS * HEAD_SIZE)
    caches = [f"past.{layer}.key", f"past.{layer}.value"]
    outputs = [f"{layer}.attention", f"present.{layer}.key", f"present.{layer}.value"]
    sizes = {"num_heads": HEADS, "kv_num_heads": CACHE_HEADS}
    inputs = [*rotated, value, *caches, "last_positions", "total_length"]
    context = writer.add("GroupQueryAttention", inputs, outputs, "com.microsoft", **sizes)
    return writer.product(context, f"{layer}.o", WIDTH, WIDTH)


def _gated_network(writer: _Writer, normed: str, layer: str, scale: float) -> str:
    """Add SiLU(gate) times up, and down; ``scale`` multiplies up, and divides before down."""
    gate = writer.product(normed, f"{layer}.gate", WIDTH, INNER)
    up = writer.product(normed, f"{layer}.up", WIDTH, INNER)
    large = writer.add("Mul", [up, writer.weight(f"{layer}.scale", np.float32(scale))], [f"{layer}.up.scaled"])
    sigmoid = writer.add("Sigmoid", [gate], [f"{layer}.sigmoid"])
    silu = writer.add("Mul", [gate, sigmoid], [f"{layer}.silu"])
    gated = writer.add("Mul", [silu, large], [f"{layer}.gated"])
    small = writer.add("Div", [gated, f"{layer}.scale"], [f"{layer}.gated.small"])
    return writer.product(small, f"{layer}.down", INNER, WIDTH)


def make_fused_decoder(bits: int, *, layers: int = 2, scale: float = 1.0) -> onnx.ModelProto:
    """Return a decoder as the exporter writes it. ``scale`` is that of the last ``_gated_network``."""
    writer = _Writer(bits)
    angles = np.arange(MOST_WORDS)[:, None] / 100 ** (np.arange(HEAD_SIZE // 2) / (HEAD_SIZE // 2))
    writer.weight("cos_cache", np.cos(angles).astype(np.float32))
    writer.weight("sin_cache", np.sin(angles).astype(np.float32))
    axis, one = writer.weight("axis", np.array([1])), writer.weight("one", np.array(1))
    sums = writer.add("ReduceSum", ["attention_mask", axis], ["mask_sums"], keepdims=0)
    writer.add("Cast", [writer.add("Sub", [sums, one], ["last"])], ["last_positions"], to=TensorProto.INT32)
    length = writer.add("Gather", [writer.add("Shape", ["attention_mask"], ["mask_shape"]), one], ["length"])
    writer.add("Cast", [length], ["total_length"], to=TensorProto.INT32)
    table = writer.weight("table", writer.random.normal(size=(VOCABULARY, WIDTH)).astype(np.float32))
    residual = writer.add("Gather", [table, "input_ids"], ["embedding"])
    gain = writer.weight("norm.gain", np.ones(WIDTH, np.float32))
    normed = writer.add("SimplifiedLayerNormalization", [residual, gain], ["norm"], axis=-1, epsilon=1e-6)
    for number in range(layers):
        layer, is_last = f"layers.{number}", number == layers - 1
        attended = _attention(writer, normed, layer)
        normed, residual = writer.skip_norm(residual, attended, f"{layer}.post_norm")
        network = _gated_network(writer, normed, layer, scale if is_last else 1.0)
        normed, residual = writer.skip_norm(residual, network, f"{layer}.next_norm", is_last=is_last)
    writer.product(normed, "logits", WIDTH, VOCABULARY)
    return _make_model(writer, layers)


def _make_model(writer: _Writer, layers: int) -> onnx.ModelProto:
    info = helper.make_tensor_value_info
    caches = [f"layers.{number}.{part}" for number in range(layers) for part in ("key", "value")]
    past, total = "past_sequence_length", "total_sequence_length"
    inputs = [
        info("input_ids", TensorProto.INT64, ["batch_size", "sequence_length"]),
        info("attention_mask", TensorProto.INT64, ["batch_size", total]),
        info("position_ids", TensorProto.INT64, ["batch_size", "sequence_length"]),
        *(info(f"past.{name}", TensorProto.FLOAT, ["batch_size", CACHE_HEADS, past, HEAD_SIZE]) for name in caches),
    ]
    outputs = [
        info("logits", TensorProto.FLOAT, ["batch_size", "sequence_length", VOCABULARY]),
        *(info(f"present.{name}", TensorProto.FLOAT, ["batch_size", CACHE_HEADS, total, HEAD_SIZE]) for name in caches),
    ]
    graph = helper.make_graph(writer.nodes, "decoder", inputs, outputs, writer.weights)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)
