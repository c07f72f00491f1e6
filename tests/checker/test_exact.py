"""Compare verdicts with a reference that is written from the rules alone, in numpy (Rules S8.1 to S8.21).

Graphs are random. A case whose verdict depends on the order of a sum or on how a runtime approximates a function is
left out, and so is a decision at a limit that rounding could move. MIXLIST_EXAMPLES sets the number of examples;
MIXLIST_SEED, where set, makes the run random instead of repeatable.
"""

from __future__ import annotations

import os

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import HealthCheck, given, note, reject, settings
from onnx import helper, numpy_helper

import mixlist
from tests.support.builders import policy
from tests.support.exact_graphs import Case, cases, masked_cases, whole
from tests.support.exact_operators import LOW, Ambiguous
from tests.support.exact_verdict import Findings, Pair, exception_rate, judge, magnitudes, pair, run, verdict

EXAMPLES = int(os.environ.get("MIXLIST_EXAMPLES", "80"))
PROFILE = settings(deadline=None, derandomize="MIXLIST_SEED" not in os.environ, suppress_health_check=list(HealthCheck))


def compare(case: Case) -> mixlist.CheckReport:
    """Compare verdict, offenders, the kind of each output in each batch, magnitudes and exception rate."""
    plan = mixlist.resolve(case.model, case.rules)
    mixed = mixlist.rewrite(case.model, plan).model
    assert isinstance(mixed, onnx.ModelProto)
    batches = [pair(case.model, mixed, feed, case.saturate) for feed in case.feeds]
    found = judge(batches, case.saturate)
    clamp = LOW[case.rules.mode.low][1] if case.saturate else np.inf
    expected = verdict(batches, found, clamp)
    report = mixlist.check(case.model, case.rules, case.feeds, overflow_mode="saturate" if case.saturate else "inf")
    agree(case, report, batches, found)
    assert report.verdict == expected
    return report


def agree(case: Case, report: mixlist.CheckReport, batches: list[Pair], found: list[Findings]) -> None:
    """Compare the findings of the report with those of the reference."""
    expected: dict[tuple[str, ...], list[int]] = {}
    for number, findings in enumerate(found):
        for key in (*findings.outputs, *findings.operands):
            expected.setdefault(key, []).append(number)
    shown = [f for f in report.nodes if f.kind != "internal-risk"]
    keys = {f: (f.name, f.input, f.kind) if f.input else (f.tensor, f.kind) for f in shown}
    assert {keys[f]: list(f.batches) for f in shown} == expected
    assert {f.name for f in report.nodes if f.first} == set().union(*(f.first for f in found))
    for f in shown:
        if not f.input:
            for largest, side in ((f.max_abs_fp32, "reference"), (f.max_abs_low, "mixed")):
                low, high = magnitudes(getattr(batch, side)[f.tensor] for batch in batches if not batch.is_ignored)
                assert low <= largest <= high or (np.isnan(low) and np.isnan(largest)), (f, side)
    assert report.exception_rate == exception_rate(batches, found)


def compare_unless_ambiguous(case: Case) -> None:
    note(repr(case))
    try:
        compare(case)
    except Ambiguous:
        reject()


@settings(PROFILE, max_examples=EXAMPLES)
@given(case=cases())
def test_every_verdict_is_that_of_the_reference(case: Case) -> None:
    compare_unless_ambiguous(case)


