"""The bundled steps, trained: what qualifies, what loses gradients, what overflows.

Few epochs, so the tolerance is wider than the command's own: a step more or less moves several of the 449 digits.
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


def run(name: str, lists: str, **options: Any) -> Any:
    given = {"eval_data": DATA / "digits_eval.npz", "batch_size": 32, "epochs": 6, "optimizer": CNN, "tolerance": 0.02}
    policy = mixlist.load_policy(ops_info=lists)
    step = DATA / f"digits_{name}_step.onnx"
    return train(step, policy, DATA / "digits_train.npz", threads=1, **{**given, **options})


@pytest.mark.parametrize("lists", ["onnx", "mindspore-o2"])
def test_the_convolutional_network_qualifies_with_a_dynamic_scaler(lists: str) -> None:
    found = run("cnn", lists, **DYNAMIC)
    assert found.verdict == "pass", found.reasons
    assert np.mean([one.float32.metric for one in found.runs]) > 0.96
    assert found.exception_rate == 0
    assert found.underflow.zero + found.underflow.subnormal < 0.001
    assert found.underflow.subnormal_unscaled > 0.01


@pytest.mark.parametrize("lists", ["onnx", "mindspore-o2"])
def test_the_transformer_learns_as_in_float32(lists: str) -> None:
    """One seed, with dropout: a verdict would take three, and longer."""
    found = run("transformer", lists, runs=1, epochs=10, optimizer=TRANSFORMER, **DYNAMIC)
    (one,) = found.runs
    assert found.reasons[-1].startswith("1 of at least 3 runs")
    assert one.float32.metric > 0.85
    assert one.mixed.metric > one.float32.metric - 0.05
    assert np.mean(one.mixed.loss[-40:]) == pytest.approx(np.mean(one.float32.loss[-40:]), rel=0.2)
    assert not one.mixed.skipped
    assert found.underflow.subnormal_unscaled > 20 * found.underflow.subnormal


@pytest.mark.parametrize("name", ["cnn", "transformer"])
def test_without_a_scaler_gradients_underflow(name: str) -> None:
    found = run(name, "mindspore-o3", scaler="none", epochs=1)
    assert found.exception_rate == 0
    assert found.underflow.zero > 0
    assert found.underflow.subnormal > 0.02
    assert (found.underflow.zero, found.underflow.subnormal) == (
        found.underflow.zero_unscaled,
        found.underflow.subnormal_unscaled,
    )
    scaled = run(name, "mindspore-o3", scaler="fixed", scaler_parameters={"loss_scale": 1024.0}, epochs=1)
    assert scaled.underflow.zero + scaled.underflow.subnormal < 0.05 * found.underflow.subnormal


@pytest.mark.parametrize("name", ["cnn", "transformer"])
def test_a_far_too_large_fixed_scale(name: str) -> None:
    options = {"scaler": "fixed", "scaler_parameters": {"loss_scale": 2.0**26}, "epochs": 1, "trace_overflow": True}
    found = run(name, "onnx", runs=3, **options)
    assert found.verdict == "fail"
    assert found.exception_rate == 1
    assert found.reasons[0] == "126 of 126 steps have an exception: 100.00%, the limit is 0.50%"
    assert found.trace_scale == 2.0**26
    assert found.offenders
    assert found.suggestion == ""
    assert all("/grad/" in f"/{node.name}" for node in found.offenders), [n.name for n in found.offenders]
