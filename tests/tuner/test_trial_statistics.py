"""A trial takes no statistics of some tensors; if one of them overflows nevertheless, the final check finds it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mixlist
from mixlist.checker.limits import Limits
from mixlist.tuner.candidates import find_list_candidates
from tests.support.builders import model, policy
from tests.support.local_workers import trials

ANY = Limits(normalized=None, cosine=None)
EVERY = (
    *("Add", "BatchNormalization", "Clip", "Concat", "Div", "Identity", "Log", "Max"),
    *("Mul", "Neg", "Relu", "Sigmoid", "Slice", "Sub", "Tanh", "Where"),
)


def watched(text: str, **feed: Any) -> set[str]:
    """The nodes of which a trial takes statistics."""
    feeds = [{name: np.array(values, np.float32) for name, values in feed.items()}]
    tried = trials(model(text), policy(white=EVERY), feeds)
    tried.compiler.close()
    return {tensor.node for tensors in tried.compiler.statistics.sum_columns.values() for tensor in tensors} - {""}


def test_what_is_finite_if_what_it_reads_is_has_no_sum() -> None:
    text = """g (float[4] x) => (float[4] y) <float[4] k = {1,2,3,4}, int64[1] zero = {0}, int64[1] four = {4}> {
      [m] m = Mul (x, x) [s] s = Sigmoid (m) [r] r = Relu (m) [w] w = Mul (r, k) [c] c = Concat <axis=0> (w, s)
      [t] t = Max (k, w) [f] f = Relu (c) [q] q = Slice (f, zero, four) [a] a = Add (t, q) [y] y = Neg (a) }"""
    assert watched(text, x=[1.0] * 4) == {"m"}, "which reads an input: that may be beyond the range"
    assert watched(text, x=[60.0] * 4) == set("mwctfqay"), "near the limit, what is exact may be rounded up"


DIVIDED = "[d] d = Div (a, {})"
WATCHED = {
    "a sum": ("[d] d = Add (a, a)", False),
    "a difference of what is near the range": ("[l] l = Mul (a, k) [d] d = Sub (l, l)", True),
    "times a constant near the range": ("[d] d = Mul (z, k)", True),
    "or a constant near the range": ("[d] d = Where (no, k, a)", True),
    "or a small constant": ("[d] d = Where (no, ones, a)", False),
    "limited": ("[d] d = Clip (a, zero, six)", False),
    "by a constant": (DIVIDED.format("six"), False),
    "by next to nothing": (DIVIDED.format("least"), True),
    "by equal ones": (DIVIDED.format("ones"), False),
    "by several": (DIVIDED.format("several"), True),
    "by what is computed": (DIVIDED.format("a"), True),
    "a logarithm": ("[d] d = Log (a)", True),
    "a norm": ("[d] d = BatchNormalization (a, one, z1, z1, one)", False),
    "a norm with no epsilon": ("[d] d = BatchNormalization <epsilon: float = 0.0> (a, one, z1, z1, one)", True),
    "in a branch that never ran": (
        "[i] d = If (no) <then_branch = t () => (float[1, 1] s) { [d] s = Add (a, a) },"
        " else_branch = e () => (float[1, 1] u) { [u] u = Add (a, a) }>",
        True,
    ),
}


@pytest.mark.parametrize("name", WATCHED)
def test_watched(name: str) -> None:
    body, told = WATCHED[name]
    constants = """float[1, 1] k = {60000}, float[1] one = {1}, float six = {6}, float least = {0.00000001},
      float zero = {0}, float[1, 2] ones = {1, 1}, float[1, 2] several = {1, 2}, float[1] z1 = {0}, bool no = {0}"""
    text = f"""g (float[1, 1] x) => (float[N, M] y) <{constants}> {{
      [a] a = Add (x, x) [z] z = Sub (a, a) {body} [y] y = Tanh (d) }}"""
    assert ("d" in watched(text, x=[[0.5]])) is told


# 0.04 is 2 where x and k are rounded, and the 16th power of that passes the range. Tanh hides it.
GROWING = """g (float[1] x, float[1] k) => (float[1] y) {
  [p] p = Identity (x) [q] q = Identity (k) [d] d = Sub (p, q) [a] a = Mul (d, d) [b] b = Mul (a, a)
  [c] c = Mul (b, b) [e] e = Mul (c, c) [y] y = Tanh (e) }"""
GROWS = {"x": np.array([2049.02], np.float32), "k": np.array([2048.98], np.float32)}


def test_what_the_check_finds_where_nothing_was_watched() -> None:
    """An error that is squared again and again passes the range unseen; the check sees it, and the search goes on."""
    rules = policy(white=EVERY)
    assert mixlist.check(model(GROWING), rules, [GROWS], limits=ANY).verdict == "fail"
    told = mixlist.tune(model(GROWING), rules, [GROWS], limits=ANY)
    assert told.verdict == "pass" and told.check is not None and told.check.verdict == "pass"
    assert [edit.op for edit in told.edits] == ["Mul", "Tanh"]  # Tanh reads 2**16 converted
    assert "final check" in told.log[2]["why"]


def test_what_has_failed_a_check_is_watched_from_then_on() -> None:
    """Rule S9.8: The result passes a check of its own."""
    tried = trials(model(GROWING), policy(white=EVERY), [GROWS], limits=ANY)
    low = tried.compiler.low_nodes(frozenset())
    units = {
        str(u.edit): frozenset([u.edit])
        for u in find_list_candidates(tried.compiler.solution(frozenset()), tried.compiler.base, "black", low)
    }
    tanh, mul = units["Tanh: white to black"], units["Mul: white to black"]
    assert [tried.passes(choice) for choice in (frozenset(), tanh, mul)] == [True] * 3
    tried.reject(frozenset(), "overflow")
    assert tried.passing == ()
    # Tanh reads 2**16 converted (Rule S8.4), unless it is high too.
    assert [tried.passes(choice) for choice in (frozenset(), tanh, mul, mul | tanh)] == [False, False, False, True]
    tried.compiler.close()


# The output hides what is not finite.
AMONG = """g (float[4] x, float[4] z) => (float[4] y) <float k = {1}, float least = {0.000001}> {
  [t] t = Div (z, x) [s] b = Less (x, least) [y] y = Where (b, k, t) }"""


@pytest.mark.parametrize(("numerator", "saturate"), [(0.0, False), (1.0, False), (0.0, True)])
def test_a_trial_counts_what_is_not_finite_in_float32_already(numerator: float, saturate: bool) -> None:
    """Rule S8.5: a divisor that underflows makes more NaN, or more infinities."""
    feed = {"x": np.array([0, 2.98e-8, 1, 2], np.float32), "z": np.array([numerator, numerator, 1, 1], np.float32)}
    lists = policy(white=["Div"], black=["Less", "Where"])
    tried = trials(model(AMONG), lists, [feed], saturate=saturate)
    report = mixlist.check(model(AMONG), lists, [feed], overflow_mode="saturate" if saturate else "inf")
    assert report.verdict == "fail" and report.outputs[0].verdict == "pass"
    outcome = tried.try_edits(frozenset())
    assert not outcome.passed and outcome.why.startswith("overflow at t")
    low = tried.compiler.low_nodes(frozenset())
    (black,) = find_list_candidates(tried.compiler.solution(frozenset()), tried.compiler.base, "black", low)
    assert str(black.edit) == "Div: white to black" and tried.passes(frozenset([black.edit]))
    tried.compiler.close()
