"""The kinds of findings and the first offenders in models with planted overflows; the results are written by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mixlist
from mixlist.checker.result import CheckReport, NodeFinding
from tests.support.builders import model, policy
from tests.support.local_workers import InProcessExecutor

WHITE = {"white": ["Mul", "MatMul", "Add", "Exp", "Neg", "Relu", "Where", "Sub", "Softmax"]}


def checked(text: str, *feeds: Any, lists: dict[str, Any] | None = None, **options: Any) -> CheckReport:
    """Check a model whose only input is x on arrays."""
    batches = [f if isinstance(f, dict) else {"x": np.asarray(f, np.float32)} for f in feeds]
    return mixlist.check(model(text), policy(**(lists or WHITE)), batches, **options)


def kinds(report: CheckReport) -> dict[str, str]:
    """Return the worst kind of finding by scope/node."""
    return {f"{n.scope}/{n.name}".lstrip("/"): n.kind for n in reversed(report.nodes)}


def first_offenders(report: CheckReport) -> list[NodeFinding]:
    return [n for n in report.nodes if n.first]


def test_an_overflow_that_the_cpu_provider_hides_is_found() -> None:
    """Rule S8.2: On the CPU the mixed model is emulated."""
    text = """g (float[1,64] x) => (float[1,1] y) <float[64,1] w = {WEIGHTS}, float[1] k = {0.001}>
    { [m] m = MatMul(x, w) [s] y = Mul(m, k) }""".replace("WEIGHTS", ",".join(["300"] * 64))
    report = checked(text, np.full((1, 64), 300.0))
    assert (report.verdict, report.exception_rate, report.mode) == ("fail", 1.0, "emulated")
    assert kinds(report) == {"m": "overflow", "s": "propagated"}
    (offender,) = first_offenders(report)
    assert offender.max_abs_fp32 == 300.0 * 300 * 64 and np.isinf(offender.max_abs_low)
    assert "black-list" in offender.suggestion and "MatMul" in offender.suggestion
    assert "white" in offender.source


@pytest.mark.parametrize(
    ("value", "overflows"), [(65504.0, False), (65519.99, False), (65520.0, True), (-65520.0, True)]
)
def test_the_smallest_value_that_overflows_float16(value: float, overflows: bool) -> None:
    """Rule S8.5: overflow."""
    report = checked("g (float[2] x) => (float[2] y) <float[1] k = {2}> { [m] y = Mul(x, k) }", [value / 2, 1.0])
    assert ("overflow" in kinds(report).values()) == overflows
    assert report.exception_rate == float(overflows)


def test_the_exception_rate_is_the_share_of_batches() -> None:
    """Rule S8.14: The exception rate counts batches."""
    text = "g (float[2] x) => (float[2] y) { [m] m = Mul(x, x) [n] y = Neg(m) }"
    feeds = [[1.0, 2.0]] * 3 + [[300.0, 1.0]] + [[3.0, 4.0]]
    report = checked(text, *feeds, max_exception_rate=0.2)
    assert report.exception_rate == 0.2 and report.verdict == "fail"  # at the limit fails
    (offender,) = first_offenders(report)
    assert (offender.name, offender.batches) == ("m", (3,))
    assert not any("batches overflow" in r for r in checked(text, *feeds, max_exception_rate=0.21).reasons)


BRANCH = """g (float[2] x) => (float[2] y) <float zero = {0}> {
  s = ReduceSum<keepdims=0>(x) [c] c = Greater(s, zero)
  [i] y = If(c) <then_branch = t () => (float[2] a) { [big] b = Mul(x, x) [after] a = Neg(b) },
                 else_branch = e () => (float[2] d) { [small] d = Neg(x) }> }"""


def test_a_node_in_a_branch_has_a_finding_only_if_it_runs() -> None:
    """Rule S8.3: Ranges of node outputs are compared."""
    report = checked(BRANCH, [300.0, 1.0])
    assert kinds(report) == {"i/then_branch/big": "overflow", "i/then_branch/after": "propagated"}
    assert kinds(checked(BRANCH, [-300.0, 1.0])) == {}


LOOP = """g (float[1] x, int64 m) => (float[1] y, float[k,1] all) <bool go = {1}, float[1] ten = {10}> {
  [l] y, all = Loop(m, go, x) <body = b (int64 i, bool c, float[1] s) => (bool c, float[1] t, float[1] u) {
     [before] r = Relu(s) [grow] t = Mul(r, ten) [after] u = Neg(t) }> }"""


def test_in_a_loop_the_node_that_overflows_first_is_the_offender() -> None:
    """Rule S8.6: propagated."""
    report = checked(LOOP, {"x": np.array([1.0], np.float32), "m": np.array(8)})
    assert kinds(report) == {"l/body/before": "propagated", "l/body/grow": "overflow", "l/body/after": "propagated"}
    assert [f.name for f in first_offenders(report)] == ["grow"]
    assert checked(LOOP, {"x": np.array([1.0], np.float32), "m": np.array(4)}).exception_rate == 0
    assert checked(LOOP, {"x": np.array([1.0], np.float32), "m": np.array(0)}).exception_rate == 0


LOOP_HEAD = """g (float[2] x) => (float[2] y, float[5,2] z)
  <int64 n = {5}, bool go = {1}> { [lp] y, z = Loop(n, go, x) <body = b (int64 i, bool c, float[2] s)
  => (bool d, float[2] t, float[2] u) { d = Identity(c) BODY }> }"""
SCANNED = """g (float[2] x) => (float[2] y, float[3,2] z) <float[3,2] v = {1, 1, 1, 1, 1, 1}> {
  [sc] y, z = Scan <num_scan_inputs = 1, body = b (float[2] s, float[2] w) => (float[2] t, float[2] u)
  { [e] t = Mul(s, s) [o] u = Add(t, w) }> (x, v) }"""


@pytest.mark.parametrize("mode", ["inf", "saturate"])
@pytest.mark.parametrize(
    ("text", "name"),
    [
        (
            LOOP_HEAD.replace("BODY", "[e] t = Mul(s, s) [o] u = Neg(t)"),
            "lp/body/e",
        ),  # the node reads its own result of the iteration before
        (LOOP_HEAD.replace("BODY", "[a] r = Neg(s) [e] t = Mul(r, r) [o] u = Neg(t)"), "lp/body/e"),
        (SCANNED, "sc/body/e"),
    ],
)
def test_values_that_return_in_a_loop_have_a_first_offender(text: str, name: str, mode: str) -> None:
    """Rules S8.6 and S8.7: the first node is the one that makes the value, not one that reads it an iteration later."""
    report = checked(text, [20.0, 0.1], overflow_mode=mode)
    assert [str(finding.ref) for finding in first_offenders(report)] == [name]
    assert report.exception_rate == 1.0
    (offender,) = first_offenders(report)
    assert offender.suggestion and offender.kind == ("saturated" if mode == "saturate" else "overflow")


def test_an_overflow_propagates_through_a_sequence() -> None:
    text = """g (float[4] x) => (float[2] y) <int64 one = {1}, int64 two = {2}> {
      [m] m = Mul(x, x) q = SplitToSequence<axis=0>(m, two) [at] y = SequenceAt(q, one) }"""
    assert kinds(checked(text, [1.0, 1.0, 300.0, 2.0])) == {"m": "overflow", "at": "propagated"}


def test_a_value_mover_that_reads_through_a_cast_is_an_offender() -> None:
    """The output of a node that only moves values has a range of its own if the node reads them through a Cast."""
    text = """g (float[2] x) => (float[1,2] y) <int64[2] s = {1,2}> {
      [a] a = Mul(x, x) [r] r = Reshape(a, s) [n] y = Neg(r) }"""
    report = checked(text, [300.0, 1.0], lists={"white": ["Reshape", "Neg"], "black": ["Mul"]})
    assert kinds(report) == {"r": "overflow", "n": "propagated"}


def test_infinities_of_the_reference_are_preexisting() -> None:
    """Rule S8.10: preexisting."""
    report = checked("g (float[2] x) => (float[2] y) { [e] e = Exp(x) [n] y = Neg(e) }", [200.0, 1.0])
    assert kinds(report) == {"e": "preexisting", "n": "preexisting"}
    assert report.exception_rate == 0


@pytest.mark.parametrize("mask", ["-inf", "-3.4028234e38"])
def test_masks_are_intended(mask: str) -> None:
    """Rule S8.11: intended."""
    text = """g (float[1,4] x, bool[1,4] b) => (float[1,4] y) <float k = {MASK}, float z = {0}> {
      [w] w = Where(b, z, k) [a] a = Add(x, w) [s] y = Softmax(a) }""".replace("MASK", mask)
    feed = {"x": np.ones((1, 4), np.float32), "b": np.array([[True, True, False, True]])}
    report = checked(text, feed, lists={"white": ["Add", "Softmax"]})
    assert set(kinds(report).values()) == {"intended"} and "a" in kinds(report)
    assert (report.verdict, report.exception_rate) == ("pass", 0.0)


def test_a_nan_without_an_infinity_is_an_overflow() -> None:
    text = "g (float[2] x) => (float[2] y) <float[1] k = {1e-4}> { [a] a = Mul(x, k) [b] b = Div(a, a) [n] y = Neg(b) }"
    report = checked(text, [1e-5, 1.0], lists={"white": ["Mul", "Div", "Neg"]})
    assert kinds(report)["b"] == "overflow" and kinds(report)["n"] == "propagated"


@pytest.mark.parametrize(("library", "op"), [("onnx", "Conv"), ("ascend910b", "Conv2D"), ("mindspore-o2", "Conv")])
def test_the_suggestion_uses_the_operator_name_of_the_library(library: str, op: str, tmp_path: Path) -> None:
    """A finding says how to keep the node in high precision."""
    proto = model("g (float[1,1,2,2] x) => (float[1,1,2,2] y) <float[1,1,1,1] w = {3}> { [c] y = Conv(x, w) }")
    feed = {"x": np.full((1, 1, 2, 2), 30000, np.float32)}
    (finding,) = mixlist.check(proto, mixlist.load_policy(ops_info=library), [feed]).nodes
    assert finding.kind == "overflow" and f'add "{op}" to black-list to-add' in finding.suggestion
    edits = tmp_path / "modify.json"
    edits.write_text(json.dumps({"black-list": {"to-add": [op]}}))
    report_with_edit = mixlist.check(proto, mixlist.load_policy(ops_info=library, mixlist=edits), [feed])
    assert report_with_edit.passes_without_low and report_with_edit.nodes == ()
    rules = tmp_path / "keep.cfg"
    rules.write_text("c\n")
    assert mixlist.check(proto, mixlist.load_policy(ops_info=library, keep_dtype=rules), [feed]).passes_without_low


def test_saturated_values_fail() -> None:
    """Rule S8.7: saturated."""
    text = "g (float[2] x) => (float[2] y) { [m] m = Mul(x, x) [n] y = Neg(m) }"
    report = checked(text, [300.0, 1.0], overflow_mode="saturate")
    assert kinds(report)["m"] == "saturated" and report.verdict == "fail"
    assert [f.name for f in first_offenders(report)] == ["m"] and report.nodes[0].max_abs_low == 65504.0
    assert kinds(report)["n"] == "saturated"  # it has the values of m
    assert kinds(checked(text, [200.0, 1.0], overflow_mode="saturate")) == {"m": "near-limit", "n": "near-limit"}


def test_underflow_and_near_limit_do_not_fail() -> None:
    """Rules S8.8, S8.9."""
    text = "g (float[2] x) => (float[2] y) <float[1] k = {6e-5}> { [m] m = Mul(x, k) [n] y = Neg(m) }"
    report = checked(text, [1e-4, 1e-4], lists={**WHITE, "constants": "ieee"})
    assert kinds(report)["m"] == "underflow" and report.exception_rate == 0
    assert [n.count for n in report.nodes if n.name == "m"] == [2]


def test_the_values_of_findings_are_counted() -> None:
    text = "g (float[4] x) => (float[4] y) { [m] m = Mul(x, x) [n] y = Neg(m) }"
    report = checked(text, [1.0, 2.0, 3.0, 4.0], [300.0, 1.0, -300.0, 2.0], [200.0, 200.0, 1.0, 200.0])
    counted = {(n.name, n.kind): n.count for n in report.nodes}
    assert counted == {
        ("m", "overflow"): 2,
        ("n", "propagated"): 2,
        ("m", "near-limit"): 3,
        ("n", "near-limit"): 3,
    }


def test_bfloat16_holds_values_beyond_float16() -> None:
    text = "g (float[2] x) => (float[2] y) { [m] m = Mul(x, x) [n] y = Neg(m) }"
    report = checked(text, [3000.0, 1.0], lists={**WHITE, "mode": "mixed_bfloat16"})
    assert (report.exception_rate, report.precision) == (0.0, "bfloat16")
    assert kinds(checked(text, [1e20, 1.0], lists={**WHITE, "mode": "mixed_bfloat16"})) == {
        "m": "preexisting",
        "n": "preexisting",
    }


def test_batches_of_different_sizes_and_empty_batches() -> None:
    text = "g (float[N] x) => (float[N] y) { [m] y = Mul(x, x) }"
    report = checked(text, [1.0], [1.0, 2.0, 3.0], np.zeros(0), [300.0])
    assert (report.batches, report.exception_rate) == (4, 0.25)


def test_a_batch_does_not_begin_with_the_running_mean_of_the_last_one() -> None:
    """Each batch begins with the mean of the model, in a check and in the trials of a search."""
    text = """g (float[N,2] x) => (float[N,2] z, float[2] rm, float[2] rv) <float[2] s = {1,1}, float[2] b = {0,0},
      float[2] m = {1,1}, float[2] v = {1,1}, float k = {30000}> {
      [bn] y, rm, rv = BatchNormalization<training_mode = 1>(x, s, b, m, v) [k] z = Mul(y, k) }"""
    feed = {"x": np.array([[3, 4], [5, 7], [9, 9]], np.float32)}
    proto, lists = model(text), policy(white=["BatchNormalization"])
    errors = [
        [output.normalized_error for output in mixlist.check(proto, lists, [feed] * count).outputs] for count in (1, 3)
    ]
    assert errors[0] == errors[1]
    overflowing = policy(white=["BatchNormalization", "Mul"])
    big = {"x": np.concatenate([feed["x"], np.full((1, 2), 90, np.float32)] + [feed["x"]] * 3)}
    report = mixlist.tune(proto, overflowing, [big] * 3, executor=InProcessExecutor(), holdout=False)
    assert (report.verdict, [edit.op for edit in report.edits]) == ("pass", ["Mul"])


def test_authored_float16_nodes_are_judged() -> None:
    text = """g (float[2] x) => (float[2] y) <float16[1] k = {128}> {
      h = Cast<to=10>(x) [m] m = Mul(h, k) [n] n = Neg(m) y = Cast<to=1>(n) }"""
    report = checked(text, [1000.0, 1.0], lists={"white": []}, reference_type="float32")
    assert kinds(report)["m"] == "overflow" and first_offenders(report)[0].max_abs_fp32 == 128000.0


def test_an_output_of_mixlist_warns_unless_it_is_given_as_against() -> None:
    """Rule S8.1: Two models run on the same batches."""
    original = model("g (float[2] x) => (float[2] y) { [m] y = Mul(x, x) }")
    mixed = mixlist.rewrite(original, mixlist.resolve(original, policy(**WHITE))).model
    feeds = [{"x": np.array([300.0, 1.0], np.float32)}]
    report_without_original = mixlist.check(mixed, policy(**WHITE), feeds, reference_type="float32")
    assert (
        any("mixed_model=" in str(w) for w in report_without_original.warnings)
        and report_without_original.exception_rate == 1
    )
    compared = mixlist.check(original, policy(), feeds, mixed_model=mixed)
    assert kinds(compared) == {"m": "overflow"} and not compared.warnings
