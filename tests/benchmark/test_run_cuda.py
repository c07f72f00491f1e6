"""``bench`` on a GPU: the report is complete, and the model ran on the GPU in low precision."""

from __future__ import annotations

import numpy as np
import pytest

import mixlist
from tests.support.cuda import cuda_error
from tests.support.package import data_folder

pytestmark = pytest.mark.skipif(bool(cuda_error()), reason=f"no CUDA here: {cuda_error()}")


@pytest.mark.parametrize("transfers", [False, True])
def test_the_demo_runs_on_the_device(transfers: bool) -> None:
    with np.load(data_folder("demo_data") / "digits.npz") as arrays:
        feed = {"pixels": arrays["pixels"].astype(np.float32)}
    digits = data_folder("demo_data") / "digits.onnx"
    report = mixlist.bench(digits, mixlist.load_policy(), [feed], provider="cuda", rounds=5, transfers=transfers)
    assert (report.original.failure, report.other.failure) == ("", "")
    assert report.transfers == transfers
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
