"""Full statistics count the values of every low tensor in every batch, and agree with numpy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from onnx.parser import parse_model

import mixlist
from mixlist.checker import value_counts
from mixlist.checker.instrument import Instrumenter
from mixlist.checker.result import CheckReport, TensorRange, ValueCounts
from tests.support.builders import model, policy
from tests.support.local_sessions import make_session
from tests.support.package import LocalSession

LOW = ["Mul", "Add", "Neg", "Relu", "Identity", "Reshape"]
TINY = [2.0**-14, 2.0**-14 - 2.0**-25, 2.0**-15, 2.0**-24, 2.0**-25, 2.0**-25 * 1.01, 1e-30, 1e-40, 0.0, -0.0]
LARGE = [32751.0, 32752.0, -40000.0, 65504.0, 65519.0, 65520.0, -70000.0, 1.0]
LOW_TYPES = {"float16": (np.dtype(np.float16), 65504.0), "bfloat16": (np.dtype(ml_dtypes.bfloat16), 255 * 2.0**120)}


def checked(text: str, *feeds: Any, mode: str = "mixed_float16", **options: Any) -> CheckReport:
    batches = [f if isinstance(f, dict) else {"x": np.asarray(f, np.float32)} for f in feeds]
    return mixlist.check(model(text), policy(white=LOW, mode=mode), batches, full_statistics=True, **options)


def range_of(report: CheckReport, name: str) -> TensorRange:
    return next(t for t in report.tensors if t.tensor == name)


def count_with_numpy(batches: Sequence[NDArray[np.float32]], low: str) -> tuple[ValueCounts, float | None]:
    """Return the counts and the smallest magnitude of a tensor that only rounds these values."""
    dtype, largest = LOW_TYPES[low]
    normal = float(ml_dtypes.finfo(dtype).smallest_normal)
    values = np.concatenate([b.reshape(-1) for b in batches])
    with np.errstate(all="ignore"):
        rounded = values.astype(dtype).astype(np.float32)
    finite, magnitude = np.isfinite(rounded), np.abs(rounded)
    counts = ValueCounts(
        values=rounded.size,
        nonzero=int((values != 0).sum()),
        nonfinite=int((~finite).sum()),
        flushed=int(((rounded == 0) & (values != 0)).sum()),
        subnormal=int(((rounded != 0) & (magnitude < normal)).sum()),
        near_limit=int((finite & (magnitude >= largest / 2)).sum()),
    )
    positive = np.abs(values[(values != 0) & ~np.isnan(values) & ~np.isinf(values)])
    return counts, float(positive.min()) if positive.size else None


EDGE = "g (float[N] x) => (float[N] y) { [i] i = Identity(x) [n] y = Neg(i) }"


@pytest.mark.parametrize("mode", ["mixed_float16", "mixed_bfloat16"])
def test_counts_at_the_bounds_agree_with_numpy(mode: str) -> None:
    low = mode.removeprefix("mixed_")
    normal = 2.0**-126
    bfloat = [3e38, 1.7e38, normal, normal / 2, normal * 2.0**-7, normal * 2.0**-8, normal * 2.0**-9, 1e-45, -1e-45]
    batches = [np.array(batch, np.float32) for batch in (TINY, LARGE, bfloat, [np.nan, np.inf, 2.0], [0.0, 0.0])]
    report = checked(EDGE, *batches, mode=mode)
    counted, smallest = count_with_numpy(batches, low)
    for name in ("i", "y"):
        assert range_of(report, name).counts == counted
        assert range_of(report, name).smallest == smallest == np.float32(1e-45)


def test_counts_of_random_tensors_agree_with_numpy() -> None:
    rng = np.random.default_rng(1)
    with np.errstate(over="ignore"):
        batches = [(rng.standard_normal(n) * np.exp2(rng.uniform(-45, 20, n))).astype(np.float32) for n in (1, 7, 4099)]
    report = checked(EDGE, *batches)
    assert (range_of(report, "i").counts, range_of(report, "i").smallest) == count_with_numpy(batches, "float16")


def test_value_movers_and_high_tensors() -> None:
    text = """g (float[4] x) => (float[2,2] y, float[4] z) <int64[2] s = {2,2}> {
      [i] i = Identity(x) [r] y = Reshape(i, s) [h] z = Exp(x) }"""
    report = mixlist.check(
        model(text),
        policy(white=LOW, black=["Exp"]),
        [{"x": np.array([1e-9, 1, 2, 0], np.float32)}],
        full_statistics=True,
    )
    assert range_of(report, "y").counts == range_of(report, "i").counts == ValueCounts(4, 3, 0, 1, 0, 0)
    assert range_of(report, "y").smallest == np.float32(1e-9)
    assert range_of(report, "z").counts is None and range_of(report, "z").smallest == 1.0


def test_without_full_statistics_nothing_is_counted() -> None:
    report = mixlist.check(model(EDGE), policy(white=LOW), [{"x": np.array(TINY, np.float32)}], per_tensor=True)
    assert {(t.counts, t.smallest) for t in report.tensors} == {(None, None)}


def test_counts_in_branches_and_loops() -> None:
    text = """g (float[3] x, bool c, int64 m) => (float[3] y, float[3] z)
    <bool go = {1}, float[1] tenth = {0.0625}> {
      [i] y = If(c) <then_branch = t () => (float[3] a) { [n] a = Neg(x) },
                     else_branch = e () => (float[3] b) { [p] b = Add(x, x) }>
      [l] z = Loop(m, go, x) <body = b (int64 i, bool k, float[3] s) => (bool k, float[3] t) { [d] t = Mul(s, tenth) }>
      }"""
    x = np.array([2.0**-20, 1.0, 0.0], np.float32)
    feeds = [{"x": x, "c": np.array(c), "m": np.array(m)} for c, m in ((True, 3), (True, 0), (False, 2))]
    report = checked(text, *feeds)
    places = {f"{t.scope}/{t.node}".lstrip("/"): t for t in report.tensors}
    assert places["i/then_branch/n"].counts == ValueCounts(6, 4, 0, 0, 2, 0)
    assert places["i/else_branch/p"].counts == ValueCounts(3, 2, 0, 0, 1, 0)
    assert places["i/else_branch/p"].smallest == 2.0**-19
    # 2^-24 is the last that float16 holds: the third iteration of the first batch flushes 2^-32, the second 2^-28
    assert places["l/body/d"].counts == ValueCounts(15, 10, 0, 3, 2, 0)
    assert places["l/body/d"].smallest == 2.0**-32


@pytest.mark.parametrize("mode", ["inf", "saturate"])
def test_findings_have_the_counts_of_full_statistics(mode: str) -> None:
    """Without full statistics, a second run counts only what the findings need."""
    text = """g (float[N] x, float[N] v) => (float[N] y, float[N] z, float[N] w) {
      [m] h = Mul(x, x) [c] d = Mul(v, v) [i] z = Identity(h) [s] y = Add(h, d) [t] w = Neg(v) }"""
    tiny = np.array([1e-9, 2.0**-20, -0.0, 0.0, 2.0**-15], np.float32)
    rows = [[300.0, -1.0, 1e-9, 2e-4, -0.0], [math.nan, 300.0, -2.0, 190.0, 0.0], [math.inf, 7e4, 1.0, 0.0, 2.0]]
    feeds = [{"x": np.array(row, np.float32), "v": np.array(row[::-1], np.float32) * 300} for row in rows]
    feeds.append({"x": tiny, "v": tiny})
    lists = policy(white=LOW)
    for feed in feeds:
        counted, full = (
            mixlist.check(model(text), lists, [feed], overflow_mode=mode, full_statistics=is_full).nodes
            for is_full in (False, True)
        )
        # Full statistics find underflows that the ranges do not show.
        assert set(counted) <= set(full) and any(finding.count for finding in counted)


def test_an_input_with_a_default_is_counted() -> None:
    """The feed may lack it."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[2] x, float[2] w) => (float[2] y) <float[2] w = {0.5, 1e-9}> { [m] h = Mul(x, x) [d] y = Mul(h, w) }"""
    feed = {"x": np.array([300.0, 1.0], np.float32)}
    report = mixlist.check(parse_model(text), policy(white=["Mul"]), [feed], full_statistics=True)
    assert [(f.name, f.input, f.kind, f.count) for f in report.nodes if f.first] == [("m", "", "overflow", 1)]


