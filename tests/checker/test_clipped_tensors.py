"""Rule S8.30: an infinity that only Clips read is intended, in checks and in trials."""

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
    assert kinds(CLIPPED) == ("pass", {"m": "intended", "c": "near-limit", "n": "near-limit"})


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


@pytest.mark.parametrize("mode", ["inf", "saturate"])
def test_trials_judge_it_as_checks_do(mode: str) -> None:
    """The search raises the square that overflows, and leaves the one that a Clip bounds."""
    text = """g (float16[2] x) => (float16[2] y, float16[2] z) <float16 low = {-32752}, float16 high = {32752}> {
      [m] m = Mul(x, x) [c] c = Clip(m, low, high) [n] y = Neg(c) [a] a = Neg(x) [s] s = Mul(a, a) [r] z = Sqrt(s) }"""
    report = mixlist.repair(model(text), [{"x": np.array([1, 300], np.float16)}], overflow_mode=mode)
    assert report.verdict == "pass"
    assert [node.name for edit in report.edits for node in edit.nodes] == ["s", "r"]
