"""Replace functions of torch whose gradients ONNX lacks by plain operators, before autograd sees them.

`mixlist.torch_export.decompositions` replaces operators after autograd. Where torch differentiates a function by an
operator of its own, it is simpler to replace the function: autograd then differentiates the plain operators. Each
replacement takes the arguments of the function, and returns NotImplemented for those that it does not cover.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as functional
from torch._decomp.decompositions import grid_sampler_2d
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module


class PlainFunctions(TorchFunctionMode):  # type: ignore[misc]  # mypy does not read torch
    """In this context, the functions below are computed with plain operators."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call the replacement of ``func``, or ``func`` itself."""
        replacement = _REPLACEMENTS.get(func)
        result = NotImplemented if replacement is None else replacement(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {})) if result is NotImplemented else result


def replace_cumulative_normalizations(module: Module) -> None:
    """Give the batch normalizations of ``module`` without a momentum a forward pass that torch can trace.

    torch reads their number of batches as a Python number. Call this within ``unchanged_module``.
    """
    for part in module.modules():
        if isinstance(part, _BatchNorm) and part.momentum is None and part.track_running_stats and part.training:
            part.forward = partial(_normalize_cumulatively, part)


def _normalize_cumulatively(part: _BatchNorm, x: Tensor) -> Tensor:
    """Normalize a batch; each running statistic becomes the mean over all batches."""
    part._check_input_dim(x)
    with torch.no_grad():
        part.num_batches_tracked.add_(1)
        share = 1 / part.num_batches_tracked.to(x.dtype)
        axes = [0, *range(2, x.ndim)]
        part.running_mean.copy_(part.running_mean * (1 - share) + x.mean(axes) * share)
        part.running_var.copy_(part.running_var * (1 - share) + x.var(axes) * share)
    return functional.batch_norm(x, None, None, part.weight, part.bias, training=True, eps=part.eps)


def _prod(x: Tensor, dim: int | None = None, keepdim: bool = False, *, dtype: object = None) -> Tensor:
    """Multiply the halves of the axis with each other until one value is left."""
    if dim is None:
        x, dim = x.flatten(), 0
    size = x.shape[dim]
    if dtype is not None or not x.is_floating_point() or not isinstance(size, int) or not size:
        return NotImplemented
    while size > 1:
        half = size // 2
        product = x.narrow(dim, 0, half) * x.narrow(dim, half, half)
        x = torch.cat([product, x.narrow(dim, 2 * half, 1)], dim) if size % 2 else product
        size = size - half
    return x if keepdim else x.squeeze(dim)


def _embedding_bag(
    x: Tensor, weight: Tensor, offsets: object = None, max_norm: object = None, norm_type: float = 2.0,
    scale_grad_by_freq: bool = False, mode: str = "mean", *options: Any, **more: Any,
) -> Tensor:  # fmt: skip
    """Reduce the rows of an embedding, for bags of one size and without options."""
    if x.ndim != 2 or max_norm is not None or scale_grad_by_freq or any(options) or any(more.values()):
        return NotImplemented
    rows = functional.embedding(x, weight)
    if mode == "max":
        return rows.max(1).values
    return rows.sum(1) if mode == "sum" else rows.mean(1)


def _pad(x: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Tensor:
    """Repeat the first and the last value of each axis; other modes are not replaced."""
    if mode != "replicate" or min(pad) < 0:
        return NotImplemented
    for index in range(0, len(pad), 2):
        axis = x.ndim - 1 - index // 2  # ``pad`` begins with the last axis
        first, last = x.narrow(axis, 0, 1), x.narrow(axis, x.shape[axis] - 1, 1)
        x = torch.cat([*[first] * pad[index], x, *[last] * pad[index + 1]], axis)
    return x


def _grid_sample(
    x: Tensor, grid: Tensor, mode: str = "bilinear", padding_mode: str = "zeros", align_corners: bool | None = None
) -> Tensor:
    """Read the neighbors of each place by their indices, for images of two axes."""
    if x.ndim != 4:
        return NotImplemented
    mode_number = ("bilinear", "nearest", "bicubic").index(mode)
    padding_number = ("zeros", "border", "reflection").index(padding_mode)
    result: Tensor = grid_sampler_2d(x, grid, mode_number, padding_number, bool(align_corners))
    return result


def _rrelu(
    x: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, inplace: bool = False
) -> Tensor:
    """Outside of a training, the slope is the mean of its bounds."""
    return NotImplemented if training or inplace else functional.leaky_relu(x, (lower + upper) / 2)


def _weight_norm(direction: Tensor, magnitude: Tensor, dim: int = 0) -> Tensor:
    """Divide a weight by its norm over all axes but ``dim`` (over all if it is -1), and multiply with ``magnitude``."""
    axes = [axis for axis in range(direction.ndim) if dim == -1 or axis != dim % direction.ndim]
    return direction * (magnitude / (direction * direction).sum(axes, keepdim=True).sqrt())


_REPLACEMENTS: Mapping[Callable[..., Any], Callable[..., Any]] = {
    torch.prod: _prod,
    torch.Tensor.prod: _prod,
    functional.embedding_bag: _embedding_bag,
    functional.pad: _pad,
    functional.grid_sample: _grid_sample,
    functional.rrelu: _rrelu,
    torch._weight_norm: _weight_norm,
}


def run_recurrent_layers(
    run_layers: Callable[..., Any], x: Tensor, hidden: list[Any], parameters: list[Any], *options: Any
) -> tuple[Tensor, list[Any]]:
    """Run a recurrent network layer by layer with torch's ``run_layers``, with the dropout between the layers.

    Up to 2.15, torch's function never applies the dropout: it compares ``num_layers < i - 1``. The arguments after
    ``run_layers`` are those of torch's function. ``hidden`` and ``parameters`` have one entry for each layer, or for
    each direction of it.
    """
    has_biases, layer_count, dropout, training, bidirectional, batch_first, run_layer = options
    directions = 2 if bidirectional else 1
    last_hidden = []
    for layer in range(layer_count):
        part = slice(layer * directions, (layer + 1) * directions)
        x, layer_hidden = run_layers(
            x, hidden[part], parameters[part], has_biases, 1, 0.0, False, bidirectional, batch_first, run_layer
        )
        last_hidden += layer_hidden
        if training and dropout and layer < layer_count - 1:
            x = torch.dropout(x, dropout, train=True)
    return x, last_hidden
