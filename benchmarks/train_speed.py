#!/usr/bin/env python3
"""What `mixlist train` costs: an emulated mixed step against one in float32, and the optimizer beside the step.

    python benchmarks/train_speed.py [BATCH]

The bundled step graphs, batch 64 unless told otherwise, on one thread and two, under the ``onnx`` lists and those of
``mindspore-o3``; whole steps of the trainer: batch and random inputs, the network, gradients unscaled and looked at,
the update. The float32 step against torch eager is step_speed.py.
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
            trainings = {lists: started(name, int(batch), lists, threads) for lists in ("float32", *LISTS)}
            runs = {lists: lambda made=made: made.run(made.step + STEPS) for lists, made in trainings.items()}
            runs["network"] = network(trainings["float32"])
            runs |= {optimizer: beside(trainings["float32"], optimizer) for optimizer in OPTIMIZERS}
            seconds = {what: value / STEPS for what, value in race(runs, ROUNDS).items()}
            exact = seconds["float32"]
            for lists in LISTS:
                report(f"{title}, mixed by {lists}", seconds[lists], "float32", exact, goal, aim)
            for optimizer in OPTIMIZERS:
                report(f"{title}, {optimizer} and scaler", seconds[optimizer], "float32", exact, 0.15, 0.05)
            report(f"{title}, whole float32 step", exact, "the network alone", seconds["network"], None)


def network(training: Any) -> Callable[[], None]:
    """The session alone, with one feed."""
    import numpy as np

    feed = {**training.feed(0), "loss_scale": np.ones((), np.float32)}
    made = training.session

    def run() -> None:
        for _ in range(STEPS):
            made._step_session.run(made._output_names, feed)

    return run


def started(name: str, batch: int, lists: str, threads: int) -> Any:
    """A training of a bundled step: in float32, or under a built-in library with torch's scaler."""
    import mixlist
    from mixlist.training.dataset import read_dataset
    from mixlist.training.loop import Training
    from mixlist.training.optimizers import Settings
    from mixlist.training.scalers import make_scaler
    from mixlist.training.step_graph import read_step
    from mixlist.training.step_session import make_float32_session, make_mixed_session

    data = ROOT / "mixlist" / "demo_data"
    graph = read_step(data / f"digits_{name}_step.onnx")
    if lists == "float32":
        made, scaler = make_float32_session(graph, "cpu", threads), None
    else:
        made = make_mixed_session(graph, mixlist.load_policy(ops_info=lists), "cpu", threads)
        scaler = make_scaler("torch", init_scale=1024.0)
    samples = read_dataset(graph, data / "digits_train.npz", "")
    return Training(made, samples, Settings(), batch_size=batch, steps=10**9, seed=0, scaler=scaler)


def beside(training: Any, name: Any) -> Callable[[], None]:
    """What a mixed step does besides running the network: STEPS updates with gradients as large as the parameters."""
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