def test_counts_beyond_the_integers_of_float32() -> None:
    """2^24 + 3 ones: a sum of as many 1s in float32 stays at 2^24."""
    text = "g (float[N] x) => (float[1] y) { [i] i = Identity(x) y = ReduceMax<keepdims=1>(i) }"
    size = 2**24 + 3
    instrumented = Instrumenter(
        model(text), lambda probe: value_counts.mixed_statistics(10) if probe.tensor == "i" else ()
    ).run()
    names = list(instrumented.column_counts)
    outputs = LocalSession(make_session(instrumented.proto)).run(names, {"x": np.full(size, 2.0, np.float32)})
    numbers = dict(zip(names, outputs, strict=True))
    place_of = {statistic: places[0] for (_, statistic), places in instrumented.columns.items()}
    totals = {s: float(numbers[place.output][..., place.column]) for s, place in place_of.items()}
    bounds = {2.0**-149: 0, 2.0**-14: 0, 32752.0: size, 65504.0: size}
    below = {value_counts.count_below(bound).name: count for bound, count in bounds.items()}
    assert totals == {"values": size, "finite": size, **below}


# --- underflow ---


@pytest.mark.parametrize(("flushed", "reported"), [(0, False), (1, False), (9, False), (10, True), (500, True)])
def test_a_share_of_one_percent_that_became_zero_is_an_underflow(flushed: int, reported: bool) -> None:
    """Rule S8.8: the share is of the 1000 values that are not zero in float32, without the 50 zeros."""
    x = np.ones(1050, np.float32)
    x[:flushed], x[1000:] = 1e-9, 0
    report = checked(EDGE, np.ones(3, np.float32), x)
    output_findings = [(n.name, n.kind, n.count, n.batches) for n in report.nodes if not n.input]
    assert output_findings == (
        [("i", "underflow", flushed, (1,)), ("n", "underflow", flushed, (1,))] if reported else []
    )
    assert report.verdict == "pass" and report.exception_rate == 0
    report_without_counts = mixlist.check(model(EDGE), policy(white=LOW), [{"x": x}])
    assert report_without_counts.nodes == ()  # ranges alone do not show it


