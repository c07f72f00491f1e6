"""A trial names the node where an overflow starts, as a check with the same lists does (Rules S8.4 to S8.7)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mixlist
from mixlist import Policy
from tests.support.builders import keep, model, policy
from tests.support.local_workers import InProcessExecutor

WEIGHTS = ", ".join(["0.5"] * 16)
# A float16 mask of -1e9 is infinite by design, and a row of it makes Softmax NaN. Only the last node has a statistic
# that every trial reads: MatMul is far from the limit, and Softmax is bounded.
MASKED = f"""g (float[1,4] s, bool[1,4] b) => (float[1,4] y)
  <float k = {{-1e9}}, float z = {{0}}, float[4,4] w = {{{WEIGHTS}}}> {{
  [where] m = Where(b, z, k) [add] a = Add(s, m) [softmax] p = Softmax(a)
  [product] q = MatMul(p, w) [last] y = Exp(q) }}"""
# The product 9e4 is a float32 number. A low Softmax reads it converted, and loses it there.
CONVERTED = f"""g (float[1,4] s) => (float[1,4] y) <float k = {{300}}, float[4,4] w = {{{WEIGHTS}}}> {{
  [first] a = Mul(s, k) [second] b = Mul(a, k) [softmax] p = Softmax(b)
  [product] q = MatMul(p, w) [last] y = Exp(q) }}"""
QUOTIENT = f"""g (float[1,4] s) => (float[1,4] y) <float[4,4] w = {{{WEIGHTS}}}> {{
  [square] a = Mul(s, s) [ratio] d = Div(s, a) [relu] r = Relu(d) [softmax] p = Softmax(r) [last] y = Exp(p) }}"""
SCORES = {"s": np.array([[1, 2, 3, 4]], np.float32)}
SMALL = {"s": np.array([[1e-5, 2e-5, 3, 4]], np.float32)}
CASES: dict[str, tuple[str, Policy, dict[str, Any], str]] = {
    "a masked row": (
        MASKED,
        policy(white=["Where", "Add", "Softmax", "MatMul", "Exp"]),
        SCORES | {"b": np.zeros((1, 4), bool)},
        "softmax",
    ),
    "a value that a conversion loses": (
        CONVERTED,
        policy(white=["Softmax", "MatMul", "Exp"], black=["Mul"]),
        SCORES,
        "softmax",
    ),
    "a conversion because of a node rule": (
        CONVERTED,
        policy(white=["Softmax", "MatMul", "Exp", "Mul"], rules=keep("second")),
        SCORES,
        "softmax",
    ),
    "an operator that overflows itself": (
        CONVERTED,
        policy(white=["Softmax", "MatMul", "Exp", "Mul"]),
        SCORES,
        "second",
    ),
    "a divisor that became zero": (QUOTIENT, policy(white=["Mul", "Softmax", "Exp"], black=["Div"]), SMALL, "ratio"),
}


@pytest.mark.parametrize("overflow_mode", ["inf", "saturate"])
@pytest.mark.parametrize("case", CASES)
def test_a_trial_names_the_first_offender_of_a_check(case: str, overflow_mode: Any) -> None:
    text, lists, feed, expected = CASES[case]
    check = mixlist.check(model(text), lists, [feed], overflow_mode=overflow_mode)
    first = [finding.name for finding in check.nodes if finding.first]
    report = mixlist.tune(model(text), lists, [feed], overflow_mode=overflow_mode, executor=InProcessExecutor())
    (reason,) = (str(trial["why"]) for trial in report.log if not trial["edits"]) if report.log else ("",)
    if first:
        assert reason == f"overflow at {first[0]}"
    else:
        assert not reason.startswith("overflow")
    if overflow_mode == "inf":
        assert first[0] == expected
        assert all(edit.without.startswith(("overflow", "output")) for edit in report.edits)
