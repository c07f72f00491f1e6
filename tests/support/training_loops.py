"""A training loop as text, for tests that give ``train`` a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.extras import import_extra

# It learns to tell three clusters apart in 30 steps, whatever the seed.
LOOP = """
import torch
from torch import nn

STEPS = 30


def batches():
    generator = torch.Generator().manual_seed(0)
    centers = 3 * torch.eye(3, 4)
    for _ in range(STEPS):
        y = torch.randint(3, (16,), generator=generator)
        yield centers[y] + torch.randn(16, 4, generator=generator), y


def run(seed, scaler):
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.Adam(network.parameters(), lr=0.05)
    for x, y in batches():
        loss = loss_function(network, x, y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    with torch.no_grad():
        x, y = next(batches())
        accuracy = (network(x).argmax(1) == y).float().mean()
    return {"accuracy": accuracy}


def loss_function(network, x, y):
    return nn.functional.cross_entropy(network(x), y)
"""
# In every step, Exp exceeds the range of float16 in the loss and its gradient, whatever the loss scale is.
OVERFLOWING_LOSS = """

def loss_function(network, x, y):
    scores = network(x)
    return nn.functional.cross_entropy(scores, y) + 1e-7 * torch.exp(12 + torch.tanh(scores)).mean()
"""


def write_loop(folder: Path, more: str = "") -> Path:
    """Write the loop into ``train.py``, with more code at its end; return the path."""
    path = folder / "train.py"
    path.write_text(LOOP + more)
    return path


def load_loop() -> Callable[[int, Any], Any]:
    """Return the loop as a function; skip the test without torch."""
    import_extra("torch")
    members: dict[str, Any] = {}
    exec(LOOP, members)
    run: Callable[[int, Any], Any] = members["run"]
    return run
