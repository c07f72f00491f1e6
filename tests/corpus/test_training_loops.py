"""``make campaign``: the loops of transformers, accelerate, Lightning and timm train without a changed line."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .conftest import CAMPAIGN

pytestmark = [pytest.mark.skipif(not CAMPAIGN, reason="MIXLIST_CAMPAIGN=1 runs it"), pytest.mark.timeout(3600)]
LOOPS = """
import os

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset


BFLOAT16 = os.environ.get("LOOP_TYPE") == "bf16"


class Points(Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randn(256, 8, generator=generator)
        self.y = (self.x @ torch.randn(8, 3, generator=generator)).argmax(1)

    def __len__(self):
        return 256

    def __getitem__(self, index):
        return {"x": self.x[index], "labels": self.y[index]}


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.head = nn.Linear(8, 32), nn.Linear(32, 3)

    def forward(self, x, labels=None):
        scores = self.head(functional.relu(self.hidden(x)))
        return {"loss": None if labels is None else functional.cross_entropy(scores, labels), "logits": scores}


def measure(network):
    points = Points()
    with torch.no_grad():
        return {"loss": functional.cross_entropy(network(points.x)["logits"].float(), points.y)}


def transformers(seed):
    from transformers import Trainer, TrainingArguments

    torch.manual_seed(seed)
    arguments = TrainingArguments(
        "out", fp16=not BFLOAT16, bf16=BFLOAT16, num_train_epochs=3, per_device_train_batch_size=16, learning_rate=5e-3,
        max_grad_norm=0.1, save_strategy="no", report_to=[], seed=seed, use_cpu=True, disable_tqdm=True,
    )
    trainer = Trainer(Network(), arguments, train_dataset=Points(), eval_dataset=Points())
    trainer.train()
    return {"loss": trainer.evaluate()["eval_loss"]}


def accelerate(seed):
    from accelerate import Accelerator

    torch.manual_seed(seed)
    accelerator, network = Accelerator(cpu=True, mixed_precision="bf16" if BFLOAT16 else "fp16"), Network()
    optimizer = torch.optim.Adam(network.parameters(), 5e-3)
    network, optimizer, loader = accelerator.prepare(network, optimizer, DataLoader(Points(), 16, shuffle=True))
    for _ in range(3):
        for batch in loader:
            accelerator.backward(network(**batch)["loss"])
            accelerator.clip_grad_norm_(network.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()
    return measure(network)


def lightning(seed):
    import lightning
    from lightning.pytorch.plugins import MixedPrecision

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.network = Network()

        def training_step(self, batch, index):
            return self.network(**batch)["loss"]

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), 5e-3)

    torch.manual_seed(seed)
    module = Module()
    trainer = lightning.Trainer(
        max_epochs=3, accelerator="cpu", gradient_clip_val=0.1, precision="bf16-mixed" if BFLOAT16 else None,
        plugins=None if BFLOAT16 else [MixedPrecision("16-mixed", "cpu")],
        logger=False, enable_checkpointing=False, enable_progress_bar=False,
    )
    trainer.fit(module, DataLoader(Points(), 16, shuffle=True))
    return measure(module.network)


def timm(seed):
    from timm.utils import NativeScaler

    torch.manual_seed(seed)
    network, scale_and_step = Network(), NativeScaler()
    optimizer = torch.optim.Adam(network.parameters(), 5e-3)
    for _ in range(3):
        for batch in DataLoader(Points(), 16, shuffle=True):
            loss = network(**batch)["loss"]
            scale_and_step(loss, optimizer, clip_grad=0.1, parameters=network.parameters())
            optimizer.zero_grad()
    return measure(network)
"""


@pytest.mark.parametrize("library", ["transformers", "accelerate", "lightning", "timm"])
def test_a_library_trains_unchanged(library: str, interpreter: Callable[[str], str], tmp_path: Path) -> None:
    """Its own scaler is that of the training, and it clips gradients that are not scaled: without ML620."""
    (tmp_path / "loops.py").write_text(LOOPS)
    tool = "timm" if library == "timm" else "training"
    command = [interpreter(tool), "-m", "mixlist", "train", f"loops.py:{library}", "--format", "json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr + done.stdout
    report: dict[str, Any] = json.loads(done.stdout)
    assert (report["verdict"], report["warnings"]) == ("pass", [])
    assert report["steps"] == 48 and any(count["low"] for count in report["operators"])
    assert all(run["mixed"]["scale"][0] == 65536 for run in report["runs"])


@pytest.mark.parametrize("library", ["transformers", "accelerate", "lightning"])
def test_a_library_trains_unchanged_in_bfloat16(
    library: str, interpreter: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a GradScaler: each step of the optimizer is one, and Lightning gives it a closure."""
    monkeypatch.setenv("LOOP_TYPE", "bf16")
    (tmp_path / "loops.py").write_text(LOOPS)
    options = ["--loss-scaler", "none", "--precision-mode-v2", "mixed_bfloat16", "--format", "json"]
    command = [interpreter("training"), "-m", "mixlist", "train", f"loops.py:{library}", *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    report: dict[str, Any] = json.loads(done.stdout or "{}")
    assert (done.returncode, report.get("warnings")) == (0, []), done.stderr + done.stdout
    assert report["steps"] == 48 and any(count["low"] for count in report["operators"])
