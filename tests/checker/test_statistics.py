"""Full statistics: every value of every low tensor in every batch, counted as numpy counts them one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

import mixlist
from mixlist.checker import value_counts
from mixlist.checker.result import CheckReport, TensorRange, ValueCounts
from mixlist.emulation.instrument import instrument
from mixlist.runtime.inference_session import make_session
from mixlist.runtime.local_session import LocalSession
from tests.support.builders import model, policy

LOW = ["Mul", "Add", "Neg", "Relu", "Identity", "Reshape"]
TINY = [2.0**-14, 2.0**-14 - 2.0**-25, 2.0**-15, 2.0**-24, 2.0**-25, 2.0**-25 * 1.01, 1e-30, 1e-40, 0.0, -0.0]
LARGE = [32751.0, 32752.0, -40000.0, 65504.0, 65519.0, 65520.0, -70000.0, 1.0]
KINDS = {"float16": (np.dtype(np.float16), 65504.0), "bfloat16": (np.dtype(ml_dtypes.bfloat16), 255 * 2.0**120)}


def checked(text: str, *feeds: Any, mode: str = "mixed_float16", **options: Any) -> CheckReport:
    batches = [f if isinstance(f, dict) else {"x": np.asarray(f, np.float32)} for f in feeds]
    return mixlist.check(model(text), policy(white=LOW, mode=mode), batches, full_statistics=True, **options)


def found(report: CheckReport, name: str) -> TensorRange:
    return next(t for t in report.tensors if t.tensor == name)


def by_numpy(batches: Sequence[NDArray[np.float32]], low: str) -> tuple[ValueCounts, float | None]:
    """Return the counts and the smallest magnitude of a tensor that only rounds these values."""
    kind, largest = KINDS[low]
    normal = float(ml_dtypes.finfo(kind).smallest_normal)
    all_of = np.concatenate([b.reshape(-1) for b in batches])
    with np.errstate(all="ignore"):
        ours = all_of.astype(kind).astype(np.float32)
    finite, size = np.isfinite(ours), np.abs(ours)
    told = ValueCounts(
        values=ours.size,
        nonzero=int((all_of != 0).sum()),
        nonfinite=int((~finite).sum()),
        flushed=int(((ours == 0) & (all_of != 0)).sum()),
        subnormal=int(((ours != 0) & (size < normal)).sum()),
        near_limit=int((finite & (size >= largest / 2)).sum()),
    )
    positive = np.abs(all_of[(all_of != 0) & ~np.isnan(all_of) & ~np.isinf(all_of)])
    return told, float(positive.min()) if positive.size else None


EDGE = "g (float[N] x) => (float[N] y) { [i] i = Identity(x) [n] y = Neg(i) }"


@pytest.mark.parametrize("mode", ["mixed_float16", "mixed_bfloat16"])
def test_edges_are_counted_as_numpy_counts_them(mode: str) -> None:
    low = mode.removeprefix("mixed_")
    normal = 2.0**-126
    bfloat = [3e38, 1.7e38, normal, normal / 2, normal * 2.0**-7, normal * 2.0**-8, normal * 2.0**-9, 1e-45, -1e-45]
    batches = [np.array(each, np.float32) for each in (TINY, LARGE, bfloat, [np.nan, np.inf, 2.0], [0.0, 0.0])]
    report = checked(EDGE, *batches, mode=mode)
    counted, smallest = by_numpy(batches, low)
    for name in ("i", "y"):
        assert found(report, name).counts == counted
        assert found(report, name).smallest == smallest == np.float32(1e-45)


def test_random_tensors_of_many_sizes() -> None:
    rng = np.random.default_rng(1)
    with np.errstate(over="ignore"):
        batches = [(rng.standard_normal(n) * np.exp2(rng.uniform(-45, 20, n))).astype(np.float32) for n in (1, 7, 4099)]
    report = checked(EDGE, *batches)
    assert (found(report, "i").counts, found(report, "i").smallest) == by_numpy(batches, "float16")


def test_what_only_moves_values_and_what_is_high() -> None:
    text = """g (float[4] x) => (float[2,2] y, float[4] z) <int64[2] s = {2,2}> {
      [i] i = Identity(x) [r] y = Reshape(i, s) [h] z = Exp(x) }"""
    report = mixlist.check(
        model(text),
        policy(white=LOW, black=["Exp"]),
        [{"x": np.array([1e-9, 1, 2, 0], np.float32)}],
        full_statistics=True,
    )
    assert found(report, "y").counts == found(report, "i").counts == ValueCounts(4, 3, 0, 1, 0, 0)
    assert found(report, "y").smallest == np.float32(1e-9)
    assert found(report, "z").counts is None and found(report, "z").smallest == 1.0


def test_without_full_statistics_nothing_is_counted() -> None:
    report = mixlist.check(model(EDGE), policy(white=LOW), [{"x": np.array(TINY, np.float32)}], per_tensor=True)
    assert {(t.counts, t.smallest) for t in report.tensors} == {(None, None)}


def test_in_branches_loops_and_functions() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "f" : 1]>
    g (float[3] x, bool c, int64 m) => (float[3] y, float[3] z, float[3] u, float[3] v)
    <bool go = {1}, float[1] tenth = {0.0625}> {
      [i] y = If(c) <then_branch = t () => (float[3] a) { [n] a = Neg(x) },
                     else_branch = e () => (float[3] b) { [p] b = Add(x, x) }>
      [l] z = Loop(m, go, x) <body = b (int64 i, bool k, float[3] s) => (bool k, float[3] t) { [d] t = Mul(s, tenth) }>
      [one] u = f.F(x) [two] v = f.F(z) }
    <domain: "f", opset_import: ["" : 17]> F (p) => (q) { [q] q = Neg(p) }"""
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
    called = places["function:f:F/q"]
    assert called.counts is not None and called.counts.values == 18 and called.smallest == 2.0**-32


