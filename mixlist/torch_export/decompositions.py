"""Backward operators written out as operators that ONNX has, beside torch's own core ATen decompositions.

A gradient here is a convolution, a product with a matrix or a padding, never a kernel of its own: so the lists name
the operators of a backward pass by the names they know. Argument names and orders are those of ATen's schemas.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch._decomp import core_aten_decompositions

from mixlist.errors import ModelError

aten = torch.ops.aten


def table() -> dict[Any, Callable[..., Any]]:
    """The decompositions for the graph without mutations."""
    return {**core_aten_decompositions(), **_OWN}


def in_place_table() -> dict[Any, Callable[..., Any]]:
    """Those needed while mutations are still visible: batch_norm's schema hides that it writes its statistics."""
    return {aten.native_batch_norm.default: batch_norm, aten._native_batch_norm_legit.default: batch_norm}


# Convolution


def convolution_backward(
    grad: Any, x: Any, weight: Any, bias_sizes: Any, stride: Any, padding: Any, dilation: Any,
    transposed: bool, output_padding: Any, groups: int, output_mask: Sequence[bool],
) -> tuple[Any, Any, Any]:  # fmt: skip
    """Gradients of input, weight and bias; None where ``output_mask`` asks for none."""
    rank = x.ndim - 2
    stride, padding, dilation = (_per_axis(value, rank) for value in (stride, padding, dilation))
    grad_x = grad_weight = grad_bias = None
    if output_mask[0] and transposed:
        grad_x = aten.convolution(grad, weight, None, stride, padding, dilation, False, [0] * rank, groups)
    elif output_mask[0]:
        axes = zip(grad.shape[2:], stride, padding, dilation, weight.shape[2:], strict=True)
        reach = [(o - 1) * s - 2 * p + d * (k - 1) + 1 for o, s, p, d, k in axes]
        missing = [size - got for size, got in zip(x.shape[2:], reach, strict=True)]  # rows no window begins at
        grad_x = aten.convolution(grad, weight, None, stride, padding, dilation, True, missing, groups)
    if output_mask[1]:
        wide, narrow = (grad, x) if transposed else (x, grad)
        grad_weight = _weight_gradient(wide, narrow, weight.shape[2:], stride, padding, dilation, groups)
    if output_mask[2]:
        grad_bias = grad.sum([0, *range(2, grad.ndim)])
    return grad_x, grad_weight, grad_bias


