"""The reason of each decision: one sentence that cites the rule of docs/semantics.md that applied (Rule S4.33)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings

import mixlist
from mixlist import Policy
from mixlist.decide.describe_decisions import GRAY_RULES
from tests.support.builders import policy
from tests.support.graphs import Case, cases
from tests.support.package import GRAY_POLICIES
from tests.support.resolver_cases import decide_node, decide_nodes

CITED = re.compile(r"\bS\d+\.\d+\b")
TEXT = """<ir_version: 8, opset_import: ["" : 17]>
g (float[4] x, bfloat16[4] b, double[4] d) => (float[4] y, bfloat16[4] z, double[4] w) <float[4] big = {1e6, 1, 1, 1}>
{ [exp] e = Exp(x) [relu] r = Relu(e) [neg] n = Neg(r) [add] y = Add(n, big)
  [low] z = Exp(b) [wide] w = Exp(d) [shape] s = Shape(x) [cast] f = Cast<to = 1>(s) [mul] m = Mul(f, f) }"""


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("exp", "S4.4"),
        ("relu", "S4.6"),
        ("neg", "S4.5"),
        ("add", "S4.7"),
        ("low", "S4.9"),
        ("wide", "S4.9"),
        ("shape", "S4.1"),
        ("cast", "S4.13"),
        ("mul", "S4.3"),
    ],
)
def test_a_reason_ends_with_the_number_of_its_rule(name: str, number: str) -> None:
    """Rule S4.33: Every decision carries its reason."""
    assert decide_node(TEXT, name, white=["Exp", "Add"], black=["Neg"]).reason.endswith(f"({number})")


@pytest.mark.parametrize(
    ("mode", "number"),
    [("fp16", "S3.4"), ("origin", "S3.5"), ("cube_fp16in_fp32out", "S3.6"), ("allow_fp32_to_fp16", "S3.7")],
)
def test_a_mode_cites_its_rule(mode: str, number: str) -> None:
    assert decide_node(TEXT, "exp", mode=mode).reason.endswith(f"({number})")


@pytest.mark.parametrize(
    ("gray_policy", "number"),
    [("ascend", "S4.6"), ("between", "S4.22"), ("promote", "S4.24")],
)
def test_a_gray_policy_cites_its_rule(gray_policy: str, number: str) -> None:
    assert decide_node(TEXT, "relu", white=["Exp"], gray_policy=gray_policy).reason.endswith(f"({number})")


def test_a_cast_that_is_looked_through_is_cited() -> None:
    text = "g (float[4] x) => (float[4] y) { h = Cast<to = 10>(x) c = Cast<to = 1>(h) [n] y = Neg(c) }"
    assert decide_node(text, "n").reason.endswith("(S4.6, S4.17)")


def test_a_white_node_of_the_other_low_type_says_that_it_keeps_its_type() -> None:
    """Rule S4.9: Lists act on float32."""
    reason = decide_node(TEXT, "low", white=["Exp"]).reason
    assert reason == "it keeps bfloat16, the type it was authored in; only float32 and float16 change (S4.9)"


@pytest.mark.parametrize("elem", ["bfloat16", "float16"])
@pytest.mark.parametrize("opset", [13, 22])
def test_a_dropout_keeps_its_low_type_with_or_without_its_ratio(opset: int, elem: str) -> None:
    """Rules S4.4 and S4.9: the ratio takes bfloat16 from opset 22 on; that does not change the rule for the data."""
    text = f"""<ir_version: 8, opset_import: ["" : {opset}]>
      g ({elem}[4] x) => ({elem}[4] y) <float ratio = {{0.5}}> {{ [drop] y = Dropout(x, ratio) }}"""
    decision = decide_node(text, "drop", mode="mixed_bfloat16", white=["Dropout"])
    ends = {
        "bfloat16": "computed in bfloat16 (S4.4)",
        "float16": "it keeps float16, the type it was authored in; only float32 and bfloat16 change (S4.9)",
    }
    assert decision.precision == elem and decision.reason.endswith(ends[elem])
    assert decision.rule == ("schema" if (elem, opset) == ("float16", 13) else "white")


@pytest.mark.parametrize("opset", [11, 13])
def test_a_node_of_the_other_low_type_says_so_whatever_its_opset_allows(opset: int) -> None:
    """Rule S4.9: at opset 11 MatMul does not allow bfloat16, but this is not the reason why it keeps float16."""
    text = f"""<ir_version: 6, opset_import: ["" : {opset}]>
      g (float16[2,2] x, float16[2,2] w) => (float16[2,2] y) {{ [m] y = MatMul(x, w) }}"""
    reason = decide_node(text, "m", mode="mixed_bfloat16", white=["MatMul"]).reason
    assert reason == "it keeps float16, the type it was authored in; only float32 and bfloat16 change (S4.9)"


@settings(max_examples=30, deadline=None, derandomize=True)
@given(cases())
def test_every_reason_cites_a_rule_that_exists(case: Case) -> None:
    rules = set(re.findall(r"^### (S\d+\.\d+) ", (Path(__file__).parents[2] / "docs/semantics.md").read_text(), re.M))
    for drawn_policy in _policies():
        for node in mixlist.resolve(case.model, drawn_policy).nodes:
            numbers = CITED.findall(node.reason)
            assert numbers and set(numbers) <= rules, node


def _policies() -> list[Policy]:
    white, black = ["MatMul", "Exp", "Mul"], ["Add", "Sqrt"]
    settings = [{"gray_policy": name} for name in GRAY_POLICIES]
    return [policy(white=white, black=black, **options) for options in (*settings, {"mode": "mixed_bfloat16"})]


@pytest.mark.parametrize(("rule", "protect"), [("constant", []), ("mask", ["masks"])])
def test_a_gray_node_that_is_kept_decides_for_its_followers(rule: str, protect: list[str]) -> None:
    """Rule S4.33: Every decision carries its reason; the chain ends at the kept node, not at its low producer."""
    text = """g (float[4] x, bool[4] b) => (float[4] y, float[4] z) <float c = {-1e9}> {
      [e] e = Exp(x) [w] w = Where(b, e, c) [s] y = Softmax(w) [n] z = Neg(w) }"""
    decisions = decide_nodes(text, white=["Exp"], black=["Softmax"], protect=protect)
    assert (decisions["w"].rule, decisions["w"].follows) == (rule, ())
    assert decisions["n"].follows == ("w", "w") and "Exp" not in decisions["n"].reason


def test_every_gray_policy_has_the_rules_that_its_reasons_cite() -> None:
    assert tuple(GRAY_RULES) == GRAY_POLICIES
