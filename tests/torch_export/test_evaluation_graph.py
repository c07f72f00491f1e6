"""The step holds the module's mode eval(), by which ``train`` computes the metric."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("onnxscript", reason="needs onnxscript")

import torch
from torch import Tensor, nn

import mixlist
from mixlist import training
from mixlist.training import export_step
from tests.support import training_cases as cases
from tests.support.training_steps import TOLERANCE, distance, open_step

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's exporter warns of its own deprecations


class Masked(nn.Module):
    """A hand-written mask, which the module draws in both modes, or in training only."""

    def __init__(self, *, guarded: bool) -> None:
        super().__init__()
        self.linear, self.guarded = nn.Linear(4, 3), guarded

    def forward(self, x: Tensor) -> Tensor:
        out = self.linear(x)
        if self.guarded and not self.training:
            return out
        return out * (torch.rand_like(out) < 0.3) / 0.3


def evaluation_outputs(proto: Any) -> list[str]:
    return [output.name for output in proto.graph.output if output.name.startswith("eval.")]


def test_the_mode_eval_uses_running_statistics_and_no_dropout() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 3))
    module[1].running_mean.fill_(0.3)
    batch = {"x": torch.randn(5, 4)}
    step = open_step(export_step(module, cases.weighted, batch), module)
    assert module.training
    assert evaluation_outputs(step.proto) == ["eval.loss", "eval.out"]
    mask = np.zeros((5, 6), np.float32)
    outputs = step.run(batch, random_0=mask)
    loss, metrics = cases.weighted(module.eval(), batch["x"])
    assert distance(outputs["eval.out"], metrics["out"].detach().double().numpy()) < TOLERANCE
    assert distance(outputs["eval.loss"], loss.detach().double().numpy()) < TOLERANCE
    assert distance(outputs["out"], metrics["out"].detach().double().numpy()) > 0.01
    assert not np.array_equal(outputs["state.1.running_mean"], module[1].running_mean.numpy())


def test_a_module_without_modes_has_no_second_graph() -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3))
    assert evaluation_outputs(export_step(module, cases.weighted, {"x": torch.ones(3, 4)})) == []
    assert evaluation_outputs(export_step(module.eval(), cases.weighted, {"x": torch.ones(3, 4)})) == []


def test_a_mode_that_cannot_be_traced_is_left_out() -> None:
    class Predicts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            out = self.linear(x)
            return out if self.training or bool(out.sum() > 0) else -out

    proto = export_step(Predicts(), cases.weighted, {"x": torch.ones(3, 4)})
    assert evaluation_outputs(proto) == []


@pytest.mark.parametrize("guarded", [True, False])
def test_a_mask_is_off_in_the_metric_only_if_the_module_guards_it(guarded: bool, tmp_path: Path) -> None:
    """Rule S10.24: the metric is that of eval(), as the mean of 8 draws where eval() draws random numbers."""
    torch.manual_seed(0)
    module, x = Masked(guarded=guarded), torch.randn(64, 4)

    def loss(module: nn.Module, x: Tensor) -> Any:
        out = module(x)
        return (out - x[:, :3]).square().mean(), {"size": out.square().mean()}

    export_step(module, loss, {"x": x}, path=tmp_path / "step.onnx")
    policy = mixlist.load_policy(ops_info="onnx")
    settings = training.Settings("sgd", lr=1e-9)
    options = {"steps": 1, "batch_size": 64, "runs": 1, "metric": "size", "optimizer": settings}
    report = training.train(tmp_path / "step.onnx", policy, {"x": x.numpy()}, **options)
    size = float(module.linear(x).square().mean())
    metric = report.runs[0].float32.metric
    if guarded:
        assert metric == pytest.approx(size, rel=1e-4)
        assert report.evaluation == "the metric is computed by the eval() graph of the module"
    else:
        # The mean of (draw / 0.3) squared is 1 / 0.3; off, the mask would give 0.
        assert metric == pytest.approx(size / 0.3, rel=0.25)
        assert "as the mean of 8 draws" in report.evaluation
    assert [warning.code for warning in report.warnings].count("ML615") == (not guarded)
    assert report.to_json()["evaluation"] == report.evaluation
