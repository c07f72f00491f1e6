"""Reductions that may meet an empty tensor, for ONNX Runtime's CUDA provider, which refuses to reduce one.

(So it does, by its source, with a tensor of more than eight dimensions.) The tensor is laid flat and the neutral
element set behind its values.
"""

from __future__ import annotations

from typing import Any

from mixlist.graph.naming import NewNames
from mixlist.ops import types

_NEUTRAL = {"ReduceMin": float("inf"), "ReduceMax": float("-inf"), "ReduceL1": 0.0, "ReduceSum": 0.0}


def guarded(nodes: list[Any], out: str, elem: int, names: NewNames) -> list[Any]:
    """``nodes`` where the one that makes ``out`` reduces at least one value; ``elem``: the type that it reduces."""
    found: list[Any] = []
    for node in nodes:
        if out in node.output and node.op_type in _NEUTRAL:
            flat, made = _flat(node.input[0], out, names)
            more, added = _with_neutral(flat, out, node.op_type, elem, [1], names)
            found += [*made, *added]
            node.input[0] = more
        found.append(node)
    return found


def guarded_rows(nodes: list[Any], out: str, columns: int, elem: int, names: NewNames) -> list[Any]:
    """The same for a reduction over the first axis of [rows, columns]."""
    found: list[Any] = []
    for node in nodes:
        if out in node.output:
            more, added = _with_neutral(node.input[0], out, node.op_type, elem, [1, columns], names)
            found += added
            node.input[0] = more
        found.append(node)
    return found


def _flat(tensor: str, out: str, names: NewNames) -> tuple[str, list[Any]]:
    from onnx import TensorProto, helper

    shape, flat = names.make(f"{out}_shape"), names.make(f"{out}_flat")
    value = helper.make_tensor("", TensorProto.INT64, [1], [-1])
    return flat, [
        helper.make_node("Constant", [], [shape], name=names.make(f"Constant_{shape}"), value=value),
        helper.make_node("Reshape", [tensor, shape], [flat], name=names.make(f"Reshape_{flat}")),
    ]


def _with_neutral(
    tensor: str, out: str, op_type: str, elem: int, dims: list[int], names: NewNames
) -> tuple[str, list[Any]]:
    """The tensor with the operator's neutral elements behind it, along the first axis."""
    from onnx import TensorProto, helper

    rest, more = names.make(f"{out}_neutral"), names.make(f"{out}_more")
    numbers = helper.make_tensor("", TensorProto.FLOAT, dims, [_NEUTRAL[op_type]] * dims[-1])
    single = rest if elem == types.FLOAT else names.make(f"{rest}_float")
    nodes = [helper.make_node("Constant", [], [single], name=names.make(f"Constant_{rest}"), value=numbers)]
    if single != rest:
        nodes.append(helper.make_node("Cast", [single], [rest], name=names.make(f"Cast_{rest}"), to=elem))
    nodes.append(helper.make_node("Concat", [tensor, rest], [more], name=names.make(f"Concat_{more}"), axis=0))
    return more, nodes
