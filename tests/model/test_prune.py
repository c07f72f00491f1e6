"""Test that pruning removes exactly the parts that the wanted outputs do not need."""

from __future__ import annotations

import onnx
import pytest
from onnx import parser

from mixlist.checker.emulation import has_low_types
from mixlist.model.prune import prune_model

TEXT = """<ir_version: 8, opset_import: ["" : 17]>
g (float[2] x, bool c) => (float[2] y, float[2] z) <float[2] w = {1, 2}, float[2] v = {3, 4}> {
  a = Identity(x) b = Identity(a) y = Add(b, w)
  z = If(c) <then_branch = t () => (float[2] u) { u = Mul(b, v) }, else_branch = e () => (float[2] q) { q = Neg(b) }>
}"""


def parse_and_prune(text: str, *outputs: str) -> onnx.ModelProto:
    """Return the parsed model after pruning; check that it is valid."""
    model = parser.parse_model(text)
    prune_model(model, outputs)
    onnx.checker.check_model(model)
    return model


@pytest.mark.parametrize(
    ("outputs", "nodes", "weights"),
    [(("y", "z"), ["Add", "If"], ["w", "v"]), (("y",), ["Add"], ["w"]), (("z",), ["If"], ["v"])],
)
def test_unneeded_parts_are_removed(outputs: tuple[str, ...], nodes: list[str], weights: list[str]) -> None:
    graph = parse_and_prune(TEXT, *outputs).graph
    assert [output.name for output in graph.output] == list(outputs)
    assert [node.op_type for node in graph.node] == nodes
    assert [tensor.name for tensor in graph.initializer] == weights
    assert "x" in str(graph.node[0])  # both Identities are skipped


def test_an_identity_that_is_an_output_stays() -> None:
    graph = parse_and_prune(TEXT.replace("=> (float[2] y", "=> (float[2] b, float[2] y"), "b", "y", "z").graph
    assert [node.op_type for node in graph.node] == ["Identity", "Add", "If"]
    assert graph.node[0].input[0] == "x"


def test_an_identity_stays_if_a_body_defines_its_output_name() -> None:
    model = parser.parse_model(TEXT.replace("u = Mul(b, v)", "a = Neg(x) u = Mul(a, v)"))
    prune_model(model, ["y", "z"])
    assert model.graph.node[0].output[0] == "a"
    (branch,) = [a.g for a in model.graph.node[2].attribute if a.name == "then_branch"]
    assert list(branch.node[1].input) == ["a", "v"]


def test_without_wanted_outputs_the_model_stays_unchanged() -> None:
    assert parse_and_prune(TEXT) == parser.parse_model(TEXT)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("Add(b, w)", "Add(b, w)"), False),
        (("u = Mul(b, v)", "h = Cast <to = 10> (b) u = Cast <to = 1> (h)"), True),
        (("float[2] x", "bfloat16[2] x"), True),
        (("y = Add(b, w)", "k = Constant <value = float16 {1}> () r = Cast <to = 1> (k) y = Add(b, r)"), True),
    ],
)
def test_has_low_types_finds_a_low_type_anywhere(change: tuple[str, str], expected: bool) -> None:
    assert has_low_types(parser.parse_model(TEXT.replace(*change))) is expected
