"""Models, arrays and files for the tests of feeds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx

from mixlist.run.feeds import as_batches
from tests.support.builders import model

TWO_INPUTS = "g (float[N, 4] x, int64[M] ids) => (float[N, 4] y, int64[M] z) { y = Neg (x) z = Neg (ids) }"
ONE_INPUT = "g (float[N, 4] x) => (float[N, 4] y) { y = Neg (x) }"
ROWS = np.arange(8, dtype=np.float32).reshape(2, 4)


def model_with_input(kind: str) -> onnx.ModelProto:
    """Return a model with one input ``x``; ``kind`` is its type and shape in ONNX text: ``float[N, 4]``."""
    return model(f"g ({kind} x) => ({kind} y) {{ y = Identity (x) }}", check=False)


def convert_input(proto: onnx.ModelProto, array: Any) -> Any:
    """Return the value that the input ``x`` of a model gets for an array."""
    (feed,) = as_batches({"x": array}, proto)
    return feed["x"]


def save_npz(path: Path, **arrays: Any) -> Path:
    """Write an npz file, and the folder that it is in; return the path of the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)
    return path