@settings(PROFILE, max_examples=EXAMPLES // 2)
@given(case=masked_cases())
def test_every_verdict_on_masked_scores_is_that_of_the_reference(case: Case) -> None:
    """Random cases for Rules S8.11 and S8.12."""
    compare_unless_ambiguous(case)


@settings(PROFILE, max_examples=EXAMPLES // 2)
@given(case=cases())
def test_the_operators_hold_what_onnx_runtime_computes(case: Case) -> None:
    """Compare each tensor of a float32 run with the bounds of the reference, and with its bits where certain."""
    names = [node.output[0] for node in case.model.graph.node]
    exposed = onnx.ModelProto()
    exposed.CopyFrom(case.model)
    del exposed.graph.output[:]
    exposed.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names)
    exposed = onnx.shape_inference.infer_shapes(exposed)
    session = onnxruntime.InferenceSession(exposed.SerializeToString(), providers=["CPUExecutionProvider"])
    for feed in case.feeds:
        try:
            expected = run(case.model, feed, False)
        except Ambiguous:
            reject()
        for name, y in zip(names, session.run(names, feed), strict=True):
            finite = np.isfinite(expected[name].value)
            different = np.abs(y[finite].astype(np.float64) - expected[name].value[finite])
            assert (different <= expected[name].radius[finite]).all(), name
            assert np.array_equal(y[~finite], expected[name].value[~finite], equal_nan=True), name


def one(op: str, x0: list[float], x1: list[float], *, saturate: bool = False, **attributes: object) -> Case:
    """Return a case of one white operator on inputs of one row."""
    binary = op in ("Div", "Less", "Greater", "Equal")
    weights = [numpy_helper.from_array(np.array([1], np.int64), "axis")] if op.startswith("Reduce") else []
    inputs = ["x0", "x1"] if binary else ["x0", *(w.name for w in weights)]
    model = whole([helper.make_node(op, inputs, ["y"], name="n0", **attributes)], weights, (1, len(x0)))
    feed = {"x0": np.array([x0], np.float32), "x1": np.array([x1], np.float32)}
    return Case(model, policy(white=[op]), [feed], saturate)


# Rule S8.4: (case, whether the node is an offender). The output of each is finite, or no float.
CONVERTED = {
    "a divisor": (one("Div", [3.0], [1e5]), True),
    "a function with a bound": (one("Sigmoid", [1e6], [0.0]), True),
    "a negative value": (one("Relu", [-1e5], [0.0]), True),
    "a place": (one("ArgMax", [7e4, 1e5], [0.0, 0.0], axis=1), True),
    "an order": (one("Less", [7e4], [8e4]), True),
    "an order that is right": (one("Greater", [7e4], [1.0]), True),
    "equality": (one("Equal", [7e4], [8e4]), True),
    "a mean that is clamped": (one("ReduceMean", [2e5, 1, 1, 1], [0.0] * 4, saturate=True), True),
    "a bound in saturate mode": (one("Tanh", [1e6], [0.0], saturate=True), True),
    "the smallest value that overflows": (one("Tanh", [65520.0], [0.0]), True),
    "the largest value that does not": (one("Tanh", [65519.996], [0.0]), False),
    "a value that underflows": (one("Tanh", [1e-9], [0.0]), False),
    "an infinity of the data": (one("Sigmoid", [np.inf], [0.0]), False),
    "an infinity of the data in saturate mode": (one("Sigmoid", [np.inf], [0.0], saturate=True), False),
    "a mask": (one("Softmax", [1.0, -3.4e38], [0.0, 0.0], axis=-1), False),
    "a mask in saturate mode": (one("Softmax", [1.0, -3.4e38], [0.0, 0.0], saturate=True, axis=-1), False),
    "no mask, since both signs occur": (one("Softmax", [3.4e38, -3.4e38], [0.0, 0.0], axis=-1), True),
    "a mask beside an infinity": (one("Softmax", [1.0, -np.inf, -3.4e38], [0.0] * 3, axis=-1), False),
    "a mask and a value that is lost": (one("Sigmoid", [1e5, -3.4e38], [0.0, 0.0]), True),
}


@pytest.mark.parametrize("name", CONVERTED)
def test_a_conversion_that_overflows_is_an_offense(name: str) -> None:
    case, offends = CONVERTED[name]
    report = compare(case)
    assert {f.name for f in report.nodes if f.first} == ({"n0"} if offends else set())
    assert report.exception_rate == offends


def test_every_low_reader_of_a_converted_tensor_is_an_offender() -> None:
    """Expect no offense of a reader in high precision, nor of the reader of another tensor: Rule S8.4."""
    read = {"n0": ("Relu", "x0"), "n1": ("Tanh", "x0"), "n2": ("Sigmoid", "x0"), "n3": ("Relu", "x1")}
    nodes = [helper.make_node(op, [x], [f"t{name}"], name=name) for name, (op, x) in read.items()]
    feed = {"x0": np.array([[-1e5]], np.float32), "x1": np.array([[-6e4]], np.float32)}
    report = compare(Case(whole(nodes, [], (1, 1)), policy(white=["Relu", "Tanh"], black=["Sigmoid"]), [feed], False))
    assert {f.name for f in report.nodes if f.first} == {"n0", "n1"}


@pytest.mark.parametrize(("x1", "expected"), [(np.nan, "inconclusive"), (1.0, "pass")])
def test_a_batch_of_nan_is_no_evidence(x1: float, expected: str) -> None:
    """Rule S8.28: the order of NaN is no evidence, but that of NaN and a number is."""
    assert compare(one("Less", [np.nan], [x1])).verdict == expected


def test_large_values_of_both_signs_are_no_nan() -> None:
    nodes = [
        helper.make_node("Neg", ["x0"], ["t0"], name="n0"),
        helper.make_node("Mul", ["x1", "x1"], ["t1"], name="n1"),
    ]
    model = whole(nodes, [], (2, 8))
    large = np.repeat(np.array([[3e38], [-3e38]], np.float32), 8, axis=1)
    report = mixlist.check(model, policy(white=["Mul"], black=["Neg"]), [{"x0": large, "x1": np.ones_like(large)}])
    assert report.nodes == () and report.exception_rate == 0
