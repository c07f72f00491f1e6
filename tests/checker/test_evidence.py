"""A verdict needs values that were compared: NaN of the reference and empty outputs are no evidence (Rule S8.21)."""

from __future__ import annotations

import io
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator

import mixlist
from mixlist.checker.accuracy import OutputAccuracy
from mixlist.checker.limits import Limits, missing_evidence
from mixlist.checker.result import CheckReport, OutputFinding
from mixlist.show.html_page import render_document
from mixlist.show.tune_document import tune_document
from tests.checker.test_refused_batches import RULES
from tests.checker.test_refused_batches import TEXT as REFUSED
from tests.support.builders import model, policy
from tests.support.local_workers import InProcessExecutor
from tests.support.package import check_document, data_folder, write_document

SCHEMA_VALIDATOR = Draft202012Validator(json.loads((data_folder("schemas") / "check.json").read_text("utf-8")))
TWO = "g (float[N,2] x, float[N,2] z) => (float[N,2] y, float[N,2] u) { [m] y = Mul(x, x) [n] u = Mul(z, z) }"
ONE = np.ones((2, 2), np.float32)
LISTS = policy(white=["Mul"])
NAN, INF = math.nan, math.inf
NO_VALUE_COMPARED = (
    "no value was compared: every output is NaN in the reference, comes from NaN alone, or has no elements"
)
# This model makes finite values of NaN, as a GRU of ONNX Runtime does; z is a second input of the same size.
HIDES_NAN = """g (float[N,2] x, float[N,2] z, int64[N,2] i) => (float[N,2] y, bool[N,2] b) <float[1] zero = {0}> {
  [m] m = Mul(x, x) [c] b = IsNaN(m) [w] w = Where(b, zero, m) [f] f = Cast<to=1>(i) [n] y = Add(w, f) }"""


def checked(*feeds: dict[str, Any], **options: Any) -> CheckReport:
    return mixlist.check(model(TWO), LISTS, list(feeds), **options)


def with_nan(count: int) -> np.ndarray[Any, Any]:
    """Return four ones, of which ``count`` are NaN."""
    flat = np.ones(4, np.float32)
    flat[:count] = NAN
    return flat.reshape(2, 2)


def render_text(report: CheckReport) -> str:
    stream = io.StringIO()
    write_document(check_document(report), stream)
    return stream.getvalue()


def test_nan_everywhere_is_inconclusive_in_every_format() -> None:
    """Rule S8.21: No evidence is inconclusive."""
    report = checked({"x": with_nan(4), "z": with_nan(4)})
    assert report.verdict == "inconclusive"
    assert report.reasons == (NO_VALUE_COMPARED,)
    assert [(o.ignored_share, o.passed, o.verdict) for o in report.outputs] == [(1.0, False, "inconclusive")] * 2
    content = report.to_json()
    SCHEMA_VALIDATOR.validate(content)
    measures = ("max_abs_error", "max_rel_error", "normalized_error", "cosine", "snr_db", "mismatches", "top1")
    assert {(name, o[name]) for o in content["outputs"] for name in measures} == {(name, None) for name in measures}
    assert content["verdict"] == "inconclusive" and [o["ignored_share"] for o in content["outputs"]] == [1.0, 1.0]
    text = render_text(report)
    assert text.startswith("INCONCLUSIVE  ") and "inconclusive: max_ignored" in text and "--max-ignored 0.5" in text
    (row,) = [line.split() for line in text.splitlines() if line.split()[:1] == ["y"]]
    assert row == ["y", *"-------", "100", "%", "inconclusive:", "max_ignored"]
    page = render_document(check_document(report))
    assert "<title>INCONCLUSIVE: " in page and 'class="tag warning">! inconclusive: max_ignored' in page
    assert re.search(
        r'class="name"[^>]*>y</th>(\s*<td class="number"[^>]*>-</td>){7}\s*<td class="number"[^>]*>100 %', page
    )
    assert ">PASS<" not in page and "pass</span>" not in page


