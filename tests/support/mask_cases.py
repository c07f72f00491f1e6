"""Models with masks, and helpers for the tests of the rules S4.34 to S4.37."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import numpy_helper

from tests.support.resolver_cases import decide_nodes
from tests.support.rewriter_cases import Case

PRODUCT = """g (float[4,4] x, float[4,4] k, int64[4,4] mask) => (float[4,4] y)
  <float c = {-1e9}, float one = {1.0}> { f = Cast<to=1>(mask) [sub] inv = Sub(one, f) [mul] m = Mul(inv, c)
  [scores] s = MatMul(x, k) [add] a = Add(s, m) [softmax] p = Softmax(a) [out] y = Relu(p) }"""
WHERE = """g (float[4,4] x, float[4,4] k, bool[4,4] b) => (float[4,4] y) <float c = {-1e9}> {
  [scores] s = MatMul(x, k) [where] a = Where(b, c, s) [softmax] y = Softmax(a) }"""
WHITE = ["MatMul", "Add", "Mul", "Where"]
WHITE_WITH_SOFTMAX = [*WHITE, "Softmax"]


def outcomes_under_protection(text: str, **settings: Any) -> dict[str, str]:
    """Return by node name the precision under `--protect masks`, or ``mask`` if the rule `mask` decided."""
    decisions = decide_nodes(text, protect=["masks"], **settings)
    return {name: "mask" if d.rule == "mask" else d.precision for name, d in decisions.items()}


def initializer_values(result: Case) -> dict[str, float]:
    """Return the values of the initializers of the rewritten model that hold one number."""
    return {t.name: float(numpy_helper.to_array(t)) for t in result.after.graph.initializer}


def has_nan(outputs: list[Any]) -> bool:
    """Return whether any output has a NaN."""
    return any(bool(np.isnan(output).any()) for output in outputs)
