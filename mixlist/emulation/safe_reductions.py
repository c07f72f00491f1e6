"""Rewrite reductions so that they never reduce an empty tensor, which ONNX Runtime's CUDA provider refuses.

By its source code, the CUDA provider also refuses to reduce a tensor of more than eight dimensions. Therefore the
tensor is flattened, and the neutral element of the reduction is appended to its values:

    x -> ReduceMax  becomes  x -> Reshape [-1] -> Concat with -inf -> ReduceMax
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mixlist.graph.naming import NameGenerator
from mixlist.ops import dtypes

if TYPE_CHECKING:
    from onnx import NodeProto

_NEUTRAL_ELEMENTS = {"ReduceMin": float("inf"), "ReduceMax": float("-inf"), "ReduceL1": 0.0, "ReduceSum": 0.0}


def make_reductions_safe(
    nodes: list[NodeProto], out: str, elem: int, names: NameGenerator, columns: int | None = None
) -> list[NodeProto]:
    """Return ``nodes`` with the reduction to the tensor ``out`` rewritten so that it reduces at least one value.

    elem: the element type of the reduced tensor.
    columns: None if all values are reduced. Otherwise a matrix [rows, ``columns``] is reduced over its rows, and gets a
        row of neutral elements.
    """
    safe_nodes: list[NodeProto] = []
    for node in nodes:
        if out in node.output and node.op_type in _NEUTRAL_ELEMENTS:
            tensor, dims = node.input[0], [1] if columns is None else [1, columns]
            if columns is None:
                shape, flat = names.make_name(f"{out}_shape"), names.make_name(f"{out}_flat")
                safe_nodes.append(names.make_constant(shape, dtypes.INT64, [1], [-1]))
                safe_nodes.append(names.make_node("Reshape", [tensor, shape], flat))
                tensor = flat
            neutral, extended = names.make_name(f"{out}_neutral"), names.make_name(f"{out}_more")
            safe_nodes += names.make_float_constant(neutral, elem, dims, _NEUTRAL_ELEMENTS[node.op_type])
            safe_nodes.append(names.make_node("Concat", [tensor, neutral], extended, axis=0))
            node.input[0] = extended
        safe_nodes.append(node)
    return safe_nodes