def check_model_that_hides_nan(*feeds: tuple[Any, Any], **options: Any) -> CheckReport:
    batches = [{"x": x, "z": z, "i": np.full(x.shape, 300 + at)} for at, (x, z) in enumerate(feeds)]
    return mixlist.check(model(HIDES_NAN), LISTS, batches, **options)


def test_values_that_come_from_nan_alone_are_not_compared() -> None:
    """Rule S8.28: A batch of NaN is no evidence."""
    nan, empty = with_nan(4), np.ones((0, 2), np.float32)
    report = check_model_that_hides_nan((nan, nan))
    assert (report.verdict, report.reasons, report.exception_rate) == ("inconclusive", (NO_VALUE_COMPARED,), 0)
    assert [(o.ignored_share, o.verdict) for o in report.outputs] == [(1.0, "inconclusive")] * 2
    assert [warning.message for warning in report.warnings] == [
        *(f"input {name!r}: 4 of 4 values are NaN (reported once for this input)" for name in "xz"),
        *(f"4 of 4 values of {name!r} do not count: all float inputs of their batches are NaN" for name in "yb"),
    ]
    assert check_model_that_hides_nan((nan, empty)).verdict == "inconclusive"  # an input without values does not count
    assert check_model_that_hides_nan((nan, ONE)).verdict == "pass"
    assert check_model_that_hides_nan((with_nan(3), nan)).verdict == "pass"
    both = check_model_that_hides_nan((nan, nan), (ONE, ONE))
    assert (both.verdict, [o.ignored_share for o in both.outputs]) == ("pass", [0.5, 0.5])
    assert check_model_that_hides_nan((nan, nan), (ONE, ONE), max_ignored=0.4).reasons == (
        "50 % of output 'y' is NaN in the reference or comes from NaN alone, the limit is 40 %",
        "50 % of output 'b' is NaN in the reference or comes from NaN alone, the limit is 40 %",
    )


def test_a_batch_of_nan_is_not_judged() -> None:
    """Rule S8.28: such a batch has no findings and breaks no limit, and the exception rate leaves it out."""
    nan = with_nan(4)
    report = check_model_that_hides_nan((nan, nan), (300 * ONE, ONE), (ONE, ONE))
    assert (report.verdict, report.batches, report.exception_rate) == ("fail", 3, 0.5)
    assert report.reasons[0].startswith("1 of 2 batches overflow")
    assert {batch for node in report.nodes for batch in node.batches} == {1}
    # The batch of NaN has an overflow that does not come from NaN; every other batch would have it too.
    text = "g (float[N,2] x, int64[N,2] i) => (float[N,2] y) { f = Cast<to=1>(i) [h] h = Mul(f, f) [a] y = Add(h, x) }"
    feed = {"x": nan, "i": np.full((2, 2), 300)}
    assert mixlist.check(model(text), LISTS, [feed]).verdict == "inconclusive"
    assert mixlist.check(model(text), LISTS, [feed], layerwise=True).nodes == ()


def test_a_search_does_not_compare_values_that_come_from_nan() -> None:
    """Rule S8.28: trials ignore a batch of NaN as a check does. Judged, a low Add would fail on it."""
    text = HIDES_NAN.replace("[n] y = Add(w, f)", "[d] d = Div(w, far) [n] y = Add(d, f)")
    text = text.replace("zero = {0}", "zero = {0}, float[1] far = {1000}")
    batch = {"x": 300 * ONE, "z": ONE, "i": np.zeros((2, 2), np.int64)}
    nan = {"x": with_nan(4), "z": with_nan(4), "i": np.full((2, 2), 2049)}  # 2049 is 2048 in float16
    lists = policy(white=["Mul", "Add"], black=["Div"])
    limits = Limits(max_abs=0.5)
    report = mixlist.tune(model(text), lists, [batch, nan], executor=InProcessExecutor(), limits=limits)
    assert (report.verdict, [edit.op for edit in report.edits]) == ("pass", ["Mul"])
    assert mixlist.tune(model(HIDES_NAN), lists, [nan], executor=InProcessExecutor()).verdict == "inconclusive"