def _weight_gradient(x: Any, grad: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> Any:
    """Convolves x with grad, batch and channels swapped, stride and dilation too: (outputs, inputs / groups, *kernel).

    With groups, the groups of x stand in its channel axis and each meets its own group of grad.
    """
    rank = x.ndim - 2
    space, sizes = list(range(3, 3 + rank)), x.shape[2:]
    images, each, out = x.shape[0], x.shape[1] // groups, grad.shape[1]
    if groups == 1:
        rows, filters = x.transpose(0, 1), grad.transpose(0, 1)
    else:
        rows = x.view(images, groups, each, *sizes).permute(2, 1, 0, *space).reshape(each, groups * images, *sizes)
        filters = grad.transpose(0, 1)
    found = aten.convolution(rows, filters, None, dilation, padding, stride, False, [0] * rank, groups)
    for axis, size in enumerate(kernel, start=2):
        if found.shape[axis] != size:  # rows no window reached
            found = found.narrow(axis, 0, size)
    if groups == 1:
        return found.transpose(0, 1)
    return found.transpose(0, 1).reshape(out, each, *kernel)


def _per_axis(value: Any, rank: int) -> list[int]:
    return list(value) * rank if len(value) == 1 else list(value)


# Pooling


def max_pool_backward(spatial: int, grad: Any, x: Any, *rest: Any) -> Any:
    """Adds each gradient at the place its maximum came from; the last argument holds the places, flat per channel."""
    places, planes = rest[-1], x.shape[:-spatial]
    zeros = torch.zeros_like(x).view(*planes, -1)
    return zeros.scatter_add(-1, places.reshape(*planes, -1), grad.reshape(*planes, -1)).view(x.shape)


def adaptive_max_pool(x: Any, output_size: Sequence[int]) -> Any:
    """Where the sizes divide, the pooling with windows side by side."""
    sizes = x.shape[-len(output_size) :]
    if any(size % out for size, out in zip(sizes, output_size, strict=True)):
        raise ModelError(
            f"adaptive max pooling from {list(sizes)} to {list(output_size)} has windows of several sizes",
            hint="use an output size that divides the input's, or max_pool2d",
        )
    kernel = [size // out for size, out in zip(sizes, output_size, strict=True)]
    pool = aten.max_pool2d_with_indices if len(kernel) == 2 else aten.max_pool3d_with_indices
    return pool(x, kernel, kernel)


def avg_pool(
    x: Any, kernel: Any, stride: Any = (), padding: Any = (0,), ceil_mode: bool = False, include_pad: bool = True,
    divisor: int | None = None,
) -> Any:  # fmt: skip
    """Left as it is, except with a divisor of its own, which torch's exporter overlooks."""
    if not divisor:
        return NotImplemented
    rank = len(kernel)
    steps, pads = _per_axis(stride or kernel, rank), _per_axis(padding, rank)
    outs = [-((size - k + 2 * p) // -s) + 1 if ceil_mode else (size - k + 2 * p) // s + 1
            for size, k, s, p in zip(x.shape[-rank:], kernel, steps, pads, strict=True)]  # fmt: skip
    if ceil_mode:  # a window that would begin behind the input is left out
        outs = [out - ((out - 1) * s >= size + p)
                for out, size, s, p in zip(outs, x.shape[-rank:], steps, pads, strict=True)]  # fmt: skip
    return _apply(x, _pool_averages(x.shape[-rank:], outs, kernel, steps, pads, include_pad, divisor))


def avg_pool_backward(
    grad: Any, x: Any, kernel: Any, stride: Any, padding: Any, ceil_mode: bool, include_pad: bool, divisor: int | None
) -> Any:
    """Averaging is a matrix along each axis; the gradient is its transpose."""
    rank = len(kernel)
    steps, pads = _per_axis(stride or kernel, rank), _per_axis(padding, rank)
    matrices = _pool_averages(x.shape[-rank:], grad.shape[-rank:], kernel, steps, pads, include_pad, divisor)
    return _apply(grad, [matrix.T for matrix in matrices])


def _pool_averages(
    sizes: Any, outs: Any, kernel: Any, steps: Any, pads: Any, include_pad: bool, divisor: int | None
) -> list[Any]:
    matrices: list[Any] = []
    for length, out, size, step, pad in zip(sizes, outs, kernel, steps, pads, strict=True):
        starts = [index * step - pad for index in range(out)]
        windows = [(max(start, 0), min(start + size, length)) for start in starts]
        counts = [min(start + size, length + pad) - start for start in starts]
        if not include_pad:
            counts = [end - start for start, end in windows]
        if divisor:  # one number for the whole window: on the first axis alone
            counts = [1 if matrices else divisor] * out
        matrices.append(_averages(windows, counts, length))
    return matrices


def adaptive_avg_pool(x: Any, output_size: Sequence[int]) -> Any:
    """Average pooling where the sizes divide, else a matrix along each axis."""
    sizes = x.shape[-len(output_size) :]
    if any(size % out for size, out in zip(sizes, output_size, strict=True)):
        return _apply(x, _adaptive_averages(sizes, output_size))
    kernel = [size // out for size, out in zip(sizes, output_size, strict=True)]
    return (aten.avg_pool2d if len(kernel) == 2 else aten.avg_pool3d)(x, kernel, kernel)


def adaptive_avg_pool_backward(spatial: int, grad: Any, x: Any) -> Any:
    """The transpose of the matrices that average."""
    return _apply(grad, [m.T for m in _adaptive_averages(x.shape[-spatial:], grad.shape[-spatial:])])


def _adaptive_averages(sizes: Sequence[int], outs: Sequence[int]) -> list[Any]:
    found = []
    for size, out in zip(sizes, outs, strict=True):
        windows = [(index * size // out, -(-(index + 1) * size // out)) for index in range(out)]
        found.append(_averages(windows, [end - start for start, end in windows], size))
    return found


def _averages(windows: Sequence[tuple[int, int]], counts: Sequence[int], length: int) -> Any:
    """(windows, length): each row averages one window."""
    matrix = np.zeros((len(windows), length), np.float32)
    for row, ((start, end), count) in enumerate(zip(windows, counts, strict=True)):
        matrix[row, start:end] = 1 / count
    return matrix


def _apply(x: Any, matrices: Sequence[Any]) -> Any:
    """Multiplies the last axes of x by one matrix (after, before) each."""
    for axis, matrix in enumerate(matrices, start=-len(matrices)):
        constant = torch.from_numpy(np.ascontiguousarray(matrix.T)).to(x.dtype)
        x = torch.matmul(x.transpose(axis, -1), constant).transpose(axis, -1)
    return x


# Normalisation


def batch_norm(
    x: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: bool, momentum: float, eps: float
) -> tuple[Any, Any, Any]:
    """Output, the mean used and 1 / sqrt(variance + eps); in training, writes the running statistics (unbiased)."""
    axes, shape = [0, *range(2, x.ndim)], [1, -1] + [1] * (x.ndim - 2)
    if training or running_mean is None:
        mean = x.mean(axes)
        centred = x - mean.view(shape)
        variance = (centred * centred).mean(axes)
        if running_mean is not None:
            count = x.numel() / x.shape[1]
            running_mean.copy_(running_mean * (1 - momentum) + mean * momentum)
            running_var.copy_(running_var * (1 - momentum) + variance * (momentum * (count / (count - 1))))
    else:
        mean, variance = running_mean, running_var
        centred = x - mean.view(shape)
    scale = torch.rsqrt(variance + eps)
    out = centred * (scale if weight is None else scale * weight).view(shape)
    return (out if bias is None else out + bias.view(shape)), mean, scale


def native_group_norm(x: Any, weight: Any, bias: Any, n: Any, c: Any, hxw: Any, group: int, eps: float) -> Any:
    """Layer normalisation over each group's values, then the affine part per channel."""
    rows = x.reshape(n, group, (c // group) * hxw)
    out, mean, scale = aten.native_layer_norm(rows, [(c // group) * hxw], None, None, eps)
    out, shape = out.view(x.shape), [1, c] + [1] * (x.ndim - 2)
    if weight is not None:
        out = out * weight.view(shape)
    if bias is not None:
        out = out + bias.view(shape)
    return out, mean.view(n, group), scale.view(n, group)


def native_group_norm_backward(
    grad: Any, x: Any, mean: Any, scale: Any, weight: Any, n: Any, c: Any, hxw: Any, group: int, mask: Sequence[bool]
) -> tuple[Any, Any, Any]:
    """As layer normalisation's, over each group."""
    rows, channels = (n, group, (c // group) * hxw), [1, c] + [1] * (x.ndim - 2)
    axes = [0, *range(2, x.ndim)]
    normal = (x.reshape(rows) - mean.view(n, group, 1)) * scale.view(n, group, 1)
    grad_x = grad_weight = grad_bias = None
    if mask[0]:
        inner = (grad if weight is None else grad * weight.view(channels)).reshape(rows)
        spread = inner - inner.mean(-1, keepdim=True) - normal * (inner * normal).mean(-1, keepdim=True)
        grad_x = (spread * scale.view(n, group, 1)).view(x.shape)
    if mask[1]:
        grad_weight = (grad * normal.view(x.shape)).sum(axes)
    if mask[2]:
        grad_bias = grad.sum(axes)
    return grad_x, grad_weight, grad_bias


# Dropout: a random 0/1 tensor, lifted to an input by mixlist.torch_export.randomness


def native_dropout(x: Any, p: float, train: bool | None) -> tuple[Any, Any]:
    """x times 0 or 1 / (1 - p); the second result is the draw, for the gradient."""
    if not train or p == 0:
        return x, torch.ones_like(x)
    if p == 1:
        return torch.zeros_like(x), torch.zeros_like(x)
    draw = aten.bernoulli.p(torch.empty_like(x), 1 - p)
    return x * (draw / (1 - p)), draw


def native_dropout_backward(grad: Any, draw: Any, scale: float) -> Any:
    """As the forward pass: by the same division, which the exporter then does once."""
    return grad * (draw / (1 / scale if scale else 1.0))


# Parts of a tensor: the gradient is the part with zeros around it


def slice_backward(grad: Any, sizes: Sequence[Any], dim: int, start: Any, end: Any, step: int) -> Any:
    """Zeros around, and between the elements if the slice has a step."""
    dim %= len(sizes)
    if step != 1:
        return aten.slice_scatter(grad.new_zeros(sizes), grad, dim, start, end, step)
    begin = start + sizes[dim] if start < 0 else start
    after = sizes[dim] - begin - grad.shape[dim]
    return aten.constant_pad_nd(grad, [0, 0] * (len(sizes) - dim - 1) + [begin, after])


def select_backward(grad: Any, sizes: Sequence[Any], dim: int, index: Any) -> Any:
    """Zeros before and after the one row."""
    dim %= len(sizes)
    begin = index + sizes[dim] if index < 0 else index
    return aten.constant_pad_nd(grad.unsqueeze(dim), [0, 0] * (len(sizes) - dim - 1) + [begin, sizes[dim] - begin - 1])


_OWN: dict[Any, Callable[..., Any]] = {
    aten.convolution_backward.default: convolution_backward,
    aten.max_pool2d_with_indices_backward.default: partial(max_pool_backward, 2),
    aten.max_pool3d_with_indices_backward.default: partial(max_pool_backward, 3),
    aten.adaptive_max_pool2d.default: adaptive_max_pool,
    aten.adaptive_max_pool3d.default: adaptive_max_pool,
    aten.adaptive_max_pool2d_backward.default: partial(max_pool_backward, 2),
    aten.adaptive_max_pool3d_backward.default: partial(max_pool_backward, 3),
    aten.avg_pool2d.default: avg_pool,
    aten.avg_pool3d.default: avg_pool,
    aten.avg_pool2d_backward.default: avg_pool_backward,
    aten.avg_pool3d_backward.default: avg_pool_backward,
    aten._adaptive_avg_pool2d.default: adaptive_avg_pool,
    aten._adaptive_avg_pool3d.default: adaptive_avg_pool,
    aten._adaptive_avg_pool2d_backward.default: partial(adaptive_avg_pool_backward, 2),
    aten._adaptive_avg_pool3d_backward.default: partial(adaptive_avg_pool_backward, 3),
    aten.native_group_norm.default: native_group_norm,
    aten.native_group_norm_backward.default: native_group_norm_backward,
    aten.native_dropout.default: native_dropout,
    aten.native_dropout_backward.default: native_dropout_backward,
    aten.slice_backward.default: slice_backward,
    aten.select_backward.default: select_backward,
}
