"""Where error is born, not where it shows."""

from __future__ import annotations

import numpy as np
import pytest

import mixlist
from tests.support.builders import model, policy

LISTS = {"white": ["Mul", "Sub", "Relu", "Add"]}


def errors(text: str, *feeds: dict[str, np.ndarray], **lists: object) -> dict[str, float]:
    report = mixlist.check(model(text), policy(**(lists or LISTS)), list(feeds), layerwise=True)
    ranked = [e.normalized_error for e in report.layerwise]
    assert ranked == sorted(ranked, reverse=True)
    return {f"{e.scope}/{e.name}".lstrip("/"): e.normalized_error for e in report.layerwise}


def test_cancellation_is_blamed_and_its_followers_are_not() -> None:
    text = "g (float[2] x, float[2] z) => (float[2] y) { [a] a = Mul(x, x) [b] b = Sub(a, z) [c] y = Relu(b) }"
    found = errors(text, {"x": np.array([10.0, 20.0], np.float32), "z": np.array([99.99, 399.9], np.float32)})
    assert list(found) == ["b", "c", "a"]
    assert found["b"] > 0.1  # the difference of two rounded numbers that are almost equal
    assert found["a"] == 0.0  # 100 and 400 are exact
    assert found["c"] < 2**-11  # it only rounds what it reads, which is exact here


def test_one_rounding_has_the_size_of_one_rounding() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(2000).astype(np.float32)
    found = errors("g (float[2000] x) => (float[2000] y) { [r] y = Add(x, x) }", {"x": x})
    half = x.astype(np.float16).astype(np.float32)
    expected = np.linalg.norm((half + half).astype(np.float16).astype(np.float32) - (x + x)) / np.linalg.norm(x + x)
    assert found["r"] == pytest.approx(float(expected), rel=1e-4)


def test_inside_branches_loops_and_functions() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "f" : 1]> g (float[2] x, bool c) => (float[2] y, float[2] z) {
      [i] y = If(c) <then_branch = t () => (float[2] a) { [n] a = Add(x, x) },
                     else_branch = e () => (float[2] b) { b = Neg(x) }>
      [f] z = f.F(x) }
    <domain: "f", opset_import: ["" : 17]> F (p) => (q) { [m] q = Mul(p, p) }"""
    feed = {"x": np.array([0.1, 0.3], np.float32), "c": np.array(True)}
    found = errors(text, feed)
    assert set(found) == {"i/then_branch/n", "function:f:F/m"} and all(0 < e < 2**-9 for e in found.values())


def test_an_overflow_is_an_infinite_error() -> None:
    found = errors("g (float[1] x) => (float[1] y) { [m] y = Mul(x, x) }", {"x": np.array([300.0], np.float32)})
    assert found == {"m": np.inf}
