"""Eight small networks that learn from the bundled digits, each as a training loop for ``train``.

The pixels of a digit are an image for the convolutional networks, 8 rows for the transformer and the LSTM, and a grid
of nodes for the graph network. The GPT predicts the next of 16 pixels, the autoencoder the image itself, and the U-Net
which pixels of a noisy image are bright.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.support.package import data_folder

BATCH = 32


@cache
def digits() -> tuple[Tensor, Tensor]:
    """Return the images, float32 (1348, 1, 8, 8) in [0, 1], and the digits, int64 (1348,)."""
    with np.load(data_folder("demo_data") / "digits_train.npz") as arrays:
        return torch.from_numpy(arrays["x"].astype(np.float32) / 16), torch.from_numpy(arrays["y"])


class Residual(nn.Module):
    """Two convolutions with batch normalization, and a skip connection."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.norm1, self.norm2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.norm1(self.conv1(x)), inplace=True)
        return functional.relu(x + self.norm2(self.conv2(y)))


class Transformer(nn.Module):
    """Classify the rows of an image; ``causal`` predicts the next pixel instead."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.embed = nn.Embedding(17, 32) if causal else nn.Linear(8, 32)
        self.positions = nn.Parameter(0.1 * torch.randn(16 if causal else 8, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True, norm_first=causal)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 17 if causal else 10)

    def forward(self, x: Tensor) -> Tensor:
        y = self.embed(x) + self.positions
        if not self.causal:
            result: Tensor = self.head(self.layers(y).mean(1))
            return result
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        scores: Tensor = self.head(self.layers(y, mask=mask, is_causal=True))
        return scores.transpose(1, 2)


class Recurrent(nn.Module):
    """Read the rows of an image by an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(8, 32, batch_first=True), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.lstm(x)[0][:, -1])
        return result


class GraphNetwork(nn.Module):
    """Two rounds of messages between the pixels, the nodes of a grid, by gather and index_add."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.message, self.update = nn.Linear(3, 16), nn.Linear(16, 16), nn.Linear(32, 16)
        self.head = nn.Linear(64 * 16, 10)
        numbers = torch.arange(64).reshape(8, 8)
        pairs = [(numbers[:, :-1], numbers[:, 1:]), (numbers[:-1], numbers[1:])]
        edges = torch.cat([torch.stack([a.flatten(), b.flatten()]) for a, b in pairs], 1)
        self.register_buffer("edges", torch.cat([edges, edges.flip(0)], 1))
        self.register_buffer("places", torch.stack([numbers // 8, numbers % 8], -1).reshape(1, 64, 2) / 8)

    def forward(self, x: Tensor) -> Tensor:
        nodes = functional.relu(self.embed(torch.cat([x.reshape(-1, 64, 1), self.places.expand(len(x), -1, -1)], -1)))
        source, target = self.edges
        for _ in range(2):
            received = torch.zeros_like(nodes).index_add(1, target, self.message(nodes)[:, source])
            nodes = functional.relu(self.update(torch.cat([nodes, received], -1)))
        result: Tensor = self.head(nodes.flatten(1))
        return result


class UNet(nn.Module):
    """One level down and up, joined with the skipped features."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.bottom = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.up, self.join = nn.ConvTranspose2d(16, 8, 2, stride=2), nn.Conv2d(16, 8, 3, padding=1)
        self.norm, self.head = nn.GroupNorm(2, 8), nn.Conv2d(8, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        skipped = functional.relu(self.down(x))
        low = functional.relu(self.bottom(functional.max_pool2d(skipped, 2)))
        joined = self.norm(self.join(torch.cat([skipped, self.up(low)], 1)))
        result: Tensor = self.head(functional.silu(joined))
        return result


def _cnn() -> nn.Module:
    convolutions = nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3), nn.ReLU()
    return nn.Sequential(*convolutions, nn.Flatten(), nn.Dropout(0.1), nn.Linear(64, 10))


def _resnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), Residual(12), nn.AvgPool2d(2), Residual(12), nn.Flatten(), nn.Linear(192, 10)
    )


def _autoencoder() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 48), nn.GELU(), nn.Linear(48, 8), nn.Linear(8, 48), nn.GELU(), nn.Linear(48, 64))


