#!/usr/bin/env python3
"""Train the demo's network on handwritten digits and write mixlist/demo_data/.

    pip install torch==2.13.0 scikit-learn==1.9.1 onnx==1.23.2
    python tools/train_digits.py [FOLDER]

Data: the 1797 digits of scikit-learn (the test part of the UCI set "Optical Recognition of Handwritten Digits",
E. Alpaydin and C. Kaynak, 1998, CC BY 4.0), 8x8 pixels with values 0..16.
Split: every fourth image (index % 4 == 3, 449 images) is held out; the other 1348 are for training. The held-out images
decide nothing: the number of epochs is fixed, and the file has the weights of the last epoch.
One thread, one seed and deterministic kernels: the same machine and versions give the same bytes.

The network is small, but it has operators for which mixed precision matters: convolutions and matrix products (fast in
low precision), attention with Softmax, layer normalization, and after the first convolution a normalization by the
energy of the activations, the sum of their squares. The pixels are first scaled to 8-bit gray levels (0..255), so that
this sum is larger than 65504, the largest float16.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import onnx
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

SEED, EPOCHS, BATCH = 20250, 60, 32
WIDTH, TOKENS, CHANNELS = 48, 16, 32
FEATURES = CHANNELS * 8 * 8
OPSET, IR_VERSION = 17, 8
DEFAULT_FOLDER = Path(__file__).parent.parent / "mixlist" / "demo_data"


class Scale(nn.Module):
    """Scale pixels of 0..16 to 8-bit gray levels of 0..255."""

    def forward(self, pixels: Tensor) -> Tensor:
        return pixels * (255.0 / 16.0)


class EnergyNorm(nn.Module):
    """Divide each image's activations by their root mean square, which removes the contrast."""

    def forward(self, x: Tensor) -> Tensor:
        energy = (x * x).sum(dim=(1, 2, 3), keepdim=True)
        return x / torch.sqrt(energy / FEATURES + 1e-3)


class Attention(nn.Module):
    """Single-head self-attention over the 16 patches."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        scores = self.query(x) @ self.key(x).transpose(1, 2) / math.sqrt(WIDTH)
        mixed: Tensor = self.out(torch.softmax(scores, dim=-1) @ self.value(x))
        return mixed


class Digits(nn.Module):
    """Convolution, RMS normalization, convolution to 4x4 patches, one transformer layer, ten logits."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.energy = Scale(), EnergyNorm()
        self.conv1 = nn.Conv2d(1, CHANNELS, 3, padding=1)
        self.conv2 = nn.Conv2d(CHANNELS, WIDTH, 3, stride=2, padding=1)
        self.place = nn.Parameter(torch.zeros(TOKENS, WIDTH))
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(WIDTH) for _ in range(3))
        self.attention = Attention()
        self.fc1, self.fc2 = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.classify = nn.Linear(WIDTH, 10)

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.energy(torch.relu(self.conv1(self.scale(pixels))))
        x = torch.relu(self.conv2(x)).flatten(2).transpose(1, 2) + self.place
        x = x + self.attention(self.norm1(x))
        x = x + self.fc2(torch.relu(self.fc1(self.norm2(x))))
        logits: Tensor = self.classify(self.norm3(x).mean(dim=1))
        return logits


def split() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return training pixels and labels, held-out pixels and labels; pixels are uint8 (n, 1, 8, 8) in 0..16."""
    digits = load_digits()
    pixels = digits.images.astype(np.uint8)[:, None]
    labels = digits.target.astype(np.uint8)
    held_out = np.arange(len(labels)) % 4 == 3
    return pixels[~held_out], labels[~held_out], pixels[held_out], labels[held_out]


def train(pixels: np.ndarray, labels: np.ndarray) -> Digits:
    """Return the trained network: AdamW, one-cycle rate, images shifted by up to one pixel."""
    model, x, y = Digits(), torch.from_numpy(pixels).float(), torch.from_numpy(labels).long()
    steps = math.ceil(len(y) / BATCH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-2)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=EPOCHS * steps)
    for epoch in range(EPOCHS):
        total = 0.0
        for rows in torch.randperm(len(y)).split(BATCH):
            down, right = torch.randint(-1, 2, (2,)).tolist()
            batch = torch.roll(x[rows], (down, right), (2, 3)) if epoch < EPOCHS - 10 else x[rows]
            loss = nn.functional.cross_entropy(model(batch), y[rows], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            rate.step()
            total += loss.item()
        print(f"epoch {epoch + 1:2d}  loss {total / steps:.4f}")
    return model.eval()


def accuracy(model: Digits, pixels: np.ndarray, labels: np.ndarray) -> float:
    """Return the share of images whose largest logit is that of the label."""
    with torch.no_grad():
        predicted = model(torch.from_numpy(pixels).float()).argmax(1).numpy()
    return float((predicted == labels).mean())


def export(model: Digits, path: Path) -> None:
    """Write the ONNX file: opset 17, IR 8, any batch size, node names from the modules' names."""
    torch.onnx.export(model, (torch.zeros(2, 1, 8, 8),), str(path), dynamo=False, opset_version=OPSET,
                      input_names=["pixels"], output_names=["logits"],
                      dynamic_axes={"pixels": {0: "batch"}, "logits": {0: "batch"}})  # fmt: skip
    proto = onnx.load(path)
    proto.ir_version = IR_VERSION
    onnx.checker.check_model(proto, full_check=True)
    onnx.save(proto, path)


def main(folder: str = "") -> int:
    """Train, measure on the held-out images, write digits.onnx, digits.npz and digits_train.npz."""
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    out = Path(folder) if folder else DEFAULT_FOLDER
    out.mkdir(parents=True, exist_ok=True)
    train_x, train_y, test_x, test_y = split()
    model = train(train_x, train_y)
    export(model, out / "digits.onnx")
    np.savez_compressed(out / "digits.npz", pixels=test_x, labels=test_y)
    np.savez_compressed(out / "digits_train.npz", x=train_x, y=train_y.astype(np.int64))
    print(f"training accuracy {accuracy(model, train_x, train_y):.4f} on {len(train_y)} images")
    print(f"held-out accuracy {accuracy(model, test_x, test_y):.4f} on {len(test_y)} images")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
