"""``bench`` on a GPU: the report is complete, and the model ran on the GPU in low precision."""

from __future__ import annotations

import numpy as np
import pytest

import mixlist
from tests.support.builders import model
from tests.support.cuda import cuda_error
from tests.support.package import data_folder

pytestmark = pytest.mark.skipif(bool(cuda_error()), reason=f"no CUDA here: {cuda_error()}")


def test_the_demo_runs_on_the_device() -> None:
    with np.load(data_folder("demo_data") / "digits.npz") as arrays:
        feed = {"pixels": arrays["pixels"].astype(np.float32)}
    digits = data_folder("demo_data") / "digits.onnx"
    report = mixlist.bench(digits, mixlist.load_policy(), [feed], provider="cuda", rounds=5)
    assert (report.original.failure, report.other.failure) == ("", "")
    assert not report.transfers
    assert report.other.low_kernels == report.other.low_nodes
    for timed_model in (report.original, report.other):
        assert timed_model.profile is not None
        assert timed_model.profile.providers["CUDAExecutionProvider"] > timed_model.profile.nodes / 2
    assert report.original.profile is not None
    assert report.other.profile is not None
    assert report.original.profile.low_nodes == 0
    assert report.other.profile.low_nodes > 10
    assert not any("accelerator" in note for note in report.notes)
    assert any("TF32" in note for note in report.notes)
    assert any("CUDA graphs" in note for note in report.notes)


def test_a_chain_of_products_runs_as_a_cuda_graph() -> None:
    """Every node has a CUDA kernel, and the launches of 200 small kernels take longer than the kernels."""
    steps = " ".join(f"a{k + 1} = MatMul (a{k}, w)" for k in range(200))
    chain = model(f"g (float[8, 64] a0, float[64, 64] w) => (float[8, 64] a200) {{ {steps} }}")
    feed = {"a0": np.ones((8, 64), np.float32), "w": np.full((64, 64), 1 / 64, np.float32)}
    report = mixlist.bench(chain, chain, [feed], provider="cuda", rounds=3)
    assert (report.original.failure, report.other.failure) == ("", "")
    assert any("were timed as CUDA graphs" in note for note in report.notes)


def test_control_flow_runs_without_a_cuda_graph() -> None:
    text = """g (float[2] x, bool c) => (float[2] y) {
        y = If (c) <then_branch = t () => (float[2] a) { a = Neg (x) },
                    else_branch = e () => (float[2] b) { b = Abs (x) }> }"""
    feed = {"x": np.ones(2, np.float32), "c": np.array(True)}
    report = mixlist.bench(model(text), model(text), [feed], provider="cuda", rounds=3)
    assert (report.original.failure, report.other.failure) == ("", "")
    assert any("the times are without CUDA graphs" in note for note in report.notes)
