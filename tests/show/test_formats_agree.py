"""All formats of a check say the same, field by field, and tell NaN, infinity and finite apart."""

from __future__ import annotations

import io
import json
import math
import re
from typing import Any

import numpy as np
import pytest

import mixlist
from mixlist import CheckReport, NodeFinding
from mixlist.number_text import format_number
from mixlist.show import json_csv
from mixlist.show.check_document import check_document, finding_texts, first_offenders
from mixlist.show.terminal import write_document
from tests.show.test_check_html import ParsedPage, lists_of, render
from tests.support.builders import model, policy
from tests.support.planted_models import PLANTED, Planted

F32 = np.float32
MODES = ("inf", "saturate")


def run_check(planted: Planted, mode: str) -> CheckReport:
    return mixlist.check(model(planted.text), planted.policy, planted.feeds, overflow_mode=mode, per_tensor=True)


def json_of(report: CheckReport) -> dict[str, Any]:
    stream = io.StringIO()
    json_csv.write_json(report.to_json(), stream)
    return json.loads(stream.getvalue())


def text_of(report: CheckReport) -> str:
    stream = io.StringIO()
    write_document(check_document(report), stream)
    return stream.getvalue()


def number(value: float | str) -> float:
    return float(value)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.name)
def test_the_formats_agree(planted: Planted, mode: str) -> None:
    report = run_check(planted, mode)
    result, text, page = json_of(report), text_of(report), render(report)
    first = {(n["scope"], n["name"], n["tensor"], n["kind"]) for n in result["nodes"] if n["first"]}
    assert first == {(n.scope, n.name, n.tensor, n.kind) for n in first_offenders(report)}
    first_offender_part, _, other_findings_part = text.partition("\nOther findings\n")
    assert first_offender_part.count("      batches:") == len(first) == page.count('<article class="record failing">')
    assert text.startswith(result["verdict"].upper()) and f"<title>{result['verdict'].upper()}:" in page
    findings = lists_of(page).get("finding", [])
    assert len(findings) == len(result["nodes"]) == len(report.nodes)
    for node, finding, row in zip(result["nodes"], report.nodes, findings, strict=True):
        for column, measure in (("reference", "fp32"), ("mixed", "low")):
            assert row[column] == format_number(number(node[f"max_abs_{measure}"]))
        assert (row["row"]["group"], row["node"]) == (node["kind"], str(finding.ref))
        assert row["row"]["words"] == f"{node['tensor']} {node['kind']}"
        assert row["values"] == format_number(node["count"]) and row["converted input"] == node["input"]
        report_part = first_offender_part if node["first"] else other_findings_part
        if node["kind"] == "underflow" and result["verdict"] == "pass":  # only their number
            assert " underflow: became zero" in report_part
            continue
        assert report_part.count(finding_texts(finding, report)["reference"]) >= 1, finding
    for tensor, row in zip(result["tensors"], lists_of(page).get("range", []), strict=True):
        largest_magnitude = (
            math.nan if tensor["nan"] else max(abs(number(tensor["minimum"])), abs(number(tensor["maximum"])))
        )
        assert row["reference"] == format_number(largest_magnitude)
    for output in result["outputs"]:
        cells = re.sub(r"\s+", " ", ParsedPage(page).text)
        if output["ignored_share"] == 1:
            assert output["normalized_error"] is output["cosine"] is None
            assert re.search(rf"^{output['name']} +(- +){{7}}100 %", text, re.MULTILINE)
            assert len(re.findall('<td class="number"[^>]*>-</td>', page)) >= 7
        else:
            error, largest = (
                format_number(number(output["normalized_error"])),
                format_number(number(output["max_abs_error"])),
            )
            assert error in cells and largest in text


def findings_by_kind(report: CheckReport, name: str) -> dict[str, NodeFinding]:
    return {n.kind: n for n in report.nodes if n.name == name and not n.input}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("place", [0, 1, 3])  # of the NaN, where a reduction may drop other values
def test_a_nan_does_not_hide_an_overflow(place: int, mode: str) -> None:
    """Rule S8.3: the magnitudes are NaN, of outputs and of converted inputs."""
    text = "g (float[4] x, float[4] z) => (float[4] y, float[4] u) { [m] q = Mul(x, x) [a] y = Neg(q) [c] u = Tanh(z) }"
    x, z = np.array([3e3, 1e3, 2e3, 1], F32), np.array([8e4, 1e2, -7e4, 1], F32)
    if place == 0:
        x, z = x[::-1].copy(), z[::-1].copy()
    x[place] = z[place] = np.nan
    good = {"x": np.ones(4, F32), "z": np.ones(4, F32)}
    report = mixlist.check(
        model(text),
        policy(white=["Mul", "Neg", "Tanh"]),
        [good, {"x": x, "z": z}],
        overflow_mode=mode,
        max_ignored=1.0,
    )
    nodes = {(n["name"], n["input"]): n for n in json_of(report)["nodes"] if n["kind"] in ("overflow", "saturated")}
    for name_and_input in (("m", ""), ("c", "z")):
        node = nodes[name_and_input]
        assert (node["max_abs_fp32"], node["max_abs_low"]) == ("nan", "nan")
        title = "before its conversion" if name_and_input[1] else "in float32"
        assert f"up to nan {title}, nan in float16" in text_of(report)


