"""Let reductions meet an empty tensor on ONNX Runtime's CUDA provider, which refuses to reduce one.

(By its source it refuses a tensor of more than eight dimensions too.) The tensor is flattened, and the neutral element
of the reduction is appended to its values.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from mixlist.graph.naming import NameGenerator
from mixlist.ops import types

if TYPE_CHECKING:
    from onnx import NodeProto

_NEUTRAL = {"ReduceMin": float("inf"), "ReduceMax": float("-inf"), "ReduceL1": 0.0, "ReduceSum": 0.0}


def make_reductions_safe(
    nodes: list[NodeProto], out: str, elem: int, names: NameGenerator, columns: int | None = None
) -> list[NodeProto]:
    """Return ``nodes`` where the one that makes ``out`` reduces at least one value, of the element type ``elem``.

    A reduction over the first axis of [rows, ``columns``] gets one more row; any other tensor is flattened first.
    """
    made: list[NodeProto] = []
    for node in nodes:
        if out in node.output and node.op_type in _NEUTRAL:
            tensor, dims = node.input[0], [1] if columns is None else [1, columns]
            if columns is None:
                shape, flat = names.make_name(f"{out}_shape"), names.make_name(f"{out}_flat")
                made += [
                    names.make_constant(shape, types.INT64, [1], [-1]),
                    names.make_node("Reshape", [tensor, shape], flat),
                ]
                tensor = flat
            rest, more = names.make_name(f"{out}_neutral"), names.make_name(f"{out}_more")
            made += float_constant(rest, elem, dims, _NEUTRAL[node.op_type], names)
            made.append(names.make_node("Concat", [tensor, rest], more, axis=0))
            node.input[0] = more
        made.append(node)
    return made


def float_constant(out: str, elem: int, dims: list[int], number: float, names: NameGenerator) -> list[NodeProto]:
    """Return the nodes that make a tensor of one number in a float type."""
    single = out if elem == types.FLOAT else names.make_name(f"{out}_float")
    constant = names.make_constant(single, types.FLOAT, dims, [number] * prod(dims))
    return [constant] if single == out else [constant, names.make_cast(single, out, elem)]
