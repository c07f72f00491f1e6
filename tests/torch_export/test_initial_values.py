"""The values of a module are written next to its step, and each parameter says how it was drawn."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("onnxscript", reason="needs onnxscript")

import torch
from torch import Tensor, nn

import mixlist
from mixlist import training
from mixlist.torch_export.initialization import describe_initialization
from tests.support import training_cases as cases

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's exporter warns of its own deprecations


class Parts(nn.Module):
    """A new layer, a pretrained one, a parameter of the module's own, a forget bias, and a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.new, self.pretrained = nn.Linear(16, 16), nn.Linear(16, 16)
        self.norm, self.lstm = nn.LayerNorm(16), nn.LSTM(16, 16, batch_first=True)
        self.table = nn.Parameter(torch.randn(16) * 0.02)
        with torch.no_grad():
            self.pretrained.weight.mul_(3)
            self.lstm.bias_ih_l0[16:32] = 1

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(self.norm(self.pretrained(self.new(x))) + self.table)[0]


def make_parts() -> nn.Module:
    torch.manual_seed(0)
    return Parts()


def test_only_what_a_layer_can_draw_anew_is_described() -> None:
    module = make_parts()
    state = torch.random.get_rng_state()
    descriptions = describe_initialization(module)
    assert torch.equal(torch.random.get_rng_state(), state)
    lstm = {"lstm.weight_ih_l0", "lstm.weight_hh_l0", "lstm.bias_hh_l0"}
    assert set(descriptions) == {"new.weight", "new.bias", "pretrained.bias", "norm.weight", "norm.bias", *lstm}
    assert descriptions["new.weight"] == {"kind": "uniform", "bound": pytest.approx(1 / 4, rel=0.01)}
    assert descriptions["norm.weight"] == {"kind": "ones"}


def test_a_training_starts_from_the_values_of_the_module_unless_it_draws(tmp_path: Path) -> None:
    """Rule S10.22: all seeds share the module's values; ``init="drawn"`` draws those that the module can draw."""
    module = make_parts()
    proto = training.export_step(module, cases.weighted, {"x": torch.zeros(2, 3, 16)}, path=tmp_path / "step.onnx")
    own_values = dict(np.load(tmp_path / "step.init.npz"))
    for name, value in module.named_parameters():
        np.testing.assert_array_equal(own_values[name], value.detach().numpy())
    metadata = {entry.key: json.loads(entry.value) for entry in proto.metadata_props}
    assert metadata["pkg.mixlist.init.table"]["estimated"] is True
    assert "estimated" not in metadata["pkg.mixlist.init.new.weight"]

    data, policy = {"x": np.zeros((4, 3, 16), np.float32)}, mixlist.load_policy(ops_info="onnx")
    step = tmp_path / "step.onnx"
    options = {"steps": 1, "batch_size": 4, "runs": 2}
    shared = training.train(step, policy, data, **options)
    assert shared.start.startswith("all seeds share one start")
    assert shared.to_json()["start"] == shared.start
    assert shared.runs[0].float32.loss == shared.runs[1].float32.loss
    drawn = training.train(step, policy, data, init="drawn", **options)
    assert drawn.start == "each seed draws 8 of 11 parameters anew"
    assert drawn.runs[0].float32.loss != drawn.runs[1].float32.loss
    assert shared.runs[0].float32.loss not in [run.float32.loss for run in drawn.runs]
    (tmp_path / "step.init.npz").unlink()
    unknown = training.train(step, policy, data, **options)
    assert unknown.start == "each seed draws 11 of 11 parameters anew; 3 of them from an estimate (table first)"