def test_batches_without_elements_are_inconclusive() -> None:
    """Rule S8.19: the ignored share of an output without values is 1."""
    empty = np.ones((0, 2), np.float32)
    report = checked({"x": empty, "z": empty}, {"x": empty, "z": empty})
    assert (report.verdict, [o.ignored_share for o in report.outputs]) == ("inconclusive", [1.0, 1.0])
    with_values = checked({"x": empty, "z": empty}, {"x": ONE, "z": ONE})
    assert (with_values.verdict, [o.ignored_share for o in with_values.outputs]) == ("pass", [0.0, 0.0])


@pytest.mark.parametrize(("count", "verdict"), [(0, "pass"), (2, "pass"), (3, "inconclusive")])
def test_too_large_an_ignored_share_is_inconclusive(count: int, verdict: str) -> None:
    """Rule S8.21: an output may have a NaN in at most half of its values by default."""
    report = checked({"x": with_nan(count), "z": ONE})
    assert report.verdict == verdict
    assert [o.ignored_share for o in report.outputs] == [count / 4, 0.0]
    if verdict == "inconclusive":
        assert report.reasons == (
            "75 % of output 'y' is NaN in the reference or comes from NaN alone, the limit is 50 %",
        )
        assert [o.verdict for o in report.outputs] == ["inconclusive", "pass"]


def test_max_ignored_sets_the_limit() -> None:
    """Rule S8.21."""
    feed = {"x": with_nan(3), "z": ONE}
    assert checked(feed, max_ignored=0.75).verdict == "pass"
    assert checked(feed, max_ignored=0.74).limits["max_ignored"] == 0.74
    all_nan = {"x": with_nan(4), "z": ONE}
    assert checked(all_nan, max_ignored=1.0).verdict == "pass"
    assert checked(all_nan).reasons == (
        "output 'y' was not compared: it is NaN in the reference, comes from NaN alone, or has no elements",
    )
    assert checked({"x": with_nan(4), "z": with_nan(4)}, max_ignored=1.0).verdict == "inconclusive"


def test_a_model_without_outputs_lacks_no_evidence() -> None:
    assert missing_evidence((), 0.5) == ()


def test_a_broken_limit_fails_in_spite_of_missing_evidence() -> None:
    """Rule S8.21: the verdict is inconclusive only if no limit breaks."""
    report = checked({"x": with_nan(4), "z": 300 * ONE})
    assert report.verdict == "fail"
    assert [o.verdict for o in report.outputs] == ["inconclusive", "fail"]


def test_equal_infinities_of_both_models_agree() -> None:
    """Rule S8.19: Equal infinities agree."""
    text = "g (float[2] x) => (float[2] y) <float[1] gap = {-inf}> { [a] y = Add(x, gap) }"
    proto = model(text.replace("-inf", "0"))
    proto.graph.initializer[0].float_data[:] = [-INF]
    report = mixlist.check(proto, policy(white=["Add"]), [{"x": np.zeros(2, np.float32)}])
    (output,) = report.outputs
    assert report.verdict == "pass" and (output.ignored_share, output.normalized_error) == (0.0, 0.0)
    saturating = mixlist.check(proto, policy(white=["Add"]), [{"x": np.zeros(2, np.float32)}], overflow_mode="saturate")
    assert saturating.verdict == "pass"  # the accelerator makes -65504 of -infinity


@pytest.mark.parametrize("mixed_value", [-INF, 5.0, NAN, 65504.0])
def test_a_value_other_than_the_infinity_of_the_reference_is_an_infinite_error(mixed_value: float) -> None:
    """Rule S8.19."""
    output = OutputAccuracy("y")
    output.add(np.array([INF, 1.0]), np.array([mixed_value, 1.0]))
    finding = output.finding(Limits())
    assert finding.failed_limits == ("normalized", "cosine") and finding.max_abs_error == INF
    (warning,) = output.warnings()
    assert warning.without_severity == (
        "ML603: 1 of 2 values of 'y' are infinite in the reference and not the same infinity in the mixed model"
    )


