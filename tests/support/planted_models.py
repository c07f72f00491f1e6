"""Graphs with a planted overflow, or without one, and what a check must say of them; the answers are written by hand.

They hold for any provider that computes sums in float32: every value in them is exact in float32, or far from an edge.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mixlist import Policy
from tests.support.builders import policy

WHITE = {"white": ["Mul", "MatMul", "Add", "Exp", "Neg", "Relu", "Sub", "Div"]}
Feed = dict[str, Any]


@dataclass(frozen=True)
class Planted:
    """``kinds``: kind of finding by scope/node, ``rate``: the exception rate; each node of kind overflow is first."""

    name: str
    text: str
    feeds: list[Feed]
    kinds: dict[str, str]
    rate: float = 0.0
    lists: dict[str, Any] = field(default_factory=lambda: dict(WHITE))

    @property
    def policy(self) -> Policy:
        """The policy that makes it mixed."""
        return policy(**self.lists)

    @property
    def first(self) -> set[str]:
        """The first offenders, by scope/node."""
        return {name for name, kind in self.kinds.items() if kind == "overflow"}


def x(*batches: Any) -> list[Feed]:
    """Batches for a model whose only input is x."""
    return [{"x": np.asarray(values, np.float32)} for values in batches]


TRAP = """g (float[1,64] x) => (float[1,1] y) <float[64,1] w = {WEIGHTS}, float[1] k = {0.001}>
  { [m] m = MatMul(x, w) [s] y = Mul(m, k) }""".replace("WEIGHTS", ",".join(["300"] * 64))

SQUARE = "g (float[N] x) => (float[N] y) { [m] m = Mul(x, x) [n] y = Neg(m) }"

PASS = "g (float[N] x) => (float[N] y) { [m] y = Neg(x) }"

BRANCH = """g (float[2] x) => (float[2] y) <float zero = {0}> {
  s = ReduceSum<keepdims=0>(x) [c] c = Greater(s, zero)
  [i] y = If(c) <then_branch = t () => (float[2] a) { [big] b = Mul(x, x) [after] a = Neg(b) },
                 else_branch = e () => (float[2] d) { [small] d = Neg(x) }> }"""

LOOP = """g (float[1] x, int64 m) => (float[1] y, float[k,1] all) <bool go = {1}, float[1] ten = {10}> {
  [l] y, all = Loop(m, go, x) <body = b (int64 i, bool c, float[1] s) => (bool c, float[1] t, float[1] u) {
     [before] r = Relu(s) [grow] t = Mul(r, ten) [after] u = Neg(t) }> }"""

BRANCH_IN_LOOP = """g (float[1] x, int64 m) => (float[1] y) <bool go = {1}, float[1] ten = {10}, float[1] half = {0.5},
     float edge = {5000}> {
  [l] y = Loop(m, go, x) <body = b (int64 i, bool c, float[1] s) => (bool c, float[1] t) {
     big = ReduceMax<keepdims=0>(s) [over] o = Greater(big, edge)
     [i] t = If(o) <then_branch = q () => (float[1] a) { [sq] z = Mul(s, s) [less] a = Mul(z, half) },
                    else_branch = e () => (float[1] d) { [grow] d = Mul(s, ten) }> }> }"""

MASK = """g (float[1,4] x, bool[1,4] b) => (float[1,4] y) <float k = {MASK}, float z = {0}> {
  [w] w = Where(b, z, k) [a] a = Add(x, w) [s] y = Softmax(a) }"""

RATIO = """g (float[4] x) => (float[4] y) <float[1] k = {1e-4}> {
  [a] a = Mul(x, k) [b] b = Div(a, a) [n] y = Neg(b) }"""

CANCELS = """g (float[1,64] x) => (float[1,1] y) <float[64,1] w = {WEIGHTS}> { [m] y = MatMul(x, w) }""".replace(
    "WEIGHTS", ",".join(["300"] * 64)
)

BFLOAT16 = {**WHITE, "mode": "mixed_bfloat16"}


def _mask_feed() -> list[Feed]:
    return [{"x": np.ones((1, 4), np.float32), "b": np.array([[True, True, False, True]])}]


def _loop_feed(turns: int) -> list[Feed]:
    return [{"x": np.array([1.0], np.float32), "m": np.array(turns)}]


OVER, ON = "overflow", "propagated"
PLANTED = (
    Planted("a product that a later factor hides", TRAP, x(np.full((1, 64), 300.0)), {"m": OVER, "s": ON}, 1.0),
    Planted("within the sum alone", CANCELS, x([[300.0] * 32 + [-300.0] * 32]), {}),
    Planted("65519.99 is cast to 65504", PASS, x([65519.99, 1]), {"m": "near-limit"}),
    Planted("65520 is cast to infinity", PASS, x([65520, 1]), {"m": OVER}, 1.0),
    Planted("-65520 is cast to infinity", PASS, x([1, -65520]), {"m": OVER}, 1.0),
    Planted("256 x 255.875 is 65504", "g (float[2] x) => (float[2] y) <float[1] k = {256}> { [m] y = Mul(x, k) }",
            x([255.875, 1]), {"m": "near-limit"}),
    Planted("256 x 256", "g (float[2] x) => (float[2] y) <float[1] k = {256}> { [m] y = Mul(x, k) }",
            x([256, 1]), {"m": OVER}, 1.0),
    Planted("batch 3 of 5", SQUARE, x([1, 2], [1, 2], [1, 2], [300, 1], [3, 4]), {"m": OVER, "n": ON}, 0.2),
    Planted("a branch that runs", BRANCH, x([300, 1]), {"i/then_branch/big": OVER, "i/then_branch/after": ON}, 1.0),
    Planted("a branch that does not run", BRANCH, x([-300, 1]), {}),
    Planted("a loop's body", LOOP, _loop_feed(8), {"l/body/before": ON, "l/body/grow": OVER, "l/body/after": ON}, 1.0),
    Planted("a loop that ends in time", LOOP, _loop_feed(4), {}),
    Planted("a loop without iterations", LOOP, _loop_feed(0), {}),
    Planted("a branch in a loop", BRANCH_IN_LOOP, _loop_feed(5),
            {"l/body/i/then_branch/sq": OVER, "l/body/i/then_branch/less": ON}, 1.0),
    Planted("infinite in float32", "g (float[2] x) => (float[2] y) { [e] e = Exp(x) [n] y = Neg(e) }", x([200, 1]),
            {"e": "preexisting", "n": "preexisting"}),
    Planted("NaN in the data", SQUARE, x([1, np.nan, 2]), {"m": "preexisting", "n": "preexisting"}),
    Planted("a mask of -inf", MASK.replace("MASK", "-inf"), _mask_feed(),
            {"w": "intended", "a": "intended"}, lists={"white": ["Add", "Softmax"]}),
    Planted("a mask of -3.4e38", MASK.replace("MASK", "-3.4028234e38"), _mask_feed(),
            {"a": "intended"}, lists={"white": ["Add", "Softmax"]}),
    Planted("NaN first", RATIO, x([1e-5, 1, 2, 3]), {"b": OVER, "n": ON}, 1.0),
    Planted("NaN in the middle", RATIO, x([1, 1e-5, 2, 3]), {"b": OVER, "n": ON}, 1.0),
    Planted("NaN last", RATIO, x([1, 2, 3, 1e-5]), {"b": OVER, "n": ON}, 1.0),
    Planted("subnormal values", PASS, x([2.0**-20, -(2.0**-24)]), {"m": "underflow"}),
    Planted("all become zero", "g (float[2] x) => (float[2] y) <float[1] k = {6e-5}> { [m] y = Mul(x, k) }",
            x([1e-4, 1e-4]), {"m": "underflow"}, lists={**WHITE, "constants": "ieee"}),
    Planted("a sum of magnitudes beyond float16", PASS, x([60000.0, -60000.0] * 5000), {"m": "near-limit"}),
    Planted("sizes that differ, none too", SQUARE, x([1.0], [1.0, 2.0, 3.0], np.zeros(0), [300.0]),
            {"m": OVER, "n": ON}, 0.25),
    Planted("bfloat16 holds it", SQUARE, x([3000, 1]), {}, lists=BFLOAT16),
    Planted("beyond bfloat16", "g (float[2] x) => (float[2] y) <float[1] k = {2}> { [m] y = Mul(x, k) }",
            x([1.7e38, -1.7e38]), {"m": OVER}, 1.0, BFLOAT16),
    Planted("bfloat16 beyond float32", SQUARE, x([1e20, 1]), {"m": "preexisting", "n": "preexisting"}, lists=BFLOAT16),
    Planted("bfloat16: a large sum of magnitudes", PASS, x([2.0**120] * 300), {}, lists=BFLOAT16),
)  # fmt: skip