def classify(scores: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(scores, target)


def _rows(x: Tensor) -> Tensor:
    return x[:, 0]


def _next_pixels(x: Tensor) -> Tensor:
    return (16 * x).long().flatten(1)[:, 16:33]


@dataclass(frozen=True)
class Task:
    """A network, what it learns, and how: a training loop.

    ``inputs`` and ``targets`` take images and digits. ``loss``: takes the network's outputs and the targets.
    ``optimize``: makes the optimizer. ``start``: parameters to start from, instead of the drawn ones.
    ``change``: changes the images of a step, by its number.
    """

    make: Callable[[], nn.Module]
    inputs: Callable[[Tensor], Tensor] = lambda x: x
    targets: Callable[[Tensor, Tensor], Tensor] = lambda x, y: y
    loss: Callable[[Tensor, Tensor], Tensor] = classify
    optimize: Callable[[Any], torch.optim.Optimizer] = lambda parameters: torch.optim.Adam(parameters, 2e-3)
    steps: int = 100
    start: dict[str, Tensor] | None = None
    change: Callable[[int, Tensor], Tensor] = lambda step, x: x

    @property
    def metric(self) -> str:
        """Return "accuracy" for a classification of whole images, else "loss"."""
        return "accuracy" if self.loss is classify and self.make is not NETWORKS["gpt"].make else "loss"

    def __call__(self, seed: int, scaler: Any) -> dict[str, list[float]]:
        """Train, and return the metric of three evaluations near the end."""
        torch.manual_seed(seed)
        network = self.make()
        if self.start is not None:
            network.load_state_dict(self.start)
        optimizer = self.optimize(network.parameters())
        evaluations = []
        for step, (x, y) in enumerate(self._batches(seed)):
            optimizer.zero_grad()
            loss = self.loss(network(self.inputs(self.change(step, x))), self.targets(x, y))
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            if step + 1 in (self.steps - 10, self.steps - 5, self.steps):
                evaluations.append(self._evaluate(network))
        return {self.metric: evaluations}

    def _batches(self, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        x, y = digits()
        generator = torch.Generator().manual_seed(seed)
        for _ in range(self.steps):
            chosen = torch.randint(1000, (BATCH,), generator=generator)
            yield x[chosen], y[chosen]

    @torch.no_grad()
    def _evaluate(self, network: nn.Module) -> float:
        x, y = (part[1000:] for part in digits())
        network.eval()
        outputs, targets = network(self.inputs(x)), self.targets(x, y)
        network.train()
        if self.metric == "accuracy":
            return float((outputs.argmax(1) == targets).float().mean())
        return float(self.loss(outputs, targets))

    def trained(self, steps: int) -> dict[str, Tensor]:
        """Return the parameters after a plain float32 training."""
        network: list[nn.Module] = []

        def make() -> nn.Module:
            network.append(self.make())
            return network[0]

        replace(self, make=make, steps=steps)(1000, torch.amp.GradScaler("cpu", enabled=False))
        return {name: value.clone() for name, value in network[0].state_dict().items()}


def _noisy(x: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(len(x))
    return x + 0.3 * torch.randn(x.shape, generator=generator)


NETWORKS: dict[str, Task] = {
    "cnn": Task(_cnn),
    "resnet": Task(_resnet),
    "transformer": Task(lambda: Transformer(causal=False), _rows),
    "gpt": Task(
        lambda: Transformer(causal=True), lambda x: _next_pixels(x)[:, :-1], lambda x, y: _next_pixels(x)[:, 1:]
    ),
    "lstm": Task(Recurrent, _rows, optimize=lambda parameters: torch.optim.Adam(parameters, 5e-3)),
    "autoencoder": Task(
        _autoencoder, lambda x: x.flatten(1), lambda x, y: x.flatten(1), functional.mse_loss,
        lambda parameters: torch.optim.AdamW(parameters, 3e-3),
    ),
    "graph network": Task(GraphNetwork),
    "u-net": Task(
        UNet, _noisy, lambda x, y: (x > 0.5).float(), functional.binary_cross_entropy_with_logits,
        lambda parameters: torch.optim.SGD(parameters, 0.2, momentum=0.9),
    ),
}  # fmt: skip
