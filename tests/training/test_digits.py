"""Tests that train the bundled steps: a verdict pass, gradients that underflow, gradients that overflow.

The trainings are short, so the tolerance is wider than the default: one step more changes the result for several of the
449 digits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mixlist
from mixlist.files.package_data import data_folder
from mixlist.training import Settings, train

DATA = data_folder("demo_data")
CNN = Settings(lr=0.004, schedule="cosine", warmup_steps=20)
TRANSFORMER = Settings("adamw", lr=0.006, schedule="cosine", warmup_steps=60, weight_decay=0.01)
DYNAMIC = {"scaler": "mindspore", "scaler_parameters": {"init_loss_scale": 1024.0, "scale_window": 1000}}


def run(network: str, lists: str, **changes: Any) -> Any:
    options = {
        "eval_data": DATA / "digits_eval.npz",
        "batch_size": 32,
        "epochs": 6,
        "optimizer": CNN,
        "tolerance": 0.02,
        **changes,
    }
    policy = mixlist.load_policy(ops_info=lists)
    step = DATA / f"digits_{network}_step.onnx"
    return train(step, policy, DATA / "digits_train.npz", threads=1, **options)


@pytest.mark.parametrize("lists", ["onnx", "mindspore-o2"])
def test_the_convolutional_network_passes_with_a_dynamic_scaler(lists: str) -> None:
    report = run("cnn", lists, **DYNAMIC)
    assert report.verdict == "pass", report.reasons
    assert np.mean([seed_run.float32.metric for seed_run in report.runs]) > 0.96
    assert report.exception_rate == 0
    assert report.underflow.zero + report.underflow.subnormal < 0.001
    assert report.underflow.subnormal_unscaled > 0.01


@pytest.mark.parametrize("lists", ["onnx", "mindspore-o2"])
def test_the_transformer_learns_as_in_float32(lists: str) -> None:
    """Train one seed only, since the transformer is slow: the verdict is fail for too few runs."""
    report = run("transformer", lists, runs=1, epochs=10, optimizer=TRANSFORMER, **DYNAMIC)
    (seed_run,) = report.runs
    assert report.reasons[-1].startswith("1 of at least 3 runs")
    assert seed_run.float32.metric > 0.85
    assert seed_run.mixed.metric > seed_run.float32.metric - 0.05
    assert np.mean(seed_run.mixed.loss[-40:]) == pytest.approx(np.mean(seed_run.float32.loss[-40:]), rel=0.2)
    assert not seed_run.mixed.skipped
    assert report.underflow.subnormal_unscaled > 20 * report.underflow.subnormal


@pytest.mark.parametrize("network", ["cnn", "transformer"])
def test_without_a_scaler_gradients_underflow(network: str) -> None:
    report = run(network, "mindspore-o3", scaler="none", epochs=1)
    assert report.exception_rate == 0
    assert report.underflow.zero > 0
    assert report.underflow.subnormal > 0.02
    assert (report.underflow.zero, report.underflow.subnormal) == (
        report.underflow.zero_unscaled,
        report.underflow.subnormal_unscaled,
    )
    scaled = run(network, "mindspore-o3", scaler="fixed", scaler_parameters={"loss_scale": 1024.0}, epochs=1)
    assert scaled.underflow.zero + scaled.underflow.subnormal < 0.05 * report.underflow.subnormal


@pytest.mark.parametrize("network", ["cnn", "transformer"])
def test_a_fixed_scale_that_is_too_large_overflows(network: str) -> None:
    options = {"scaler": "fixed", "scaler_parameters": {"loss_scale": 2.0**26}, "epochs": 1, "trace_overflow": True}
    report = run(network, "onnx", runs=3, **options)
    assert report.verdict == "fail"
    assert report.exception_rate == 1
    assert report.reasons[0] == "126 of 126 steps have an exception: 100.00%, the limit is 0.50%"
    assert report.trace_scale == 2.0**26
    assert report.offenders
    assert report.suggestion == ""
    assert all("/grad/" in f"/{node.name}" for node in report.offenders), [node.name for node in report.offenders]
