"""Translate operators to ONNX that torch's exporter translates at more cost than they need."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from onnxscript import opset18 as op

from mixlist.torch_export.decompositions import per_axis

if TYPE_CHECKING:
    from torch._ops import OpOverload


def table() -> Mapping[OpOverload, Callable[..., object]]:
    """Return the table for ``torch.onnx.export(custom_translation_table=...)``."""
    aten = torch.ops.aten
    return {aten.max_pool2d_with_indices.default: max_pool(2), aten.max_pool3d_with_indices.default: max_pool(3)}


def max_pool(rank: int) -> Callable[..., object]:
    """Return the translation of pooling over ``rank`` axes: maxima, and their places within each plane, int64.

    ONNX counts the places through the whole tensor: the rest after division by a plane's size is torch's place.
    torch's exporter finds it by a second MaxPool over every single value.
    """

    # The exporter reads the annotations: Any is a tensor of any type.
    def translate(
        x: Any, kernel: Any, stride: Any = (), padding: Any = (0,), dilation: Any = (1,), ceil_mode: bool = False
    ) -> Any:
        size = math.prod(x.shape[axis] for axis in range(-rank, 0))
        unbatched = len(x.shape) == rank + 1
        out, places = op.MaxPool(
            op.Unsqueeze(x, [0]) if unbatched else x,
            ceil_mode=int(ceil_mode),
            dilations=per_axis(dilation, rank),
            kernel_shape=per_axis(kernel, rank),
            pads=per_axis(padding, rank) * 2,
            strides=per_axis(stride or kernel, rank),
        )
        places = op.Mod(places, op.Constant(value_int=size))
        return (op.Squeeze(out, [0]), op.Squeeze(places, [0])) if unbatched else (out, places)

    return translate
