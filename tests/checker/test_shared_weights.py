"""Test shared weight files: the result of a check does not depend on them."""

from __future__ import annotations

import os
import signal
from concurrent.futures import Executor
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import mixlist
from mixlist.checker import shared_weights
from mixlist.checker.emulation import emulate
from mixlist.model.weights import is_external
from mixlist.run.remote_session import Crashed
from tests.support.local_sessions import make_session
from tests.support.local_workers import InProcessExecutor
from tests.support.package import LoadedModel, LocalSession, SessionOptions, load_model
from tests.support.workers import pid_of, remote_session

FEED = {"x": np.random.default_rng(1).standard_normal((4, 64)).astype(np.float32)}
BEYOND = 1 << 40


def two_layers(elem: int = onnx.TensorProto.FLOAT) -> onnx.ModelProto:
    """A model of two products with weights of 16 KiB in float32; the second one overflows float16."""
    rng = np.random.default_rng(0)
    dtype = helper.tensor_dtype_to_np_dtype(elem)
    first, second = rng.standard_normal((2, 64, 64)).astype(dtype)
    nodes = [helper.make_node("MatMul", ["x", "a"], ["p"]), helper.make_node("MatMul", ["p", "b"], ["q"])]
    weights = [numpy_helper.from_array(first, "a"), numpy_helper.from_array((second * 6000).astype(dtype), "b")]
    model_input = helper.make_tensor_value_info("x", elem, [4, 64])
    graph = helper.make_graph(nodes, "g", [model_input], [helper.make_tensor_value_info("q", elem, [4, 64])], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("executor", [None, InProcessExecutor()], ids=["other process", "this process"])
@pytest.mark.parametrize("elem", [onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16])
@pytest.mark.parametrize("mode", ["mixed_float16", "mixed_bfloat16"])
def test_the_check_gives_the_same_report(
    monkeypatch: pytest.MonkeyPatch, mode: str, elem: int, executor: Executor | None
) -> None:
    policy = mixlist.load_policy(precision_mode_v2=mode)
    feed = {"x": FEED["x"].astype(helper.tensor_dtype_to_np_dtype(elem))}
    reports = []
    for large in (1, BEYOND):
        monkeypatch.setattr(shared_weights, "MIN_SHARED_BYTES", large)
        options = {"executor": executor, "per_tensor": True, "reference_type": "float32"}
        report = mixlist.check(two_layers(elem), policy, [feed], **options).to_json()
        report.pop("seconds", None)
        reports.append(report)
    assert reports[0] == reports[1]
    assert (reports[0]["verdict"] == "fail") == (mode == "mixed_float16" or elem == onnx.TensorProto.FLOAT16)


def test_a_low_weight_is_widened_in_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_weights, "MIN_SHARED_BYTES", 1)
    model = two_layers(onnx.TensorProto.FLOAT16)
    before = model.SerializeToString()
    weights = shared_weights.SharedWeights()
    slim = weights.share(load_model(model), widened=True)
    assert model.SerializeToString() == before
    assert all(is_external(t) and t.data_type == onnx.TensorProto.FLOAT16 for t in slim.proto.graph.initializer)
    external, inline = emulate(slim, keep_external=True), emulate(load_model(model))
    for tensor, expected in zip(external.graph.initializer, inline.graph.initializer, strict=True):
        assert tensor.data_type == onnx.TensorProto.FLOAT
        array = numpy_helper.to_array(tensor, base_dir=str(weights.folder))
        np.testing.assert_array_equal(array, numpy_helper.to_array(expected))
    np.testing.assert_array_equal(run(external, weights.folder), run(inline, None))


def run(proto: onnx.ModelProto, folder: Path | None) -> np.ndarray:
    with LocalSession(make_session(proto, SessionOptions(lean=True), folder=folder)) as session:
        (output,) = session.run(None, FEED)
    return output


@pytest.mark.parametrize("constants", ["keep", "ieee", "clamp"])
@pytest.mark.parametrize("large", [1, BEYOND])
def test_weights_of_external_data_are_rounded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, constants: str, large: int
) -> None:
    """A rewrite leaves the conversion of external weights to the code that saves the model."""
    monkeypatch.setattr(shared_weights, "MIN_SHARED_BYTES", large)
    model = two_layers()
    model.graph.initializer[1].CopyFrom(numpy_helper.from_array(np.full((64, 64), 70000, np.float32), "b"))
    onnx.save(model, tmp_path / "inside.onnx")
    onnx.save(model, tmp_path / "outside.onnx", save_as_external_data=True, size_threshold=0)
    policy, feed = mixlist.load_policy(constants=constants), {"x": FEED["x"] * 1e-4}
    inside, outside = (mixlist.check(tmp_path / f"{n}.onnx", policy, [feed]) for n in ("inside", "outside"))
    assert outside.outputs == inside.outputs
    assert [(n.name, n.kind) for n in outside.nodes] == [(n.name, n.kind) for n in inside.nodes]
    assert (outside.verdict == "fail") == (constants != "keep")


def test_the_weight_files_are_removed() -> None:
    weights = shared_weights.SharedWeights()
    folder = weights.folder
    weights.share(load_model(two_layers()), widened=False)
    assert any(folder.iterdir())
    del weights
    assert not folder.exists()


@pytest.mark.skipif(os.name != "posix", reason="kills with a signal")
def test_the_kept_model_of_a_crash_has_its_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_weights, "MIN_SHARED_BYTES", 1)
    model, weights = two_layers(), shared_weights.SharedWeights()
    slim: LoadedModel = weights.share(load_model(model), widened=False)
    with remote_session(slim.proto, folder=slim.folder) as session, pytest.raises(Crashed) as error:
        os.kill(pid_of(session), signal.SIGKILL)
        session.run(None, FEED)
    del weights, slim
    kept_model = onnx.load(error.value.model)
    for tensor, expected in zip(kept_model.graph.initializer, model.graph.initializer, strict=True):
        np.testing.assert_array_equal(numpy_helper.to_array(tensor), numpy_helper.to_array(expected))
