"""Rule S5.7: the Ascend engine makes a Square of Mul(x, x) and Pow(x, 2) before the lists act.

The sources are ``mul_square_fusion_pass.cpp`` and ``pow_2_square_fusion_pass.cpp`` of the operator library of CANN,
and for node rules ``keep_dtype_option.cc`` and ``op_cust_dtypes_config_parser.cc`` of hicann/ge.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import mixlist
from tests.support.builders import customize, keep, model, policy
from tests.support.reference import Reference
from tests.support.reference_compare import differences
from tests.support.resolver_cases import decide_node, find_precisions, resolve_text

LISTS = ("Square", "Pow", "Mul", "BatchMatMulV2")


def network(node: str, dtype: str = "float") -> str:
    """Return a product, and one node ``n`` that reads it; ``two`` holds 2, and ``w`` is a weight."""
    return f"""g ({dtype}[2,2] x) => ({dtype}[2,2] y)
        <{dtype}[2,2] w = {{1, 2, 3, 4}}, {dtype} two = {{2}}, {dtype}[1,1] one_two = {{2}}, {dtype}[2] twos = {{2, 2}},
         int64 whole = {{2}}, float near = {{2.0000005}}, float far = {{2.00001}}> {{
        [m] h = MatMul(x, w) [n] y = {node} }}"""


SQUARES = ["Mul(h, h)", "Pow(h, two)", "Pow(h, one_two)", "Pow(h, near)"]


@pytest.mark.parametrize("node", SQUARES)
@pytest.mark.parametrize("listed", ["Square", "Pow", "Mul"])
def test_only_square_moves_a_square_in_ascend_names(node: str, listed: str) -> None:
    white = [op for op in LISTS if op != listed]
    settings = {"white": white, "black": [listed], "space": "ascend"}
    assert find_precisions(network(node), **settings)["n"] == ("float32" if listed == "Square" else "float16")
    decided = Reference(model(network(node)), policy(**settings))
    decided.solve()
    plan = mixlist.resolve(model(network(node)), policy(**settings))
    assert not differences(plan, {node: decided.decided(node) for node in decided.nodes})


@pytest.mark.parametrize(
    ("node", "dtype"),
    [
        ("Mul(h, w)", "float"),
        ("Mul(h, h)", "bfloat16"),
        ("Pow(h, twos)", "float"),
        ("Pow(h, far)", "float"),
        ("Pow(h, whole)", "float"),
        ("Pow(h, two)", "float16"),
        ("Pow(h, h)", "float"),
    ],
)
def test_other_products_and_powers_keep_their_names(node: str, dtype: str) -> None:
    decision = decide_node(network(node, dtype), "n", white=["Square"], black=["Pow", "Mul"], space="ascend")
    assert decision.list == "black"


def test_onnx_names_know_no_square() -> None:
    assert find_precisions(network("Mul(h, h)"), white=["MatMul", "Mul"], black=["Square"])["n"] == "float16"


def test_the_reason_names_the_fusion() -> None:
    reason = decide_node(network("Pow(h, two)"), "n", black=["Square"], space="ascend").reason
    assert "the engine makes Square of this Pow (S5.7)" in reason


def test_a_constant_node_gives_the_exponent() -> None:
    text = "g (float[2] x) => (float[2] y) { two = Constant<value_float = 2.0>() [n] y = Pow(x, two) }"
    assert find_precisions(text, white=["Square"], black=["Pow"], space="ascend")["n"] == "float16"


def test_node_rules_of_a_type_meet_the_graph_where_the_engine_reads_them() -> None:
    text = network("Mul(h, h)")
    white = {"white": LISTS, "space": "ascend"}
    assert find_precisions(text, rules=keep("Mul", by_type=True), **white)["n"] == "float32"
    plan = resolve_text(text, rules=keep("Square", by_type=True), **white)
    assert [warning.code for warning in plan.warnings] == ["ML307"] and plan.nodes[1].precision == "float16"
    rule = customize("Square", ["float32"], ["float32"], by_type=True)
    assert find_precisions(text, rules=(rule,), **white)["n"] == "float32"


def test_an_entry_for_square_is_in_the_model(tmp_path: Path) -> None:
    path = tmp_path / "mix.json"
    path.write_text('{"black-list": {"to-add": ["Square"]}}')
    plan = mixlist.resolve(model(network("Pow(h, two)")), mixlist.load_policy("ascend310p", mixlist=path))
    assert [w.code for w in plan.warnings if w.code == "ML406"] == []
    path.write_text('{"black-list": {"to-add": ["Pow"]}}')
    plan = mixlist.resolve(model(network("Pow(h, two)")), mixlist.load_policy("ascend310p", mixlist=path))
    assert [w.code for w in plan.warnings if w.code == "ML406"] == ["ML406"]
