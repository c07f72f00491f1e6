"""The headroom of each module: the largest number of the low type, divided by the largest value of the module."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from jsonschema import Draft202012Validator

import mixlist
from mixlist.number_text import format_number
from mixlist.training.headroom import describe_near_modules, measure_headroom
from tests.support.builders import policy
from tests.support.extras import import_extra
from tests.support.package import data_folder

torch = import_extra("torch")
nn = torch.nn


class Scaled(nn.Module):  # type: ignore[misc, name-defined]  # mypy does not read torch
    """Two layers; the values of the first one are as large as ``factor``."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor
        self.first, self.second = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
        with torch.no_grad():
            self.first.weight.fill_(factor)
            self.second.weight.fill_(1 / factor)

    def forward(self, x: Any) -> Any:
        return self.second(self.first(x))


def train(factor: float) -> Any:
    def run(seed: int) -> dict[str, Any]:
        network = Scaled(factor)
        optimizer, scaler = torch.optim.SGD(network.parameters(), lr=1e-10), torch.amp.GradScaler()
        x = torch.ones(8, 1)
        for _ in range(20):
            loss = (network(x) - 0.5).square().mean()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        return {"loss": loss}

    return mixlist.train(run, policy(white=["MatMul", "Gemm"]), runs=1, loss_scaler="torch")


def test_a_training_near_the_largest_number_names_the_module() -> None:
    report = train(20000.0)
    found = {module.module: module for module in report.headroom}
    assert found["first"].activation == 20000.0 and found["first"].factor == 65504 / 20000
    assert report.headroom[0].factor == min(m.factor for m in report.headroom if m.factor)
    # Without the loss scale of 65536: the gradient of the first layer is 2 * (1 - 0.5) / 20000. The first steps, which
    # overflow, do not count.
    assert found["first"].gradient_start is None
    assert found["first"].gradient is not None and 1e-5 < found["first"].gradient < 1e-4
    nearest = report.headroom[0]
    text = f"{nearest.module} is near overflow: its largest value is {format_number(nearest.activation)}, the largest"
    assert any(reason.startswith(text) for reason in report.reasons)
    document = json.loads(json.dumps(report.to_json()))
    schema = json.loads((data_folder("schemas") / "train.json").read_text("utf-8"))
    Draft202012Validator(schema).validate(document)
    assert document["headroom"][0]["factor"] == report.headroom[0].factor


def test_a_training_far_from_it_names_none() -> None:
    report = train(10.0)
    assert all(module.factor is None or module.factor > 4 for module in report.headroom)
    assert not any("near overflow" in reason for reason in report.reasons)


def test_the_course_has_the_first_and_the_last_quarter() -> None:
    steps = {step: {("a", False): 10.0 * (step + 1), ("a", True): 1.0, ("b", False): 0.0} for step in range(8)}
    a, b = measure_headroom([steps, {}], 100.0)
    assert (a.activation, a.activation_start, a.activation_end, a.factor) == (80.0, 20.0, 80.0, 1.25)
    assert (a.gradient, b.gradient, b.factor) == (1.0, None, None)
    assert describe_near_modules([a, b], 100.0) == [
        "a is near overflow: its largest value is 80, the largest number is 100, and it rises; keep it in float32, or"
        " watch it in a longer training"
    ]
    assert " (1 more module is near)" in describe_near_modules([a, a], 100.0)[0]
    over = replace(a, activation=84100.0, factor=0.779)
    assert (
        "a overflows: its largest value is 84100, the largest number is 65504"
        in describe_near_modules([over], 65504)[0]
    )


def test_a_module_that_grows_as_fast_as_before_is_named() -> None:
    """From 2 in the first quarter of the steps to 256: as many more steps would lead to 32768."""

    def describe(values: list[float], largest: float) -> list[str]:
        steps = {step: {("a", False): value} for step, value in enumerate(values)}
        return describe_near_modules(measure_headroom([steps], largest), largest)

    powers = [2.0**step for step in range(9)]
    assert describe(powers, 65504.0) == []
    (text,) = describe(powers, 30000.0)
    assert text.startswith("a is near overflow: its largest value is 256, the largest number is 30000, and it rises")
    assert describe([256.0] * 9, 30000.0) == []
