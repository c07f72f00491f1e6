"""Write a model of BERT-base's size with random weights: 12 layers, 768 wide, 12 heads, 110 million parameters.

    python benchmarks/bert.py OUT.onnx [LAYERS]

The graph has opset 17 and the form in which PyTorch exports such a model: LayerNormalization is one node, GELU is
computed with Erf, the mask is added. The weights are normally distributed with a standard deviation of 0.02, like those
of BERT before training, so that no value comes near float16's limit.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

WIDTH, HEADS, INNER, VOCABULARY, POSITIONS = 768, 12, 3072, 30522, 512
HIDDEN_BY_MASK = -10000.0  # the constant of BERT's code; it lies well within the range of float16


class _GraphWriter:
    """Collect the nodes and weights of the graph."""

    def __init__(self) -> None:
        import numpy as np

        self.rng = np.random.default_rng(0)
        self.nodes: list[Any] = []
        self.weights: list[Any] = []

    def node(self, name: str, op_type: str, inputs: list[str], **attributes: Any) -> str:
        """Append a node; return the name of its output."""
        from onnx import helper

        self.nodes.append(helper.make_node(op_type, inputs, [f"{name}_out"], name=name, **attributes))
        return f"{name}_out"

    def normal(self, name: str, *shape: int) -> str:
        """Add a random weight; return its name."""
        import numpy as np

        return self.constant(name, self.rng.standard_normal(shape, np.float32) * np.float32(0.02))

    def constant(self, name: str, values: Any) -> str:
        """Add a weight with these values; return its name."""
        from onnx import numpy_helper

        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def scalar(self, name: str, number: float) -> str:
        """Add a float32 scalar; return its name."""
        import numpy as np

        return self.constant(name, np.float32(number))

    def dense(self, name: str, x: str, rows: int, columns: int) -> str:
        """Append ``x`` times a random weight, plus a random bias; return the output."""
        product = self.node(f"{name}/MatMul", "MatMul", [x, self.normal(f"{name}.weight", rows, columns)])
        return self.node(f"{name}/Add", "Add", [product, self.normal(f"{name}.bias", columns)])

    def norm(self, name: str, x: str) -> str:
        """Append a layer normalization over the last axis; return the output."""
        import numpy as np

        scale = self.constant(f"{name}.scale", np.ones(WIDTH, np.float32))
        bias = self.constant(f"{name}.bias", np.zeros(WIDTH, np.float32))
        return self.node(name, "LayerNormalization", [x, scale, bias], axis=-1, epsilon=1e-12)


def write_bert(path: Path, layers: int = 12) -> Path:
    """Write the model and return its path.

    Inputs: ``input_ids`` and ``attention_mask``, int64 (batch, sequence). Output: ``hidden``, float32
    (batch, sequence, 768).
    """
    import numpy as np
    import onnx
    from onnx import helper

    w = _GraphWriter()
    w.constant("heads", np.array([0, 0, HEADS, WIDTH // HEADS], np.int64))
    w.constant("joined", np.array([0, 0, WIDTH], np.int64))
    w.constant("axes", np.array([1, 2], np.int64))
    x, mask = _embedding(w), _mask(w)
    for k in range(layers):
        x = _layer(w, f"/layer{k}", x, mask)
    w.node("/end", "Identity", [x])
    w.nodes[-1].output[0] = "hidden"
    ids = [helper.make_tensor_value_info(n, onnx.TensorProto.INT64, ["batch", "sequence"]) for n in INPUTS]
    hidden = helper.make_tensor_value_info("hidden", onnx.TensorProto.FLOAT, ["batch", "sequence", WIDTH])
    graph = helper.make_graph(w.nodes, "bert", ids, [hidden], w.weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)
    return path


INPUTS = ("input_ids", "attention_mask")


def feed(batch: int, sequence: int = 128) -> dict[str, Any]:
    """Return a batch of random tokens. The last quarter of every second row is padding."""
    import numpy as np

    tokens = np.random.default_rng(1).integers(0, VOCABULARY, (batch, sequence), np.int64)
    mask = np.ones((batch, sequence), np.int64)
    mask[1::2, sequence * 3 // 4 :] = 0
    return dict(zip(INPUTS, (tokens, mask), strict=True))


def _embedding(w: _GraphWriter) -> str:
    """Append the embeddings of tokens and positions, their sum and its normalization; return the output."""
    import numpy as np

    words = w.node("/words", "Gather", [w.normal("words", VOCABULARY, WIDTH), "input_ids"])
    shape = w.node("/length/Shape", "Shape", ["input_ids"], start=1, end=2)
    zero, one = w.constant("zero", np.int64(0)), w.constant("one", np.int64(1))
    length = w.node("/length/Squeeze", "Squeeze", [shape])
    positions = w.node("/places/Range", "Range", [zero, length, one])
    embedded = w.node("/places", "Gather", [w.normal("places", POSITIONS, WIDTH), positions])
    return w.norm("/embedding/norm", w.node("/embedding/Add", "Add", [words, embedded]))


def _mask(w: _GraphWriter) -> str:
    """Append the mask (batch, 1, 1, sequence): 0 for tokens, HIDDEN_BY_MASK for padding; return its output."""
    import onnx

    wide = w.node("/mask/Unsqueeze", "Unsqueeze", ["attention_mask", "axes"])
    is_token = w.node("/mask/Cast", "Cast", [wide], to=onnx.TensorProto.FLOAT)
    is_padding = w.node("/mask/Sub", "Sub", [w.scalar("mask.one", 1), is_token])
    return w.node("/mask/Mul", "Mul", [is_padding, w.scalar("mask.low", HIDDEN_BY_MASK)])


def _layer(w: _GraphWriter, name: str, x: str, mask: str) -> str:
    attended = w.dense(f"{name}/out", _attention(w, name, x, mask), WIDTH, WIDTH)
    x = w.norm(f"{name}/norm1", w.node(f"{name}/Add1", "Add", [attended, x]))
    wide = _gelu(w, f"{name}/gelu", w.dense(f"{name}/in", x, WIDTH, INNER))
    narrow = w.dense(f"{name}/back", wide, INNER, WIDTH)
    return w.norm(f"{name}/norm2", w.node(f"{name}/Add2", "Add", [narrow, x]))


def _attention(w: _GraphWriter, name: str, x: str, mask: str) -> str:
    split = {}  # of each part, (batch, heads, sequence, WIDTH / HEADS); keys are transposed for the product
    for part, order in (("query", [0, 2, 1, 3]), ("key", [0, 2, 3, 1]), ("value", [0, 2, 1, 3])):
        heads = w.node(f"{name}/{part}/Reshape", "Reshape", [w.dense(f"{name}/{part}", x, WIDTH, WIDTH), "heads"])
        split[part] = w.node(f"{name}/{part}/Transpose", "Transpose", [heads], perm=order)
    scores = w.node(f"{name}/scores", "MatMul", [split["query"], split["key"]])
    scaled = w.node(f"{name}/Div", "Div", [scores, w.scalar(f"{name}.root", math.sqrt(WIDTH / HEADS))])
    weights = w.node(f"{name}/Softmax", "Softmax", [w.node(f"{name}/masked", "Add", [scaled, mask])], axis=-1)
    mixed = w.node(f"{name}/mixed", "MatMul", [weights, split["value"]])
    back = w.node(f"{name}/Transpose", "Transpose", [mixed], perm=[0, 2, 1, 3])
    return w.node(f"{name}/Reshape", "Reshape", [back, "joined"])


def _gelu(w: _GraphWriter, name: str, x: str) -> str:
    erf = w.node(f"{name}/Erf", "Erf", [w.node(f"{name}/Div", "Div", [x, w.scalar(f"{name}.root", math.sqrt(2))])])
    plus = w.node(f"{name}/Add", "Add", [erf, w.scalar(f"{name}.one", 1)])
    product = w.node(f"{name}/Mul", "Mul", [x, plus])
    return w.node(f"{name}/Mul_1", "Mul", [product, w.scalar(f"{name}.half", 0.5)])


if __name__ == "__main__":
    write_bert(Path(sys.argv[1]), *map(int, sys.argv[2:]))
