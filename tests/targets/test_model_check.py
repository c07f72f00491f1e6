"""The type rules of a strongly typed target, each on a model that keeps it and on one that breaks it."""

from __future__ import annotations

import onnx
import pytest

from mixlist.model.graph import CAST_MARK
from mixlist.targets.model_check import ModelCheck, check_model
from mixlist.targets.target import load_target
from tests.support.package import load_model

HEAD = '<ir_version: 10, opset_import: ["": %d, "custom": 1]>'


def check(graph: str, opset: int = 20) -> ModelCheck:
    model = onnx.parser.parse_model(f"{HEAD % opset} {graph}")
    for node in model.graph.node:
        if node.name == "marked":
            node.metadata_props.add(key=CAST_MARK, value="tensor")
    return check_model(load_model(model), load_target("tensorrt"))


def test_a_model_that_keeps_all_rules_is_accepted() -> None:
    result = check(
        """g (float16[2] x, float[2] z) => (float16[2] y) {
            [marked] w = Cast <to: int = 10> (z)
            [p] y = Pow (x, w)
        }"""
    )
    assert result == ModelCheck((), ()) and result.is_accepted


@pytest.mark.parametrize(
    ("graph", "opset", "sentence"),
    [
        (
            "g (float16[2] x, float[2] z) => (float16[2] y) { [p] y = Pow (x, z) }",
            20,
            "p (Pow) reads float16 and float32, and tensorrt demands one float type",
        ),
        (
            "g (float16[2] x, float[2] z) => (float16[2] y) { [a] y = Add (x, z) }",
            20,
            "a (Add) has float16 and float32 where its type parameter T demands one type",
        ),
        (
            "g (bool c, float16[2] x, float[2] z) => (float16[2] y) { [i] y = If (c) <"
            "then_branch = t () => (float16[2] a) { a = Identity (x) },"
            "else_branch = e () => (float[2] b) { b = Identity (z) }> }",
            20,
            "i (If) has branches that make output 0 in float16 and float32",
        ),
        (
            "g (int8[2] q) => (int8[2] y) <float s = {0.5}> {"
            "[d] x = DequantizeLinear (q, s) [marked] h = Cast <to: int = 10> (x)"
            "[e] r = Exp (h) [marked] f = Cast <to: int = 1> (r) [q] y = QuantizeLinear (f, s) }",
            20,
            "e (Exp) reads x through a Cast, inside the quantized unit of e",
        ),
        (
            "g (uint16[2] x) => (float[2] y) { [c] y = Cast <to: int = 1> (x) }",
            20,
            "input x in uint16, a type that tensorrt lacks",
        ),
        (
            "g (float[2] x) => (uint16[2] y) { [c] y = Cast <to: int = 4> (x) }",
            20,
            "c (Cast) makes y in uint16, a type that tensorrt lacks",
        ),
        (
            "g (float[2] x) => (float[2] y) { [r] y = Relu (x) }",
            8,
            "the model has opset 8, and tensorrt reads 9 to 25: convert it to one of these",
        ),
    ],
)
def test_a_broken_rule_is_one_sentence(graph: str, opset: int, sentence: str) -> None:
    result = check(graph, opset)
    assert sentence in result.broken_rules and not result.is_accepted


def test_operators_that_the_target_lacks_are_named() -> None:
    result = check(
        """g (float[2] x, int64[2] i, int64 k, float[2] v) => (float[2] y, int64[2] j, int64[2] h) {
            [b] a = Bernoulli (x)
            [c] y = Bernoulli (a)
            [n] j = Clip (i)
            [o] o1 = custom.Mine (x)
            [m] m = Equal (i, j)
            [w] h = Where (m, i, j)
        }"""
    )
    assert [str(operator) for operator in result.missing] == [
        "Bernoulli (2 nodes, the first is b)",
        "Clip in int64 (1 node, it is n)",
        "custom::Mine (1 node, it is o)",
    ]
    assert not result.broken_rules and not result.is_accepted
