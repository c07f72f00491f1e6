"""The advice of findings: the low node to keep high if the offender is high, and the nodes that add most error.

A finding says how to keep the node in high precision. A high node that fails names the low node
upstream. A failure by accuracy alone names the nodes that add most error.
"""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mixlist
from mixlist.checker import run
from mixlist.checker.result import NOTHING_LOW_REASON, CheckReport
from tests.checker.test_refused_batches import RULES, TEXT
from tests.support.builders import customize, keep, model, policy
from tests.support.package import check_document, write_document

# The square of 1e-5 is zero in float16, and Div is high.
TINY = """g (float[2] x) => (float[2] y) <float one = {1}> {
  [square] s = Mul(x, x) [turn] t = Neg(s) [div] y = Div(one, t) }"""
SMALL = [{"x": np.full(2, 1e-5, np.float32)}]


def render_text(report: CheckReport) -> str:
    stream = io.StringIO()
    write_document(check_document(report), stream)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("edits", "high", "name"),
    [
        ({}, (), "square"),  # Neg is gray and rounds nothing: it is low because of the square
        ({}, ("turn",), "square"),
        ({"Neg": "white"}, (), "turn"),  # Neg is low by its own entry
    ],
)
def test_the_low_source_of_a_high_offender(edits: dict[str, Any], high: tuple[str, ...], name: str) -> None:
    """The nearest low node that rounds its result, also if high nodes are between the two."""
    rules = policy(edits={"Mul": "white", "Div": "black"} | edits, rules=keep(*high))
    report = mixlist.check(model(TINY), rules, SMALL)
    (finding,) = [node for node in report.nodes if node.kind == "overflow"]
    source = finding.low_source
    assert (finding.name, finding.list) == ("div", "black")
    assert source is not None and source.name == name
    assert source.suggestion.startswith(f'add "{source.op_type}" to black-list to-add, or the node "{name}"')
    assert finding.suggestion == source.suggestion
    assert "modify.json:2:9" in source.source
    assert f"low by:          the node is in high precision, and reads values of {name}" in render_text(report)


def test_the_suggested_edit_makes_the_check_pass() -> None:
    report = mixlist.check(model(TINY), policy(white=["Mul"], black=["Div"]), SMALL)
    assert report.verdict == "fail" and report.nodes[0].low_source is not None
    edit = report.nodes[0].low_source.op_type
    assert mixlist.check(model(TINY), policy(black=["Div"], edits={edit: "black"}), SMALL).passes_without_low


def test_a_node_that_a_rule_makes_low_needs_another_rule() -> None:
    """Rule S6.3: rules of customize_dtypes come before the lists and keep_dtype."""
    for lists in ({"white": ["Mul"], "black": ["Div"]}, {"black": ["Mul", "Div"]}):
        half = customize("square", ["float16", "float16"], ["float16"])
        report = mixlist.check(model(TINY), policy(**lists, rules=[half]), SMALL)
        (finding,) = [node for node in report.nodes if node.kind == "overflow"]
        source = finding.low_source
        assert source is not None and "custom.cfg:1:1" in source.source
        assert source.suggestion == 'give the node "square" float32 in the customize_dtypes file'
        full = customize("square", ["float32", "float32"], ["float32"])
        assert mixlist.check(model(TINY), policy(**lists, rules=[full]), SMALL).passes_without_low


def test_of_several_low_inputs_the_one_with_a_finding_is_named() -> None:
    text = """g (float[2] x, float[2] z) => (float[2] y) {
      [fine] a = Add(z, z) [flushed] b = Mul(x, x) [div] y = Div(a, b) }"""
    report = mixlist.check(
        model(text), policy(white=["Add", "Mul"], black=["Div"]), [SMALL[0] | {"z": np.ones(2, np.float32)}]
    )
    (finding,) = [node for node in report.nodes if node.kind == "overflow"]
    assert finding.low_source is not None and finding.low_source.name == "flushed"


@pytest.mark.parametrize("divisor", ["[root] r = Sqrt(x)", "[root] s = Sqrt(x) [copy] r = Identity(s)"])
def test_without_a_finding_the_divisor_is_named(divisor: str) -> None:
    """A square root that underflows in one place of many has no finding; the product is as near."""
    text = f"g (float[8] x, float[8] z) => (float[8] y) {{ [fine] a = Mul(z, z) {divisor} [div] y = Div(a, r) }}"
    feed = {"x": np.array([1e-20, *[1.0] * 7], np.float32), "z": np.array([0, *[1.0] * 7], np.float32)}
    rules = policy(white=["Mul", "Sqrt"], black=["Div"])
    report = mixlist.check(model(text), rules, [feed])
    (finding,) = [node for node in report.nodes if node.kind == "overflow"]
    assert finding.name == "div" and finding.low_source is not None
    assert finding.low_source.name == "root"


