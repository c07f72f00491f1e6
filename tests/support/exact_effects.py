"""Find the infinities that change no output, from the text of Rule S8.30."""

from __future__ import annotations

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
        through = effects(model, node.output[0], edge)
        if through is None:
            continue
        if node.op_type not in ("Max", "Min"):
            through = INFINITIES
        elif held & set(node.input):
            through -= {-1 if node.op_type == "Max" else 1}
        reached = through if reached is None else reached | through
    return reached


def changes_nothing(model: onnx.ModelProto, tensor: str, edge: float, beyond: np.ndarray) -> bool:
    """Return whether values beyond the low type, NaN among them, change no output."""
    reached = effects(model, tensor, edge)
    if reached is None:
        return True
    return not np.isnan(beyond).any() and not any((np.sign(beyond) == sign).any() for sign in reached)
