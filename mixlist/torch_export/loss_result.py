"""Check what the loss function of a step returns."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import torch

from mixlist.errors import UsageError
from mixlist.torch_export.step_names import is_reserved


def check_result(loss: object, metrics: object) -> None:
    """Raise UsageError unless the loss is a float scalar and the metrics are a dict of tensors."""
    if not isinstance(loss, torch.Tensor) or loss.ndim or not loss.is_floating_point():
        text = f"a tensor of shape {list(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise UsageError(
            f"loss_fn returned {text} as the loss",
            hint="return a float scalar (.mean() of a loss per row), or the scalar and a dict of named tensors",
        )
    if not isinstance(metrics, dict) or not all(isinstance(value, torch.Tensor) for value in metrics.values()):
        raise UsageError(
            "loss_fn's second result must be a dict of named tensors", hint="return loss, {'logits': logits}"
        )


def check_metric_names(metrics: Iterable[str], input_names: Collection[str]) -> None:
    """Raise UsageError for a metric with the name of an input, or with a name that is reserved."""
    for name in metrics:
        if name in input_names or is_reserved(name):
            problem = "is the name of an input" if name in input_names else "has a meaning in every step graph"
            raise UsageError(f"loss_fn calls one of its results {name!r}, which {problem}", hint="give it another name")