def test_a_low_offender_has_its_own_advice() -> None:
    text = "g (float[2] x) => (float[2] y) { [m] y = Mul(x, x) }"
    report = mixlist.check(model(text), policy(white=["Mul"]), [{"x": np.full(2, 300, np.float32)}])
    assert report.nodes[0].low_source is None
    assert 'add "Mul" to black-list to-add' in report.nodes[0].suggestion


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (
            """g (float[2] x, bool c) => (float[2] y) { [fc] h = Mul(x, x) [root] r = Sqrt(h)
            [i] y = If(c) <then_branch = t () => (float[2] a) { [fc] a = Mul(r, r) },
                           else_branch = e () => (float[2] b) { [s] b = Sqrt(r) }> }""",
            "./fc",
        ),
        (
            """g (float[2] x, bool c) => (float[2] y) { [root] r = Sqrt(x) [fc] h = Mul(r, r)
            [i] y = If(c) <then_branch = t () => (float[2] a) { [fc] m = Mul(x, x) [r] a = Sqrt(m) },
                           else_branch = e () => (float[2] b) { [s] b = Sqrt(h) }> }""",
            "i/then_branch/fc",
        ),
    ],
)
def test_the_suggested_name_names_one_node_only(text: str, name: str) -> None:
    """Rule S6.5: the name that the advice gives is one that a keep_dtype file may hold."""
    lists = {"white": ["Mul", "Add"], "black": ["Sqrt"]}
    data = [{"x": np.full(2, 300, np.float32), "c": np.array(True)}]
    report = mixlist.check(model(text), policy(**lists), data)
    (finding,) = [node for node in report.nodes if node.first and node.kind == "overflow" and name.endswith(node.name)]
    assert finding.suggestion.endswith(f'or the node "{name}" to a keep_dtype file')
    report_with_rule = mixlist.check(model(text), policy(**lists, rules=keep(name)), data)
    assert finding.ref not in {
        node.ref for node in report_with_rule.nodes if node.kind == "overflow" and not node.input
    }
    low = {node.ref for node in mixlist.resolve(model(text), policy(**lists)).nodes if node.precision == "float16"}
    plan = mixlist.resolve(model(text), policy(**lists, rules=keep(name)))
    raised = {ref for ref in low if ref not in {n.ref for n in plan.nodes if n.precision == "float16"}}
    assert {ref.name for ref in raised} == {finding.name} and len({ref.scope.split("#")[0] for ref in raised}) == 1


def test_the_low_source_of_a_refused_run() -> None:
    report = mixlist.check(model(TEXT), RULES, [{"x": np.array([7.999], np.float32)}])
    source = report.nodes[0].low_source
    assert source is not None and (source.name, source.op_type) == ("sum", "Add")
    assert "the node depends on an integer computed from values of sum (Add)" in render_text(report)


def test_a_refused_low_node_names_the_source_of_its_index() -> None:
    """The index comes from Add; to keep Gather, Neg or Abs high would change nothing."""
    text = """g (float[1] x, float[8] table) => (float[1] y) <float zero = {0}> {
      [sum] s = Add(x, zero) [index] i = Cast<to=7>(s) [neg] n = Neg(table) [abs] t = Abs(n)
      [pick] y = Gather(t, i) }"""
    data = [{"x": np.array([7.999], np.float32), "table": np.arange(8, dtype=np.float32)}]
    report = mixlist.check(model(text), policy(white=["Add", "Neg", "Abs", "Gather"]), data)
    (finding,) = [node for node in report.nodes if node.kind == "refused"]
    assert finding.low_source is not None and finding.low_source.name == "sum"
    assert finding.suggestion.startswith('add "Add" to black-list')


def test_nodes_in_float16_of_the_model_are_raised_by_node_rules_only() -> None:
    text = "g (float16[2] x) => (float16[2] y) { [m] y = Mul(x, x) }"
    data = [{"x": np.full(2, 300, np.float16)}]
    for rules in (policy(), policy(white=["Mul"]), policy(black=["Mul"])):
        report = mixlist.check(model(text), rules, data, reference_type="float32")
        assert (report.verdict, report.nodes[0].kind) == ("fail", "overflow")
        assert report.nodes[0].suggestion.endswith("does; mixlist repair finds the fewest")
        assert "black-list" not in report.nodes[0].suggestion
        assert not any("bfloat16" in sentence for sentence in report.advice)


