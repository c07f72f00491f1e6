"""Optimizers against PyTorch's, and schedules."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from mixlist.errors import UsageError
from mixlist.training.optimizers import Optimizer, Settings

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
def test_twenty_steps_of_torch(settings: Settings) -> None:
    torch = pytest.importorskip("torch")
    start = np.random.default_rng(0).normal(0, 1, 50).astype(np.float32)
    theirs = torch.tensor(start.copy(), requires_grad=True)
    s = settings
    momentum = {"momentum": s.momentum, "nesterov": s.nesterov} if s.name == "momentum" else {}
    if s.name in ("sgd", "momentum"):
        optimizer = torch.optim.SGD([theirs], lr=s.lr, weight_decay=s.weight_decay, **momentum)
    else:
        kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[s.name]
        optimizer = kind([theirs], lr=s.lr, betas=(s.beta1, s.beta2), eps=s.eps, weight_decay=s.weight_decay)
    ours, made = start.copy(), Optimizer(settings, 50)
    for step in range(20):
        gradient = np.random.default_rng(step + 1).normal(0, 1, 50).astype(np.float32)
        theirs.grad = torch.tensor(gradient.copy())
        optimizer.step()
        made.apply(ours, gradient, s.lr)
        assert ours.dtype == np.float32
        np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=3e-6, atol=3e-7)


def test_a_state_is_gone_on_with() -> None:
    for name in ("sgd", "momentum", "adam"):
        settings = Settings(name)  # type: ignore[arg-type]
        one, p = Optimizer(settings, 4), np.ones(4, np.float32)
        one.apply(p, np.full(4, 0.3, np.float32), 0.1)
        other, q = Optimizer(settings, 4), p.copy()
        other.moments, other.updates = one.moments.copy(), one.updates
        one.apply(p, np.full(4, -0.1, np.float32), 0.1)
        other.apply(q, np.full(4, -0.1, np.float32), 0.1)
        assert p.tobytes() == q.tobytes()


def test_schedules() -> None:
    base = Settings(lr=1.0, warmup_steps=4, decay=0.5, decay_steps=3)
    assert [base.rate(k, 10) for k in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    linear = replace(base, schedule="linear", warmup_steps=0)
    assert [linear.rate(k, 4) for k in range(4)] == [1.0, 0.75, 0.5, 0.25]
    after = replace(base, schedule="linear")
    assert [after.rate(k, 8) for k in (3, 4, 5, 6, 7)] == [1.0, 1.0, 0.75, 0.5, 0.25]
    cosine = replace(base, schedule="cosine", warmup_steps=0)
    assert [cosine.rate(k, 4) for k in range(5)] == pytest.approx(
        [(1 + math.cos(math.pi * k / 4)) / 2 for k in range(5)]
    )
    stepped = replace(base, schedule="step", warmup_steps=1)
    assert [stepped.rate(k, 10) for k in range(8)] == [1.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.25]


@pytest.mark.parametrize(
    "wrong",
    [{"name": "lion"}, {"schedule": "poly"}, {"lr": 0}, {"lr": float("nan")}, {"beta1": 1.0}, {"momentum": -0.1},
     {"eps": 0}, {"weight_decay": -1}, {"warmup_steps": -1}, {"decay_steps": 0}, {"decay": 0}],
    ids=str,
)  # fmt: skip
def test_settings_out_of_range(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        Settings(**wrong)  # type: ignore[arg-type]
