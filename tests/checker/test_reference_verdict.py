"""Compare verdicts with an independent reference in numpy, written from the rules alone: S8.1 to S8.38 without options.

Graphs are random. A case whose verdict depends on the order of a sum or on how a runtime approximates a function is
left out, and so is a decision at a limit that rounding could move. MIXLIST_EXAMPLES sets the number of examples;
with MIXLIST_SEED the examples are random; without it, each run has the same ones.
"""

from __future__ import annotations

import os

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import HealthCheck, given, note, reject, settings
from onnx import helper, numpy_helper
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

import mixlist
from tests.support.builders import policy
from tests.support.exact_graphs import Case, bounded_cases, build_model, cases, masked_cases, ordered_cases
from tests.support.exact_operators import LOW, Ambiguous
from tests.support.exact_quantities import quantity_outputs
from tests.support.exact_sums import nodes_at_risk
from tests.support.exact_verdict import (
    MAX_EXCEPTION_RATE,
    Findings,
    Pair,
    exception_rate,
    judge,
    judge_outputs,
    magnitudes,
    pair,
    run,
    verdict,
)

EXAMPLES = int(os.environ.get("MIXLIST_EXAMPLES", "24"))
PROFILE = settings(deadline=None, derandomize="MIXLIST_SEED" not in os.environ, suppress_health_check=list(HealthCheck))


def compare_with_reference(case: Case) -> mixlist.CheckReport:
    """Compare verdict, offenders, the kind of each output in each batch, magnitudes and exception rate."""
    plan = mixlist.resolve(case.model, case.policy)
    mixed = mixlist.rewrite(case.model, plan).model
    assert isinstance(mixed, onnx.ModelProto)
    batches = [pair(case.model, mixed, feed, case.saturate) for feed in case.feeds]
    findings_by_batch = judge(batches, case.saturate)
    clamp = LOW[case.policy.mode.low][1] if case.saturate else np.inf
    expected = verdict(batches, findings_by_batch, clamp)
    is_low = any(decision.precision == case.policy.mode.low for decision in plan.nodes)
    if expected == "pass" and not is_low:  # Rule S8.39
        expected = "inconclusive"
    report = mixlist.check(case.model, case.policy, case.feeds, overflow_mode="saturate" if case.saturate else "inf")
    compare_findings(case, report, batches, findings_by_batch)
    if report.exception_rate < MAX_EXCEPTION_RATE:  # otherwise the outputs decide nothing, and may be ambiguous
        compare_outputs(case, report, batches, clamp)
    assert report.verdict == expected
    return report


def compare_outputs(case: Case, report: mixlist.CheckReport, batches: list[Pair], clamp: float) -> None:
    """Compare the outputs that fail, those that hold quantities, and the orders that excuse an output."""
    failing, orders = judge_outputs(batches, clamp)
    excused = set().union(*(order.outputs for order in orders.values()))
    assert {o.name for o in report.outputs if {*o.failed_limits} - {"max_ignored", "reference"}} == failing - excused
    assert {o.name for o in report.outputs if o.quantity} == quantity_outputs(case.model)
    assert {change.name: (change.places, set(change.outputs)) for change in report.order_changes} == {
        name: (order.places, order.outputs) for name, order in orders.items()
    }


def compare_findings(
    case: Case, report: mixlist.CheckReport, batches: list[Pair], findings_by_batch: list[Findings]
) -> None:
    """Compare the findings of the report with those of the reference."""
    expected: dict[tuple[str, ...], list[int]] = {}
    for index, findings in enumerate(findings_by_batch):
        for key in (*findings.outputs, *findings.operands):
            expected.setdefault(key, []).append(index)
    shown = [f for f in report.nodes if f.kind != "internal-risk"]
    keys = {f: (f.name, f.input, f.kind) if f.input else (f.tensor, f.kind) for f in shown}
    assert {keys[f]: list(f.batches) for f in shown} == expected
    assert {f.name for f in report.nodes if f.first} == set().union(*(f.first for f in findings_by_batch))
    for f in shown:
        if not f.input:
            for largest, side in ((f.max_abs_fp32, "reference"), (f.max_abs_low, "mixed")):
                low, high = magnitudes(getattr(batch, side)[f.tensor] for batch in batches if not batch.is_ignored)
                assert low <= largest <= high or (np.isnan(low) and np.isnan(largest)), (f, side)
    assert report.exception_rate == exception_rate(batches, findings_by_batch)
    # Rule S8.13: without more options, the sums of the first batch are examined.
    at_risk = set() if batches[0].is_ignored else nodes_at_risk(batches[0], findings_by_batch[0])
    assert {f.name for f in report.nodes if f.kind == "internal-risk"} == at_risk


