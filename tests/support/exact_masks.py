"""Masks that the graph proves, from the text of Rule S8.12: constants that reach a softmax and nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SOFTMAX = ("Softmax", "LogSoftmax")
MOVERS = ("Transpose", "Reshape", "Concat")
CARRIERS = ("Add", "Sub", "Max", "Where", *MOVERS)
LEAST = 1e4  # the smallest constant that can be a mask
ALONE = 131040.0  # half of it is beyond float16 whatever is added


@dataclass
class Masks:
    """Hold per tensor the least magnitude of a mask's value, and the tensors that must stay in range for that."""

    least: dict[str, float] = field(default_factory=dict)
    in_range: dict[str, list[str]] = field(default_factory=dict)


def proven_masks(model: onnx.ModelProto) -> Masks:
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in model.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    outputs = {v.name for v in model.graph.output}
    producers = {node.output[0]: node for node in model.graph.node}
    constants = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    masks = Masks()
    for name, value in constants.items():
        if value.dtype != np.float32 or np.abs(value).max() < LEAST:
            continue
        path, added = carried(name, readers, outputs, producers, constants)
        for tensor in path or ():
            size = float(np.abs(value).max())
            masks.least[tensor] = min(size / 2, masks.least.get(tensor, np.inf))
            if size < ALONE:
                masks.in_range.setdefault(tensor, []).extend(added)
    return masks


def carried(
    start: str,
    readers: dict[str, list[onnx.NodeProto]],
    outputs: set[str],
    producers: dict[str, onnx.NodeProto],
    constants: dict[str, np.ndarray],
) -> tuple[set[str] | None, list[str]]:
    """Return the tensors between a constant and its softmaxes, None if another node reads one, and what is joined."""
    path: set[str] = set()
    added: list[str] = []
    pending = [start]
    while pending:
        name = pending.pop()
        if name in outputs or name not in readers:
            return None, []
        for node in readers[name]:
            others = [i for i in node.input[node.op_type == "Where" :] if i != name]
            if node.op_type in SOFTMAX:
                continue
            if node.op_type == "Mul" and all(is_factor(i, producers, constants) for i in others):
                pass
            elif node.op_type not in CARRIERS:
                return None, []
            elif node.op_type not in MOVERS:
                added += others
            path.add(node.output[0])
            pending.append(node.output[0])
    return path, added


def is_factor(name: str, producers: dict[str, onnx.NodeProto], constants: dict[str, np.ndarray]) -> bool:
    """Return whether a tensor is 0 or 1 everywhere: the Cast of a bool, or one minus that."""
    if name not in producers:
        return False
    node = producers[name]
    if node.op_type == "Cast":
        source = producers.get(node.input[0])
        to = next(helper.get_attribute_value(a) for a in node.attribute if a.name == "to")
        return source is not None and source.op_type in ("Less", "Greater", "Equal") and to == TensorProto.FLOAT
    one = constants.get(node.input[0])
    return (
        node.op_type == "Sub"
        and one is not None
        and bool((one == 1).all())
        and is_factor(node.input[1], producers, constants)
    )
