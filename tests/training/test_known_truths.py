"""Trainings whose verdict is known: a healthy one never fails, and a broken one never passes.

``MIXLIST_CAMPAIGN=1`` trains longer, and 20 groups of three seeds where CI trains one.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import mixlist
from mixlist.training.result import TrainReport
from mixlist.training.scalers import SCALERS
from tests.support.builders import policy
from tests.support.extras import import_extra

torch = import_extra("torch")

from tests.training.networks import NETWORKS, Task  # noqa: E402

IS_CAMPAIGN = os.environ.get("MIXLIST_CAMPAIGN") == "1"
GROUPS, FEW_GROUPS = (range(20), range(2)) if IS_CAMPAIGN else (range(1), range(1))
STEPS = 100 if IS_CAMPAIGN else 30
MATRICES = ("Conv", "ConvTranspose", "Gemm", "MatMul", "LSTM")
LISTS = mixlist.load_policy()
# With Exp and Mul in low precision, too: the terms below overflow in them.
BROAD = policy(white=(*MATRICES, "Exp", "Mul"), black=("Softmax", "LogSoftmax", "LayerNormalization"))
BFLOAT16 = policy(white=MATRICES, mode="mixed_bfloat16")
pytestmark = pytest.mark.timeout(3600)


def train(name: str, group: int, lists: Any = LISTS, task: Task | None = None, **options: Any) -> TrainReport:
    """Train three seeds of a network, or of a change of it."""
    task = task or NETWORKS[name]
    report = mixlist.train(replace(task, steps=STEPS), lists, first_seed=3 * group, **{"runs": 3, **options})
    print(f"{name}, group {group}: {report.verdict}: {'; '.join(report.reasons)}")
    assert report.low_operators
    return report


def with_loss(name: str, change: Callable[[Any, Any], Any]) -> Task:
    """Return a task whose loss is changed; ``change`` takes the loss and the outputs of the network."""
    task = NETWORKS[name]
    return replace(task, loss=lambda outputs, target: change(task.loss(outputs, target), outputs))


def exp_in_loss(loss: Any, outputs: Any) -> Any:
    """Add a term whose Exp exceeds float16, and its gradient, too."""
    return loss + 1e-7 * torch.exp(12 + torch.tanh(outputs)).mean()


def hidden_overflow(loss: Any, outputs: Any) -> Any:
    """Add a term with a square that exceeds float16; its gradient is finite, because the reciprocal becomes 0."""
    return loss + 1e-6 * torch.reciprocal(torch.square(300 + outputs)).mean()


# --- healthy trainings ---


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("name", NETWORKS if IS_CAMPAIGN else ["autoencoder", "transformer"])
def test_a_healthy_network_never_fails(name: str, group: int) -> None:
    assert train(name, group).verdict != "fail"


@pytest.mark.parametrize("group", FEW_GROUPS)
@pytest.mark.parametrize("name", NETWORKS if IS_CAMPAIGN else ["autoencoder"])
def test_bfloat16_without_scaling_never_fails(name: str, group: int) -> None:
    assert train(name, group, BFLOAT16, loss_scaler="none").verdict != "fail"


@pytest.mark.parametrize("group", FEW_GROUPS)
@pytest.mark.parametrize("scaler", sorted(SCALERS.keys() - {"fixed", "npu", "none"}))
def test_the_default_scale_of_a_scaler_never_fails(scaler: str, group: int) -> None:
    """The scalers ``fixed`` and ``npu`` have no default."""
    for name in ("lstm", "gpt", "resnet") if IS_CAMPAIGN else ("autoencoder",):
        assert train(name, group, loss_scaler=scaler).verdict != "fail"


@pytest.mark.parametrize("group", FEW_GROUPS)
@pytest.mark.parametrize("name", NETWORKS if IS_CAMPAIGN else ["cnn"])
def test_fine_tuning_never_fails(name: str, group: int) -> None:
    """From the parameters of a training, with a tenth of its learning rate."""
    task = NETWORKS[name]
    tuned = replace(task, start=task.trained(4 * STEPS), optimize=lambda p: torch.optim.Adam(p, 2e-4))
    assert train(name, group, task=tuned).verdict != "fail"


@pytest.mark.parametrize("group", FEW_GROUPS)
def test_saturation_of_a_network_without_overflow_never_fails(group: int) -> None:
    report = train("cnn", group, overflow_mode="saturate", loss_scaler="mindspore-fixed")
    assert report.overflow_detection == "any-node"
    assert report.verdict != "fail"


@pytest.mark.skipif(not IS_CAMPAIGN, reason="MIXLIST_CAMPAIGN=1 runs it")
@pytest.mark.parametrize("steps", [150, 1500])
@pytest.mark.parametrize("group", FEW_GROUPS)
def test_the_default_scale_passes_however_long_the_training_is(group: int, steps: int) -> None:
    """The exceptions of the start-up are the same few in both."""
    report = mixlist.train(replace(NETWORKS["transformer"], steps=steps), LISTS, first_seed=3 * group)
    assert report.verdict != "fail", report.reasons


# --- broken trainings ---


@pytest.mark.parametrize("group", FEW_GROUPS)
@pytest.mark.parametrize("name", NETWORKS if IS_CAMPAIGN else ["autoencoder"])
def test_an_exp_in_the_loss_fails(name: str, group: int) -> None:
    task = with_loss(name, exp_in_loss)
    report = train(name, group, BROAD, task)
    assert report.verdict == "fail"
    assert [finding.operator.op_type for finding in report.findings] == ["Exp"]
    assert train(name, group, BROAD, task, overflow_mode="saturate").verdict == "fail"


@pytest.mark.parametrize("group", FEW_GROUPS)
@pytest.mark.parametrize("name", NETWORKS if IS_CAMPAIGN else ["autoencoder"])
def test_an_overflow_that_no_gradient_shows_fails_in_any_node(name: str, group: int) -> None:
    task = with_loss(name, hidden_overflow)
    assert train(name, group, BROAD, task, overflow_detection="any-node").verdict == "fail"


@pytest.mark.parametrize("group", FEW_GROUPS)
@pytest.mark.parametrize("name", NETWORKS if IS_CAMPAIGN else ["autoencoder"])
def test_gradients_below_float16_fail_without_a_scale(name: str, group: int) -> None:
    """A loss of a millionth: Adam does not mind, float16 does."""
    scaled = with_loss(name, lambda loss, outputs: 1e-6 * loss)
    task = replace(scaled, optimize=lambda parameters: torch.optim.Adam(parameters, 2e-3, eps=1e-20))
    report = train(name, group, BROAD, task, loss_scaler="none")
    assert report.verdict == "fail"
    assert any("become zero" in reason or "are zero" in reason for reason in report.reasons)


@pytest.mark.parametrize("group", FEW_GROUPS)
@pytest.mark.parametrize("name", NETWORKS if IS_CAMPAIGN else ["autoencoder"])
@pytest.mark.parametrize("scaler", ["fixed", "mindspore-fixed"])
def test_a_fixed_scale_that_is_too_large_fails(scaler: str, name: str, group: int) -> None:
    parameters = {"loss_scale": 2.0**40}
    assert train(name, group, loss_scaler=scaler, scaler_parameters=parameters).verdict == "fail"


@pytest.mark.parametrize("group", FEW_GROUPS)
@pytest.mark.parametrize("name", ["cnn", "resnet", "transformer", "graph network"] if IS_CAMPAIGN else ["cnn"])
def test_samples_that_are_too_large_fail(name: str, group: int) -> None:
    """One batch in ten has pixels up to a million: no precision learns from it, and float16 overflows."""
    task = replace(NETWORKS[name], change=lambda step, x: 1e6 * x if step % 10 == 3 else x)
    report = train(name, group, task=task)
    assert report.verdict != "pass"
    assert any(replay.own_exceptions for replay in report.replays)


# --- trainings with which nothing can be compared ---


@pytest.mark.parametrize("lr", [1e-9, 1e6])
@pytest.mark.parametrize("group", FEW_GROUPS)
@pytest.mark.parametrize("name", ["cnn", "transformer", "lstm"] if IS_CAMPAIGN else ["autoencoder"])
def test_a_learning_rate_with_which_float32_learns_nothing_is_inconclusive(name: str, group: int, lr: float) -> None:
    task = replace(NETWORKS[name], optimize=lambda parameters: torch.optim.Adam(parameters, lr))
    report = train(name, group, task=task)
    assert report.verdict == "inconclusive"
    assert "nothing to compare with" in report.reasons[0]
