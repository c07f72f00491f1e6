"""Write decoders of Llama's architecture with random weights in external data; this needs only onnx and numpy.

The graph has the operators that PyTorch's exporter makes of a Llama: normalization by the root of mean squares, rotary
positions, grouped-query attention with a causal mask, and a gated feed-forward network. It has no cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

PAGE = 4096
MASKED = float(np.finfo(np.float32).min)  # the score of a later token, as exporters write it


@dataclass(frozen=True)
class LlamaSize:
    """The sizes of a decoder. ``heads`` are those of the queries, ``shared_heads`` those of keys and values."""

    vocabulary: int
    hidden: int
    inner: int
    layers: int
    heads: int
    shared_heads: int


# 50 million parameters: 198 MB in float32.
SMALL = LlamaSize(vocabulary=8000, hidden=512, inner=1408, layers=15, heads=8, shared_heads=2)
# 1.1 billion parameters: 4.4 GB in float32.
LARGE = LlamaSize(vocabulary=32000, hidden=2048, inner=5632, layers=22, heads=32, shared_heads=4)
# Factors under which three nodes of one layer overflow, or lose their weights, in float16: the up projection, its
# product with the gate, and the down projection. The output of the layer stays the same.
PLANTED = {"layers.1.up.weight": 8e4, "layers.1.down.weight": 1 / 8e4}
# A few thousand parameters, for tests of many cases.
TINY = LlamaSize(vocabulary=64, hidden=32, inner=48, layers=2, heads=4, shared_heads=2)


@dataclass
class _Writer:
    """The nodes and weights of a decoder in the making; the data of large weights goes to ``data_file``."""

    size: LlamaSize
    data_file: IO[bytes]
    scales: Mapping[str, float]
    pool: NDArray[np.float32]
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: list[onnx.TensorProto] = field(default_factory=list)

    def add(self, op_type: str, inputs: list[str], out: str, **attributes: Any) -> str:
        """Add a node, which has the name of its output."""
        self.nodes.append(helper.make_node(op_type, inputs, [out], name=out, **attributes))
        return out

    def add_constant(self, name: str, numbers: object, dtype: type = np.float32) -> str:
        """Add a small initializer."""
        self.initializers.append(numpy_helper.from_array(np.array(numbers, dtype), name))
        return name

    def add_weight(self, name: str, shape: tuple[int, ...], deviation: float) -> str:
        """Add a weight of random numbers in external data. ``scales`` has a factor for some weights."""
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape, data_location=TensorProto.EXTERNAL)
        start = -(-self.data_file.tell() // PAGE) * PAGE
        self.data_file.seek(start)
        factor = np.float32(deviation * self.scales.get(name, 1.0))
        # The same random numbers, from another position for each weight: to draw billions of them takes a minute.
        count, drawn = int(np.prod(shape)), len(self.pool)
        position = start // PAGE * 977 % drawn
        while count:
            piece = self.pool[position : position + count] * factor
            self.data_file.write(piece.tobytes())
            count, position = count - len(piece), 0
        entries = {"location": Path(self.data_file.name).name, "offset": start, "length": self.data_file.tell() - start}
        for key, value in entries.items():
            tensor.external_data.add(key=key, value=str(value))
        self.initializers.append(tensor)
        return name

    def add_product(self, tensor: str, name: str, rows: int, columns: int) -> str:
        """Add the product of a tensor and a weight of shape [rows, columns]."""
        weight = self.add_weight(f"{name}.weight", (rows, columns), rows**-0.5)
        return self.add("MatMul", [tensor, weight], name)

    def add_norm(self, tensor: str, name: str) -> str:
        """Add the normalization by the root of mean squares."""
        weight = self.add_weight(f"{name}.weight", (self.size.hidden,), 0.0625)
        square = self.add("Pow", [tensor, "two"], f"{name}.square")
        mean = self.add("ReduceMean", [square], f"{name}.mean", axes=[-1], keepdims=1)
        root = self.add("Sqrt", [self.add("Add", [mean, "epsilon"], f"{name}.shifted")], f"{name}.root")
        normal = self.add("Div", [tensor, root], f"{name}.normal")
        return self.add("Mul", [normal, self.add("Add", [weight, "one"], f"{name}.gain")], name)

    def add_heads(self, tensor: str, name: str, heads: int, rotary: bool) -> str:
        """Add the split of a tensor into heads, [batch, heads, tokens, size of a head], with rotary positions."""
        shape = self.add_constant(f"{name}.shape", [0, 0, heads, self.size.hidden // self.size.heads], np.int64)
        split = self.add("Reshape", [tensor, shape], f"{name}.split")
        turned = self.add("Transpose", [split], f"{name}.heads", perm=[0, 2, 1, 3])
        if not rotary:
            return turned
        low = self.add("Slice", [turned, "zero_index", "half", "last_axis"], f"{name}.first")
        high = self.add("Slice", [turned, "half", "end", "last_axis"], f"{name}.second")
        swapped = self.add("Concat", [self.add("Neg", [high], f"{name}.negated"), low], f"{name}.swapped", axis=-1)
        parts = (
            self.add("Mul", [turned, "cosine"], f"{name}.cosine"),
            self.add("Mul", [swapped, "sine"], f"{name}.sine"),
        )
        return self.add("Add", list(parts), f"{name}.rotated")

    def add_shared_heads(self, tensor: str, name: str) -> str:
        """Add the repetition of each head of keys or values for all heads of queries that read it."""
        size, repeats = self.size, self.size.heads // self.size.shared_heads
        wide = self.add("Unsqueeze", [tensor, "third_axis"], f"{name}.wide")
        shape = self.add_constant(f"{name}.repeats", [1, 1, repeats, 1, 1], np.int64)
        repeated = self.add("Expand", [wide, shape], f"{name}.expanded")
        joined = self.add_constant(f"{name}.joined", [0, size.heads, -1, size.hidden // size.heads], np.int64)
        return self.add("Reshape", [repeated, joined], f"{name}.repeated")

    def add_attention(self, tensor: str, name: str) -> str:
        """Add grouped-query attention."""
        size = self.size
        shared = size.hidden // size.heads * size.shared_heads
        queries = self.add_product(tensor, f"{name}.q", size.hidden, size.hidden)
        keys = self.add_product(tensor, f"{name}.k", size.hidden, shared)
        values = self.add_product(tensor, f"{name}.v", size.hidden, shared)
        query_heads = self.add_heads(queries, f"{name}.q", size.heads, rotary=True)
        key_heads = self.add_shared_heads(self.add_heads(keys, f"{name}.k", size.shared_heads, True), f"{name}.k")
        value_heads = self.add_shared_heads(self.add_heads(values, f"{name}.v", size.shared_heads, False), f"{name}.v")
        turned_keys = self.add("Transpose", [key_heads], f"{name}.k.turned", perm=[0, 1, 3, 2])
        scores = self.add("MatMul", [query_heads, turned_keys], f"{name}.scores")
        scaled = self.add("Mul", [scores, "score_scale"], f"{name}.scaled")
        weights = self.add("Softmax", [self.add("Add", [scaled, "mask"], f"{name}.masked")], f"{name}.weights", axis=-1)
        mixed = self.add("MatMul", [weights, value_heads], f"{name}.mixed")
        joined = self.add("Transpose", [mixed], f"{name}.mixed.turned", perm=[0, 2, 1, 3])
        shape = self.add_constant(f"{name}.shape", [0, 0, size.hidden], np.int64)
        flat = self.add("Reshape", [joined, shape], f"{name}.flat")
        return self.add_product(flat, f"{name}.o", size.hidden, size.hidden)

    def add_feed_forward(self, tensor: str, name: str) -> str:
        """Add the gated feed-forward network."""
        gate = self.add_product(tensor, f"{name}.gate", self.size.hidden, self.size.inner)
        up = self.add_product(tensor, f"{name}.up", self.size.hidden, self.size.inner)
        silu = self.add("Mul", [gate, self.add("Sigmoid", [gate], f"{name}.sigmoid")], f"{name}.silu")
        product = self.add("Mul", [silu, up], f"{name}.product")
        return self.add_product(product, f"{name}.down", self.size.inner, self.size.hidden)

    def add_positions(self) -> None:
        """Add the constants, the rotary factors and the causal mask, which all layers read."""
        head = self.size.hidden // self.size.heads
        for name, number in (("one", 1.0), ("two", 2.0), ("epsilon", 1e-5), ("score_scale", head**-0.5)):
            self.add_constant(name, number)
        for name, number in (("masked_score", MASKED), ("open_score", 0.0)):
            self.add_constant(name, number)
        self.add_constant("frequencies", 10000.0 ** (-np.arange(0, head, 2) / head))
        indices = {"zero_index": [0], "half": [head // 2], "end": [head], "last_axis": [-1], "third_axis": [2]}
        indices |= {"first_axis": [0], "second_axis": [1]}
        for name, index in indices.items():
            self.add_constant(name, index, np.int64)
        for name, number in (("start", 0), ("step", 1), ("token_axis", 1)):
            self.add_constant(name, number, np.int64)
        token_count = self.add("Gather", [self.add("Shape", ["input_ids"], "ids.shape"), "token_axis"], "token_count")
        positions = self.add("Range", ["start", token_count, "step"], "positions")
        column = self.add("Unsqueeze", [positions, "second_axis"], "positions.column")
        row = self.add("Unsqueeze", [positions, "first_axis"], "positions.row")
        seen = self.add("LessOrEqual", [row, column], "seen")
        self.add("Where", [seen, "open_score", "masked_score"], "mask")
        numbers = self.add("Cast", [column], "positions.numbers", to=TensorProto.FLOAT)
        half = self.add("Mul", [numbers, "frequencies"], "angles.half")
        angles = self.add("Concat", [half, half], "angles", axis=-1)
        self.add("Cos", [angles], "cosine")
        self.add("Sin", [angles], "sine")


def write_llama(path: Path, size: LlamaSize, scales: Mapping[str, float] | None = None) -> Path:
    """Write a decoder to ``path``, with its weights in a file next to it, and return ``path``.

    ``scales``: factors of weights by name, for example ``layers.1.up.weight``. The input is ``input_ids``, int64
    [batch, tokens]; the output is ``logits``, float32 [batch, tokens, vocabulary].
    """
    pool = np.random.default_rng(0).standard_normal(2**20 + 7, np.float32)
    with path.with_name(f"{path.name}.data").open("wb") as data_file:
        writer = _Writer(size, data_file, scales or {}, pool)
        writer.add_positions()
        table = writer.add_weight("embedding.weight", (size.vocabulary, size.hidden), 1.0)
        hidden = writer.add("Gather", [table, "input_ids"], "embedding")
        for index in range(size.layers):
            name = f"layers.{index}"
            attended = writer.add_attention(writer.add_norm(hidden, f"{name}.norm_1"), f"{name}.attention")
            hidden = writer.add("Add", [hidden, attended], f"{name}.sum_1")
            fed = writer.add_feed_forward(writer.add_norm(hidden, f"{name}.norm_2"), name)
            hidden = writer.add("Add", [hidden, fed], f"{name}.sum_2")
        writer.add_product(writer.add_norm(hidden, "norm"), "logits", size.hidden, size.vocabulary)
    graph = helper.make_graph(
        writer.nodes,
        "llama",
        [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "tokens"])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "tokens", size.vocabulary])],
        writer.initializers,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    return path


def make_token_ids(size: LlamaSize, batch: int, tokens: int, seed: int = 0) -> dict[str, NDArray[np.int64]]:
    """Return a feed of random tokens."""
    ids = np.random.default_rng(seed).integers(0, size.vocabulary, (batch, tokens))
    return {"input_ids": ids}
