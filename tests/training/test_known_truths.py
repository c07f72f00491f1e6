"""Trainings whose truth is known: the verdict is right (Rules S10.13 to S10.21).

The bundled networks are benign: they never fail over 20 groups of three runs (``make campaign``; two groups in CI).
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

import mixlist
from mixlist.training import Settings, train
from tests.support.builders import policy
from tests.support.training_network import all_low, classifier, clusters, mixed, squares
from tests.training.test_digits import DYNAMIC
from tests.training.test_digits import run as run_digits

GROUPS = 20 if "MIXLIST_CAMPAIGN" in os.environ else 2
LR = Settings(lr=0.01)


@pytest.mark.parametrize("network", ["cnn", "transformer"])
def test_benign_networks_never_fail(network: str) -> None:
    verdicts = [
        run_digits(network, "onnx", runs=3, epochs=2, seed=3 * group, **DYNAMIC).verdict for group in range(GROUPS)
    ]
    assert "fail" not in verdicts
    assert verdicts.count("inconclusive") <= max(1, GROUPS // 10)


# The gradients of these regressions overflow at 65536, and a hundred steps are too few to make up for skipped ones.
SMALL_SCALE = {"scaler_parameters": {"init_scale": 256.0}}


def regression(noise: float) -> dict[str, Any]:
    """Return samples of a linear function of two numbers, with noise that cannot be learned."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(320, 2)).astype(np.float32)
    targets = x @ np.array([[1, 2], [-1, 0.5]], np.float32) + noise * rng.normal(size=(320, 2))
    return {"x": x, "t": targets.astype(np.float32)}


def test_a_regression_is_judged_by_its_loss() -> None:
    report = train(squares(hidden=16), mixed(), regression(0.1), optimizer=LR, epochs=10, **SMALL_SCALE)
    assert report.comparison is not None and report.comparison.relative
    assert (report.metric, report.verdict) == ("loss", "pass"), report.reasons


def test_fine_tuning_from_converged_values_passes() -> None:
    """The network begins at the function that made the samples, relu(x W) - relu(-x W): its loss falls no more."""
    weight = np.array([[1, 2], [-1, 0.5]], np.float32)
    values = {
        "w1": np.hstack([weight, -weight]),
        "b1": np.zeros(4, np.float32),
        "w2": np.vstack([np.eye(2), -np.eye(2)]).astype(np.float32),
        "b2": np.zeros(2, np.float32),
    }
    report = train(
        squares(hidden=4),
        mixed(),
        regression(0.5),
        init=values,
        optimizer=Settings("sgd", lr=1e-3),
        epochs=10,
        **SMALL_SCALE,
    )
    assert report.verdict == "pass", report.reasons
    first, last = report.runs[0].float32.first_metric, report.runs[0].float32.metric
    assert first is not None and last is not None and last > 0.95 * first


@pytest.mark.parametrize("epochs", [10, 100])
def test_the_length_of_a_training_does_not_change_the_verdict(epochs: int) -> None:
    """150 and 1,500 steps of a network under which the scale falls from 2^24: the start-up is not judged."""
    data = {"data": clusters(), "eval_data": clusters(120, seed=1)}
    options: dict[str, Any] = {"batch_size": 16, "epochs": epochs, "optimizer": LR, "scaler": "mindspore", **data}
    report = train(classifier(), all_low(), **options)
    assert report.steps == 15 * epochs and report.start_up_rate > 0
    assert report.verdict == "pass", report.reasons
    again = train(classifier(), all_low(), scaler_parameters={"init_loss_scale": report.initial_scale}, **options)
    assert again.start_up_rate == 0 and again.verdict == "pass"


def exported(module: Any, loss: Any, batch: dict[str, Any]) -> Any:
    """Return the step graph of a PyTorch module."""
    pytest.importorskip("onnxscript")
    from mixlist.training import export_step

    return export_step(module.train(), loss, batch)


