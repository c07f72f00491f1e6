"""Converted inputs (operands) are judged like outputs: a finding names the reader and the operand (Rule S8.4)."""

from __future__ import annotations

import io
import json
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

import mixlist
from mixlist.checker.result import CheckReport, NodeFinding
from mixlist.model import dtypes
from mixlist.model.low_precision import overflow_bound, round_to_low_type
from mixlist.show.check_document import finding_texts
from mixlist.show.html_page import render_document
from tests.support.builders import model, policy
from tests.support.package import check_document, data_folder, write_document

SCHEMA_VALIDATOR = Draft202012Validator(json.loads((data_folder("schemas") / "check.json").read_text("utf-8")))
F32 = np.float32


def floats(*values: float) -> np.ndarray[Any, Any]:
    return np.array(values, F32)


def checked(text: str, *feeds: dict[str, Any], white: str = "", black: str = "", **options: Any) -> CheckReport:
    mode = options.pop("mode", "mixed_float16")
    lists = policy(white=white.split(), black=black.split(), mode=mode)
    return mixlist.check(model(text), lists, list(feeds), **options)


def operand_findings(report: CheckReport) -> dict[tuple[str, str], NodeFinding]:
    """Return the findings of converted inputs by scope/node and input."""
    return {(str(n.ref), n.input): n for n in report.nodes if n.input}


# The output of each is finite in both models, or is no float.
OFFENDERS: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "Div": ("g (float[1] x, float[1] d) => (float[1] y) { [v] y = Div(x, d) }",
            {"x": floats(3), "d": floats(1e5)}, "Div", "d"),
    "Sigmoid": ("g (float[1] x) => (float[1] y) { [v] y = Sigmoid(x) }", {"x": floats(1e6)}, "Sigmoid", "x"),
    "ArgMax": ("g (float[2] x) => (int64[1] y) { [v] y = ArgMax<axis=0>(x) }",
               {"x": floats(7e4, 1e5)}, "ArgMax", "x"),
    "Less": ("g (float[1] a, float[1] b) => (bool[1] y) { [v] y = Less(a, b) }",
             {"a": floats(1), "b": floats(8e4)}, "Less", "b"),
}  # fmt: skip


@pytest.mark.parametrize("name", OFFENDERS)
def test_an_operand_that_overflows_fails_although_the_output_is_finite(name: str) -> None:
    """Rule S8.4: Converted operands are observed."""
    text, feed, white, read = OFFENDERS[name]
    report = checked(text, feed, white=white)
    assert (report.verdict, report.exception_rate) == ("fail", 1.0)
    finding = operand_findings(report)["v", read]
    assert (finding.kind, finding.first, finding.tensor, finding.max_abs_low) == ("overflow", True, read, np.inf)
    assert finding.max_abs_fp32 == max(abs(float(value)) for value in feed[read])
    assert white in finding.suggestion and "white" in finding.source
    assert not any("no node is low" in warning.message for warning in report.warnings)
    small = {name: value * F32(1e-3) for name, value in feed.items()}
    assert checked(text, small, white=white).verdict == "pass"


def test_lost_values_are_counted() -> None:
    """Rule S8.4."""
    text, _, white, _ = OFFENDERS["ArgMax"]
    report = checked(text.replace("float[2]", "float[5]"), {"x": floats(7e4, 1e5, 1, -2e5, 65519.99)}, white=white)
    assert operand_findings(report)["v", "x"].count == 3


@pytest.mark.parametrize("black", ["z = Pow(s, two)", "p = Pow(s, two) d = Sub(s, s) z = Add(p, d)"])
def test_an_operand_behind_an_overflow_shows_the_values_of_the_reference(black: str) -> None:
    """Rule S8.4: [inf, 1e8, 1] and [nan, 1e8, 1] lose 1e8 in Sigmoid; what is not finite comes from s."""
    text = f"""g (float[3] x) => (float[3] y) <float two = {{2}}>
      {{ [s] s = Mul(x, x) {black} [v] y = Sigmoid(z) }}"""
    report = checked(text, {"x": floats(300, 100, 1)}, white="Mul Sigmoid", black="Pow Sub Add")
    finding = operand_findings(report)["v", "z"]
    assert (finding.kind, finding.first, finding.count) == ("overflow", True, 1)
    assert finding.max_abs_fp32 == pytest.approx(8.1e9)