# --- failures by accuracy alone ---

# 4096 + 0.3 is 4096 in float16.
LOSSY = """g (float[4] x) => (float[4] y) <float big = {4096}> {
  [up] a = Add(x, big) [down] b = Sub(a, big) [turn] c = Neg(b) [abs] y = Abs(c) }"""
DATA: list[dict[str, Any]] = [{"x": np.array([0.3, 1.3, 0.7, 2.2], np.float32)}]


def test_the_nodes_that_add_most_error_come_with_advice() -> None:
    report = mixlist.check(model(LOSSY), policy(white=["Add", "Sub"]), DATA)
    assert (report.verdict, report.exception_rate) == ("fail", 0)
    worst = report.layerwise[0]
    assert worst.name == "down" and worst.normalized_error > 0.1
    assert 'add "Sub" to black-list' in worst.suggestion and "white" in worst.source
    text = render_text(report)
    start = text.index("Nodes that add the most error")
    assert text.count("to keep it high:", start) == 3
    assert text.index("down (Sub)", start) < text.index("to keep it high:", start)


def test_a_report_that_passes_or_overflows_has_no_ranking() -> None:
    passing_lists = policy(white=["Neg", "Abs"])
    assert mixlist.check(model(LOSSY), passing_lists, DATA).layerwise == ()
    overflowing_data = [{"x": np.full(4, 1e6, np.float32)}]
    report = mixlist.check(model(LOSSY), policy(white=["Add", "Sub"]), overflowing_data)
    assert report.verdict == "fail" and report.layerwise == ()


def test_a_slow_model_is_not_ranked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "FAST_RUN_SECONDS", 0.0)
    report = mixlist.check(model(LOSSY), policy(white=["Add", "Sub"]), DATA)
    assert report.verdict == "fail" and report.layerwise == ()


CONSTANT = """g (float[1, 4] x) => (float[1, 4] y) <float c = {1000000.0}> { s = Mul(x, c) y = Div(s, c) }"""
MASK = CONSTANT.replace("y = Div(s, c)", "r = Div(s, c) y = Softmax(r)")


@pytest.mark.parametrize(
    ("text", "note"),
    [
        (CONSTANT, "2 nodes stay float32 (constant); lower them as a plain conversion does: constants='ieee'"),
        (MASK, "3 nodes stay float32 (mask); lower them as a plain conversion does: protect='none'"),
    ],
)
def test_the_mode_fp16_names_the_nodes_that_stay_float32(text: str, note: str) -> None:
    """A pass with nodes in float32 is not the pass of a plain conversion, which overflows here."""
    batch = {"x": np.full((1, 4), 0.5, np.float32)}
    policy = mixlist.load_policy(ops_info="onnx", precision_mode_v2="fp16")
    report = mixlist.check(model(text), policy, [batch])
    assert (report.verdict, report.reasons) == ("inconclusive", (NOTHING_LOW_REASON, note))
    plain = mixlist.load_policy(ops_info="onnx", precision_mode_v2="fp16", constants="ieee", protect="none")
    assert mixlist.check(model(text), plain, [batch]).verdict == "fail"
    # With lists, nobody asks for everything in float16.
    lists = mixlist.check(model(text), mixlist.load_policy(ops_info="onnx"), [batch])
    assert lists.reasons == (NOTHING_LOW_REASON,)


# --- options that help ---

# Two softmaxes over one mask of -1e9; the second row is masked as a whole.
MASKED = """g (float[2,4] x, float[2,4] mask) => (float[2,4] y) <float lowest = {-1e9}, float one = {1}> {
  [inv] i = Sub(one, mask) [scale] m = Mul(i, lowest) [turn] u = Transpose(x) [scores] w = MatMul(x, u)
  [mix] t = MatMul(w, x) [add] s = Add(t, m) [soft] y = Softmax<axis=-1>(s) }"""
MASKED_ROW = [{"x": np.ones((2, 4), np.float32), "mask": np.array([[1, 1, 0, 0], [0, 0, 0, 0]], np.float32)}]