def test_all_subnormal_is_an_underflow_with_its_count() -> None:
    for options in ({"full_statistics": True}, {}):
        report = mixlist.check(
            model(EDGE), policy(white=LOW), [{"x": np.array([2.0**-20, 2.0**-22, 0], np.float32)}], **options
        )
        output_findings = [(n.name, n.kind, n.count) for n in report.nodes if not n.input]
        assert output_findings == [("i", "underflow", 2), ("n", "underflow", 2)]


def test_zeros_that_an_overflow_makes_are_no_underflow() -> None:
    text = "g (float[4] x, float[4] z) => (float[4] y) { [m] m = Mul(x, x) [d] y = Div(z, m) }"
    feed = {"x": np.array([300, 300, 1, 1], np.float32), "z": np.ones(4, np.float32)}
    report = mixlist.check(model(text), policy(white=["Mul", "Div"]), [feed], full_statistics=True)
    assert [(n.name, n.kind) for n in report.nodes] == [("m", "overflow")]
    assert range_of(report, "y").counts == ValueCounts(4, 4, 0, 2, 0, 0)


def test_counts_of_findings_are_those_of_the_worst_batch() -> None:
    text = "g (float[4] x) => (float[4] y) { [m] m = Mul(x, x) [n] y = Neg(m) }"
    report = checked(text, [300.0, 1, 1, 1], [300.0, -300, 400, 1], [1.0, 1, 1, 1])
    assert {(n.name, n.count, n.batches) for n in report.nodes} == {("m", 3, (0, 1)), ("n", 3, (0, 1))}
    assert range_of(report, "m").counts == ValueCounts(12, 12, 4, 0, 0, 0)
    assert range_of(report, "m").smallest == 1.0


