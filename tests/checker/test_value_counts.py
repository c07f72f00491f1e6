"""The number of values that each finding concerns, in the first batch of the finding, agrees with numpy."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx.parser import parse_model

import mixlist
from mixlist.checker import value_counts
from mixlist.checker.instrument import Instrumenter
from mixlist.checker.result import CheckReport
from tests.support.builders import model, policy
from tests.support.local_sessions import make_session
from tests.support.package import LocalSession

LOW = ["Mul", "Add", "Neg", "Identity"]
LOW_TYPES = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
EDGE = "g (float[N] x) => (float[N] y) { [i] i = Identity(x) [n] y = Neg(i) }"
SQUARE = "g (float[N] x) => (float[N] y) { [m] m = Mul(x, x) [n] y = Neg(m) }"


def checked(text: str, *batches: list[float], mode: str = "mixed_float16", **options: Any) -> CheckReport:
    feeds = [{"x": np.array(batch, np.float32)} for batch in batches]
    return mixlist.check(model(text), policy(white=LOW, mode=mode), feeds, **options)


def counts_of(report: CheckReport) -> set[tuple[str, str, str, int | None]]:
    return {(finding.name, finding.input, finding.kind, finding.count) for finding in report.nodes}


@pytest.mark.parametrize("low", LOW_TYPES)
def test_values_beyond_the_range_agree_with_numpy(low: str) -> None:
    largest = float(ml_dtypes.finfo(LOW_TYPES[low]).max)
    # The rounding bound is half a step beyond the largest value. Values from 1e37 on are masks in float16.
    values = [largest * scale for scale in (0.4, 0.6, 1, 1.0001, -1.0001, 1.001, -1.002)] + [0.0]
    with np.errstate(over="ignore"):
        rounded = np.array(values, np.float32).astype(LOW_TYPES[low]).astype(np.float32)
    lost = int(np.isinf(rounded).sum())
    assert lost
    report = checked(EDGE, values, mode=f"mixed_{low}")
    assert counts_of(report) == {
        ("i", "x", "overflow", lost),
        ("i", "", "overflow", lost),
        ("n", "", "propagated", lost),
    }


@pytest.mark.parametrize("low", LOW_TYPES)
def test_values_that_underflow_agree_with_numpy(low: str) -> None:
    """Rule S8.8: those that became zero count, or the subnormal ones if none did."""
    normal = float(ml_dtypes.finfo(LOW_TYPES[low]).smallest_normal)
    subnormal = float(ml_dtypes.finfo(LOW_TYPES[low]).smallest_subnormal)
    # Exactly half of the smallest value rounds to zero, and the next number does not.
    values = [0.0, -0.0, normal / 2, subnormal, subnormal / 2, -subnormal / 2 * 1.01, subnormal / 4]
    rounded = np.array(values, np.float32).astype(LOW_TYPES[low]).astype(np.float32)
    flushed = int(((rounded == 0) & (np.array(values, np.float32) != 0)).sum())
    expected = {("i", "x"), ("i", ""), ("n", "")}
    assert flushed == 2
    assert counts_of(checked(EDGE, values, mode=f"mixed_{low}")) == {(*at, "underflow", flushed) for at in expected}
    report = checked(EDGE, [0.0, normal / 2, -subnormal], mode=f"mixed_{low}")
    assert counts_of(report) == {(*at, "underflow", 2) for at in expected}


def test_values_near_the_limit_agree_with_numpy() -> None:
    report = checked(EDGE, [32751.0, 32752.0, 32768.0, -40000.0, 65504.0, 65519.0, 1.0])
    assert counts_of(report) == {("i", "", "near-limit", 6), ("n", "", "near-limit", 6)}


def test_a_count_is_that_of_the_first_batch_of_its_finding() -> None:
    report = checked(SQUARE, [1, 1, 1, 1], [190, 1, 1, 1], [300, -300, 1, 1], [300, -300, 400, 190])
    assert {(f.name, f.kind, f.count, f.batches) for f in report.nodes} == {
        ("m", "near-limit", 1, (1,)),
        ("n", "near-limit", 1, (1,)),
        ("m", "overflow", 2, (2, 3)),
        ("n", "propagated", 2, (2, 3)),
    }


def test_saturating_values_are_counted() -> None:
    report = checked(SQUARE, [300.0, -300, 200, 1], overflow_mode="saturate")
    assert counts_of(report) == {("m", "", "saturated", 2), ("n", "", "saturated", 2)}


def test_counts_of_all_iterations_of_a_loop() -> None:
    text = """g (float[3] x, int64 m) => (float[3] z) <bool go = {1}, float[1] c = {128}> {
      [l] z = Loop(m, go, x) <body = b (int64 i, bool k, float[3] s) => (bool k, float[3] t) { [d] t = Mul(s, c) }>
      }"""
    feed = {"x": np.array([1, 4, 0], np.float32), "m": np.array(3)}
    report = mixlist.check(model(text), policy(white=LOW), [feed])
    # 128^3 and 4 * 128^2 are beyond float16, and so is 4 * 128^3.
    assert [(f.scope, f.name, f.kind, f.count) for f in report.nodes if f.first] == [("l/body", "d", "overflow", 3)]


def test_an_input_with_a_default_is_counted() -> None:
    """The feed may lack it."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[2] x, float[2] w) => (float[2] y) <float[2] w = {0.5, 1e-9}> { [m] h = Mul(x, x) [d] y = Mul(h, w) }"""
    feed = {"x": np.array([300.0, 1.0], np.float32)}
    report = mixlist.check(parse_model(text), policy(white=["Mul"]), [feed])
    assert [(f.name, f.input, f.kind, f.count) for f in report.nodes if f.first] == [("m", "", "overflow", 1)]


