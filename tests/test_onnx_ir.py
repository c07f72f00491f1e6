"""Models of the package onnx_ir: users may pass them, and nobody else needs the package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir
from onnx import numpy_helper

import mixlist
from tests.support.package import data_folder

DIGITS = data_folder("demo_data") / "digits.onnx"
WITHOUT_ONNX_IR = """
import sys
sys.modules["onnx_ir"] = None  # an import raises ImportError
import numpy as np, onnx, mixlist
model, policy = onnx.load(sys.argv[1]), mixlist.load_policy()
plan = mixlist.resolve(model, policy)
assert mixlist.rewrite(model, plan).casts_inserted
feeds = [{"pixels": np.zeros((1, 1, 8, 8), np.float32)}]
print(mixlist.check(model, policy, feeds).batches, mixlist.export(model, policy, "ort").tool)
"""


def test_a_model_of_onnx_ir_is_rewritten_as_a_model_of_onnx() -> None:
    proto, policy = onnx.load(DIGITS), mixlist.load_policy()
    model = onnx_ir.from_proto(proto)
    plan = mixlist.resolve(model, policy)
    mixed = mixlist.rewrite(model, plan).model
    assert isinstance(mixed, onnx.ModelProto)
    expected = mixlist.rewrite(proto, mixlist.resolve(proto, policy)).model
    types = {tensor.name: tensor.data_type for tensor in expected.graph.initializer}
    assert [node.op_type for node in mixed.graph.node] == [n.op_type for n in expected.graph.node]
    assert {tensor.name: tensor.data_type for tensor in mixed.graph.initializer} == types
    assert onnx_ir.to_proto(model).graph == onnx_ir.to_proto(onnx_ir.from_proto(proto)).graph  # the input is untouched


def test_weights_in_another_file_are_converted(tmp_path: Path) -> None:
    onnx.save(onnx.load(DIGITS), tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0)
    model = onnx_ir.load(tmp_path / "m.onnx")
    mixed = mixlist.rewrite(model, mixlist.resolve(model, mixlist.load_policy())).model
    float16 = [w for w in mixed.graph.initializer if w.data_type == onnx.TensorProto.FLOAT16]
    authored = {name: weight.const_value.numpy() for name, weight in model.graph.initializers.items()}
    assert float16
    for weight in float16:
        np.testing.assert_array_equal(numpy_helper.to_array(weight), authored[weight.name].astype(np.float16))


def test_other_users_do_not_need_the_package() -> None:
    command = [sys.executable, "-c", WITHOUT_ONNX_IR, str(DIGITS)]
    completed = subprocess.run(command, capture_output=True, text=True, check=True)
    assert completed.stdout.split() == ["1", "ort"]
