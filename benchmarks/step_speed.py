#!/usr/bin/env python3
"""Time one float32 training step in ONNX Runtime against the same step in torch eager, on as many threads.

    python benchmarks/step_speed.py [BATCH]

The steps are the bundled step graphs and the networks that they were made from (tools/make_steps.py). A batch has 64
images by default; the steps run on one thread, then on two. Both compute loss, logits and all gradients from the same
parameters and images; neither updates parameters. torch draws its dropout masks within the step; those of the graph are
inputs, drawn once before. The time to draw them with numpy is printed too. The script needs the extra ``torch``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

import make_steps  # noqa: E402
from clock import machine, race, report  # noqa: E402

ROUNDS, STEPS = 31, 10


def main(batch: str = "64") -> None:
    """Print the ratio of each network and number of threads."""
    print(f"{machine()}, torch {torch.__version__}", flush=True)
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for name, kind, goal in (("transformer", make_steps.Transformer, 1.5), ("cnn", make_steps.Cnn, None)):
            torch.manual_seed(0)
            seconds = race(contenders(name, kind().train(), int(batch), threads), ROUNDS)
            step = {key: value / STEPS for key, value in seconds.items()}
            title = f"{name}, batch {batch}, {threads} threads"
            report(title, step["onnxruntime"], "torch eager", step["torch"], goal, 1.0 if goal else None)
            if step["drawing"] > 1e-5:
                report(
                    f"{title}, masks drawn", step["onnxruntime"] + step["drawing"], "torch eager", step["torch"], goal
                )


def contenders(name: str, module: torch.nn.Module, rows: int, threads: int) -> dict[str, Callable[[], object]]:
    """Return the contenders by name; each call of one runs STEPS steps."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    path = ROOT / "mixlist" / "demo_data" / f"digits_{name}_step.onnx"
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    with np.load(path.parent / "digits_train.npz") as arrays:
        x, y = arrays["x"][:rows].astype(np.float32), arrays["y"][:rows]
    images, labels, parameters = torch.from_numpy(x), torch.from_numpy(y), list(module.parameters())
    feeds: dict[str, Any] = {key: value.detach().numpy() for key, value in module.named_parameters()}
    feeds |= {"x": x, "y": y, "loss_scale": np.array(1024, np.float32)}
    mask_shapes = {i.name: (rows, *i.shape[1:]) for i in session.get_inputs() if i.name not in feeds}
    random = np.random.default_rng(0)

    def draw() -> None:
        feeds.update(
            {key: (random.random(shape, np.float32) < 0.9).astype(np.float32) for key, shape in mask_shapes.items()}
        )

    def eager() -> None:
        loss, _ = make_steps.loss(module, images, labels)
        torch.autograd.grad(loss * 1024.0, parameters)

    draw()
    runs = {"onnxruntime": lambda: session.run(None, feeds), "torch": eager, "drawing": draw}
    return {key: lambda run=run: [run() for _ in range(STEPS)] for key, run in runs.items()}


if __name__ == "__main__":
    main(*sys.argv[1:])
