"""The export leaves a module as it was; shared submodules and recurrent layers export as torch runs them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("onnxscript", reason="needs onnxscript")

import torch
from torch import Tensor, nn

from mixlist.errors import MixlistError
from mixlist.training import export_step
from tests.support import training_cases as cases
from tests.support.training_steps import TOLERANCE, assert_agrees, distance, open_step, reference

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's exporter warns of its own deprecations


class TwoNames(nn.Module):
    """A network that uses one submodule under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = self.first

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x)))


def make_repeated() -> nn.Module:
    block = nn.Linear(4, 4)
    return nn.Sequential(block, nn.ReLU(), block)


@pytest.mark.parametrize("make", [TwoNames, make_repeated])
def test_a_submodule_with_two_names_exports_and_keeps_its_weights(make: Any) -> None:
    torch.manual_seed(0)
    module, batch = make(), {"x": torch.randn(3, 4)}
    before = {name: value.clone() for name, value in module.state_dict().items()}
    step = open_step(export_step(module, cases.weighted, batch), module)
    assert all(type(value) is nn.Parameter for value in module.parameters())
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert_agrees(step, cases.weighted, {"x": torch.randn(5, 4)})


def test_a_refused_step_leaves_every_attribute_of_the_module() -> None:
    class Stores(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.calls, self.outputs = nn.Linear(4, 4), 0, [0]
            self.shared = self.linear

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            self.last = self.linear(x)
            self.outputs.append(self.last)
            self.register_buffer("late", torch.zeros(1))
            return self.last if bool(self.last.sum() > 0) else -self.last

    module = Stores()
    weight = module.linear.weight
    with pytest.raises(MixlistError, match="value of a tensor"):
        export_step(module, cases.weighted, {"x": torch.ones(3, 4)})
    assert module.calls == 0
    assert module.outputs == [0]
    assert not hasattr(module, "last")
    assert not dict(module.named_buffers())
    assert module.linear.weight is weight
    assert module.shared is module.linear


@pytest.mark.parametrize(("kind", "bidirectional"), [("LSTM", True), ("GRU", False), ("RNN", False)])
def test_recurrent_layers_have_their_dropout(kind: str, bidirectional: bool) -> None:
    torch.manual_seed(0)
    options = {"batch_first": True, "bidirectional": bidirectional}
    module = getattr(nn, kind)(3, 4, num_layers=2, dropout=0.5, **options)
    batch = {"x": torch.randn(2, 5, 3)}
    step = open_step(export_step(module, cases.weighted, batch), module)
    width = 8 if bidirectional else 4
    assert step.rule("random.0")["p"] == 0.5
    mask = (np.random.default_rng(0).random((2, 5, width)) < 0.5).astype(np.float32)

    def masked_loss(module: Any, x: Tensor) -> Any:
        """Run the two layers one after the other, with the mask between them."""
        for layer in (0, 1):
            single = getattr(nn, kind)(x.shape[-1], 4, **options).double()
            names = [name for name, _ in module.named_parameters() if f"_l{layer}" in name]
            own = {name.replace(f"_l{layer}", "_l0"): module.get_parameter(name) for name in names}
            x = torch.func.functional_call(single, own, (x,))[0]
            x = x if layer else x * torch.from_numpy(mask).double() / 0.5
        return cases.weighted(nn.Identity(), x)

    expected, outputs = reference(module, masked_loss, batch), step.run(batch, random_0=mask)
    for name, value in expected.items():
        assert distance(outputs[name], value) < TOLERANCE, name
