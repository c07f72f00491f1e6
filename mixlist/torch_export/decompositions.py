"""Write backward operators out as operators that ONNX has, in addition to torch's own core ATen decompositions.

A gradient here is a convolution, a product with a matrix or a padding, never a kernel of its own: so the lists name
the operators of a backward pass by the names they know. Argument names and orders are those of ATen's schemas.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch._decomp import core_aten_decompositions

from mixlist.errors import ModelError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor
    from torch._ops import OpOverload

    Decompositions = Mapping[OpOverload, Callable[..., object]]
    Matrix = NDArray[np.float32]  # (outputs, inputs) of one axis

aten = torch.ops.aten


def table() -> Decompositions:
    """Return the decompositions for the graph without mutations."""
    return {**core_aten_decompositions(), **_OWN}


def in_place_table() -> Decompositions:
    """Return those needed while mutations are visible: batch_norm's schema hides that it writes its statistics."""
    return {aten.native_batch_norm.default: batch_norm, aten._native_batch_norm_legit.default: batch_norm}


# Convolution


class Geometry(NamedTuple):
    """The arguments behind the tensors of ``aten.convolution``, in its order; one number per axis."""

    stride: list[int]
    padding: list[int]
    dilation: list[int]
    transposed: bool
    output_padding: list[int]
    groups: int

    def plain(self) -> Geometry:
        """Return the same windows for a convolution that is not transposed."""
        return self._replace(transposed=False, output_padding=[0] * len(self.stride))


def convolution_backward(grad: Tensor, x: Tensor, weight: Tensor, bias_sizes: object, *options: Any) -> list[Tensor]:
    """Return the gradients of input, weight and bias; None where the output mask asks for none.

    ``options``: the fields of a Geometry, where one number may stand for all axes, and the output mask.
    """
    stride, padding, dilation = (per_axis(sizes, x.ndim - 2) for sizes in options[:3])
    transposed, output_padding, groups, output_mask = options[3:]
    geometry = Geometry(stride, padding, dilation, transposed, output_padding, groups)
    return [
        _input_gradient(grad, x, weight, geometry) if output_mask[0] else None,
        _weight_gradient(grad, x, weight, geometry) if output_mask[1] else None,
        grad.sum([0, *range(2, grad.ndim)]) if output_mask[2] else None,
    ]


