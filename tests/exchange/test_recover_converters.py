"""What the float16 converter of ONNX Runtime writes is recovered, on small models (Rule S11.4).

``tests/corpus/test_recover.py`` does the same with other converters and real models.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import onnx
import onnxruntime
import pytest

import mixlist
from tests.support.builders import model
from tests.support.versions import release

ENCODER = """
encoder (float[2, 4] x, float[2, 2] mask) => (float[2, 4] y)
<float[4, 4] q = {1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4},
 float[4, 4] k = {1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4},
 float[4] scale = {1, 1, 1, 1}, float[4] bias = {0, 0, 0, 0}, float root = {2}>
{
    [query] a = MatMul (x, q)
    [key] b = MatMul (x, k)
    [turn] t = Transpose <perm = [1, 0]> (b)
    [scores] s = MatMul (a, t)
    [scaled] d = Div (s, root)
    [masked] m = Add (d, mask)
    [probs] p = Softmax (m)
    [context] c = MatMul (p, x)
    [sum] r = Add (c, x)
    [norm] n = LayerNormalization (r, scale, bias)
    [out] y = Tanh (n)
}
"""
IMAGE = """
image (float[1, 1, 4, 4] x) => (float[1, 2, 8, 8] y)
<float[2, 1, 3, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9}, float[4] sizes = {1, 1, 2, 2}>
{
    c = Conv <pads = [1, 1, 1, 1]> (x, w)
    r = Relu (c)
    u = Resize <mode = "nearest"> (r, , sizes)
    s = Sigmoid (u)
    y = Mul (u, s)
}
"""
BRANCH = """
branch (bool c, float[2] x) => (float[2] y)
{
    [before] h = Exp (x)
    [if] i = If (c) <then_branch = t () => (float[2] a) { [then] a = Relu(h) },
                     else_branch = e () => (float[2] b) { [else] b = Sqrt(h) }>
    [after] y = Neg (i)
}
"""


def convert(original: onnx.ModelProto, op_block_list: Sequence[str], keep_io_types: bool) -> onnx.ModelProto:
    float16 = pytest.importorskip("onnxruntime.transformers.float16")
    copy = onnx.ModelProto.FromString(original.SerializeToString())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns about values that it clamps
        converted = float16.convert_float_to_float16(copy, keep_io_types=keep_io_types, op_block_list=op_block_list)
    assert isinstance(converted, onnx.ModelProto)
    return converted


# The converter writes an invalid model if two blocked nodes read one graph input, and for blocked nodes in branches.
# These block lists avoid that.
@pytest.mark.parametrize(
    ("text", "blocked"),
    [
        *((ENCODER, blocked) for blocked in ((), ("Softmax", "LayerNormalization"), ("Tanh", "Div"), ("Transpose",))),
        *((IMAGE, blocked) for blocked in ((), ("Conv",), ("Relu", "Mul"))),
        *((BRANCH, blocked) for blocked in ((), ("Exp",), ("Neg",))),
    ],
)
@pytest.mark.parametrize("keep_io_types", [True, False], ids=["float32 interface", "float16 interface"])
def test_a_converted_model_is_recovered_without_rules(text: str, blocked: Sequence[str], keep_io_types: bool) -> None:
    """The converter decides by op types, so that lists can express it."""
    if text == IMAGE and blocked and release(onnxruntime.__version__) < (1, 24):
        pytest.skip("the converter of ONNX Runtime before 1.24 gives two Casts one name")
    original = model(text)
    report = mixlist.recover(original, convert(original, [*blocked, "Resize"], keep_io_types))
    assert report.complete, report.exceptions
    assert not report.unmatched
    assert report.customize_dtypes == ""
    lists = {edit.name: edit.after for edit in report.edits}
    assert all(lists.get(op, "black") != "white" for op in blocked)
