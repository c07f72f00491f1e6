"""Models with their weights in another file, all of one structure, each with weights of its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper


def write_external(path: Path, seed: int, size: int = 64, location: str | None = None) -> Path:
    """Write MatMul (low), Softmax (high) and Mul (high), whose weights all come from ``seed``, in two files."""
    rng = np.random.default_rng(seed)
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "W"], ["h"], name="mm"),
            helper.make_node("Softmax", ["h"], ["s"], name="sm"),
            helper.make_node("Mul", ["s", "B"], ["y"], name="mul"),
        ],
        "g",
        [helper.make_tensor_value_info("x", 1, ["n", size])],
        [helper.make_tensor_value_info("y", 1, ["n", size])],
        [
            numpy_helper.from_array(rng.standard_normal((size, size), np.float32), "W"),
            numpy_helper.from_array(rng.standard_normal(size, np.float32), "B"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    location = location or f"{path.name}.weights"
    path.with_name(location).unlink(missing_ok=True)  # onnx would append to it
    onnx.save(model, path, save_as_external_data=True, location=location, size_threshold=0)
    return path


def has_weights_of(path: Path, seed: int, size: int = 64) -> bool:
    """Return whether a model that mixlist made holds the weights of ``seed``: W in float16, B in float32."""
    rng = np.random.default_rng(seed)
    w, b = rng.standard_normal((size, size), np.float32), rng.standard_normal(size, np.float32)
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(path).graph.initializer}
    return np.array_equal(stored["W"], w.astype(np.float16)) and np.array_equal(stored["B"], b)
