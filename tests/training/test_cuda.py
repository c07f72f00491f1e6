"""Training loops on a GPU: the verdict, and overflow as ``torch.autocast`` has it."""

from __future__ import annotations

from typing import Any

import pytest

import mixlist
from tests.support.builders import policy
from tests.support.extras import import_extra

torch = import_extra("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
nn, functional = torch.nn, torch.nn.functional
# What autocast computes in float16 and in float32; everything else follows.
AUTOCAST = policy(
    white=["Gemm", "MatMul", "Conv"],
    black=[
        "Softmax",
        "LogSoftmax",
        "NegativeLogLikelihoodLoss",
        "LayerNormalization",
        "Exp",
        "Log",
        "Pow",
        "ReduceSum",
    ],
)
STEPS, TRAININGS = 60, 20


def loop(seed: int, scaler: Any, skipped: list[int], autocast: bool = False) -> float:
    """Train a network whose gradients overflow at large scales, and note the skipped steps."""
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.LayerNorm(64), nn.Linear(64, 4)).cuda()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(16, 4, generator=generator)
    for step in range(STEPS):
        x = torch.randn(32, 16, generator=generator)
        y = (x @ weight).argmax(1).cuda()
        with torch.autocast("cuda", dtype=torch.float16, enabled=autocast):
            loss = functional.cross_entropy(network(x.cuda()), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scale = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        if scaler.get_scale() < scale:
            skipped.append(step)
    return float(loss)


def test_a_loop_on_the_gpu_passes() -> None:
    report = mixlist.train(lambda seed, scaler: {"loss": loop(seed, scaler, [])}, AUTOCAST)
    assert (report.device, report.verdict) == ("cuda", "pass"), report.reasons


def test_overflow_steps_are_those_of_autocast_within_one() -> None:
    arguments = {"init_scale": 2.0**24, "growth_interval": 10}
    for seed in range(TRAININGS):
        theirs: list[int] = []
        loop(seed, torch.amp.GradScaler("cuda", **arguments), theirs, autocast=True)
        run = lambda number, scaler: loop(number, scaler, [])  # noqa: E731
        report = mixlist.train(run, AUTOCAST, runs=1, first_seed=seed, scaler_parameters=arguments)
        assert abs(len(report.runs[0].mixed.exceptions) - len(theirs)) <= 1, seed
