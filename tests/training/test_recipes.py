"""Tests of clipping, accumulation and parameter groups, compared with PyTorch over 100 steps (Rule S10.23)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mixlist.errors import MixlistError, UsageError
from mixlist.training import ParameterGroup, train
from mixlist.training.dataset import Dataset
from mixlist.training.loop import Training
from mixlist.training.optimizers import Settings
from mixlist.training.parameter_groups import read_parameter_groups
from mixlist.training.scalers import make_scaler
from mixlist.training.step_graph import load_step_graph
from mixlist.training.step_session import make_float32_session
from tests.support.training_network import classifier, clusters, mixed

from .test_reference import make_training

SAMPLES, STEPS = 60, 100
BIASES = (ParameterGroup("^b", lr=0.002, weight_decay=0.0), ParameterGroup("^w2$", weight_decay=0.05))
RECIPES = {
    "clip norm": Settings("momentum", lr=0.1, clip_norm=0.05),
    "clip value": Settings("adam", lr=0.01, clip_value=0.01),
    "accumulate": Settings("sgd", lr=0.2, accumulate=3),
    "groups with adamw": Settings("adamw", lr=0.01, weight_decay=0.1, parameter_groups=BIASES),
    "groups with sgd": Settings("sgd", lr=0.1, weight_decay=0.01, parameter_groups=BIASES),
    "warm-up": Settings("adam", lr=0.02, warmup_steps=30),
    "all": Settings(
        "momentum", lr=0.1, weight_decay=0.01, clip_norm=0.1, accumulate=3, warmup_steps=20, parameter_groups=BIASES
    ),
}


def train_with_torch(torch: Any, settings: Settings, start: dict[str, Any], batches: list[Any]) -> list[float]:
    """Return the loss of each step of the network ``classifier``, trained by torch's own means."""
    values = {name: torch.tensor(value.copy(), requires_grad=True) for name, value in start.items()}
    groups: list[dict[str, Any]] = []
    for name, value in values.items():
        lr, decay = settings.lr, settings.weight_decay
        if settings.parameter_groups and name.startswith("b"):
            lr, decay = 0.002, 0.0
        elif settings.parameter_groups and name == "w2":
            decay = 0.05
        groups.append({"params": [value], "lr": lr, "weight_decay": decay})
    make = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}.get(settings.name, torch.optim.SGD)
    optimizer = make(groups, **({"momentum": settings.momentum} if settings.name == "momentum" else {}))
    warmup = max(1, settings.warmup_steps)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / warmup))
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        total = 0.0
        for batch in batches[step * settings.accumulate : (step + 1) * settings.accumulate]:
            x, y = torch.tensor(batch["x"]), torch.tensor(batch["y"])
            logits = torch.relu(x @ values["w1"] + values["b1"]) @ values["w2"] + values["b2"]
            loss = torch.nn.functional.cross_entropy(logits, y) / settings.accumulate
            (loss * 1024).backward()  # a fixed loss scale, as GradScaler applies it
            total += float(loss.detach())
        for value in values.values():
            value.grad /= 1024
        if settings.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(values.values(), settings.clip_norm)
        if settings.clip_value is not None:
            torch.nn.utils.clip_grad_value_(values.values(), settings.clip_value)
        optimizer.step()
        schedule.step()
        losses.append(total)
    return losses


@pytest.mark.parametrize("name", RECIPES)
def test_a_hundred_steps_agree_with_torch(name: str) -> None:
    """Rule S10.23: compare the loss of each step on all samples; the loss shows the parameters of all steps before."""
    torch = pytest.importorskip("torch")
    settings = RECIPES[name]
    graph, batch_size = load_step_graph(classifier()), SAMPLES // settings.accumulate
    training = Training(
        make_float32_session(graph, "cpu", None), Dataset(graph, clusters(SAMPLES), "data"), settings,
        batch_size=batch_size, steps=STEPS, seed=1, scaler=make_scaler("fixed", loss_scale=1024),
    )  # fmt: skip
    start = {key: view.copy() for key, view in training.parameters.views.items()}
    rows = [training.order.indices(batch) for batch in range(STEPS * settings.accumulate)]
    expected = train_with_torch(torch, settings, start, [training.dataset.batch(indices) for indices in rows])
    training.run(STEPS)
    assert expected[-1] < 0.9 * expected[0]  # it learns
    np.testing.assert_allclose(training.history.loss, expected, rtol=1e-5)


def test_one_bad_batch_skips_the_whole_step_and_is_the_first_feed() -> None:
    settings = Settings("sgd", lr=0.05, accumulate=4)
    values = {name: np.ones((40, 2), np.float32) for name in ("x", "t")}
    training = make_training("torch", settings, data=values, parameters={"init_scale": 1024.0})
    values["t"][training.order.indices(6)[0]] = 1e30  # in the third batch of the second step
    training.dataset.arrays["t"][...] = values["t"]
    training.run(2)
    assert (training.history.exceptions, training.history.skipped) == ([1], [1])
    assert training.history.scale == [1024.0, 1024.0] and training.scaler.scale == 512
    assert training.first_bad_feed is not None
    assert training.first_bad_feed["t"].max() == np.float32(1e30)
    assert float(training.first_bad_feed["loss_scale"]) == 256
    assert (training.step, training.global_step, training.optimizer.updates) == (2, 1, 1)


def test_steps_count_batches_and_the_report_counts_updates() -> None:
    settings = Settings("adam", lr=0.01, accumulate=4)
    report = train(
        classifier(), mixed(), clusters(64), optimizer=settings, batch_size=16, steps=10, runs=1, planned_steps=40
    )
    assert (report.steps, len(report.runs[0].mixed.loss)) == (2, 2)
    longer = train(
        classifier(), mixed(), clusters(64), optimizer=settings, batch_size=16, steps=80, runs=1, planned_steps=400
    )
    # 100 updates are planned. After the start-up of 10, torch's scaler grows once in 2,001 of them at most.
    assert longer.projected_rate == pytest.approx(0.9 / 2001)
    with pytest.raises(UsageError, match="a step has 4 batches, and the training has 3 in all"):
        train(classifier(), mixed(), clusters(64), optimizer=settings, batch_size=16, steps=3)


def test_a_group_without_parameters_is_refused() -> None:
    settings = replace(RECIPES["accumulate"], parameter_groups=(ParameterGroup("norm"),))
    with pytest.raises(UsageError, match="the parameter group 'norm' has no parameter"):
        train(classifier(), mixed(), clusters(64), optimizer=settings, batch_size=16, steps=9)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"match": "b"}', "parameter groups are a list, not dict"),
        ('[{"lr": 1}]', 'group 0 is no object with "match"'),
        ('[{"match": "b", "betas": 1}]', "group 0 has the unknown key 'betas'"),
        ('[{"match": "("}]', "not a regular expression"),
        ('[{"match": 3}]', "not a regular expression"),
        ('[{"match": "b", "lr": -1}]', "lr is -1, not a number of 0 or more"),
        ('[{"match": "b", "weight_decay": "no"}]', "weight_decay is 'no', not a number"),
        ("[", "groups.json:1"),
    ],
)
def test_a_wrong_file_of_groups_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "groups.json"
    path.write_text(text)
    with pytest.raises(MixlistError) as error:
        read_parameter_groups(path)
    assert message in str(error.value)