def test_nan_and_infinity_are_reported_apart() -> None:
    """Of three tensors one holds a NaN, one an infinity and one finite numbers; a fourth has only NaN."""
    text = """g (float[2] x, float[2] z) => (float[2] a, float[2] b, float[2] c, float[2] d)
      <float[1] five = {5}> {
      [na] a = Neg(x) [in] b = Log(z) [fi] c = Exp(z) [less] s = Sub(z, five) [all] d = Sqrt(s) }"""
    feed = {"x": np.array([np.nan, 3], F32), "z": np.array([0, 1], F32)}
    report = mixlist.check(
        model(text), policy(white=["Neg", "Log", "Exp", "Sqrt", "Sub"]), [feed], per_tensor=True, max_ignored=1.0
    )
    result = json_of(report)
    sizes = {n["name"]: (n["max_abs_fp32"], n["max_abs_low"]) for n in result["nodes"] if not n["input"]}
    assert sizes == {"na": ("nan", "nan"), "in": ("inf", "inf"), "all": ("nan", "nan")}
    ranges = {t["node"]: (t["minimum"], t["maximum"], t["nan"], t["low_nan"]) for t in result["tensors"]}
    assert ranges["na"][2:] == (True, True)
    assert ranges["in"] == ("-inf", 0.0, False, False)
    assert ranges["all"] == ("nan", "nan", True, True)
    assert ranges["fi"][2:] == (False, False)
    rows = {row["row"]["words"]: (row["reference"], row["mixed"]) for row in lists_of(render(report))["range"]}
    assert (rows["na"], rows["in"], rows["all"]) == (("nan", "nan"), ("inf", "inf"), ("nan", "nan"))
    table = [re.split("  +", line) for line in text_of(report).splitlines() if line.startswith("preexisting")]
    assert {row[1]: (row[4], row[5]) for row in table} == sizes


@pytest.mark.parametrize("white", ["Mul Neg", "Mul"])
def test_preexisting_and_propagated_values_are_counted_apart(white: str) -> None:
    """Rule S8.6: one value is NaN in float32, three became infinite; each kind has its own count."""
    text = "g (float[4] x) => (float[4] y) { [m] m = Mul(x, x) [n] y = Neg(m) }"
    feed = {"x": np.array([np.nan, 300, 300, 300], F32)}
    report = mixlist.check(model(text), policy(white=white.split(), black=["Tanh"]), [feed])
    assert {kind: f.count for kind, f in findings_by_kind(report, "m").items()} == {"overflow": 3}
    assert {kind: f.count for kind, f in findings_by_kind(report, "n").items()} == {"propagated": 3, "preexisting": 1}


def test_no_infinity_is_propagated_through_tanh() -> None:
    """Rule S8.6: Tanh of the infinity is 1, and its NaN is also in the reference."""
    text = "g (float[4] x) => (float[4] y) { [m] m = Mul(x, x) [n] y = Tanh(m) }"
    report = mixlist.check(model(text), policy(white=["Mul", "Tanh"]), [{"x": np.array([np.nan, 300, 300, 300], F32)}])
    assert {kind: f.count for kind, f in findings_by_kind(report, "n").items()} == {"preexisting": 1}


def test_the_first_saturated_node_is_the_first_offender() -> None:
    """Rule S8.7: Both Neg propagate the value of Mul; they are no first offenders."""
    text = "g (float[2] x) => (float[2] y) { [m] m = Mul(x, x) [n] n = Neg(m) [r] y = Neg(n) }"
    report = mixlist.check(
        model(text), policy(white=["Mul", "Neg"]), [{"x": np.array([300, 1], F32)}], overflow_mode="saturate"
    )
    assert {n.name: n.first for n in report.nodes} == {"m": True, "n": False, "r": False}
    assert {n.kind for n in report.nodes} == {"saturated"}
    first_offender_part, _, other_findings_part = text_of(report).partition("\nOther findings\n")
    assert first_offender_part.count("\n  saturated  ") == 1 and "2 saturated" in other_findings_part
