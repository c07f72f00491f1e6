"""Tests of training on a GPU, where the mixed model itself runs."""

from __future__ import annotations

import numpy as np
import pytest

import mixlist
from mixlist import training
from mixlist.files.package_data import data_folder
from tests.support.cuda import cuda_error

pytestmark = pytest.mark.skipif(bool(cuda_error()), reason=f"no CUDA here: {cuda_error()}")


@pytest.mark.parametrize("network", ["cnn", "transformer"])
def test_native_training_learns_like_emulated_training(network: str) -> None:
    data = data_folder("demo_data")
    with np.load(data / "digits_train.npz") as arrays:
        samples = dict(arrays)
    reports = {
        provider: training.train(
            data / f"digits_{network}_step.onnx",
            mixlist.load_policy(),
            samples,
            steps=60,
            runs=1,
            scaler_parameters={"init_scale": 1024},
            provider=provider,
        )
        for provider in ("cpu", "cuda")
    }
    assert {provider: report.mode for provider, report in reports.items()} == {"cpu": "emulated", "cuda": "native"}
    (emulated,), (native,) = (report.runs for report in reports.values())
    assert native.mixed.exceptions == emulated.mixed.exceptions == []
    assert native.mixed.loss[:10] == pytest.approx(emulated.mixed.loss[:10], rel=1e-2)
    assert np.mean(native.mixed.loss[-10:]) == pytest.approx(np.mean(emulated.mixed.loss[-10:]), rel=0.1)