def compare_unless_ambiguous(case: Case) -> None:
    note(repr(case))
    try:
        compare_with_reference(case)
    except Ambiguous:
        reject()


@settings(PROFILE, max_examples=EXAMPLES)
@given(case=cases())
def test_every_verdict_agrees_with_the_reference(case: Case) -> None:
    compare_unless_ambiguous(case)


@settings(PROFILE, max_examples=EXAMPLES // 2)
@given(case=masked_cases())
def test_every_verdict_on_masked_scores_agrees_with_the_reference(case: Case) -> None:
    """Random cases for Rules S8.11 and S8.12."""
    compare_unless_ambiguous(case)


@settings(PROFILE, max_examples=EXAMPLES // 2)
@given(case=bounded_cases())
def test_every_verdict_on_bounded_infinities_agrees_with_the_reference(case: Case) -> None:
    """Random cases for Rule S8.30."""
    compare_unless_ambiguous(case)


@settings(PROFILE, max_examples=EXAMPLES)
@given(case=ordered_cases())
def test_every_verdict_on_integers_and_orders_agrees_with_the_reference(case: Case) -> None:
    """Random cases for Rules S8.17, S8.34 and S8.38."""
    compare_unless_ambiguous(case)


@settings(PROFILE, max_examples=EXAMPLES // 2)
@given(case=ordered_cases() | cases())
def test_the_operators_of_the_reference_agree_with_onnx_runtime(case: Case) -> None:
    """Compare each tensor of a float32 run with the bounds of the reference, and with its bits where certain."""
    names = [name for node in case.model.graph.node for name in node.output]
    all_outputs = onnx.ModelProto()
    all_outputs.CopyFrom(case.model)
    del all_outputs.graph.output[:]
    all_outputs.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names)
    all_outputs = onnx.shape_inference.infer_shapes(all_outputs)
    session = onnxruntime.InferenceSession(all_outputs.SerializeToString(), providers=["CPUExecutionProvider"])
    for feed in case.feeds:
        try:
            expected = run(case.model, feed, False)
        except Ambiguous:
            reject()
        try:
            arrays = session.run(names, feed)
        except InvalidArgument as error:  # ONNX Runtime 1.22 normalizes no axis of size 1
            assert "must be larger than 1" in str(error), error
            reject()
        for name, y in zip(names, arrays, strict=True):
            finite = np.isfinite(expected[name].value)
            different = np.abs(y[finite].astype(np.float64) - expected[name].value[finite])
            assert (different <= expected[name].radius[finite]).all(), name
            assert np.array_equal(y[~finite], expected[name].value[~finite], equal_nan=True), name


def one_operator(op: str, x0: list[float], x1: list[float], *, saturate: bool = False, **attributes: object) -> Case:
    """Return a case of one white operator on inputs of one row."""
    binary = op in ("Div", "Less", "Greater", "Equal")
    weights = [numpy_helper.from_array(np.array([1], np.int64), "axis")] if op.startswith("Reduce") else []
    inputs = ["x0", "x1"] if binary else ["x0", *(w.name for w in weights)]
    model = build_model([helper.make_node(op, inputs, ["y"], name="n0", **attributes)], weights, (1, len(x0)))
    feed = {"x0": np.array([x0], np.float32), "x1": np.array([x1], np.float32)}
    return Case(model, policy(white=[op]), [feed], saturate)


# Rule S8.4: (case, whether the node is an offender). The output of each is finite, or no float.
CONVERTED = {
    "a divisor": (one_operator("Div", [3.0], [1e5]), True),
    "a function with a bound": (one_operator("Sigmoid", [1e6], [0.0]), True),
    "a negative value": (one_operator("Relu", [-1e5], [0.0]), True),
    "the place of the largest value": (one_operator("ArgMax", [7e4, 1e5], [0.0, 0.0], axis=1), True),
    "an order": (one_operator("Less", [7e4], [8e4]), True),
    "an order that stays right": (one_operator("Greater", [7e4], [1.0]), True),
    "equality": (one_operator("Equal", [7e4], [8e4]), True),
    "a mean that is clamped": (one_operator("ReduceMean", [2e5, 1, 1, 1], [0.0] * 4, saturate=True), True),
    "a bound in saturate mode": (one_operator("Tanh", [1e6], [0.0], saturate=True), True),
    "the smallest value that overflows": (one_operator("Tanh", [65520.0], [0.0]), True),
    "the largest value that does not": (one_operator("Tanh", [65519.996], [0.0]), False),
    "a value that underflows": (one_operator("Tanh", [1e-9], [0.0]), False),
    "an infinity of the data": (one_operator("Sigmoid", [np.inf], [0.0]), False),
    "an infinity of the data in saturate mode": (one_operator("Sigmoid", [np.inf], [0.0], saturate=True), False),
    "a mask": (one_operator("Softmax", [1.0, -3.4e38], [0.0, 0.0], axis=-1), False),
    "a mask in saturate mode": (one_operator("Softmax", [1.0, -3.4e38], [0.0, 0.0], saturate=True, axis=-1), False),
    "no mask, because both signs occur": (one_operator("Softmax", [3.4e38, -3.4e38], [0.0, 0.0], axis=-1), True),
    "a mask and an infinity": (one_operator("Softmax", [1.0, -np.inf, -3.4e38], [0.0] * 3, axis=-1), False),
    "a mask and a value that is lost": (one_operator("Sigmoid", [1e5, -3.4e38], [0.0, 0.0]), True),
}


@pytest.mark.parametrize("name", CONVERTED)
def test_a_conversion_that_overflows_makes_its_reader_an_offender(name: str) -> None:
    case, offends = CONVERTED[name]
    report = compare_with_reference(case)
    assert {f.name for f in report.nodes if f.first} == ({"n0"} if offends else set())
    assert report.exception_rate == offends


def test_only_low_readers_of_the_converted_tensor_are_offenders() -> None:
    """Rule S8.4: a reader in high precision and the reader of another tensor are no offenders."""
    read = {"n0": ("Relu", "x0"), "n1": ("Tanh", "x0"), "n2": ("Sigmoid", "x0"), "n3": ("Relu", "x1")}
    nodes = [helper.make_node(op, [x], [f"t{name}"], name=name) for name, (op, x) in read.items()]
    feed = {"x0": np.array([[-1e5]], np.float32), "x1": np.array([[-6e4]], np.float32)}
    report = compare_with_reference(
        Case(build_model(nodes, [], (1, 1)), policy(white=["Relu", "Tanh"], black=["Sigmoid"]), [feed], False)
    )
    assert {f.name for f in report.nodes if f.first} == {"n0", "n1"}


@pytest.mark.parametrize(("x1", "expected"), [(np.nan, "inconclusive"), (1.0, "pass")])
def test_a_batch_of_nan_is_no_evidence(x1: float, expected: str) -> None:
    """Rule S8.28: the order of NaN is no evidence, but that of NaN and a number is."""
    assert compare_with_reference(one_operator("Less", [np.nan], [x1])).verdict == expected


def test_large_values_of_both_signs_are_no_nan() -> None:
    nodes = [
        helper.make_node("Neg", ["x0"], ["t0"], name="n0"),
        helper.make_node("Mul", ["x1", "x1"], ["t1"], name="n1"),
    ]
    model = build_model(nodes, [], (2, 8))
    large = np.repeat(np.array([[3e38], [-3e38]], np.float32), 8, axis=1)
    report = mixlist.check(model, policy(white=["Mul"], black=["Neg"]), [{"x0": large, "x1": np.ones_like(large)}])
    assert report.nodes == () and report.exception_rate == 0