def test_a_saturated_value_agrees_with_an_infinity_of_its_sign() -> None:
    """Rule S8.19."""
    for mixed, agrees in [(65504.0, True), (INF, True), (-65504.0, False), (65472.0, False)]:
        output = OutputAccuracy("y", saturated_magnitude=65504.0)
        output.add(np.array([INF, 1.0]), np.array([mixed, 1.0]))
        assert output.finding(Limits()).passed == agrees, mixed


def test_a_value_computed_from_a_saturated_one_does_not_agree_with_infinity() -> None:
    """Rule S8.19: only the largest finite value agrees with infinity, not a float32 value beyond it."""
    text = """agraph (float[2] x) => (float[2] y) <float[2] c = {-180, 1}> {
        m = Identity(x)
        y = Sub(c, m)
    }"""
    feeds = [{"x": np.array([np.inf, 3], np.float32)}]
    report = mixlist.check(model(text), policy(white=["Identity"], black=["Sub"]), feeds, overflow_mode="saturate")
    assert report.verdict == "fail"
    assert "not the same infinity in the mixed model" in " ".join(map(str, report.warnings))


def test_merged_batches_are_ignored_together() -> None:
    """Rule S8.19: the share is over all batches."""
    all_ignored, half_ignored = OutputAccuracy("y"), OutputAccuracy("y")
    all_ignored.add(np.array([NAN, NAN]), np.array([NAN, 1.0]))
    half_ignored.add(np.array([NAN, 1.0]), np.array([NAN, 1.0]))
    all_ignored.merge(half_ignored)
    assert all_ignored.ignored_share == 0.75
    assert [warning.message for warning in all_ignored.warnings()] == [
        "3 of 4 values of 'y' are NaN in the reference and do not count; 1 of them are not NaN in the mixed model"
    ]


def test_outputs_of_different_shapes_fail_instead_of_being_inconclusive() -> None:
    output = OutputAccuracy("y")
    output.add(np.zeros(2), np.zeros(3))
    finding = output.finding(Limits(), 0.5)
    assert (finding.ignored_share, finding.verdict) == (0.0, "fail")
    assert missing_evidence([finding], 0.5) == ()


def test_an_inconclusive_search_writes_no_list(tmp_path: Path) -> None:
    """An inconclusive search writes no list."""
    nan = {"x": with_nan(4), "z": with_nan(4)}
    for number, feeds in ((2, [nan]), (1, [{"x": with_nan(4), "z": 300 * ONE}])):
        report = mixlist.tune(model(TWO), LISTS, feeds, executor=InProcessExecutor())
        assert (report.verdict, report.modify_mixlist, report.trials) == ("inconclusive", "", 0)
        stream = io.StringIO()
        write_document(tune_document(report), stream)
        text = stream.getvalue()
        assert text.startswith("INCONCLUSIVE  ")
        assert "adds an error of" not in text  # no list changes what can be compared
        assert ("no value was compared of output y" in text) == (number == 2)
        assert report.check is not None and [o.normalized_error for o in report.check.outputs].count(None) == number
        assert "normalized error 0" not in text
        with pytest.raises(mixlist.MixlistError, match="no list to write"):
            report.save(tmp_path / "list.json")


