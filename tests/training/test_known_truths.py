"""Trainings whose truth is known: the verdict is right (Rules S10.13 to S10.21).

The bundled networks are benign: they never fail over 20 groups of three runs (``make campaign``; two groups in CI).
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from mixlist.training import Settings, train
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
    assert verdicts.count("inconclusive") <= GROUPS // 10 + 1


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
