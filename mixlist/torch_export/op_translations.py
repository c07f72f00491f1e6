"""Operators that torch's exporter translates at more cost than they need."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from onnxscript import opset18 as op


def table() -> dict[Any, Callable[..., Any]]:
    """For ``torch.onnx.export(custom_translation_table=...)``."""
    aten = torch.ops.aten
    return {aten.max_pool2d_with_indices.default: max_pool_2d, aten.max_pool3d_with_indices.default: max_pool_3d}


def max_pool_2d(self: Any, kernel_size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1,
                ceil_mode: bool = False) -> Any:  # fmt: skip
    """Maxima, and their places within each plane, int64."""
    return _max_pool(2, self, kernel_size, stride or kernel_size, padding, dilation, ceil_mode)


def max_pool_3d(self: Any, kernel_size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1,
                ceil_mode: bool = False) -> Any:  # fmt: skip
    """Maxima, and their places within each volume, int64."""
    return _max_pool(3, self, kernel_size, stride or kernel_size, padding, dilation, ceil_mode)


def _max_pool(rank: int, x: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool) -> Any:
    """ONNX counts the places through the whole tensor: the rest after division by a plane's size is torch's place.

    torch's exporter finds it by a second MaxPool over every single value.
    """
    size = math.prod(x.shape[axis] for axis in range(-rank, 0))
    unbatched = len(x.shape) == rank + 1
    out, places = op.MaxPool(
        op.Unsqueeze(x, [0]) if unbatched else x,
        ceil_mode=int(ceil_mode),
        dilations=_spread(dilation, rank),
        kernel_shape=_spread(kernel, rank),
        pads=_spread(padding, rank) * 2,
        strides=_spread(stride, rank),
    )
    places = op.Mod(places, op.Constant(value_int=size))
    return (op.Squeeze(out, [0]), op.Squeeze(places, [0])) if unbatched else (out, places)


def _spread(value: int | Sequence[int], rank: int) -> list[int]:
    sizes = [value] if isinstance(value, int) else list(value)
    return sizes * rank if len(sizes) == 1 else sizes