def test_an_output_without_compared_values_has_no_measures() -> None:
    """Rule S8.19: it has no mismatch either; the other output is judged as usual."""
    report = checked({"x": with_nan(4), "z": ONE / 3})
    not_compared, judged = report.outputs
    assert (not_compared.normalized_error, not_compared.cosine, not_compared.passed) == (None, None, False)
    assert judged.passed and judged.normalized_error is not None and 0 < judged.normalized_error < 1e-3
    assert checked({"x": with_nan(4), "z": ONE}, max_ignored=1).outputs[0].passed
    both = checked({"x": with_nan(4), "z": ONE}, {"x": ONE, "z": ONE}, max_ignored=1)
    assert [o.normalized_error for o in both.outputs] == [0.0, 0.0]
    refused = mixlist.check(model(REFUSED), RULES, [{"x": np.array([7.999], np.float32)}])
    assert refused.verdict == "fail"
    assert [(o.normalized_error, o.cosine, o.snr_db) for o in refused.outputs] == [(None, None, None)]
    assert check_model_that_hides_nan((with_nan(4), with_nan(4))).outputs[1].mismatches is None


def test_validation_data_of_nan_is_inconclusive() -> None:
    """Rule S8.21: the search finds a list, and its verdict is inconclusive."""
    validation_data = [{"x": with_nan(4), "z": with_nan(4)}]
    report = mixlist.tune(
        model(TWO), LISTS, [{"x": ONE, "z": ONE}], executor=InProcessExecutor(), validate_on=validation_data
    )
    assert report.verdict == "inconclusive" and report.modify_mixlist
    assert report.reasons[0].startswith("on the data of validate_on=...: no value was compared")


# By case: the nodes between ``x`` and ``y``, the constants, x, and what the reason says.
BROKEN = {
    "a quotient of zeros": ("[n] y = Div(x, x)", "", [0, 1], ("NaN", "n (Div)", "divides by zero")),
    "an epsilon of 0": (
        "s = ReduceSum <keepdims = 1> (x) a = Add(s, eps) r = Sqrt(a) [n] q = Div(x, r) y = Neg(q)",
        "float[1] eps = {0}",
        [0, 0],
        ("NaN", "n (Div)", "constant 'eps' before it is 0"),
    ),
    "a bound of 0": (
        "s = ReduceSum <keepdims = 1> (x) c = Clip(s, eps) p = Mul(s, c) [n] y = Div(x, p)",
        "float eps = {0}",
        [0, 0],
        ("NaN", "n (Div)", "constant 'eps' before it is 0"),
    ),
    "two nodes": (
        "[n] a = Div(x, x) [later] b = Log(x) y = Add(b, a)",
        "",
        [0, 1],
        ("NaN", "n (Div)", "divides by zero"),
    ),
    "an epsilon attribute of 0": (
        "[n] y = LayerNormalization <epsilon = 0.0> (x, one)",
        "float[2] one = {1, 1}",
        [3, 3],
        ("NaN", "n (LayerNormalization)", "its epsilon is 0"),
    ),
    "a mask over a whole row": (
        "b = Cast <to = 9> (x) w = Where(b, zero, gap) a = Add(x, w) [n] y = Softmax(a)",
        "float[1] zero = {0}, float[1] gap = {2}",
        [0, 0],
        ("NaN", "n (Softmax)", "constant 'gap' is -inf", "such as -1e4"),
    ),
    "a row of a table of masks": (
        "s = ReduceSum <keepdims = 0> (x) i = Cast <to = 7> (s) w = Gather(gap, i) a = Add(x, w) [n] y = Softmax(a)",
        "float[2,2] gap = {2, 2, 0, 0}",
        [0, 0],
        ("NaN", "n (Softmax)", "constant 'gap' is -inf", "such as -1e4"),
    ),
    "a mask far in front": (
        "b = Cast <to = 9> (x) w = Where(b, zero, gap) a = Add(x, w) p = Softmax(a) o = Sub(p, p) [n] y = Div(o, o)",
        "float[1] zero = {0}, float[1] gap = {2}",
        [1, 0],
        ("NaN", "n (Div)", "divides by zero"),
    ),
    "a reciprocal of zero": ("[n] y = Reciprocal(x)", "", [0, 1], ("infinite", "n (Reciprocal)", "divides by zero")),
    "a logarithm of zero": ("[n] y = Log(x)", "", [0, 1], ("infinite", "n (Log)", "beyond its domain")),
    "a sum beyond float32": (
        "e = Exp(x) [n] y = Mul(e, e)",
        "",
        [80, 1],
        ("infinite", "n (Mul)", "leaves the range of float32"),
    ),
}


