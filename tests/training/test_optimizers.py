"""Tests that compare the optimizers with those of PyTorch, and tests of learning-rate schedules."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from mixlist.errors import UsageError
from mixlist.training.optimizers import Optimizer, Settings
from mixlist.training.step_graph import Parameter


def weight(size: int, name: str = "w") -> Parameter:
    return Parameter(name, (size,), {})


PARAMETERS = (weight(20), weight(30, "b"))
SETTINGS = [
    Settings("sgd", lr=0.1),
    Settings("sgd", lr=0.1, weight_decay=0.01),
    Settings("momentum", lr=0.05),
    Settings("momentum", lr=0.05, momentum=0.8, nesterov=True, weight_decay=0.02),
    Settings("adam", lr=0.01),
    Settings("adam", lr=0.01, beta1=0.8, beta2=0.95, eps=1e-5, weight_decay=0.1),
    Settings("adamw", lr=0.01, weight_decay=0.1),
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_twenty_steps_equal_torch(settings: Settings) -> None:
    torch = pytest.importorskip("torch")
    start = np.random.default_rng(0).normal(0, 1, 50).astype(np.float32)
    expected = torch.tensor(start.copy(), requires_grad=True)
    momentum = {"momentum": settings.momentum, "nesterov": settings.nesterov} if settings.name == "momentum" else {}
    if settings.name in ("sgd", "momentum"):
        torch_optimizer = torch.optim.SGD([expected], lr=settings.lr, weight_decay=settings.weight_decay, **momentum)
    else:
        optimizer_class = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[settings.name]
        torch_optimizer = optimizer_class(
            [expected],
            lr=settings.lr,
            betas=(settings.beta1, settings.beta2),
            eps=settings.eps,
            weight_decay=settings.weight_decay,
        )
    parameters, optimizer = start.copy(), Optimizer(settings, PARAMETERS)
    for step in range(20):
        gradient = np.random.default_rng(step + 1).normal(0, 1, 50).astype(np.float32)
        expected.grad = torch.tensor(gradient.copy())
        torch_optimizer.step()
        optimizer.apply(parameters, gradient, settings.lr)
        assert parameters.dtype == np.float32
        np.testing.assert_allclose(parameters, expected.detach().numpy(), rtol=3e-6, atol=3e-7)


def test_an_optimizer_continues_from_a_copied_state() -> None:
    for name in ("sgd", "momentum", "adam"):
        settings = Settings(name)  # type: ignore[arg-type]
        optimizer, parameters = Optimizer(settings, (weight(4),)), np.ones(4, np.float32)
        optimizer.apply(parameters, np.full(4, 0.3, np.float32), 0.1)
        restored, restored_parameters = Optimizer(settings, (weight(4),)), parameters.copy()
        restored.moments, restored.updates = optimizer.moments.copy(), optimizer.updates
        optimizer.apply(parameters, np.full(4, -0.1, np.float32), 0.1)
        restored.apply(restored_parameters, np.full(4, -0.1, np.float32), 0.1)
        assert parameters.tobytes() == restored_parameters.tobytes()


def test_schedules() -> None:
    constant = Settings(lr=1.0, warmup_steps=4, decay=0.5, decay_steps=3)
    assert [constant.rate(k, 10) for k in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    linear = replace(constant, schedule="linear", warmup_steps=0)
    assert [linear.rate(k, 4) for k in range(4)] == [1.0, 0.75, 0.5, 0.25]
    linear_after_warmup = replace(constant, schedule="linear")
    assert [linear_after_warmup.rate(k, 8) for k in (3, 4, 5, 6, 7)] == [1.0, 1.0, 0.75, 0.5, 0.25]
    cosine = replace(constant, schedule="cosine", warmup_steps=0)
    assert [cosine.rate(k, 4) for k in range(5)] == pytest.approx(
        [(1 + math.cos(math.pi * k / 4)) / 2 for k in range(5)]
    )
    stepped = replace(constant, schedule="step", warmup_steps=1)
    assert [stepped.rate(k, 10) for k in range(8)] == [1.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.25]


@pytest.mark.parametrize(
    "values",
    [{"name": "lion"}, {"schedule": "poly"}, {"lr": 0}, {"lr": float("nan")}, {"beta1": 1.0}, {"momentum": -0.1},
     {"clip_norm": 0}, {"clip_value": float("nan")}, {"clip_norm": 1, "clip_value": 1}, {"accumulate": 0},
     {"eps": 0}, {"weight_decay": -1}, {"warmup_steps": -1}, {"decay_steps": 0}, {"decay": 0}],
    ids=str,
)  # fmt: skip
def test_settings_out_of_range_are_refused(values: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        Settings(**values)  # type: ignore[arg-type]
