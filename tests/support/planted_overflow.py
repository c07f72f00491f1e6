"""A model whose product overflows in float16, and its data, for the tests of ``mixlist tune``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx

from tests.support.builders import model

# Each output sums 4 products of up to 300 * 300: they exceed 65504 if x is 300, and stay far below if x is 0.1.
PLANTED = """planted (float[N, 4] x) => (float[N, 4] y)
<float[4, 4] one = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1},
 float[4, 4] w = {300, 0, 0, 0, 300, 1, 0, 0, 300, 0, 1, 0, 300, 0, 0, 1}>
{ [safe] s = MatMul (x, one) [product] a = MatMul (s, w) [after] y = Tanh (a) }"""


def write_batches(folder: Path, sizes: tuple[float, ...]) -> Path:
    """Write one batch for each size of x; return their folder."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for index, size in enumerate(sizes):
        np.savez(folder / f"{index}.npz", x=(size * rng.uniform(0.5, 1, size=(3, 4))).astype(np.float32))
    return folder


def save_planted_model(folder: Path) -> Path:
    """Write the planted model; return its path."""
    path = folder / "planted.onnx"
    onnx.save(model(PLANTED), path)
    return path
