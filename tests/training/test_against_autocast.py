"""``make campaign``: six healthy and six broken trainings, each beside ``torch.autocast`` in float16 on the CPU.

The healthy ones pass, and reach the metric that autocast reaches. The broken ones fail, and autocast loses them, too.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import mixlist
from tests.support.extras import import_extra

torch = import_extra("torch")
nn, functional = torch.nn, torch.nn.functional
pytestmark = [
    pytest.mark.skipif(os.environ.get("MIXLIST_CAMPAIGN") != "1", reason="MIXLIST_CAMPAIGN=1 runs it"),
    pytest.mark.timeout(3600),
]
RUNS = 4
Loss = Callable[[Any, Any, Any], Any]


def batches(seed: int, steps: int = 60, size: int = 32) -> Iterator[tuple[Any, Any]]:
    """Yield batches of a classification of 16 features into 4 classes that a linear layer can learn."""
    weight = torch.randn(16, 4, generator=torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(100 + seed)
    for _ in range(steps):
        x = torch.randn(size, 16, generator=generator)
        yield x, (x @ weight).argmax(1)


class Lambda(nn.Module):  # type: ignore[misc, name-defined]  # mypy does not read torch
    """Two layers with a function around them."""

    def __init__(self, function: Callable[[Any, Any], Any], hidden: int = 32, out: int = 4) -> None:
        super().__init__()
        self.function, self.a, self.c = function, nn.Linear(16, hidden), nn.Linear(hidden, out)

    def forward(self, x: Any) -> Any:
        return self.function(self, x)


class Attention(nn.Module):  # type: ignore[misc, name-defined]
    """A transformer on four tokens of four features."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(4, 32), nn.Linear(32, 4)
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0, batch_first=True)

    def forward(self, x: Any) -> Any:
        return self.head(self.layer(self.embed(x.view(-1, 4, 4))).mean(1))


class LoRA(nn.Module):  # type: ignore[misc, name-defined]
    """A frozen layer with a low-rank change."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(16, 4).requires_grad_(False)
        self.a, self.b = nn.Parameter(torch.randn(16, 4) * 0.1), nn.Parameter(torch.zeros(4, 4))

    def forward(self, x: Any) -> Any:
        return self.base(x) + 4 * (x @ self.a @ self.b)


def exponential_in_float32(self: Any, x: Any) -> Any:
    """Take an exponential that is infinite in float16, in a region that the author keeps in float32."""
    y = self.c(self.a(x)) + 12
    with torch.autocast("cpu", enabled=False):
        return (y.float().exp() / math.exp(12)).squeeze(1)


def rms(y: Any, epsilon: float) -> Any:
    """Normalize by the squares, which autocast leaves in the type of their operands."""
    return y / ((y * y).mean(1, keepdim=True) + epsilon).sqrt()


def diffusion(network: Any, x: Any, _: Any) -> Any:
    """Return the loss of one step of a diffusion: predict the noise."""
    share, noise = torch.rand(len(x), 1), torch.randn(x.shape)
    return functional.mse_loss(network(x * (1 - share) + noise * share), noise)


def classes(network: Any, x: Any, y: Any) -> Any:
    return functional.cross_entropy(network(x), y)


def growth(network: Any, x: Any, _: Any) -> Any:
    return (network(x) - (1 + 0.1 * x[:, 0])).square().mean()


def mlp() -> Any:
    return nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 4))


def cnn() -> Any:
    layers = nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(256, 4)
    return nn.Sequential(nn.Unflatten(1, (1, 4, 4)), *layers)


def scaled_norm() -> Any:
    """Return a network in which batch normalization makes large values, behind a convolution."""
    network = cnn()
    nn.init.constant_(network[2].weight, 5e4)
    return network.insert(3, Lambda(lambda s, x: x / 5e4))


ONES = torch.ones(32, 32)
HEALTHY: dict[str, tuple[Callable[[], Any], Loss]] = {
    "mlp": (mlp, classes),
    "cnn": (cnn, classes),
    "attention": (Attention, classes),
    "lora": (LoRA, classes),
    "diffusion": (lambda: nn.Sequential(nn.Linear(16, 64), nn.SiLU(), nn.Linear(64, 16)), diffusion),
    "region": (lambda: Lambda(exponential_in_float32, out=1), growth),
}
BROKEN: dict[str, tuple[Callable[[], Any], Loss]] = {
    "large product": (lambda: Lambda(lambda s, x: s.c(s.a(x * 100) @ (ONES * 300) / 1e5)), classes),
    "large square": (lambda: Lambda(lambda s, x: s.c(s.a(x).mul(400).mul(s.a(x).mul(400)) * 1e-4)), classes),
    "tiny squares": (lambda: Lambda(lambda s, x: s.c(rms(s.a(x) * 1e-4, 0.0))), classes),
    "large norm": (lambda: Lambda(lambda s, x: s.c(rms(s.a(x) * 2000, 1.0))), classes),
    "large offset": (lambda: Lambda(lambda s, x: (s.c(s.a(x)) + 8192) - 8192), classes),
    "large batch norm": (scaled_norm, classes),
    "tiny gradients": (mlp, lambda network, x, y: 1e-7 * classes(network, x, y)),
}


def make_loop(name: str, cast: Any) -> Callable[..., dict[str, Any]]:
    """Return the loop of a training; ``cast``: the type of autocast, or None without its region."""
    make, loss_of = (HEALTHY | BROKEN)[name]

    def run(seed: int, scaler: Any) -> dict[str, Any]:
        torch.manual_seed(seed)
        network = make()
        optimizer = torch.optim.Adam([p for p in network.parameters() if p.requires_grad], 1e-2)
        for x, y in batches(seed):
            optimizer.zero_grad()
            with torch.autocast("cpu", cast, enabled=cast is not None):
                loss = loss_of(network, x, y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        network.eval()
        x, y = next(batches(999, size=512))
        with torch.no_grad(), torch.autocast("cpu", cast, enabled=cast is not None):
            if loss_of in (classes, BROKEN["tiny gradients"][1]):
                return {"accuracy": (network(x).argmax(1) == y).float().mean()}
            return {"loss": loss_of(network, x, y)}

    return run


def metrics_of(name: str, cast: Any, scaler: str) -> float:
    """Return the mean metric of the training in PyTorch itself."""
    loop, total = make_loop(name, cast), 0.0
    for seed in range(RUNS):
        total += float(*loop(seed, torch.amp.GradScaler("cpu", enabled=scaler == "torch")).values())
    return total / RUNS


@pytest.mark.parametrize("name", [*HEALTHY, *BROKEN])
def test_the_verdict_is_the_truth_and_the_metric_that_of_autocast(name: str) -> None:
    scaler = "none" if name == "tiny gradients" else "torch"
    lists = mixlist.load_policy(ops_info="pytorch", gray_policy="promote")
    loop = make_loop(name, torch.float16)
    report = mixlist.train(loop, lists, runs=RUNS, tolerance=0.03, loss_scaler=scaler)
    mixed = sum(run.mixed.metric or 0.0 for run in report.runs) / RUNS
    autocast, float32 = metrics_of(name, torch.float16, scaler), metrics_of(name, None, scaler)
    print(f"{name}: {report.verdict}, {mixed:.4g}, autocast {autocast:.4g}, float32 {float32:.4g}; {report.reasons[0]}")
    if name in HEALTHY:
        assert report.verdict == "pass" and mixed == pytest.approx(autocast, rel=0.03, abs=1e-4)
    else:
        assert report.verdict == "fail" and autocast < float32 - 0.05
