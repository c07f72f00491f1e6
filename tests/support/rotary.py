"""A rotary embedding as torch exports it: positions times inverse frequencies, then Sin and Cos."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FREQUENCIES = [10000.0 ** (-at / 8) for at in range(8)]

# ``place`` repeats the frequencies for every sentence: it expands a constant to a shape.
ROTARY = f"""
g (int64[N, s] position_ids, float[N, s, 16] x) => (float[N, s, 16] y)
<float[1, 8, 1] freq = {{{", ".join(f"{frequency:.9g}" for frequency in FREQUENCIES)}}}, int64[1] one = {{1}},
 int64[2] rest = {{8, 1}}, float half = {{0.5}}>
{{
  [rows] n = Shape<start = 0, end = 1> (position_ids)
  [shape] shape = Concat<axis = 0> (n, rest)
  [place] f = Expand (freq, shape)
  [column] column = Unsqueeze (position_ids, one)
  [floats] p = Cast<to = 1> (column)
  [angles] a = MatMul (f, p)
  [turn] t = Transpose<perm = [0, 2, 1]> (a)
  [both] b = Concat<axis = -1> (t, t)
  [cos] c = Cos (b)
  [sin] d = Sin (b)
  [scale] e = Mul (c, half)
  [left] l = Mul (x, e)
  [right] r = Mul (x, d)
  [sum] y = Add (l, r)
}}
"""
ARITHMETIC = ("place", "angles", "turn", "both", "cos", "sin", "scale")  # the nodes of ROTARY that Rule S4.38 protects


def late_positions() -> dict[str, NDArray[np.generic]]:
    """One batch of ROTARY at the positions 4000 to 4095."""
    positions = np.arange(4000, 4096, dtype=np.int64)[None]
    return {"position_ids": positions, "x": np.ones((1, 96, 16), np.float32)}
