#!/usr/bin/env python3
"""Write the bundled training-step graphs and their training data to mixlist/demo_data/.

    pip install torch==2.13.0 onnxscript==0.7.2 scikit-learn==1.9.1 onnx==1.23.2
    python tools/make_steps.py [FOLDER]

``digits_cnn_step.onnx`` and ``digits_transformer_step.onnx`` compute loss and gradients of two small networks that
read the digits of scikit-learn (see tools/train_digits.py for their origin). The inputs are ``x``, float32
(N, 1, 8, 8), pixels 0..16, and ``y``, int64 (N,); the outputs are ``loss``, ``logits`` and the gradients. The files
have no weights: their metadata says how to initialize the parameters. ``digits_train.npz`` and ``digits_eval.npz`` have
the images under the names of these inputs, ``x`` as uint8. Every fourth image (index % 4 == 3, 449 images, those of
digits.npz) is for evaluation, the other 1348 are for training. The same versions give the same bytes.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from mixlist.training import export_step

SEED = 20250
WIDTH, HEADS, TOKENS = 48, 4, 16
DEFAULT_FOLDER = Path(__file__).parent.parent / "mixlist" / "demo_data"


class Cnn(nn.Module):
    """Three convolutions with group normalization, one maximum pooling, one average pooling, ten logits."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(1, 16, 3, padding=1), nn.GroupNorm(4, 16)
        self.conv2, self.norm2 = nn.Conv2d(16, 32, 3, padding=1), nn.GroupNorm(4, 32)
        self.conv3, self.norm3 = nn.Conv2d(32, 64, 3, padding=1), nn.GroupNorm(4, 64)
        self.classify = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm1(self.conv1(x / 16)))
        x = F.max_pool2d(F.relu(self.norm2(self.conv2(x))), 2)
        x = F.relu(self.norm3(self.conv3(x)))
        logits: Tensor = self.classify(F.adaptive_avg_pool2d(x, 1).flatten(1))
        return logits


class Block(nn.Module):
    """Attention and a two-layer network, each behind a layer normalization and with a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.project, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.fc1, self.fc2 = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        projected = self.project(self.norm1(x)).unflatten(-1, (3, HEADS, WIDTH // HEADS))
        query, key, value = projected.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        x = x + self.dropout(self.out(mixed))
        out: Tensor = x + self.dropout(self.fc2(F.gelu(self.fc1(self.norm2(x)))))
        return out


class Transformer(nn.Module):
    """Sixteen patches of 2x2 pixels, two blocks, ten logits from the mean of the patches."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, WIDTH, 2, stride=2)
        self.place = nn.Parameter(torch.randn(TOKENS, WIDTH) * 0.02)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm, self.classify = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x / 16).flatten(2).transpose(1, 2) + self.place
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.classify(self.norm(x).mean(1))
        return logits


def loss(module: nn.Module, x: Tensor, y: Tensor) -> Any:
    """Return the cross entropy, and the logits for the accuracy."""
    logits = module(x)
    return F.cross_entropy(logits, y), {"logits": logits}


def write_step(name: str, folder: Path) -> Path:
    """Write the step graph of ``cnn`` or ``transformer``; return its path."""
    torch.manual_seed(SEED)
    module = {"cnn": Cnn, "transformer": Transformer}[name]().train()
    batch = {"x": torch.zeros(2, 1, 8, 8), "y": torch.zeros(2, dtype=torch.int64)}
    path = folder / f"digits_{name}_step.onnx"
    export_step(module, loss, batch, path=path)
    return path


def write_data(folder: Path) -> None:
    """Write the images and labels for training and for evaluation, under the names of the step's inputs."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images, labels = digits.images.astype(np.uint8)[:, None], digits.target.astype(np.int64)
    held_out = np.arange(len(labels)) % 4 == 3
    for name, rows in (("train", ~held_out), ("eval", held_out)):
        np.savez_compressed(folder / f"digits_{name}.npz", x=images[rows], y=labels[rows])


def main(folder: str = "") -> int:
    """Write the two step graphs and the training data."""
    torch.set_num_threads(1)
    out = Path(folder) if folder else DEFAULT_FOLDER
    out.mkdir(parents=True, exist_ok=True)
    for name in ("cnn", "transformer"):
        path = write_step(name, out)
        print(f"{path.name}: {path.stat().st_size / 1000:.1f} kB")
    write_data(out)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