@pytest.mark.parametrize("black", [(), ("SoftmaxV2",)])
def test_at_a_masked_softmax_the_advice_is_to_protect_masks(black: tuple[str, ...], tmp_path: Path) -> None:
    """A black softmax alone reads an infinite mask, and fails again."""

    def load(*entries: str, **options: Any) -> mixlist.Policy:
        mixlist_file = tmp_path / "modify.json"
        mixlist_file.write_text(json.dumps({"black-list": {"to-add": [*entries]}}) if entries else "{}")
        return mixlist.load_policy(ops_info="ascend910b", mixlist=mixlist_file, **options)

    report = mixlist.check(model(MASKED), load(*black, protect="positions"), MASKED_ROW)
    (finding,) = [node for node in report.nodes if node.first]
    entries = ["Add"] if black else ["Add", "SoftmaxV2"]
    shown = " and ".join(f'"{entry}"' for entry in entries)
    assert (finding.name, report.verdict) == ("soft", "fail")
    assert finding.suggestion == f"give protect='masks,positions', or add {shown} to black-list to-add"
    for helped in (load(*black, protect="masks,positions"), load(*black, *entries)):
        assert mixlist.check(model(MASKED), helped, MASKED_ROW).verdict == "pass"


def test_scores_that_overflow_before_a_masked_softmax_have_advice_of_their_own() -> None:
    large = [MASKED_ROW[0] | {"x": np.full((2, 4), 100, np.float32)}]
    report = mixlist.check(model(MASKED), mixlist.load_policy(ops_info="ascend910b"), large)
    assert next(node.suggestion for node in report.nodes if node.first).startswith('add "')


ANGLES = """g (int64[N] n, float[N] x) => (float[N] y) <float rate = {0.37}> {
  [cast] p = Cast<to=1>(n) [angle] a = Mul(p, rate) [sine] s = Sin(a) [scale] y = Mul(s, x) }"""
FAR: list[dict[str, Any]] = [{"n": np.arange(4000, 4016), "x": np.ones(16, np.float32)}]


def test_where_positions_are_low_the_advice_is_to_protect_them() -> None:
    """The ranking comes last, because it blames the nodes that round positions or follow them."""
    report = mixlist.check(model(ANGLES), policy(white=["Mul", "Sin", "Cast"]), FAR)
    assert report.advice == ("positions are in low precision (ML507): give protect='positions' first",)
    text = render_text(replace(report, next_command="mixlist tune m.onnx"))
    order = [
        "give protect='positions' first",
        "mixlist tune m.onnx",
        "keep one after the other high",
        "to keep it high",
    ]
    places = [text.index(part) for part in order]
    assert places == sorted(places)
    protected = policy(white=["Mul", "Sin", "Cast"], protect=["positions"])
    assert mixlist.check(model(ANGLES), protected, FAR).verdict == "pass"


SQUARES = "g (float[2, 1] x, float[1, 1] w) => (float[2, 1] y) { [m] y = MatMul(x, w) }"


@pytest.mark.parametrize(
    ("library", "mode", "x", "is_named"),
    [
        ("onnx", "mixed_float16", 300, True),
        ("onnx", "fp16", 300, True),
        ("onnx", "mixed_bfloat16", 1.8446e19, False),  # it has bfloat16 already
        ("onnx", "fp16", 1.8446e19, False),  # 3.4026e38 is beyond bfloat16
        ("ascend910b", "fp16", 300, True),
        ("ascend910_93", "fp16", 300, True),
        ("ascend910", "fp16", 300, False),
        ("ascend310p", "fp16", 300, False),
    ],
)
def test_a_failure_by_overflow_names_bfloat16_where_it_helps(library: str, mode: str, x: float, is_named: bool) -> None:
    """The range of bfloat16 must hold the values, and the chip must have it."""
    rules = mixlist.load_policy(ops_info=library, precision_mode_v2=mode)
    feed = {"x": np.array([[x], [-x]], np.float32), "w": np.array([[x]], np.float32)}
    report = mixlist.check(model(SQUARES), rules, [feed])
    assert any("precision_mode_v2='mixed_bfloat16'" in sentence for sentence in report.advice) == is_named
    if is_named:
        assert "up to 9e+04" in report.advice[0]


def test_a_missed_limit_comes_with_its_value() -> None:
    report = mixlist.check(model(LOSSY), policy(white=["Add", "Sub"]), DATA, limits=mixlist.Limits(cosine=None))
    value = f"{report.outputs[0].normalized_error:.3g}"
    assert report.reasons == (f"output 'y' misses normalized {value} (limit 0.01)",)