def test_more_values_than_float32_counts() -> None:
    """2^24 + 3 ones: a sum of as many 1s in float32 stays at 2^24."""
    text = "g (float[N] x) => (float[1] y) { [i] i = Identity(x) y = ReduceMax<keepdims=1>(i) }"
    size = 2**24 + 3
    made = instrument(model(text), value_counts.mixed_statistics(10), lambda probe: probe.tensor == "i")
    names = list(made.widths)
    told = LocalSession(make_session(made.proto)).run(names, {"x": np.full(size, 2.0, np.float32)})
    numbers = dict(zip(names, told, strict=True))
    at = {statistic: places[0] for (_, statistic), places in made.outputs.items()}
    got = {s: float(numbers[place.output][..., place.column]) for s, place in at.items()}
    below = {"zero": 0, "below_normal": 0, "below_near_limit": size, "below_max": size}
    assert got == {"values": size, "finite": size, **below}


# --- underflow ---


@pytest.mark.parametrize(("flushed", "told"), [(0, False), (1, False), (9, False), (10, True), (500, True)])
def test_a_share_of_one_percent_that_became_zero_is_told(flushed: int, told: bool) -> None:
    """Of 1000 values that are not zero in float32; 50 that are do not count. Rule S8.8."""
    x = np.ones(1050, np.float32)
    x[:flushed], x[1000:] = 1e-9, 0
    report = checked(EDGE, np.ones(3, np.float32), x)
    of = [(n.name, n.kind, n.count, n.batches) for n in report.nodes if not n.input]
    assert of == ([("i", "underflow", flushed, (1,)), ("n", "underflow", flushed, (1,))] if told else [])
    assert report.verdict == "pass" and report.exception_rate == 0
    quiet = mixlist.check(model(EDGE), policy(white=LOW), [{"x": x}])
    assert quiet.nodes == ()  # ranges alone do not show it


def test_all_subnormal_is_an_underflow_with_its_count() -> None:
    for options in ({"full_statistics": True}, {}):
        report = mixlist.check(
            model(EDGE), policy(white=LOW), [{"x": np.array([2.0**-20, 2.0**-22, 0], np.float32)}], **options
        )
        of = [(n.name, n.kind, n.count) for n in report.nodes if not n.input]
        assert of == [("i", "underflow", 2), ("n", "underflow", 2)]


def test_zeros_that_an_overflow_makes_are_no_underflow() -> None:
    text = "g (float[4] x, float[4] z) => (float[4] y) { [m] m = Mul(x, x) [d] y = Div(z, m) }"
    feed = {"x": np.array([300, 300, 1, 1], np.float32), "z": np.ones(4, np.float32)}
    report = mixlist.check(model(text), policy(white=["Mul", "Div"]), [feed], full_statistics=True)
    assert [(n.name, n.kind) for n in report.nodes] == [("m", "overflow")]
    assert found(report, "y").counts == ValueCounts(4, 4, 0, 2, 0, 0)


def test_counts_of_findings_are_those_of_the_worst_batch() -> None:
    text = "g (float[4] x) => (float[4] y) { [m] m = Mul(x, x) [n] y = Neg(m) }"
    report = checked(text, [300.0, 1, 1, 1], [300.0, -300, 400, 1], [1.0, 1, 1, 1])
    assert {(n.name, n.count, n.batches) for n in report.nodes} == {("m", 3, (0, 1)), ("n", 3, (0, 1))}
    assert found(report, "m").counts == ValueCounts(12, 12, 4, 0, 0, 0)
    assert found(report, "m").smallest == 1.0


def test_saturating_values_are_counted() -> None:
    text = "g (float[4] x) => (float[4] y) { [m] m = Mul(x, x) [n] y = Neg(m) }"
    report = checked(text, [300.0, -300, 200, 1], overflow_mode="saturate")
    assert [(n.name, n.kind, n.count) for n in report.nodes] == [("m", "saturated", 2), ("n", "saturated", 2)]
    assert found(report, "m").counts == ValueCounts(4, 4, 0, 0, 0, 3)


def test_a_finding_in_a_high_tensor_has_no_count() -> None:
    text = "g (float[2] x) => (float[2] y) { [l] l = Log(x) [m] y = Mul(l, l) }"
    feed = {"x": np.array([-1, 2], np.float32)}
    report = mixlist.check(model(text), policy(white=["Mul"]), [feed], full_statistics=True)
    assert [(n.name, n.kind, n.count) for n in report.nodes] == [("l", "preexisting", None), ("m", "preexisting", 1)]


def test_nothing_low_and_nothing_there() -> None:
    report = mixlist.check(model(EDGE), policy(), [{"x": np.zeros(0, np.float32)}], full_statistics=True)
    assert all(t.counts is None and t.smallest is None for t in report.tensors)
    empty = checked(EDGE, np.zeros(0, np.float32), np.ones(2, np.float32))
    assert found(empty, "i").counts == ValueCounts(2, 2, 0, 0, 0, 0) and found(empty, "i").smallest == 1.0


def test_the_double_baseline_sees_what_float32_flushes() -> None:
    report = checked(EDGE, np.array([1e-9, 1.0], np.float32), baseline="float64")
    assert found(report, "i").counts == ValueCounts(2, 2, 0, 1, 0, 0)
    assert found(report, "i").smallest == pytest.approx(1e-9)


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
