"""A trial computes no statistics of skippable tensors. If one overflows nevertheless, the final check finds it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mixlist
from mixlist import Limits
from mixlist.search.candidates import find_list_candidates
from tests.support.builders import model, policy
from tests.support.local_workers import trials

ANY = Limits(normalized=None, cosine=None)
ALL_OPS = (
    *("Add", "BatchNormalization", "Clip", "Concat", "Div", "Identity", "Log", "Max"),
    *("Mul", "Neg", "Relu", "Sigmoid", "Slice", "Sub", "Tanh", "Where"),
)


def summed_nodes(text: str, **feed: Any) -> set[str]:
    """Return the nodes for whose outputs a trial computes sums."""
    feeds = [{name: np.array(values, np.float32) for name, values in feed.items()}]
    search_trials = trials(model(text), policy(white=ALL_OPS), feeds)
    search_trials.compiler.close()
    return {tensor.node for tensors in search_trials.compiler.statistics.sum_columns.values() for tensor in tensors} - {
        ""
    }


def test_a_tensor_that_is_finite_if_its_inputs_are_has_no_sum() -> None:
    text = """g (float[4] x) => (float[4] y) <float[4] k = {1,2,3,4}, int64[1] zero = {0}, int64[1] four = {4}> {
      [m] m = Mul (x, x) [s] s = Sigmoid (m) [r] r = Relu (m) [w] w = Mul (r, k) [c] c = Concat <axis=0> (w, s)
      [t] t = Max (k, w) [f] f = Relu (c) [q] q = Slice (f, zero, four) [a] a = Add (t, q) [y] y = Neg (a) }"""
    assert summed_nodes(text, x=[1.0] * 4) == {"m"}, "m reads a graph input, which may be beyond the range"
    assert summed_nodes(text, x=[60.0] * 4) == set("mwctfqay"), (
        "near the limit, value-preserving operators may round up"
    )


DIVISION = "[d] d = Div (a, {})"
CASES = {
    "a sum": ("[d] d = Add (a, a)", False),
    "a difference of values near the limit": ("[l] l = Mul (a, k) [d] d = Sub (l, l)", True),
    "times a constant near the limit": ("[d] d = Mul (z, k)", True),
    "a choice of a constant near the limit": ("[d] d = Where (no, k, a)", True),
    "a choice of a small constant": ("[d] d = Where (no, ones, a)", False),
    # Infinities of ``a`` are intended (Rule S8.30): a reader of such values needs its sum, as a reader of masks does.
    "clipped": ("[d] d = Clip (a, zero, six)", True),
    "divided by a constant": (DIVISION.format("six"), False),
    "divided by almost zero": (DIVISION.format("least"), True),
    "divided by equal constants": (DIVISION.format("ones"), False),
    "divided by different constants": (DIVISION.format("several"), True),
    "divided by a computed tensor": (DIVISION.format("a"), True),
    "a logarithm": ("[d] d = Log (a)", True),
    "a normalization": ("[d] d = BatchNormalization (a, one, z1, z1, one)", False),
    "a normalization without epsilon": (
        "[d] d = BatchNormalization <epsilon: float = 0.0> (a, one, z1, z1, one)",
        True,
    ),
    "in a branch that never ran": (
        "[i] d = If (no) <then_branch = t () => (float[1, 1] s) { [d] s = Add (a, a) },"
        " else_branch = e () => (float[1, 1] u) { [u] u = Add (a, a) }>",
        True,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_which_operators_need_a_sum(name: str) -> None:
    body, has_sum = CASES[name]
    constants = """float[1, 1] k = {60000}, float[1] one = {1}, float six = {6}, float least = {0.00000001},
      float zero = {0}, float[1, 2] ones = {1, 1}, float[1, 2] several = {1, 2}, float[1] z1 = {0}, bool no = {0}"""
    text = f"""g (float[1, 1] x) => (float[N, M] y) <{constants}> {{
      [a] a = Add (x, x) [z] z = Sub (a, a) {body} [y] y = Tanh (d) }}"""
    assert ("d" in summed_nodes(text, x=[[0.5]])) is has_sum


# x - k is 0.04 in float32, and 2 once x and k are rounded. The 16th power of 2 is beyond the range. Tanh hides it.
GROWING = """g (float[1] x, float[1] k) => (float[1] y) {
  [p] p = Identity (x) [q] q = Identity (k) [d] d = Sub (p, q) [a] a = Mul (d, d) [b] b = Mul (a, a)
  [c] c = Mul (b, b) [e] e = Mul (c, c) [y] y = Tanh (e) }"""
GROWS = {"x": np.array([2049.02], np.float32), "k": np.array([2048.98], np.float32)}


def test_the_final_check_finds_an_overflow_that_a_trial_missed() -> None:
    """An error that is squared again and again grows beyond the range. After the check the search continues."""
    rules = policy(white=ALL_OPS)
    assert mixlist.check(model(GROWING), rules, [GROWS], limits=ANY).verdict == "fail"
    report = mixlist.tune(model(GROWING), rules, [GROWS], limits=ANY)
    assert report.verdict == "pass" and report.check is not None and report.check.verdict == "pass"
    assert [edit.op for edit in report.edits] == ["Mul", "Tanh"]  # Tanh reads 2**16 in float16
    assert "final check" in report.log[2]["why"]


def test_after_a_failed_check_all_tensors_have_statistics() -> None:
    """The result passes a check of its own."""
    search_trials = trials(model(GROWING), policy(white=ALL_OPS), [GROWS], limits=ANY)
    low = search_trials.compiler.low_nodes(frozenset())
    edits_by_text = {
        str(candidate.edit): frozenset([candidate.edit])
        for candidate in find_list_candidates(
            search_trials.compiler.solution(frozenset()), search_trials.compiler.base, low
        )
    }
    tanh, mul = edits_by_text["Tanh: white to black"], edits_by_text["Mul: white to black"]
    assert [search_trials.passes(choice) for choice in (frozenset(), tanh, mul)] == [True] * 3
    search_trials.reject(frozenset(), "overflow")
    assert search_trials.passing == ()
    # Tanh reads 2**16 in float16 (Rule S8.4), unless it is high too.
    assert [search_trials.passes(choice) for choice in (frozenset(), tanh, mul, mul | tanh)] == [
        False,
        False,
        False,
        True,
    ]
    search_trials.compiler.close()


# The operator Where hides the values of t that are not finite.
HIDDEN = """g (float[4] x, float[4] z) => (float[4] y) <float k = {1}, float least = {0.000001}> {
  [t] t = Div (z, x) [s] b = Less (x, least) [y] y = Where (b, k, t) }"""


@pytest.mark.parametrize(("numerator", "saturate"), [(0.0, False), (1.0, False), (0.0, True)])
def test_a_trial_counts_values_that_are_not_finite_in_float32_either(numerator: float, saturate: bool) -> None:
    """Rule S8.5: a divisor that underflows makes more NaN or more infinities than float32 has."""
    feed = {"x": np.array([0, 2.98e-8, 1, 2], np.float32), "z": np.array([numerator, numerator, 1, 1], np.float32)}
    lists = policy(white=["Div"], black=["Less", "Where"])
    search_trials = trials(model(HIDDEN), lists, [feed], saturate=saturate)
    report = mixlist.check(model(HIDDEN), lists, [feed], overflow_mode="saturate" if saturate else "inf")
    assert report.verdict == "fail" and report.outputs[0].verdict == "pass"
    outcome = search_trials.try_edits(frozenset())
    assert not outcome.passed and outcome.why.startswith("overflow at t")
    low = search_trials.compiler.low_nodes(frozenset())
    (black,) = find_list_candidates(search_trials.compiler.solution(frozenset()), search_trials.compiler.base, low)
    assert str(black.edit) == "Div: white to black" and search_trials.passes(frozenset([black.edit]))
    search_trials.compiler.close()
