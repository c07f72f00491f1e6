"""Nodes whose output has more NaN, or more infinities, than in the reference (Rules S8.5 and S8.6)."""

from __future__ import annotations

import numpy as np
import pytest

import mixlist
from tests.support.builders import customize, model, policy

QUOTIENT = "g (float[2,2] x, float[2,2] z) => (float[2,2] y) { [t] t = Div(z, x) [y] y = Sub(t, x) }"
SMALL = 2.98e-8  # zero in float16


@pytest.mark.parametrize("white", ["Div", "Identity"])
@pytest.mark.parametrize("numerator", [0.0, 1.0])
def test_a_divisor_that_underflows_makes_more_infinities_or_nan(white: str, numerator: float) -> None:
    """The reference has ``0 / 0`` or ``1 / 0`` too; a low node, or a float32 node with a low divisor, makes more."""
    text = QUOTIENT.replace("[t] t = Div(z, x)", "[i] i = Identity(x) [t] t = Div(z, i)")
    x = np.array([[0, SMALL], [SMALL, 1]], np.float32)
    z = np.array([[numerator, numerator], [1, 1]], np.float32)
    lists = policy(white=[white], black=[op for op in ("Div", "Identity", "Sub") if op != white])
    report = mixlist.check(model(text), lists, [{"x": x, "z": z}])
    kinds = {(n.name, n.kind): n.first for n in report.nodes if not n.input and n.name != "i"}
    assert kinds == {("t", "overflow"): True, ("y", "preexisting"): False, ("y", "propagated"): False}
    assert report.exception_rate == 1


def test_as_much_nan_as_in_float32_is_preexisting() -> None:
    x = np.array([[0, 1], [0, 2]], np.float32)
    report = mixlist.check(model(QUOTIENT), policy(white=["Div", "Sub"]), [{"x": x, "z": x}])
    assert {n.kind for n in report.nodes} == {"preexisting"} and report.exception_rate == 0


def test_nan_that_comes_from_an_input_makes_no_offender() -> None:
    """``s`` has more NaN than in the reference, but because of ``t``."""
    text = QUOTIENT.replace("[y] y = Sub(t, x)", "[s] s = Sub(t, z) [y] y = Softmax<axis=0>(s)")
    x = np.array([[0, 3], [SMALL, 2]], np.float32)
    report = mixlist.check(model(text), policy(white=["Div", "Sub", "Softmax"]), [{"x": x, "z": x}])
    assert {n.name for n in report.nodes if n.first} == {"t"}


def test_an_epsilon_that_becomes_zero_by_conversion_is_an_overflow() -> None:
    """Mean pooling of a row that is masked as a whole: Clip keeps 1e-9 (Rule S4.7), and Div reads zero instead."""
    text = """g (float[2,2] x, float[2,2] mask) => (float[2,1] y)
      <float least = {1e-9}, float most = {1e4}, int64[1] last = {1}> {
      [p] p = Mul(x, mask) [s] s = ReduceSum(p, last) [n] n = ReduceSum(mask, last)
      [c] c = Clip(n, least, most) [y] y = Div(s, c) }"""
    # A Clip with an upper bound is not raised, and a node rule makes Div low, which it would keep (Rule S4.43).
    to_float16 = customize("y", ["float16", "float16"], ["float16"])
    rules = policy(white=["Clip"], black=["Mul", "ReduceSum"], rules=(to_float16,))
    assert next(d.precision for d in mixlist.resolve(model(text), rules).nodes if d.name == "c") == "float32"
    for row, kinds in (([0, 0], {"overflow"}), ([1, 0], set())):
        feed = {"x": np.ones((2, 2), np.float32), "mask": np.array([[1, 1], row], np.float32)}
        report = mixlist.check(model(text), rules, [feed])
        assert {n.kind for n in report.nodes if n.name == "y" and not n.input} == kinds
