"""Test the limits of integer outputs: ids and quantities (Rules S8.17, S8.34)."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import mixlist
from mixlist.checker.integer_outputs import find_quantity_outputs
from mixlist.model.build import build_graph
from tests.support.builders import policy

HEAD = '<ir_version: 10, opset_import: ["" : 17]>\n'
RNG = np.random.default_rng(0)
# The part after ``h``, which is float[4, 8], up to the integer output ``y``; and whether ``y`` holds quantities.
PARTS = {
    "QuantizeLinear": ("y = QuantizeLinear(h, scale, zero)", "uint8[4,8]", True),
    "QuantizeLinear and movers": (
        "q = QuantizeLinear(h, scale, zero)\n t = Transpose(q)\n y = Reshape(t, shape)",
        "uint8[32]",
        True,
    ),
    "a Cast of a float": ("y = Cast <to = 6> (h)", "int32[4,8]", True),
    "a Cast of a rounded float": ("r = Round(h)\n c = Clip(r, low, high)\n y = Cast <to = 2> (c)", "uint8[4,8]", True),
    "two Casts": ("i = Cast <to = 7> (h)\n y = Cast <to = 6> (i)", "int32[4,8]", True),
    "a Gather from quantities": ("i = Cast <to = 7> (h)\n y = Gather <axis = 1> (i, index)", "int64[4,2]", True),
    "ArgMax": ("y = ArgMax <axis = 1> (h)", "int64[4,1]", False),
    "a Cast of ArgMax": ("i = ArgMax <axis = 1> (h)\n y = Cast <to = 6> (i)", "int32[4,1]", False),
    "ArgMax through floats": (
        "i = ArgMax <axis = 1> (h)\n f = Cast <to = 1> (i)\n y = Cast <to = 6> (f)",
        "int32[4,1]",
        False,
    ),
    "a Cast of a comparison": ("b = Greater(h, low)\n y = Cast <to = 6> (b)", "int32[4,8]", False),
    "a comparison": ("y = Greater(h, low)", "bool[4,8]", False),
    "the indices of TopK": ("v, y = TopK(h, three)", "int64[4,3]", False),
    "the values of TopK": ("i = Cast <to = 7> (h)\n y, n = TopK(i, three)", "int64[4,3]", True),
    "NonZero": ("y = NonZero(h)", "int64[2,N]", False),
    "a sign": ("s = Sign(h)\n y = Cast <to = 6> (s)", "int32[4,8]", False),
    "arithmetic": ("i = Cast <to = 7> (h)\n y = Add(i, i)", "int64[4,8]", False),
    "an id beside a quantity": (
        "i = Cast <to = 7> (h)\n a = ArgMax <axis = 1> (h)\n y = Concat <axis = 1> (i, a)",
        "int64[4,9]",
        False,
    ),
    "a constant": ("y = Identity(index)", "int64[2]", False),
}


def build(part: str, output: str) -> onnx.ModelProto:
    weights = "<float scale = {0.1}, uint8 zero = {128}, int64[1] shape = {32}, int64[2] index = {0, 3}, "
    weights += "float low = {0}, float high = {255}, int64[1] three = {3}>"
    text = f"{HEAD}g (float[4, 8] x, float[8, 8] w) => ({output} y) {weights} {{ h = MatMul(x, w)\n {part} }}"
    return onnx.parser.parse_model(text)


@pytest.mark.parametrize("name", PARTS)
def test_quantities_and_ids(name: str) -> None:
    """Rule S8.34."""
    part, output, is_quantity = PARTS[name]
    assert (find_quantity_outputs(build_graph(build(part, output))) == {"y"}) == is_quantity


def test_argmax_that_is_wrong_in_every_element_fails() -> None:
    """Rule S8.17: the numbers of classes are near, and the cosine says nothing about ids."""
    part = "f = Add(h, big)\n y = ArgMax <axis = 1> (f)"
    model = build(part, "int64[4,1]")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(30000, np.float32), "big"))
    x = RNG.uniform(0.1, 1, (4, 8)).astype(np.float32)
    w = np.linspace(0.1, 1, 8, dtype=np.float32) * np.ones((8, 8), np.float32)
    report = mixlist.check(model, policy(white=["Add"]), [{"x": x, "w": w}])
    (output,) = report.outputs
    assert output.mismatches == 1 and not output.quantity
    assert report.verdict == "fail" and output.failed_limits == ("mismatch",)
    relaxed = mixlist.check(model, policy(white=["Add"]), [{"x": x, "w": w}], limits=mixlist.Limits(mismatch=1))
    assert relaxed.verdict == "pass"


def test_quantities_that_are_one_step_off_pass() -> None:
    part, output, _ = PARTS["a Cast of a float"]
    x, w = RNG.uniform(100, 200, (4, 8)).astype(np.float32), np.eye(8, dtype=np.float32) * 9.5
    report = mixlist.check(build(part, output), policy(white=["MatMul"]), [{"x": x, "w": w}])
    assert report.verdict == "pass"
    assert report.outputs[0].quantity and report.outputs[0].mismatches is not None
    assert report.outputs[0].mismatches > 0.01