def test_saturating_values_are_counted() -> None:
    text = "g (float[4] x) => (float[4] y) { [m] m = Mul(x, x) [n] y = Neg(m) }"
    report = checked(text, [300.0, -300, 200, 1], overflow_mode="saturate")
    assert [(n.name, n.kind, n.count) for n in report.nodes] == [("m", "saturated", 2), ("n", "saturated", 2)]
    assert range_of(report, "m").counts == ValueCounts(4, 4, 0, 0, 0, 3)


@pytest.mark.parametrize("full_statistics", [False, True])
@pytest.mark.parametrize("x", [-1, 0], ids=["Log gives NaN", "Log gives -infinity"])
def test_values_that_are_not_finite_in_the_reference_are_not_saturated(x: float, full_statistics: bool) -> None:
    text = "g (float[4] x, float[4] z) => (float[4] y) { [l] l = Log(x) [a] y = Add(l, z) }"
    feed = {"x": np.array([x, 1, 1, 1], np.float32), "z": np.array([1, 1, 1.2e5, 1.2e5], np.float32)}
    report = mixlist.check(
        model(text), policy(white=["Add"]), [feed], full_statistics=full_statistics, overflow_mode="saturate"
    )
    assert [(n.name, n.input, n.count) for n in report.nodes if n.kind == "saturated"] == [("a", "z", 2), ("a", "", 2)]


def test_a_finding_in_a_high_tensor_has_no_count() -> None:
    text = "g (float[2] x) => (float[2] y) { [l] l = Log(x) [m] y = Mul(l, l) }"
    feed = {"x": np.array([-1, 2], np.float32)}
    report = mixlist.check(model(text), policy(white=["Mul"]), [feed], full_statistics=True)
    assert [(n.name, n.kind, n.count) for n in report.nodes] == [("l", "preexisting", None), ("m", "preexisting", 1)]


def test_without_low_tensors_and_with_empty_batches() -> None:
    report = mixlist.check(model(EDGE), policy(), [{"x": np.zeros(0, np.float32)}], full_statistics=True)
    assert all(t.counts is None and t.smallest is None for t in report.tensors)
    empty = checked(EDGE, np.zeros(0, np.float32), np.ones(2, np.float32))
    assert range_of(empty, "i").counts == ValueCounts(2, 2, 0, 0, 0, 0) and range_of(empty, "i").smallest == 1.0


@pytest.mark.parametrize("full_statistics", [False, True])
def test_each_low_type_is_counted_by_its_own_bounds(full_statistics: bool) -> None:
    """A float16 policy on a model with nodes in bfloat16, which stay so."""
    text = """g (float[4] x, float[4] z) => (float[4] y, float[4] u) {
      [c] h = Cast<to = 16>(z) [n] k = Neg(h) [d] u = Cast<to = 1>(k)
      [w] t = Neg(x) [v] y = Tanh(t) }"""
    feed = {"x": np.array([7e4, 8e4, 9e4, 4e4], np.float32), "z": np.ones(4, np.float32)}
    report = mixlist.check(model(text), policy(white=["Tanh"], black=["Neg"]), [feed], full_statistics=full_statistics)
    (converted,) = [finding for finding in report.nodes if finding.kind == "overflow"]
    assert (converted.name, converted.input, converted.count) == ("v", "t", 3)
    report = mixlist.check(model(text), policy(white=["Neg"]), [feed], full_statistics=full_statistics)
    (converted,) = [finding for finding in report.nodes if finding.kind == "overflow" and finding.input]
    assert (converted.name, converted.input, converted.count) == ("w", "x", 3)