def test_a_sum_beyond_float16_in_a_float16_model_names_repair() -> None:
    """Rule S8.40: float32 has the sum, so the model is not broken in every precision."""
    text = "g (float16[1,2] x) => (float16[1,2] y) { [s] s = Mul(x, x) [n] n = Sub(s, s) [o] y = Add(n, x) }"
    feed = {"x": np.array([[300, 1]], np.float16)}
    report = mixlist.check(model(text), policy(white=["Add"]), [feed])
    assert report.verdict == "inconclusive"
    assert "first at s (Mul): its result leaves the range of float16, in which the model has it" in report.reasons[0]
    assert "mixlist repair" in report.reasons[0] and "no precision" not in report.reasons[0]


@pytest.mark.parametrize("case", BROKEN)
def test_an_output_that_is_broken_in_float32_is_inconclusive(case: str) -> None:
    """Rule S8.40."""
    nodes, constants, values, parts = BROKEN[case]
    proto = model(f"g (float[1,2] x) => (float[1,2] y) <{constants}> {{ {nodes} }}".replace("<>", ""))
    for constant in proto.graph.initializer:
        if constant.name == "gap":
            constant.float_data[:] = [-INF if number == 2 else number for number in constant.float_data]
    lists, feed = policy(white=["Neg"]), {"x": np.array([values], np.float32)}
    report = mixlist.check(proto, lists, [feed])
    assert report.verdict == "inconclusive"
    assert all(part in report.reasons[0] for part in (*parts, "no precision cures this")), report.reasons
    assert report.outputs[0].failed_limits[-1] == "reference" and report.outputs[0].verdict == "inconclusive"
    SCHEMA_VALIDATOR.validate(report.to_json())
    assert mixlist.tune(proto, lists, [feed], executor=InProcessExecutor()).verdict == "inconclusive"


def test_data_that_is_not_finite_explains_an_output() -> None:
    """Rule S8.40: NaN of the data explains everything, an infinity of the data an infinity."""
    div = model("g (float[2] x, float[2] z) => (float[2] y) { [n] y = Div(x, z) }")

    def verdict(*pairs: list[float]) -> str:
        feeds = [{"x": x, "z": z} for x, z in np.array(pairs, np.float32).reshape(-1, 2, 2)]
        return mixlist.check(div, policy(white=["Div"]), feeds).verdict

    assert verdict([NAN, 1], [1, 1]) == "pass"
    assert verdict([INF, 1], [1, 1]) == "pass"
    assert verdict([NAN, 1], [1, 1], [1, 1], [1, 1]) == "pass"
    assert verdict([INF, 1], [INF, 1]) == "inconclusive"  # infinity over infinity is NaN
    assert verdict([1, 1], [0, 1]) == "inconclusive"


def test_a_broken_reference_excuses_no_broken_limit() -> None:
    """Rule S8.40."""
    two = "g (float[2] x) => (float[2] y, float[2] z) { y = Log(x) z = Mul(x, x) }"
    report = mixlist.check(model(two), policy(white=["Mul"]), [{"x": np.array([0, 300], np.float32)}])
    assert report.verdict == "fail"
    assert [output.verdict for output in report.outputs] == ["inconclusive", "fail"]


def test_the_verdict_of_an_output() -> None:
    def verdict(*failed: str) -> str:
        return OutputFinding("y", 0, 0, 0, 1, INF, None, None, not failed, failed).verdict

    assert (verdict(), verdict("max_ignored"), verdict("cosine", "max_ignored")) == ("pass", "inconclusive", "fail")
    assert (verdict("max_ignored", "reference"), verdict("shape", "reference")) == ("inconclusive", "fail")