def test_counts_beyond_the_integers_of_float32() -> None:
    """2^24 + 3 ones: a sum of as many 1s in float32 stays at 2^24."""
    text = "g (float[N] x) => (float[1] y) { [i] i = Identity(x) y = ReduceMax<keepdims=1>(i) }"
    size = 2**24 + 3
    bounds = {2.0**-149: 0, 2.0**-14: 0, 32752.0: size, 65504.0: size}
    statistics = (value_counts.COUNT, value_counts.FINITE, *map(value_counts.count_below, bounds))
    instrumented = Instrumenter(model(text), lambda probe: statistics if probe.tensor == "i" else ()).run()
    names = list(instrumented.column_counts)
    outputs = LocalSession(make_session(instrumented.proto)).run(names, {"x": np.full(size, 2.0, np.float32)})
    numbers = dict(zip(names, outputs, strict=True))
    place_of = {statistic: places[0] for (_, statistic), places in instrumented.columns.items()}
    totals = {s: float(numbers[place.output][..., place.column]) for s, place in place_of.items()}
    below = {value_counts.count_below(bound).name: count for bound, count in bounds.items()}
    assert totals == {"values": size, "finite": size, **below}


def test_zeros_that_an_overflow_makes_are_no_underflow() -> None:
    text = "g (float[4] x, float[4] z) => (float[4] y) { [m] m = Mul(x, x) [d] y = Div(z, m) }"
    feed = {"x": np.array([300, 300, 1, 1], np.float32), "z": np.ones(4, np.float32)}
    report = mixlist.check(model(text), policy(white=["Mul", "Div"]), [feed])
    assert [(n.name, n.kind) for n in report.nodes] == [("m", "overflow")]


@pytest.mark.parametrize("x", [-1, 0], ids=["Log gives NaN", "Log gives -infinity"])
def test_values_that_are_not_finite_in_the_reference_are_not_saturated(x: float) -> None:
    text = "g (float[4] x, float[4] z) => (float[4] y) { [l] l = Log(x) [a] y = Add(l, z) }"
    feed = {"x": np.array([x, 1, 1, 1], np.float32), "z": np.array([1, 1, 1.2e5, 1.2e5], np.float32)}
    report = mixlist.check(model(text), policy(white=["Add"]), [feed], overflow_mode="saturate")
    assert [(n.name, n.input, n.count) for n in report.nodes if n.kind == "saturated"] == [("a", "z", 2), ("a", "", 2)]


def test_each_low_type_is_counted_by_its_own_bounds() -> None:
    """A float16 policy on a model with nodes in bfloat16, which stay so."""
    text = """g (float[4] x, float[4] z) => (float[4] y, float[4] u) {
      [c] h = Cast<to = 16>(z) [n] k = Neg(h) [d] u = Cast<to = 1>(k)
      [w] t = Neg(x) [v] y = Tanh(t) }"""
    feed = {"x": np.array([7e4, 8e4, 9e4, 4e4], np.float32), "z": np.ones(4, np.float32)}
    report = mixlist.check(model(text), policy(white=["Tanh"], black=["Neg"]), [feed])
    (converted,) = [finding for finding in report.nodes if finding.kind == "overflow"]
    assert (converted.name, converted.input, converted.count) == ("v", "t", 3)
    report = mixlist.check(model(text), policy(white=["Neg"]), [feed])
    (converted,) = [finding for finding in report.nodes if finding.kind == "overflow" and finding.input]
    assert (converted.name, converted.input, converted.count) == ("w", "x", 3)
