"""A constant whose values do not fit its type and shape is an error of the model, wherever it is read."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import mixlist
from mixlist.errors import ModelError
from tests.support.builders import model


def test_a_constant_without_values_in_a_check() -> None:
    """Its type says float16, and its value is in the field of float32 (found by a random change of a model)."""
    proto = model("g (float[2,3] x) => (float[2,3] y) <float16 c = {2}> { y = Mul(x, c) }", check=False)
    tensor = proto.graph.initializer[0]
    tensor.CopyFrom(TensorProto(name="c", data_type=TensorProto.FLOAT16, float_data=[2.0]))
    with pytest.raises(ModelError, match="tensor 'c' is damaged"):
        mixlist.check(proto, mixlist.load_policy(), {"x": np.ones((2, 3), np.float32)})


@pytest.mark.parametrize("dims", [[0], [2]])
def test_a_fill_that_is_no_number(dims: list[int]) -> None:
    """The value of ConstantOfShape has one element."""
    proto = model(
        """g (float[2,2] x) => (float[2,2] y) <int64[2] s = {2,2}> {
            m = ConstantOfShape<value = float[1] {-10000}>(s) z = Add(x, m) y = Softmax<axis = -1>(z) }"""
    )
    value = proto.graph.node[0].attribute[0].t
    value.CopyFrom(onnx.helper.make_tensor("", TensorProto.FLOAT, dims, [-10000.0] * dims[0]))
    assert mixlist.resolve(proto, mixlist.load_policy()).counts