def _input_gradient(grad: Tensor, x: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
    """Return the convolution of ``grad`` that is transposed if the forward pass is not, and the reverse."""
    if geometry.transposed:
        return aten.convolution(grad, weight, None, *geometry.plain())
    axes = zip(x.shape[2:], grad.shape[2:], weight.shape[2:], *geometry[:3], strict=True)
    # A transposed convolution ends at the last row that a window begins at: output_padding adds the rows behind it.
    missing = [size - ((out - 1) * s - 2 * p + d * (kernel - 1) + 1) for size, out, kernel, s, p, d in axes]
    return aten.convolution(grad, weight, None, *geometry._replace(transposed=True, output_padding=missing))


def _weight_gradient(grad: Tensor, x: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
    """Convolve x with grad, batch and channels swapped, stride and dilation too.

    With groups, the groups of x stand in its channel axis and each meets its own group of grad.
    """
    if geometry.transposed:
        grad, x = x, grad
    swapped = geometry.plain()._replace(stride=geometry.dilation, dilation=geometry.stride)
    images, groups, kernel, sizes = x.shape[0], geometry.groups, weight.shape[2:], x.shape[2:]
    channels = x.shape[1] // groups
    if groups == 1:
        rows = x.transpose(0, 1)
    else:
        order = (2, 1, 0, *range(3, x.ndim + 1))
        rows = x.view(images, groups, channels, *sizes).permute(order).reshape(channels, groups * images, *sizes)
    result = aten.convolution(rows, grad.transpose(0, 1), None, *swapped)
    for axis, size in enumerate(kernel, start=2):
        if result.shape[axis] != size:  # rows no window reached
            result = result.narrow(axis, 0, size)
    result = result.transpose(0, 1)
    return result if groups == 1 else result.reshape(grad.shape[1], channels, *kernel)


def per_axis(sizes: Sequence[int], rank: int) -> list[int]:
    """Return one number per axis where ATen takes one for all axes."""
    return list(sizes) * rank if len(sizes) == 1 else list(sizes)


# Pooling


def max_pool_backward(rank: int, grad: Tensor, x: Tensor, *rest: Any) -> Tensor:
    """Add each gradient at the place its maximum came from; the last argument holds the places, flat per channel."""
    places, planes = rest[-1], x.shape[:-rank]
    zeros = torch.zeros_like(x).view(*planes, -1)
    return zeros.scatter_add(-1, places.reshape(*planes, -1), grad.reshape(*planes, -1)).view(x.shape)


def adaptive_max_pool(x: Tensor, output_size: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Pool windows that touch each other. Raises ModelError where the sizes do not divide."""
    sizes = x.shape[-len(output_size) :]
    kernel = _dividing_windows(sizes, output_size)
    if kernel is None:
        raise ModelError(
            f"adaptive max pooling from {list(sizes)} to {list(output_size)} has windows of several sizes",
            hint="use an output size that divides the input's, or max_pool2d",
        )
    pool = aten.max_pool2d_with_indices if len(kernel) == 2 else aten.max_pool3d_with_indices
    result: tuple[Tensor, Tensor] = pool(x, kernel, kernel)
    return result


def avg_pool(
    x: Tensor, kernel: Sequence[int], stride: Sequence[int] = (), padding: Sequence[int] = (0,),
    ceil_mode: bool = False, include_pad: bool = True, divisor: int | None = None,
) -> Tensor:  # fmt: skip
    """Leave the pooling as it is, except with a divisor of its own, which torch's exporter overlooks."""
    if not divisor:
        return NotImplemented
    # The same pooling without the divisor gives the output's shape; nothing reads its values.
    shape = _average_pool(x, kernel, stride, padding, ceil_mode, include_pad).shape
    return _apply(x, _pool_averages(x.shape, shape, kernel, stride, padding, include_pad, divisor))


def avg_pool_backward(
    grad: Tensor, x: Tensor, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int],
    ceil_mode: bool, include_pad: bool, divisor: int | None,
) -> Tensor:  # fmt: skip
    """Apply the transposes of the matrices that average along each axis."""
    matrices = _pool_averages(x.shape, grad.shape, kernel, stride, padding, include_pad, divisor)
    return _apply(grad, [matrix.T for matrix in matrices])


def _average_pool(x: Tensor, kernel: Sequence[int], *options: object) -> Tensor:
    return (aten.avg_pool2d if len(kernel) == 2 else aten.avg_pool3d)(x, kernel, *options)


def _pool_averages(
    shape: Sequence[int], result: Sequence[int], kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int],
    include_pad: bool, divisor: int | None,
) -> list[Matrix]:  # fmt: skip
    rank = len(kernel)
    steps, pads = per_axis(stride or kernel, rank), per_axis(padding, rank)
    matrices: list[Matrix] = []
    for length, count, size, step, pad in zip(shape[-rank:], result[-rank:], kernel, steps, pads, strict=True):
        starts = np.arange(count) * step - pad
        ends = starts + size
        divisors = np.minimum(ends, length + pad) - starts if include_pad else None
        if divisor:  # one number for the whole window: on the first axis alone
            divisors = np.full(count, 1 if matrices else divisor)
        matrices.append(_averages(starts, ends, length, divisors))
    return matrices


def adaptive_avg_pool(x: Tensor, output_size: Sequence[int]) -> Tensor:
    """Pool by average where the sizes divide, else multiply with a matrix along each axis."""
    sizes = x.shape[-len(output_size) :]
    kernel = _dividing_windows(sizes, output_size)
    if kernel is None:
        return _apply(x, _adaptive_averages(sizes, output_size))
    return _average_pool(x, kernel, kernel)


def adaptive_avg_pool_backward(rank: int, grad: Tensor, x: Tensor) -> Tensor:
    """Apply the transposes of the matrices that average."""
    return _apply(grad, [matrix.T for matrix in _adaptive_averages(x.shape[-rank:], grad.shape[-rank:])])


def _dividing_windows(sizes: Sequence[int], outputs: Sequence[int]) -> list[int] | None:
    """Return the size of the windows of an adaptive pooling; None where they differ."""
    pairs = list(zip(sizes, outputs, strict=True))
    return None if any(size % count for size, count in pairs) else [size // count for size, count in pairs]


def _adaptive_averages(sizes: Sequence[int], outputs: Sequence[int]) -> list[Matrix]:
    matrices = []
    for size, count in zip(sizes, outputs, strict=True):
        edges = np.arange(count + 1) * size
        matrices.append(_averages(edges[:-1] // count, -(-edges[1:] // count), size))
    return matrices


def _averages(
    starts: NDArray[np.int64], ends: NDArray[np.int64], length: int, divisors: NDArray[np.int64] | None = None
) -> Matrix:
    """Return (windows, length): each row averages one window, by its part inside the tensor unless divisors say."""
    places = np.arange(length)
    inside = (starts[:, None] <= places) & (places < ends[:, None])
    counts = inside.sum(1) if divisors is None else divisors
    return np.where(inside, 1 / counts[:, None], 0).astype(np.float32)


def _apply(x: Tensor, matrices: Sequence[Matrix]) -> Tensor:
    """Multiply the last axes of x by one matrix each."""
    for axis, matrix in enumerate(matrices, start=-len(matrices)):
        constant = torch.from_numpy(np.ascontiguousarray(matrix.T)).to(x.dtype)
        x = torch.matmul(x.transpose(axis, -1), constant).transpose(axis, -1)
    return x


# Normalization


def batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor | None, running_var: Tensor | None,
    training: bool, momentum: float, eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the output, the mean used and 1 / sqrt(variance + eps); in training, write the running statistics.

    The running variance is unbiased, as torch has it.
    """
    axes, shape = [0, *range(2, x.ndim)], [1, -1] + [1] * (x.ndim - 2)
    if training or running_mean is None:
        mean = x.mean(axes)
        centered = x - mean.view(shape)
        variance = (centered * centered).mean(axes)
        if running_mean is not None and running_var is not None:
            count = x.numel() / x.shape[1]
            running_mean.copy_(running_mean * (1 - momentum) + mean * momentum)
            running_var.copy_(running_var * (1 - momentum) + variance * (momentum * (count / (count - 1))))
    else:
        mean, variance = running_mean, running_var
        centered = x - mean.view(shape)
    scale = torch.rsqrt(variance + eps)
    out = centered * (scale if weight is None else scale * weight).view(shape)
    return (out if bias is None else out + bias.view(shape)), mean, scale


def native_group_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, n: int, c: int, hxw: int, group: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalize the values of each group as a layer, then apply the affine part per channel."""
    rows = x.reshape(n, group, (c // group) * hxw)
    out, mean, scale = aten.native_layer_norm(rows, [(c // group) * hxw], None, None, eps)
    out, shape = out.view(x.shape), [1, c] + [1] * (x.ndim - 2)
    if weight is not None:
        out = out * weight.view(shape)
    if bias is not None:
        out = out + bias.view(shape)
    return out, mean.view(n, group), scale.view(n, group)


def native_group_norm_backward(
    grad: Tensor, x: Tensor, mean: Tensor, scale: Tensor, weight: Tensor | None, n: int, c: int, hxw: int, group: int,
    mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    """Return the gradients of input, weight and bias: those of layer normalization, over each group."""
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


def native_dropout(x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """Multiply x with 0 or 1 / (1 - p); the second result is the draw, for the gradient."""
    if not train or p == 0:
        return x, torch.ones_like(x)
    if p == 1:
        return torch.zeros_like(x), torch.zeros_like(x)
    draw = aten.bernoulli.p(torch.empty_like(x), 1 - p)
    return x * (draw / (1 - p)), draw


def native_dropout_backward(grad: Tensor, draw: Tensor, scale: float) -> Tensor:
    """Multiply as the forward pass does: by the same division, which the exporter then writes once."""
    return grad * (draw / (1 / scale if scale else 1.0))


# Parts of a tensor: the gradient is the part with zeros around it


def slice_backward(grad: Tensor, sizes: Sequence[int], dim: int, start: int, end: int, step: int) -> Tensor:
    """Put zeros around the gradient, and between its elements if the slice has a step."""
    dim %= len(sizes)
    if step != 1:
        return aten.slice_scatter(grad.new_zeros(sizes), grad, dim, start, end, step)
    begin = start + sizes[dim] if start < 0 else start
    after = sizes[dim] - begin - grad.shape[dim]
    return aten.constant_pad_nd(grad, [0, 0] * (len(sizes) - dim - 1) + [begin, after])


def select_backward(grad: Tensor, sizes: Sequence[int], dim: int, index: int) -> Tensor:
    """Put zeros before and after the one row."""
    return slice_backward(grad.unsqueeze(dim % len(sizes)), sizes, dim, index, index + 1, 1)


_OWN: Decompositions = {
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