def waves(count: int, seed: int) -> dict[str, Any]:
    """Return sequences [count, 12, 2] of three frequencies, with noise."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, count)
    angles = (y[:, None] + 1) * 0.5 * np.arange(12) + rng.uniform(0, 6, (count, 1))
    x = np.stack([np.sin(angles), np.cos(angles)], 2) + rng.normal(0, 0.3, (count, 12, 2))
    return {"x": x.astype(np.float32), "y": y}


def test_a_benign_lstm_never_fails() -> None:
    torch = pytest.importorskip("torch")

    class Recurrent(torch.nn.Module):  # type: ignore[misc, name-defined]  # mypy does not read torch
        def __init__(self) -> None:
            super().__init__()
            self.cells, self.classify = torch.nn.LSTM(2, 16, batch_first=True), torch.nn.Linear(16, 3)

        def forward(self, x: Any) -> Any:
            return self.classify(self.cells(x)[0][:, -1])

    def loss(module: Any, x: Any, y: Any) -> Any:
        logits = module(x)
        return torch.nn.functional.cross_entropy(logits, y), {"logits": logits}

    torch.manual_seed(0)
    batch = {"x": torch.zeros(4, 12, 2), "y": torch.zeros(4, dtype=torch.int64)}
    step = exported(Recurrent(), loss, batch)
    options: dict[str, Any] = {"eval_data": waves(240, 1), "epochs": 8, "optimizer": LR, "init": "drawn", **DYNAMIC}
    verdicts = [
        train(step, mixlist.load_policy(ops_info="onnx"), waves(480, 0), seed=3 * group, **options).verdict
        for group in range(GROUPS)
    ]
    assert "fail" not in verdicts
    assert verdicts.count("inconclusive") <= max(1, GROUPS // 10)


def test_a_benign_autoencoder_is_judged_by_its_loss_and_never_fails() -> None:
    torch = pytest.importorskip("torch")

    def loss(module: Any, x: Any) -> Any:
        return torch.nn.functional.mse_loss(module(x), x)

    torch.manual_seed(0)
    layers = torch.nn.Linear(16, 24), torch.nn.GELU(), torch.nn.Linear(24, 4), torch.nn.Linear(4, 16)
    step = exported(torch.nn.Sequential(*layers), loss, {"x": torch.zeros(4, 16)})
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(640, 4)) @ rng.normal(size=(4, 16)) + 0.05 * rng.normal(size=(640, 16))).astype(np.float32)
    options: dict[str, Any] = {"eval_data": {"x": x[480:]}, "epochs": 8, "optimizer": LR, "init": "drawn", **DYNAMIC}
    reports = [
        train(step, mixlist.load_policy(ops_info="onnx"), {"x": x[:480]}, seed=3 * group, **options)
        for group in range(GROUPS)
    ]
    verdicts = [report.verdict for report in reports]
    assert (reports[0].metric, reports[0].higher) == ("loss", False)
    assert "fail" not in verdicts, reports[verdicts.index("fail")].reasons
    assert verdicts.count("inconclusive") <= max(1, GROUPS // 10)


def test_a_loss_with_exp_that_leaves_the_range_fails() -> None:
    """Counts of about e^12 overflow in float16 inside the loss, with every loss scale."""
    torch = pytest.importorskip("torch")

    def loss(module: Any, x: Any, y: Any) -> Any:
        rate = module(x)[:, 0]
        return (torch.exp(rate) - y * rate).mean()

    module = torch.nn.Linear(2, 1)
    torch.nn.init.constant_(module.bias, 12.0)
    step = exported(module, loss, {"x": torch.zeros(4, 2), "y": torch.zeros(4)})
    rng = np.random.default_rng(0)
    x = 0.1 * rng.normal(size=(160, 2)).astype(np.float32)
    data = {"x": x, "y": np.exp(12 + x[:, 0]).astype(np.float32)}
    optimizer = Settings("sgd", lr=1e-7)
    low_loss = train(
        step, policy(white=["Gemm", "MatMul", "Add", "Exp"]), data, optimizer=optimizer, trace_overflow=True
    )
    assert (low_loss.verdict, low_loss.trace_scale) == ("fail", 1.0), low_loss.reasons
    assert "Exp" in {finding.op_type for finding in low_loss.offenders}
    high_loss = train(step, policy(white=["Gemm", "MatMul"], black=["Exp"]), data, optimizer=optimizer, scaler="none")
    assert high_loss.verdict == "pass", high_loss.reasons
