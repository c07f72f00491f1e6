"""Translate to ONNX the ATen operators for which torch's exporter makes needlessly slow nodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from onnxscript import opset18 as op

from mixlist.torch_export.decompositions import per_axis

if TYPE_CHECKING:
    from torch._ops import OpOverload


def translation_table() -> Mapping[OpOverload, Callable[..., object]]:
    """Return the table for ``torch.onnx.export(custom_translation_table=...)``."""
    aten = torch.ops.aten
    return {
        aten.max_pool2d_with_indices.default: make_max_pool_translation(2),
        aten.max_pool3d_with_indices.default: make_max_pool_translation(3),
    }


def make_max_pool_translation(rank: int) -> Callable[..., object]:
    """Return the translation of max pooling over ``rank`` axes.

    The translated operator returns the maxima and their indices within each channel, int64. MaxPool of ONNX returns
    indices into the whole tensor, so the remainder after division by the size of a channel is the index of torch.
    torch's exporter computes the index of torch with a second MaxPool over single values instead.
    """

    # The exporter reads the annotations: Any is a tensor of any type.
    def translate(
        x: Any, kernel: Any, stride: Any = (), padding: Any = (0,), dilation: Any = (1,), ceil_mode: bool = False
    ) -> Any:
        channel_size = math.prod(x.shape[axis] for axis in range(-rank, 0))
        # torch pools a tensor without a batch axis too, ONNX does not.
        is_unbatched = len(x.shape) == rank + 1
        maxima, indices = op.MaxPool(
            op.Unsqueeze(x, [0]) if is_unbatched else x,
            ceil_mode=int(ceil_mode),
            dilations=per_axis(dilation, rank),
            kernel_shape=per_axis(kernel, rank),
            pads=per_axis(padding, rank) * 2,  # ONNX lists the begins of all axes, then the ends
            strides=per_axis(stride or kernel, rank),
        )
        indices = op.Mod(indices, op.Constant(value_int=channel_size))
        return (op.Squeeze(maxima, [0]), op.Squeeze(indices, [0])) if is_unbatched else (maxima, indices)

    return translate
