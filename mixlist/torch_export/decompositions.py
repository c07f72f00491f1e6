"""Decompose ATen operators that ONNX lacks, most of them backward operators, into operators that ONNX has.

torch's own core ATen decompositions do most of this work; here are the others. A gradient becomes convolutions,
products with matrices, or paddings, so the op types of a backward pass are op types that the lists know. The names and
the order of arguments are those of ATen's schemas.
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
    Matrix = NDArray[np.float32]  # (outputs, inputs): the pooling of one axis as a product with a matrix

aten = torch.ops.aten


def decomposition_table() -> Decompositions:
    """Return all decompositions, for the second pass of the tracing: its graph has no mutations any more."""
    return {**core_aten_decompositions(), **_MIXLIST_DECOMPOSITIONS}


def batch_norm_table() -> Decompositions:
    """Return the decompositions for the first pass of the tracing.

    The schema of batch_norm does not declare that it writes the running statistics. Only the decomposition makes the
    writes visible, so that the second pass can turn them into outputs.
    """
    return {aten.native_batch_norm.default: batch_norm, aten._native_batch_norm_legit.default: batch_norm}


# Convolution


class ConvolutionArguments(NamedTuple):
    """The arguments of ``aten.convolution`` after its tensors, in the same order. Lists have one number per axis."""

    stride: list[int]
    padding: list[int]
    dilation: list[int]
    transposed: bool
    output_padding: list[int]
    groups: int

    def not_transposed(self) -> ConvolutionArguments:
        """Return the arguments of the convolution that is not transposed and has the same windows."""
        return self._replace(transposed=False, output_padding=[0] * len(self.stride))


def convolution_backward(grad: Tensor, x: Tensor, weight: Tensor, bias_sizes: object, *options: Any) -> list[Tensor]:
    """Return the gradients of input, weight and bias, with None for those that the output mask leaves out.

    ``options``: the fields of ConvolutionArguments, in which one number may stand for all axes, and the output mask.
    """
    stride, padding, dilation = (per_axis(sizes, x.ndim - 2) for sizes in options[:3])
    transposed, output_padding, groups, output_mask = options[3:]
    arguments = ConvolutionArguments(stride, padding, dilation, transposed, output_padding, groups)
    return [
        _input_gradient(grad, x, weight, arguments) if output_mask[0] else None,
        _weight_gradient(grad, x, weight, arguments) if output_mask[1] else None,
        grad.sum([0, *range(2, grad.ndim)]) if output_mask[2] else None,
    ]


def _input_gradient(grad: Tensor, x: Tensor, weight: Tensor, arguments: ConvolutionArguments) -> Tensor:
    """Convolve ``grad`` with the weight. The convolution is transposed if the forward convolution is not."""
    if arguments.transposed:
        return aten.convolution(grad, weight, None, *arguments.not_transposed())
    axes = zip(x.shape[2:], grad.shape[2:], weight.shape[2:], *arguments[:3], strict=True)
    # With a stride, the last rows of x may be in no window. The transposed convolution then returns fewer rows than x
    # has; output_padding adds them. (n = size of the output, k = of the kernel, s, p, d = stride, padding, dilation.)
    missing_rows = [size - ((n - 1) * s - 2 * p + d * (k - 1) + 1) for size, n, k, s, p, d in axes]
    return aten.convolution(grad, weight, None, *arguments._replace(transposed=True, output_padding=missing_rows))


def _weight_gradient(grad: Tensor, x: Tensor, weight: Tensor, arguments: ConvolutionArguments) -> Tensor:
    """Convolve ``x`` with ``grad`` as the filters.

    The batch and the channels swap their places, and so do stride and dilation.
    """
    # A transposed convolution computes the input gradient of a plain convolution. In terms of the plain convolution, x
    # is the gradient of the output, and grad is the input. So the two swap.
    if arguments.transposed:
        grad, x = x, grad
    swapped = arguments.not_transposed()._replace(stride=arguments.dilation, dilation=arguments.stride)
    image_count, groups, kernel, sizes = x.shape[0], arguments.groups, weight.shape[2:], x.shape[2:]
    channels = x.shape[1] // groups
    if groups == 1:
        swapped_x = x.transpose(0, 1)
    else:
        # (images, groups * channels, ...) -> (channels, groups * images, ...): the grouped convolution then pairs each
        # group of x with its own group of grad.
        order = (2, 1, 0, *range(3, x.ndim + 1))
        swapped_x = (
            x.view(image_count, groups, channels, *sizes).permute(order).reshape(channels, groups * image_count, *sizes)
        )
    result = aten.convolution(swapped_x, grad.transpose(0, 1), None, *swapped)
    # Rows of x that are in no window of the forward pass make the result larger than the kernel. They are cut off.
    for axis, size in enumerate(kernel, start=2):
        if result.shape[axis] != size:
            result = result.narrow(axis, 0, size)
    result = result.transpose(0, 1)
    return result if groups == 1 else result.reshape(grad.shape[1], channels, *kernel)


def per_axis(sizes: Sequence[int], rank: int) -> list[int]:
    """Return one number per axis. A list with one number stands for all axes, as in ATen's schemas."""
    return list(sizes) * rank if len(sizes) == 1 else list(sizes)


