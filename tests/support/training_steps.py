"""Runs an exported step in ONNX Runtime and the same step in torch, in float64."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from numpy.typing import NDArray

# The exported step computes in float32, the reference in float64. A sum of n float32 terms in any order is off by about
# sqrt(n) * 6e-8 of its largest partial sum; the cases here sum at most some ten thousand terms, through a few layers.
TOLERANCE = 2e-5
Batch = Mapping[str, torch.Tensor]
Loss = Callable[..., Any]


@dataclass(frozen=True)
class Exported:
    """A step ready to run; ``run`` feeds the module's values for what it is not given."""

    proto: onnx.ModelProto
    module: torch.nn.Module
    session: onnxruntime.InferenceSession

    def run(self, batch: Batch, scale: float = 1.0, **inputs: NDArray[Any]) -> dict[str, NDArray[Any]]:
        module_values = {name: value.detach().numpy() for name, value in self.module.state_dict(keep_vars=True).items()}
        feeds: dict[str, NDArray[Any]] = {}
        for value in self.session.get_inputs():
            if value.name in inputs or value.name.replace(".", "_") in inputs:
                feeds[value.name] = inputs.get(value.name, inputs.get(value.name.replace(".", "_")))
            elif value.name in batch:
                feeds[value.name] = batch[value.name].numpy()
            elif value.name == "loss_scale":
                feeds[value.name] = np.array(scale, np.float32)
            elif value.name.startswith("random."):
                rows = len(next(iter(batch.values())))
                shape = [rows if size == "batch" else size for size in value.shape]
                feeds[value.name] = np.full(shape, self.rule(value.name)["off"], np.float32)
            else:
                feeds[value.name] = module_values[value.name]
        names = [value.name for value in self.session.get_outputs()]
        return dict(zip(names, self.session.run(None, feeds), strict=True))

    def rule(self, name: str) -> dict[str, Any]:
        (text,) = [entry.value for entry in self.proto.metadata_props if entry.key == f"pkg.mixlist.random.{name}"]
        return json.loads(text)


def open_step(proto: onnx.ModelProto, module: torch.nn.Module) -> Exported:
    """A session on one thread, with the default optimizations of ONNX Runtime."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return Exported(
        proto, module, onnxruntime.InferenceSession(proto.SerializeToString(), options, ["CPUExecutionProvider"])
    )


def reference(module: torch.nn.Module, loss_fn: Loss, batch: Batch) -> dict[str, NDArray[np.float64]]:
    """Loss, gradients, state and metrics by torch's autograd in float64, under the step's output names."""
    double = _without_dropout(copy.deepcopy(module).double())
    wide = {name: value.double() if value.is_floating_point() else value for name, value in batch.items()}
    result = loss_fn(double, **wide)
    loss, metrics = result if isinstance(result, tuple) else (result, {})
    learned = {name: value for name, value in double.named_parameters() if value.requires_grad}
    grads = torch.autograd.grad(loss, list(learned.values()))
    outputs = {"loss": loss, **metrics}
    outputs |= {f"grad.{name}": grad for name, grad in zip(learned, grads, strict=True)}
    outputs |= {f"state.{name}": value for name, value in double.named_buffers()}
    return {name: value.detach().numpy() for name, value in outputs.items()}


def _without_dropout(module: torch.nn.Module) -> torch.nn.Module:
    """Disable dropout, as `run` does with ``off``; the mode stays, because batch normalization depends on it."""
    for part in module.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
        elif isinstance(part, torch.nn.MultiheadAttention):
            part.dropout = 0.0
    return module


def distance(actual: NDArray[Any], expected: NDArray[Any]) -> float:
    """The largest difference, as a share of the largest expected value."""
    assert actual.shape == expected.shape
    size = float(np.abs(expected).max(initial=0.0))
    return float(np.abs(actual.astype(np.float64) - expected).max(initial=0.0)) / (size or 1.0)


def assert_agrees(step: Exported, loss_fn: Loss, batch: Batch) -> None:
    """Every output of the step agrees with torch, and the gradients, not the loss, follow loss_scale."""
    expected = reference(step.module, loss_fn, batch)
    plain, scaled = step.run(batch), step.run(batch, 1024.0)
    plain = {name: value for name, value in plain.items() if not name.startswith("eval.")}  # they have their own tests
    gradients = {f"grad.{name}" for name, value in step.module.named_parameters() if value.requires_grad}
    assert gradients <= set(plain) <= set(expected)
    for name, value in plain.items():
        assert distance(value, expected[name]) < TOLERANCE, name
        factor = 1024.0 if name in gradients else 1.0
        assert distance(scaled[name], factor * expected[name]) < TOLERANCE, name
