#!/usr/bin/env python3
"""Time `mixlist train`: an emulated mixed step against one in float32, and the optimizer against the step.

    python benchmarks/train_speed.py [BATCH]

The steps are those of the bundled step graphs, with a batch of 64 by default, on one thread and on two, under the
``onnx`` lists and those of ``mindspore-o3``. The time covers whole steps of the trainer: select the batch, draw random
inputs, run the network, unscale and test the gradients, update. step_speed.py compares the float32 step with torch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from clock import machine, race, report  # noqa: E402

ROUNDS, STEPS = 21, 10
LISTS = ("onnx", "mindspore-o3")
OPTIMIZERS = ("sgd", "momentum", "adam", "adamw")


def main(batch: str = "64") -> None:
    """Print every ratio."""
    print(machine(), flush=True)
    for threads in (1, 2):
        for name, goal, aim in (("transformer", 3.0, 1.5), ("cnn", None, None)):
            title = f"{name}, {threads} thread{'s' * (threads > 1)}"
            trainings = {lists: make_training(name, int(batch), lists, threads) for lists in ("float32", *LISTS)}
            runs = {lists: make_step_run(training) for lists, training in trainings.items()}
            runs["network"] = make_network_run(trainings["float32"])
            runs |= {optimizer: make_update(trainings["float32"], optimizer) for optimizer in OPTIMIZERS}
            seconds = {contender: value / STEPS for contender, value in race(runs, ROUNDS).items()}
            float32 = seconds["float32"]
            for lists in LISTS:
                report(f"{title}, mixed by {lists}", seconds[lists], "float32", float32, goal, aim)
            for optimizer in OPTIMIZERS:
                report(f"{title}, {optimizer} and scaler", seconds[optimizer], "float32", float32, 0.15, 0.05)
            report(f"{title}, whole float32 step", float32, "the network alone", seconds["network"], None)


def make_step_run(training: Any) -> Callable[[], None]:
    """Return a contender that runs STEPS whole steps."""
    return lambda: training.run(training.step + STEPS)


def make_network_run(training: Any) -> Callable[[], None]:
    """Return a contender that runs STEPS times the session alone, with one feed."""
    import numpy as np

    feed = {**training.feed(0), "loss_scale": np.ones((), np.float32)}
    step_session = training.session

    def run() -> None:
        for _ in range(STEPS):
            step_session._step_session.run(step_session._output_names, feed)

    return run


def make_training(name: str, batch: int, lists: str, threads: int) -> Any:
    """Return a training of a bundled step: in float32, or under a built-in library with torch's scaler."""
    import mixlist
    from mixlist.training.dataset import read_dataset
    from mixlist.training.loop import Training
    from mixlist.training.optimizers import Settings
    from mixlist.training.scalers import make_scaler
    from mixlist.training.step_graph import load_step_graph
    from mixlist.training.step_session import make_float32_session, make_mixed_session

    data = ROOT / "mixlist" / "demo_data"
    graph = load_step_graph(data / f"digits_{name}_step.onnx")
    if lists == "float32":
        session, scaler = make_float32_session(graph, "cpu", threads), None
    else:
        session = make_mixed_session(graph, mixlist.load_policy(ops_info=lists), "cpu", threads)
        scaler = make_scaler("torch", init_scale=1024.0)
    samples = read_dataset(graph, data / "digits_train.npz", "")
    return Training(session, samples, Settings(), batch_size=batch, steps=10**9, seed=0, scaler=scaler)


def make_update(training: Any, name: Any) -> Callable[[], None]:
    """Return a contender that runs STEPS updates, with as many random gradients as the network has parameters.

    An update is the part of a mixed step without the network: unscale and test the gradients, update the scaler and
    the parameters.
    """
    import numpy as np

    from mixlist.training.loop import all_finite
    from mixlist.training.optimizers import Optimizer, Settings
    from mixlist.training.scalers import make_scaler

    parameters = training.parameters.flat.copy()
    gradient = np.random.default_rng(0).normal(0, 1, parameters.size).astype(np.float32)
    optimizer, scaler = Optimizer(Settings(name, weight_decay=0.01), parameters.size), make_scaler("torch")
    scratch = gradient.copy()

    def update() -> None:
        for _ in range(STEPS):
            scratch[...] = gradient
            np.divide(scratch, np.float32(scaler.scale), out=scratch)
            if scaler.update(all_finite(scratch)) == "step":
                optimizer.apply(parameters, scratch, 1e-3)

    return update


if __name__ == "__main__":
    main(*sys.argv[1:])
