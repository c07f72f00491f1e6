"""Test the emulation alone. The tests of check test it on whole models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from mixlist import load_policy
from mixlist.checker.emulation import emulate
from mixlist.decide import resolve
from mixlist.write import rewrite
from tests.support.builders import model
from tests.support.package import load_model
from tests.support.versions import newest_opset


def test_external_weights_with_a_pending_conversion_are_rounded(tmp_path: Path) -> None:
    weights = np.array([[2049.0, 0.1]], np.float32)
    proto = model("g (float[N,1] x, float[1,2] w) => (float[N,2] y) { y = MatMul(x, w) }")
    del proto.graph.input[1]
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    path = tmp_path / "m.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="m.data", size_threshold=0)
    loaded = load_model(path)
    mixed = rewrite(loaded, resolve(loaded, load_policy()))
    emulated = emulate(loaded._replace(proto=mixed.proto))
    arrays = [onnx.numpy_helper.to_array(tensor) for tensor in emulated.graph.initializer]
    (rounded,) = [array for array in arrays if array.shape == (1, 2)]
    assert rounded.tolist() == weights.astype(np.float16).astype(float).tolist()


@pytest.mark.skipif(newest_opset() < 26, reason="onnx or ONNX Runtime is older than BitCast")
def test_a_bit_cast_reads_the_bits_of_its_own_type() -> None:
    text = """<ir_version: 11, opset_import: ["" : 26]>
    g (float[4] x) => (int16[4] bits, float[4] y) {
      h = Cast<to = 10>(x) bits = BitCast<to = 5>(h) again = BitCast<to = 10>(bits) y = Cast<to = 1>(again) }"""
    emulated = emulate(load_model(model(text)))
    session = onnxruntime.InferenceSession(emulated.SerializeToString(), providers=["CPUExecutionProvider"])
    x = np.array([1, 2049, -0.1, np.inf], np.float32)
    half = x.astype(np.float16)
    bits, y = session.run(None, {"x": x})
    assert (bits == half.view(np.int16)).all()
    assert (y == half.astype(np.float32)).all()


def test_a_cast_of_any_type_saturates() -> None:
    text = """g (int32[3] i, double[3] d, float[3] f) => (float16[3] a, float16[3] b, float16[3] c) {
      a = Cast<to=10>(i) b = Cast<to=10>(d) c = Cast<to=10>(f) }"""
    emulated = emulate(load_model(model(text)), saturate=True)
    feeds = {
        "i": np.array([70000, -70000, 3], np.int32),
        "d": np.array([1e300, -np.inf, np.nan]),
        "f": np.array([65520, 1 / 3, -1e9], np.float32),
    }
    a, b, c = onnxruntime.InferenceSession(emulated.SerializeToString()).run(None, feeds)
    assert a.dtype == np.float32 and a.tolist() == [65504, -65504, 3]
    assert b[:2].tolist() == [65504, -65504] and np.isnan(b[2])
    assert c.tolist() == [65504, np.float16(1 / 3), -65504]


def test_a_call_of_a_function_reads_and_makes_its_authored_types() -> None:
    proto = model("""<ir_version: 8, opset_import: ["" : 17, "d" : 1]>
      g (float16[3] x) => (float16[3] y) { y = d.F(x) }
      <domain: "d", opset_import: ["" : 17]> F (x) => (y) { y = Exp(x) }""")
    emulated = emulate(load_model(proto))
    assert emulated.functions == proto.functions
    assert [node.op_type for node in emulated.graph.node] == ["Cast", "F", "Cast"]
    assert onnxruntime.InferenceSession(emulated.SerializeToString()).get_inputs()[0].type == "tensor(float)"
