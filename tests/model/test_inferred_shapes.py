"""Test that shape inference follows the values of shapes, and that long vectors take no memory."""

from __future__ import annotations

import subprocess
import sys

import pytest

from mixlist.model.inferred_shapes import infer_ranks
from mixlist.model.shape_inference import infer_shapes_with_data_propagation
from tests.support.builders import model
from tests.support.systems import linux_only

COMPUTED = """g (float[2,3,4] x) => (float[a,b] y) <int64[1] one = {-1}, int64[1] zero = {0}> {
    s = Shape(x) f = Gather(s, zero) t = Concat<axis=0>(f, one) z = Reshape(x, t) y = Relu(z) }"""
LONG = 50_000_000


def run_in_new_process(code: str, text: str) -> None:
    """Run Python code that reads the model in ONNX text from ``sys.argv[1]``; assert that it ends without error."""
    model_text = '<ir_version: 8, opset_import: ["" : 17]> ' + text
    process = subprocess.run([sys.executable, "-c", code, model_text], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr


def test_values_of_shapes_are_followed() -> None:
    assert infer_ranks(model(COMPUTED))["z"] == 2
    (shape,) = [
        i.type.tensor_type.shape
        for i in infer_shapes_with_data_propagation(model(COMPUTED))[0].graph.value_info
        if i.name == "z"
    ]
    assert [d.dim_value for d in shape.dim] == [2, 12]


@linux_only
@pytest.mark.parametrize(
    "text",
    [
        f"g (float[{LONG}] x) => (float[{LONG}] y) {{ y = Add(x, x) }}",
        f"g (float[2,{LONG // 2}] x) => (float[n] y) <int64[1] s = {{-1}}> {{ z = Reshape(x, s) y = Add(z, z) }}",
    ],
    ids=["declared", "inferred"],
)
def test_a_long_vector_takes_no_memory(text: str) -> None:
    """Plain inference with data propagation takes 7 GB for each of these."""
    code = (
        "import sys, resource, onnx; from mixlist.model.inferred_shapes import infer_ranks; "
        "resource.setrlimit(resource.RLIMIT_AS, (2**31, 2**31)); "
        "assert infer_ranks(onnx.parser.parse_model(sys.argv[1]))['y'] == 1"
    )
    run_in_new_process(code, text)


def test_a_negative_dimension_is_unknown() -> None:
    """onnx aborts the process where a Slice reads one; some exporters write -1 for a dynamic dimension."""
    text = """g (float[4,4] x) => (float[a,b] y) <int64[1] s = {1}, int64[1] e = {-1}, int64[1] axis = {0}> {
        y = Slice(x, s, e, axis) }"""
    code = (
        "import sys, onnx; from mixlist.model.inferred_shapes import infer_ranks; "
        "m = onnx.parser.parse_model(sys.argv[1]); "
        "m.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1; assert infer_ranks(m)['y'] == 2"
    )
    run_in_new_process(code, text)
