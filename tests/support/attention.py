"""Random attention with masks in the forms of exporters, for the tests of the rules S4.35 to S4.37."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
from hypothesis import strategies as st
from numpy.typing import NDArray

from mixlist import Policy
from tests.support.builders import model, policy

SIZE = 4  # positions
CONSTANTS = [-1e9, -3.4028235e38, -65504.0, -50000.0, -1e4]
# Nodes that apply the mask to the scores s# of layer #. `inv` is 1 where a position is masked, `b` is the same as bool,
# `c` is the constant, `m` the mask that all layers share.
LAYERS = {
    "add": "a# = Add(s#, m)",
    "add, swapped": "a# = Add(m, s#)",
    "sub": "n# = Mul(inv, big) a# = Sub(s#, n#)",
    "where": "a# = Where(b, c, s#)",
    "where of a table": "e# = Expand(c, shape) a# = Where(b, e#, s#)",
    "max": "t# = Add(s#, m) a# = Max(t#, c)",
    "twice": "t# = Add(s#, m) a# = Add(t#, m)",
    "reshaped": "u# = Reshape(m, shape) t# = Add(s#, u#) a# = Reshape(t#, shape)",
    "scaled": "t# = Add(s#, m) a# = Mul(t#, half)",
    "divided": "t# = Where(b, c, s#) u# = Div(t#, two) a# = Add(u#, m)",
    "cast": "t# = Add(s#, m) a# = Cast<to=1>(t#)",
    "both": "z# = Where(b, c, zero) t# = Add(s#, z#) a# = Where(b, c, t#)",
}
SHARED = {
    "product": "m = Mul(inv, c)",
    "choice": "m = Where(b, c, zero)",
    "switched": "i = Where(b, one, zero) m = Mul(i, c)",
    "negated": "l = Mul(inv, big) m = Neg(l)",
    "filled": "e = ConstantOfShape<value=float[1] {@}>(shape) m = Mul(inv, e)",
    "float mask": "i = Sub(one, keep) m = Mul(i, c)",
}
OPERATORS = ["Add", "Sub", "Mul", "Div", "Neg", "Where", "Max", "Expand", "Reshape", "MatMul", "Softmax", "Relu"]


@dataclass(frozen=True)
class Attention:
    """A model of some layers of attention, with a batch in which at least one row is fully masked."""

    model: onnx.ModelProto
    feed: dict[str, NDArray[np.generic]]


def attention(shared: str, layers: list[str], constant: float, largest: float = 100.0, seed: int = 0) -> Attention:
    """Build layers of attention with a common mask; ``largest`` is the largest magnitude of a score in the first."""
    parts = [
        "b = Equal(mask, masked_id) f = Cast<to=1>(mask) inv = Sub(one, f)",
        SHARED[shared].replace("@", repr(constant)),
    ]
    value = "x"
    for index, layer in enumerate(layers):
        parts.append(
            f"s# = MatMul({value}, k) {LAYERS[layer]} p# = Softmax(a#) r# = MatMul(p#, v)".replace("#", str(index))
        )
        value = f"r{index}"
    text = f"""g (float[{SIZE},{SIZE}] x, float[{SIZE},{SIZE}] k, float[{SIZE},{SIZE}] v, int64[{SIZE},{SIZE}] mask,
      float[{SIZE},{SIZE}] keep) => (float[{SIZE},{SIZE}] y)
      <float c = {{{constant!r}}}, float big = {{{-constant!r}}}, float one = {{1.0}}, float zero = {{0.0}},
       float half = {{0.5}}, float two = {{2.0}}, int64[2] shape = {{{SIZE}, {SIZE}}}, int64 masked_id = {{0}}>
      {{ {" ".join(parts)} y = Relu({value}) }}"""
    random = np.random.default_rng(seed)
    mask = random.integers(0, 2, (SIZE, SIZE))
    mask[random.integers(SIZE)] = 0
    square = np.float32(np.sqrt(largest / SIZE))
    feed: dict[str, NDArray[np.generic]] = {
        name: random.uniform(-square, square, (SIZE, SIZE)).astype(np.float32) for name in ("x", "k")
    }
    feed |= {"v": random.uniform(-1, 1, (SIZE, SIZE)).astype(np.float32)}
    feed |= {"mask": mask.astype(np.int64), "keep": mask.astype(np.float32)}
    return Attention(model(text), feed)


@st.composite
def attentions(draw: st.DrawFn) -> Attention:
    """Attention of one to three layers."""
    layers = draw(st.lists(st.sampled_from(sorted(LAYERS)), min_size=1, max_size=3))
    largest = draw(st.sampled_from([10.0, 1000.0, 15900.0]))
    constant = draw(st.sampled_from(CONSTANTS))
    return attention(draw(st.sampled_from(sorted(SHARED))), layers, constant, largest, draw(st.integers(0, 9)))


@st.composite
def mask_policies(draw: st.DrawFn) -> Policy:
    """A policy that protects masks, with random lists."""
    lists = {op: draw(st.sampled_from(["gray", "white", "black", "white"])) for op in OPERATORS}
    return policy(
        white=[op for op in OPERATORS if lists[op] == "white"],
        black=[op for op in OPERATORS if lists[op] == "black"],
        mode=draw(st.sampled_from(["mixed_float16"] * 3 + ["mixed_bfloat16", "fp16"])),
        gray_policy=draw(st.sampled_from(["ascend", "ascend", "between", "promote"])),
        constants=draw(st.sampled_from(["keep", "keep", "ieee", "clamp"])),
        protect=["masks"],
    )
