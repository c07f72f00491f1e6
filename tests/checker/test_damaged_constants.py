"""Test constants whose values contradict their type and shape: they are errors of the model."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import mixlist
from mixlist.errors import ModelError
from tests.support.builders import model


def test_a_constant_with_its_value_in_the_wrong_field() -> None:
    """The type of the constant is float16, but its value is in the field for float32."""
    proto = model("g (float16[2,3] x) => (float16[2,3] y) <float16 c = {2}> { y = Mul(x, c) }", check=False)
    tensor = proto.graph.initializer[0]
    tensor.CopyFrom(TensorProto(name="c", data_type=TensorProto.FLOAT16, float_data=[2.0]))
    with pytest.raises(ModelError, match="tensor 'c' is damaged"):
        mixlist.check(proto, mixlist.load_policy(), {"x": np.ones((2, 3), np.float16)})


@pytest.mark.parametrize("dims", [[0], [2]])
def test_a_constant_of_shape_without_exactly_one_value(dims: list[int]) -> None:
    """The value of ConstantOfShape must have one element. mixlist does not fail on another number of elements."""
    proto = model(
        """g (float[2,2] x) => (float[2,2] y) <int64[2] s = {2,2}> {
            m = ConstantOfShape<value = float[1] {-10000}>(s) z = Add(x, m) y = Softmax<axis = -1>(z) }"""
    )
    value = proto.graph.node[0].attribute[0].t
    value.CopyFrom(onnx.helper.make_tensor("", TensorProto.FLOAT, dims, [-10000.0] * dims[0]))
    assert mixlist.resolve(proto, mixlist.load_policy()).counts