def test_operands_saturate() -> None:
    """Rule S8.4: a mean of 50000 becomes 16377."""
    text = "g (float[4] x) => (float[1] y) { [v] y = ReduceMean<axes=[0]>(x) }"
    report = checked(text, {"x": floats(2e5, 1, 1, 1)}, white="ReduceMean", overflow_mode="saturate")
    finding = operand_findings(report)["v", "x"]
    assert (report.verdict, finding.kind, finding.first) == ("fail", "saturated", True)
    assert (finding.max_abs_low, finding.count) == (65504.0, 1)


@pytest.mark.parametrize(
    ("value", "kind"),
    [(65519.996, None), (65520.0, "overflow"), (-65520.0, "overflow"), (32740.0, None), (2.0**-13, None),
     (2.0**-15, "underflow"), (1e-9, "underflow"), (np.inf, None), (np.nan, None)],
)  # fmt: skip
def test_operands_have_the_thresholds_of_outputs(value: float, kind: str | None) -> None:
    """Rule S8.4: an underflow never fails; a value that was infinite or NaN before its conversion is no finding."""
    report = checked("g (float[2] x) => (float[2] y) { [v] y = Tanh(x) }", {"x": floats(value, 0)}, white="Tanh",
                     limits=mixlist.Limits(normalized=None, cosine=None))  # fmt: skip
    findings = operand_findings(report)
    assert (findings["v", "x"].kind if findings else None) == kind
    assert report.verdict == ("fail" if kind == "overflow" else "pass")


def test_a_lost_value_that_an_infinity_or_a_mask_hides_is_found() -> None:
    """Rule S8.4: the range shows only the larger value."""
    text = "g (float[2] x) => (float[2] y) { [v] y = Sigmoid(x) }"
    for larger in (-np.inf, -3.4e38):
        report = checked(text, {"x": floats(-1e5, larger)}, white="Sigmoid")
        assert operand_findings(report)["v", "x"].kind == "overflow", larger
    assert checked(text, {"x": floats(1, -np.inf)}, white="Sigmoid").nodes == ()
    assert operand_findings(checked(text, {"x": floats(1, -3.4e38)}, white="Sigmoid"))["v", "x"].kind == "intended"
    both_signs = checked(text, {"x": floats(3.4e38, -3.4e38)}, white="Sigmoid")
    assert operand_findings(both_signs)["v", "x"].kind == "overflow"
    nan = checked(text.replace("[2]", "[3]"), {"x": floats(1e5, np.nan, np.inf)}, white="Sigmoid")
    assert operand_findings(nan)["v", "x"].kind == "overflow"


MASK = """g (float[1,4] s, bool[1,4] b) => (float[1,4] y) <float k = {-1e9}, float z = {0}> {
  [w] w = Where(b, z, k) [a] a = Add(s, w) [v] y = Softmax(a) }"""


def test_the_operand_of_a_mask_is_intended() -> None:
    """Rule S8.4: -1e9 of a proven mask may be lost, a score of 80000 may not."""
    feed = {"s": floats(1, 2, 3, 4).reshape(1, 4), "b": np.array([[True, True, False, True]])}
    report = checked(MASK, feed, white="Add Softmax")
    assert report.verdict == "pass"
    assert {key: f.kind for key, f in operand_findings(report).items()} == {("a", "w"): "intended"}
    feed["s"] = floats(1, 2, 8e4, 4).reshape(1, 4)
    overflow_report = checked(MASK, feed, white="Add Softmax")
    assert (
        operand_findings(overflow_report)["a", "s"].kind == "overflow"
        and operand_findings(overflow_report)["a", "w"].kind == "intended"
    )