# Pooling


def max_pool_backward(rank: int, grad: Tensor, x: Tensor, *arguments: Any) -> Tensor:
    """Add each gradient value to the element of ``x`` that was the maximum of its window.

    The last argument has the indices of the maxima, within the flat ``rank`` axes of each channel.
    """
    # scatter_add, not a plain scatter: with a stride below the kernel size, one element may be the maximum of several
    # windows.
    indices, channels = arguments[-1], x.shape[:-rank]
    zeros = torch.zeros_like(x).view(*channels, -1)
    return zeros.scatter_add(-1, indices.reshape(*channels, -1), grad.reshape(*channels, -1)).view(x.shape)


def adaptive_max_pool(x: Tensor, output_size: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Pool windows of equal size; return maxima and indices.

    Raises ModelError if an output size does not divide the size of its axis of ``x``.
    """
    sizes = x.shape[-len(output_size) :]
    kernel = _equal_window_sizes(sizes, output_size)
    if kernel is None:
        raise ModelError(
            f"adaptive max pooling from {list(sizes)} to {list(output_size)} has windows of several sizes",
            hint="use an output size that divides the size of the input, or max_pool2d",
        )
    pool = aten.max_pool2d_with_indices if len(kernel) == 2 else aten.max_pool3d_with_indices
    result: tuple[Tensor, Tensor] = pool(x, kernel, kernel)
    return result


def avg_pool(
    x: Tensor, kernel: Sequence[int], stride: Sequence[int] = (), padding: Sequence[int] = (0,),
    ceil_mode: bool = False, include_pad: bool = True, divisor: int | None = None,
) -> Tensor:  # fmt: skip
    """Replace an average pooling with ``divisor_override`` by products with matrices; leave any other as it is.

    torch's exporter ignores ``divisor_override``.
    """
    if not divisor:
        return NotImplemented  # the tracer keeps the operator
    # The same pooling without the divisor gives the output's shape; nothing reads its values.
    shape = _call_avg_pool(x, kernel, stride, padding, ceil_mode, include_pad).shape
    return _multiply_axes(x, _pool_matrices(x.shape, shape, kernel, stride, padding, include_pad, divisor))


def avg_pool_backward(
    grad: Tensor, x: Tensor, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int],
    ceil_mode: bool, include_pad: bool, divisor: int | None,
) -> Tensor:  # fmt: skip
    """Multiply ``grad`` with the transposes of the matrices that average along each axis."""
    matrices = _pool_matrices(x.shape, grad.shape, kernel, stride, padding, include_pad, divisor)
    return _multiply_axes(grad, [matrix.T for matrix in matrices])


def _call_avg_pool(x: Tensor, kernel: Sequence[int], *options: object) -> Tensor:
    return (aten.avg_pool2d if len(kernel) == 2 else aten.avg_pool3d)(x, kernel, *options)


def _pool_matrices(
    shape: Sequence[int], output_shape: Sequence[int], kernel: Sequence[int], stride: Sequence[int],
    padding: Sequence[int], include_pad: bool, divisor: int | None,
) -> list[Matrix]:  # fmt: skip
    """Return one matrix per pooled axis. The product with all of them is the average pooling."""
    rank = len(kernel)
    strides, pads = per_axis(stride or kernel, rank), per_axis(padding, rank)
    matrices: list[Matrix] = []
    window_counts = output_shape[-rank:]
    for length, count, window, step, pad in zip(shape[-rank:], window_counts, kernel, strides, pads, strict=True):
        starts = np.arange(count) * step - pad
        ends = starts + window
        # With ceil_mode, the last window may reach beyond the padding. That part never counts.
        divisors = np.minimum(ends, length + pad) - starts if include_pad else None
        # The divisor is for the whole window, so only the first matrix divides by it.
        if divisor:
            divisors = np.full(count, 1 if matrices else divisor)
        matrices.append(_averaging_matrix(starts, ends, length, divisors))
    return matrices


def adaptive_avg_pool(x: Tensor, output_size: Sequence[int]) -> Tensor:
    """Pool by average if all windows have equal size, else multiply with a matrix along each axis."""
    sizes = x.shape[-len(output_size) :]
    kernel = _equal_window_sizes(sizes, output_size)
    if kernel is None:
        return _multiply_axes(x, _adaptive_pool_matrices(sizes, output_size))
    return _call_avg_pool(x, kernel, kernel)


def adaptive_avg_pool_backward(rank: int, grad: Tensor, x: Tensor) -> Tensor:
    """Multiply ``grad`` with the transposes of the matrices that average along each axis."""
    matrices = _adaptive_pool_matrices(x.shape[-rank:], grad.shape[-rank:])
    return _multiply_axes(grad, [matrix.T for matrix in matrices])


def _equal_window_sizes(sizes: Sequence[int], outputs: Sequence[int]) -> list[int] | None:
    """Return the window size per axis of an adaptive pooling, or None if an axis has windows of several sizes."""
    pairs = list(zip(sizes, outputs, strict=True))
    return None if any(size % count for size, count in pairs) else [size // count for size, count in pairs]


def _adaptive_pool_matrices(sizes: Sequence[int], outputs: Sequence[int]) -> list[Matrix]:
    """Return one matrix per axis. Window i of n goes from floor(i * size / n) to ceil((i + 1) * size / n)."""
    matrices = []
    for size, count in zip(sizes, outputs, strict=True):
        edges = np.arange(count + 1) * size
        matrices.append(_averaging_matrix(edges[:-1] // count, -(-edges[1:] // count), size))
    return matrices


def _averaging_matrix(
    starts: NDArray[np.int64], ends: NDArray[np.int64], length: int, divisors: NDArray[np.int64] | None = None
) -> Matrix:
    """Return a matrix (windows, ``length``) whose rows average one window each.

    ``starts`` and ``ends`` are the bounds of the windows, ``ends`` not included; they may lie outside the axis. The sum
    of a window is divided by its divisor, or without ``divisors`` by the number of its elements inside the axis.
    """
    positions = np.arange(length)
    inside = (starts[:, None] <= positions) & (positions < ends[:, None])
    counts = inside.sum(1) if divisors is None else divisors
    return np.where(inside, 1 / counts[:, None], 0).astype(np.float32)


def _multiply_axes(x: Tensor, matrices: Sequence[Matrix]) -> Tensor:
    """Multiply each of the last axes of ``x`` with its matrix."""
    # Each axis is moved to the end, where MatMul works on it, and back.
    for axis, matrix in enumerate(matrices, start=-len(matrices)):
        constant = torch.from_numpy(np.ascontiguousarray(matrix.T)).to(x.dtype)
        x = torch.matmul(x.transpose(axis, -1), constant).transpose(axis, -1)
    return x


# Normalization


def batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor | None, running_var: Tensor | None,
    training: bool, momentum: float, eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the output, the mean that normalizes it, and 1 / sqrt(variance + eps).

    With ``training``, the statistics are those of the batch, and the running statistics are updated in place. The batch
    variance divides by the number of values, the running variance by one less, as in torch.
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
    """Normalize the values of each group with a layer normalization, then scale and shift each channel."""
    # ONNX has GroupNormalization from opset 18 on, but with one scale per group; the scale here is one per channel.
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
    """Return the gradients of input, weight and bias, as of a layer normalization over each group.

    ``mask`` says which of the three are needed; the others are None.
    """
    rows, channels = (n, group, (c // group) * hxw), [1, c] + [1] * (x.ndim - 2)
    axes = [0, *range(2, x.ndim)]
    normalized = (x.reshape(rows) - mean.view(n, group, 1)) * scale.view(n, group, 1)
    grad_x = grad_weight = grad_bias = None
    if mask[0]:
        grad_normalized = (grad if weight is None else grad * weight.view(channels)).reshape(rows)
        # The mean and the variance of a group depend on x too: the two subtractions are the gradients through them.
        centered = grad_normalized - grad_normalized.mean(-1, keepdim=True)
        centered = centered - normalized * (grad_normalized * normalized).mean(-1, keepdim=True)
        grad_x = (centered * scale.view(n, group, 1)).view(x.shape)
    if mask[1]:
        grad_weight = (grad * normalized.view(x.shape)).sum(axes)
    if mask[2]:
        grad_bias = grad.sum(axes)
    return grad_x, grad_weight, grad_bias


# Dropout: a random 0/1 tensor, which mixlist.torch_export.random_inputs turns into a graph input


def native_dropout(x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """Multiply x with 0 (probability p) or 1 / (1 - p); return the product and the 0/1 draw, for the gradient."""
    # Without randomness, no draw is needed: p = 0 would draw ones, and p = 1 would divide by 0.
    if not train or p == 0:
        return x, torch.ones_like(x)
    if p == 1:
        return torch.zeros_like(x), torch.zeros_like(x)
    draw = aten.bernoulli.p(torch.empty_like(x), 1 - p)
    return x * (draw / (1 - p)), draw


def native_dropout_backward(grad: Tensor, draw: Tensor, scale: float) -> Tensor:
    """Multiply ``grad`` with draw / (1 - p), where ``scale`` is 1 / (1 - p).

    The division is that of the forward pass, so that the exporter can merge the two nodes.
    """
    # torch gives the scale 0 for p = 1. ``draw`` is 0 then, so any divisor but 0 is right.
    return grad * (draw / (1 / scale if scale else 1.0))


# Parts of a tensor: the gradient of the whole is the gradient of the part with zeros around it


def slice_backward(grad: Tensor, sizes: Sequence[int], dim: int, start: int, end: int, step: int) -> Tensor:
    """Put zeros around the gradient, and between its elements if the slice has a step other than 1."""
    dim %= len(sizes)
    # As in Python, a negative start counts from the end, and a start out of range becomes 0 or the size.
    begin = min(max(start + sizes[dim] if start < 0 else start, 0), sizes[dim])
    # A padding cannot put zeros between elements.
    if step != 1:
        return aten.slice_scatter(grad.new_zeros(sizes), grad, dim, begin, end, step)
    after = sizes[dim] - begin - grad.shape[dim]
    return aten.constant_pad_nd(grad, [0, 0] * (len(sizes) - dim - 1) + [begin, after])


def select_backward(grad: Tensor, sizes: Sequence[int], dim: int, index: int) -> Tensor:
    """Put zeros before and after the selected row."""
    return slice_backward(grad.unsqueeze(dim % len(sizes)), sizes, dim, index, index + 1, 1)


def empty_permuted(sizes: Sequence[int], physical_layout: object, **options: Any) -> Tensor:
    """Return zeros: the graph has no memory layout, and nothing may depend on values that are not set."""
    return torch.zeros(sizes, dtype=options.get("dtype"))


_MIXLIST_DECOMPOSITIONS: Decompositions = {
    aten.empty_permuted.default: empty_permuted,
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
