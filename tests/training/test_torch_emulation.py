"""The same rounding in torch, with its own GradScaler and optimizer: the same exceptions and the same loss scales."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mixlist.training.dataset import Dataset
from mixlist.training.loop import Training
from mixlist.training.optimizers import Settings
from mixlist.training.options import TrainOptions
from mixlist.training.scalers import make_scaler
from mixlist.training.step_graph import load_step_graph
from mixlist.training.step_session import make_mixed_session
from tests.support.training_network import classifier, clusters, mixed

torch = pytest.importorskip("torch")

STEPS, BATCH = 300, 16
SCALER = {"init_scale": 2.0**20, "growth_interval": 15}
CASES = [("float16", 1.0, 0), ("float16", 40.0, 1), ("float16", 0.01, 2), ("bfloat16", 1.0, 3)]


def gradients(values: dict[str, Any], batch: dict[str, Any], scale: float, low: str) -> tuple[float, dict[str, Any]]:
    """Return the loss and the scaled gradients of ``classifier`` under the lists ``mixed``, node by node.

    ``low_value`` stands for each Cast to the low type, and for each low node.
    """
    low_type = {"float16": torch.float16, "bfloat16": torch.bfloat16}[low]

    def low_value(tensor: Any) -> Any:
        return tensor.to(low_type).float()

    x, w1, b1, w2, b2 = (
        low_value(value) for value in (batch["x"], *(values[name] for name in ("w1", "b1", "w2", "b2")))
    )
    hidden = low_value(low_value(x @ w1) + b1)
    active = torch.relu(hidden)
    logits = low_value(low_value(active @ w2) + b2)
    # The loss layer is in float32.
    hot = torch.nn.functional.one_hot(batch["y"], 3).float()
    loss = -(torch.log_softmax(logits, 1) * hot).sum(1).mean()
    of_logits = (torch.softmax(logits, 1) - hot) * scale / len(hot)
    low_of_logits = low_value(of_logits)
    of_hidden = torch.where(hidden > 0, low_value(low_of_logits @ w2.T), torch.zeros(()))
    return float(loss), {
        "w1": low_value(x.T @ of_hidden),
        "b1": of_hidden.sum(0),
        "w2": low_value(active.T @ low_of_logits),
        "b2": of_logits.sum(0),
    }


def train_with_torch(start: dict[str, Any], batches: list[Any], low: str) -> tuple[list[float], list[float], list[int]]:
    """Return the loss and the scale of each step, and the steps that GradScaler skipped."""
    values = {name: torch.tensor(value.copy(), requires_grad=True) for name, value in start.items()}
    optimizer = torch.optim.SGD(values.values(), lr=0.02)
    scaler = torch.amp.GradScaler("cpu", **SCALER)
    losses, scales, skipped = [], [], []
    for step, arrays in enumerate(batches):
        scaler.scale(torch.zeros(()))  # makes its scale
        scale = scaler.get_scale()
        plain = {name: value.detach() for name, value in values.items()}
        loss, scaled = gradients(plain, {name: torch.tensor(array) for name, array in arrays.items()}, scale, low)
        for name, value in values.items():
            value.grad = scaled[name]
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss)
        scales.append(scale)
        if scaler.get_scale() < scale:
            skipped.append(step)
    return losses, scales, skipped


@pytest.mark.parametrize(("low", "size", "seed"), CASES)
def test_exceptions_and_scales_are_those_of_torch(low: str, size: float, seed: int) -> None:
    """Rules S10.2, S10.3 and S10.10. ``size`` multiplies the inputs."""
    graph, data = load_step_graph(classifier()), clusters(BATCH * 6)
    data["x"] *= np.float32(size)
    session = make_mixed_session(graph, mixed(low), TrainOptions(threads=1))
    training = Training(
        session, Dataset(graph, data, "data"), Settings("sgd", lr=0.02),
        batch_size=BATCH, steps=STEPS, seed=seed, scaler=make_scaler("torch", **SCALER),
    )  # fmt: skip
    start = {name: view.copy() for name, view in training.parameters.views.items()}
    batches = [training.dataset.batch(training.order.indices(step)) for step in range(STEPS)]
    losses, scales, skipped = train_with_torch(start, batches, low)
    training.run(STEPS)
    history = training.history
    assert history.scale == scales
    assert history.exceptions == history.skipped == skipped
    np.testing.assert_allclose(history.loss[:100], losses[:100], rtol=2e-3, atol=2e-3)
    if low == "float16":
        assert len(skipped) > 10  # the scale grows into exceptions again and again
    session.close()
