"""Rule S8.30: an infinity that changes no output is intended, in checks and in trials."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mixlist
from tests.support.builders import model, policy

CLIPPED = """g (float[2] x) => (float[2] y) <float low = {-32752}, float high = {32752}, float wide = {1e6}> {
  [m] m = Mul(x, x) [c] c = Clip(m, low, high) [n] y = Neg(c) }"""
ALL_LOW = policy(white=["Mul", "Clip", "Neg", "Exp"])
LARGE: list[dict[str, Any]] = [{"x": np.array([1, 300], np.float32)}]


def kinds(text: str, mixed_policy: mixlist.Policy = ALL_LOW, **options: Any) -> tuple[str, dict[str, str]]:
    """Return the verdict, and the worst kind of finding by node."""
    report = mixlist.check(model(text), mixed_policy, LARGE, **options)
    return report.verdict, {finding.name: finding.kind for finding in reversed(report.nodes)}


def test_an_infinity_that_only_a_clip_reads_is_intended() -> None:
    # The Clip leaves half of the range, which is not near its limit (S8.9).
    assert kinds(CLIPPED) == ("pass", {"m": "intended"})


def test_a_saturated_value_that_only_a_clip_reads_is_intended() -> None:
    verdict, kind_of = kinds(CLIPPED, overflow_mode="saturate")
    assert (verdict, kind_of["m"]) == ("pass", "intended")


def test_the_bounds_may_be_attributes() -> None:
    text = CLIPPED.replace("Clip(m, low, high)", "Clip<min = -32752.0, max = 32752.0>(m)")
    verdict, kind_of = kinds(f'<ir_version: 7, opset_import: ["" : 10]> {text}')
    assert (verdict, kind_of["m"]) == ("pass", "intended")


def test_a_conversion_that_only_a_clip_reads_is_intended() -> None:
    report = mixlist.check(model(CLIPPED), policy(white=["Clip", "Neg"], black=["Mul"]), LARGE)
    assert report.verdict == "pass"
    assert [(finding.name, finding.kind) for finding in report.nodes if finding.input] == [("c", "intended")]


@pytest.mark.parametrize(
    "text",
    [
        CLIPPED.replace("m, low, high", "m, low"),
        CLIPPED.replace("low, high", "low, wide"),
        CLIPPED.replace("[n] y = Neg(c)", "[n] y = Mul(c, m)"),
    ],
    ids=["no upper bound", "a bound beyond the range", "another reader"],
)
def test_other_infinities_overflow(text: str) -> None:
    verdict, kind_of = kinds(text)
    assert (verdict, kind_of["m"]) == ("fail", "overflow")


def test_a_clip_behind_an_overflow_hides_nothing() -> None:
    text = CLIPPED.replace("[m] m = Mul(x, x)", "[e] e = Mul(x, x) [m] m = Neg(e)").replace("Neg(c)", "Mul(c, e)")
    verdict, kind_of = kinds(text)
    assert (verdict, kind_of["e"], kind_of["m"]) == ("fail", "overflow", "propagated")


def bounded(chain: str, sign: str = "") -> str:
    """Return a graph whose tensor ``m`` is 9e4, or -9e4, before a chain of nodes that reads it."""
    square = "[b] b = Neg(a) [m] m = Mul(x, b)" if sign else "[m] m = Mul(x, a)"
    return (
        "g (float[2] x) => (float[2] y) <float low = {-32752}, float high = {32752}, float wide = {1e6}, float[2] two ="
        f" {{1, 2}}, float[2] none = {{1, 1e6}}> {{ [a] a = Identity(x) {square} {chain} [n] y = Neg(c) }}"
    )


LISTS = policy(white=["Mul", "Neg", "Min", "Max", "Clip"])
REPAIRED = {
    "Min": bounded("[c] c = Min(m, high)"),
    "Min of a constant first": bounded("[c] c = Min(high, m)"),
    "Min with a bound for each element": bounded("[c] c = Min(m, two)"),
    "Min with another tensor too": bounded("[c] c = Min(m, x, high)"),
    "Max, then Min": bounded("[d] d = Max(m, low) [c] c = Min(d, high)"),
    "Max without a bound that holds, then Min": bounded("[d] d = Max(m, x) [c] c = Min(d, high)"),
    "Clip without a lower bound": bounded("[c] c = Clip(m, , high)"),
    "Max": bounded("[c] c = Max(m, low)", "-"),
    "Min, then Max": bounded("[d] d = Min(m, high) [c] c = Max(d, low)", "-"),
}
NOT_REPAIRED = {
    "Max of a positive value": bounded("[c] c = Max(m, low)"),
    "Min of a negative value": bounded("[c] c = Min(m, high)", "-"),
    "Clip without an upper bound": bounded("[c] c = Clip(m, low)"),
    "Min with a constant that the low type does not hold": bounded("[c] c = Min(m, wide)"),
    "Min with one such value": bounded("[c] c = Min(m, none)"),
    "Min of two tensors": bounded("[c] c = Min(m, x)"),
    "Min, and another reader": bounded("[d] d = Min(m, high) [c] c = Mul(d, m)"),
}


@pytest.mark.parametrize("mode", ["inf", "saturate"])
@pytest.mark.parametrize("name", [*REPAIRED, *NOT_REPAIRED])
def test_min_and_max_repair_the_infinities_beyond_their_bound(name: str, mode: str) -> None:
    verdict, kind_of = kinds((REPAIRED | NOT_REPAIRED)[name], LISTS, overflow_mode=mode)
    offending = "saturated" if mode == "saturate" else "overflow"
    assert kind_of["m"] == ("intended" if name in REPAIRED else offending)
    assert verdict == ("pass" if name in REPAIRED else "fail")


UNREAD = "[u] u = Mul(x, a) [v] v = Sub(u, u) [c] c = Neg(x)"  # v is NaN, because infinity less infinity is


def test_an_overflow_that_no_output_depends_on_is_intended() -> None:
    lists = policy(white=["Mul", "Neg", "Sub"])
    verdict, kind_of = kinds(bounded(UNREAD).replace("[m] m = Mul(x, a)", ""), lists)
    assert (verdict, kind_of) == ("pass", {"u": "intended", "v": "intended"})


def test_a_conversion_that_no_output_depends_on_is_intended() -> None:
    """The conversion of the square loses a value for ``v``, and ``u`` is read by an output too."""
    text = bounded("[u] u = Mul(m, x) [v] v = Sub(m, x) [w] w = Sqrt(u) [c] c = Log(w)")
    report = mixlist.check(model(text), policy(white=["Sub"]), LARGE)
    assert [(f.name, f.input, f.kind, f.first) for f in report.nodes] == [
        ("v", "m", "intended", False),
        ("v", "", "intended", False),
    ]
    assert (report.verdict, report.exception_rate) == ("pass", 0)


def test_an_input_that_only_a_clip_reads_may_leave_the_range() -> None:
    text = "g (float[2] x) => (float[2] y) <float low = {-1}, float high = {1}> { [c] y = Clip(x, low, high) }"
    report = mixlist.check(model(text), policy(white=["Clip"]), [{"x": np.array([1e5, 2], np.float32)}])
    assert [(f.name, f.kind) for f in report.nodes if f.input] == [("c", "intended")]
    assert report.verdict == "pass"


@pytest.mark.parametrize("mode", ["inf", "saturate"])
def test_trials_judge_it_as_checks_do(mode: str) -> None:
    """The search raises the square that overflows, and leaves those that are bounded or not read."""
    text = """g (float16[2] x) => (float16[2] y, float16[2] z) <float16 low = {-32752}, float16 high = {32752}> {
      [m] m = Mul(x, x) [c] c = Clip(m, low, high) [n] y = Neg(c) [a] a = Neg(x) [s] s = Mul(a, a) [r] z = Sqrt(s)
      [i] i = Mul(x, a) [j] j = Max(i, low) [u] u = Mul(a, x) }"""
    report = mixlist.repair(model(text), [{"x": np.array([1, 300], np.float16)}], overflow_mode=mode)
    assert report.verdict == "pass"
    assert [node.name for edit in report.edits for node in edit.nodes] == ["s", "r"]
