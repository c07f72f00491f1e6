"""Find the infinities that change no output, from the text of Rule S8.30."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx
from onnx import numpy_helper

INFINITIES = frozenset({-1, 1})


def effects(model: onnx.ModelProto, tensor: str, edge: float) -> frozenset[int] | None:
    """Return the signs of the infinities in a tensor that reach an output; None if no output depends on the tensor.

    ``edge``: the smallest magnitude that the low type does not hold.
    """
    if tensor in {v.name for v in model.graph.output}:
        return INFINITIES
    held = {
        t.name
        for t in model.graph.initializer
        if t.data_type == onnx.TensorProto.FLOAT and (np.abs(numpy_helper.to_array(t)) < edge).all()
    }
    reached: frozenset[int] | None = None
    for node in model.graph.node:
        if tensor not in node.input:
            continue
        through = join(effects(model, name, edge) for name in node.output)
        if through is None:
            continue
        if node.op_type == "Clip":
            through -= {sign for sign, bound in zip((-1, 1), node.input[1:], strict=True) if bound in held}
        elif node.op_type not in ("Max", "Min"):
            through = INFINITIES
        elif held & set(node.input):
            through -= {-1 if node.op_type == "Max" else 1}
        reached = join((reached, through))
    return reached


def join(parts: Iterable[frozenset[int] | None]) -> frozenset[int] | None:
    """Return the signs of all parts; None if no part reaches an output."""
    signs = [part for part in parts if part is not None]
    return frozenset().union(*signs) if signs else None


def changes_nothing(model: onnx.ModelProto, tensor: str, edge: float, beyond: np.ndarray) -> bool:
    """Return whether values beyond the low type, NaN among them, change no output."""
    reached = effects(model, tensor, edge)
    if reached is None:
        return True
    return not np.isnan(beyond).any() and not any((np.sign(beyond) == sign).any() for sign in reached)