def test_only_low_readers_are_named() -> None:
    """Rule S8.4: every low-precision node that reads the converted tensor is an offender."""
    text = """g (float[2] x) => (float[2] a, float[2] b, float[2] c) {
      [h] h = Mul(x, x) [one] a = Tanh(h) [two] b = Sigmoid(h) [three] c = Neg(h) }"""
    report = checked(text, {"x": floats(300, 1)}, white="Tanh Sigmoid", black="Mul Neg")
    assert operand_findings(report).keys() == {("one", "h"), ("two", "h")}
    assert {n.name for n in report.nodes if n.first} == {"one", "two"}


def test_a_reader_in_a_branch_has_a_finding_only_if_it_runs() -> None:
    """Rule S8.4: a node that did not run read nothing, although the Cast is outside of the branch."""
    text = """g (float[2] x, bool go) => (int64[1] y) <int64[1] none = {-1}> {
      [i] y = If(go) <then_branch = t () => (int64[1] a) { [big] a = ArgMax<axis=0>(x) },
                      else_branch = e () => (int64[1] d) { [small] d = Identity(none) }> }"""
    feed = {"x": floats(7e4, 1e5), "go": np.array(True)}
    assert operand_findings(checked(text, feed, white="ArgMax")).keys() == {("i/then_branch/big", "x")}
    assert checked(text, feed | {"go": np.array(False)}, white="ArgMax").nodes == ()


LOOP = """g (float[1] x, int64 m) => (float[1] y, float[k,1] all) <bool go = {1}, float[1] ten = {10}> {
  [l] y, all = Loop(m, go, x) <body = b (int64 i, bool c, float[1] s) => (bool c, float[1] t, float[1] u) {
     [grow] t = Mul(s, ten) [read] u = Sigmoid(s) }> }"""


def test_a_loop_state_is_judged_in_the_iteration_that_reads_it() -> None:
    """Rule S8.4: the state 100000 is read in the sixth iteration; no node reads the state of the last one."""
    for turns, kind in ((6, "overflow"), (5, None), (0, None)):
        report = checked(LOOP, {"x": floats(1), "m": np.array(turns)}, white="Sigmoid", black="Mul")
        findings = operand_findings(report)
        assert (findings[("l/body/read", "s")].kind if kind else findings.get(("l/body/read", "s"))) == kind, turns
        assert (report.verdict == "fail") == bool(kind)


def test_a_loop_state_that_is_infinite_at_the_end_does_not_hide_an_overflow() -> None:
    """Rule S8.4: at the end the state is infinite in float32 too; 1e5 was converted before."""
    report = checked(LOOP, {"x": floats(1), "m": np.array(45)}, white="Sigmoid", black="Mul")
    assert operand_findings(report)["l/body/read", "s"].kind == "overflow"


def test_control_flow_reads_the_values_that_it_passes_on() -> None:
    """Rule S8.4: a Loop counts as the reader of the value that becomes its low state, also without iterations."""
    text = """g (float[1] x, int64 m) => (float[1] y) <bool go = {1}> {
      [a] a = Abs(x) [l] y = Loop(m, go, a) <body = b (int64 i, bool c, float[1] s) => (bool c, float[1] t) {
         [n] t = Neg(s) }> }"""
    low = text.replace("[l] y = Loop(m, go, a)", "[k] h = Cast<to=10>(a) [l] z = Loop(m, go, h)")
    low = low.replace("float[1] s", "float16[1] s").replace("float[1] t", "float16[1] t")
    low = low.replace("}> }", "}> [up] y = Cast<to=1>(z) }")
    for turns in (0, 2):
        feed = {"x": floats(1e5), "m": np.array(turns)}
        report = mixlist.check(model(text), policy(), [feed], mixed_model=model(low))
        assert operand_findings(report)["l", "a"].kind == "overflow"


def test_an_authored_cast_that_only_the_mixed_model_reads_is_a_conversion() -> None:
    """Rule S8.4: the Cast is the author's, but the node reads it only in the mixed model."""
    text = """g (float[2] x) => (float16[2] h, int64[1] y) {
      [a] a = Abs(x) [c] h = Cast<to=10>(a) [v] y = ArgMax<axis=0>(a) }"""
    report = checked(text, {"x": floats(7e4, 1e5)}, white="ArgMax", black="Abs", reference_type="float32")
    assert ("v", "a") in operand_findings(report)
    assert {n.name for n in report.nodes if n.first} == {"c", "v"}


def test_operands_with_against() -> None:
    """Rule S8.4: with --mixed-model, also a file whose Casts mixlist did not make, and inputs that are declared low."""
    original = model("g (float[2] x) => (int64[1] y) { [a] a = Abs(x) [v] y = ArgMax<axis=0>(a) }")
    feed = {"x": floats(7e4, 1e5)}
    by_hand = model(
        "g (float[2] x) => (int64[1] y) { [a] a = Abs(x) [k] h = Cast<to=10>(a) [v] y = ArgMax<axis=0>(h) }"
    )
    declared = model("g (float16[2] x) => (int64[1] y) { [a] a = Abs(x) [v] y = ArgMax<axis=0>(a) }")
    rewritten = mixlist.rewrite(original, mixlist.resolve(original, policy(white=["ArgMax"], black=["Abs"]))).model
    for mixed, reader in ((by_hand, ("v", "a")), (declared, ("a", "x")), (rewritten, ("v", "a"))):
        report = mixlist.check(original, policy(), [feed], mixed_model=mixed)
        assert report.verdict == "fail"
        finding = operand_findings(report)[reader]
        assert (finding.kind, finding.count, finding.source, finding.list) == ("overflow", 2, "", "none")
        assert "low_by" not in {name for name, text in finding_texts(finding, report).items() if text}


def test_bfloat16_operands() -> None:
    """Rule S8.4: bfloat16 holds 1e38, and rounds 3.399e38 to infinity."""
    text = "g (float[1] x) => (float[1] y) { [v] y = Sigmoid(x) }"
    assert operand_findings(checked(text, {"x": floats(1e38)}, white="Sigmoid", mode="mixed_bfloat16")) == {}
    report = checked(text, {"x": floats(3.4e38)}, white="Sigmoid", mode="mixed_bfloat16")
    assert operand_findings(report)["v", "x"].kind == "intended"  # no quantity has 1e37


def test_every_report_names_the_input() -> None:
    """Rule S8.4: text, JSON and HTML."""
    text, feed, white, _ = OFFENDERS["Div"]
    report = checked(text, feed, white=white)
    (node,) = [n for n in report.to_json()["nodes"] if n["first"]]
    SCHEMA_VALIDATOR.validate(report.to_json())
    assert (node["name"], node["input"], node["tensor"], node["max_abs_low"]) == ("v", "d", "d", "inf")
    stream = io.StringIO()
    write_document(check_document(report), stream)
    assert (
        "overflow  v (Div)\n      input:           d: up to 100000 before its conversion, inf in float16"
        in stream.getvalue()
    )
    assert "<dt>input</dt>" in render_document(check_document(report))


@given(st.floats(width=32, allow_nan=False))
def test_rounding_is_that_of_the_types(number: float) -> None:
    for elem, dtype in ((dtypes.FLOAT16, np.float16), (dtypes.BFLOAT16, ml_dtypes.bfloat16)):
        with np.errstate(all="ignore"):
            expected = float(np.array(number, F32).astype(dtype))
        assert round_to_low_type(number, elem) == expected
        assert (abs(number) >= overflow_bound(elem)) == np.isinf(expected)


def test_the_model_is_unchanged() -> None:
    text, feed, white, _ = OFFENDERS["Div"]
    source = model(text)
    before = source.SerializeToString(deterministic=True)
    mixlist.check(source, policy(white=[white]), [feed])
    assert isinstance(source, onnx.ModelProto) and source.SerializeToString(deterministic=True) == before
