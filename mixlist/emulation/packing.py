"""Pack the statistics of many tensors into few, and hand them out of bodies.

Thousands of outputs one by one would cost more than the model.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mixlist.emulation.graph_statistics import Statistic
from mixlist.emulation.safe_reductions import float_constant
from mixlist.graph.naming import NameGenerator
from mixlist.graph.refs import TensorRef
from mixlist.ops import types

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto


@dataclass
class ScalarStatistic:
    """One statistic of one tensor: the scalar that holds it in its scope."""

    ref: TensorRef
    statistic: Statistic
    name: str
    elem: int


@dataclass
class PackedStatistic:
    """One statistic of many tensors as a scope hands it up: a vector, or a matrix with a row for each iteration."""

    refs: tuple[TensorRef, ...]
    statistic: Statistic
    name: str
    elem: int
    stacked: bool = False


def pack(
    results: Iterable[ScalarStatistic], inner: Iterable[PackedStatistic], opset: int, names: NameGenerator
) -> tuple[list[PackedStatistic], list[NodeProto]]:
    """Pack the statistics of a scope, its own and those of its bodies, into as few tensors as possible.

    Return them, and the nodes that pack them. What has a row for each iteration stays as it is.
    """
    packed: list[PackedStatistic] = []
    nodes: list[NodeProto] = []
    groups: dict[tuple[str, int], tuple[list[PackedStatistic], list[ScalarStatistic]]] = {}
    for result in results:
        groups.setdefault((result.statistic.name, result.elem), ([], []))[1].append(result)
    for vector in inner:
        if vector.stacked:
            packed.append(vector)
        else:
            groups.setdefault((vector.statistic.name, vector.elem), ([], []))[0].append(vector)
    for (statistic, elem), (vectors, scalars) in groups.items():
        parts = [vector.name for vector in vectors]
        if scalars:
            parts.append(_vector([scalar.name for scalar in scalars], opset, names, nodes))
        out = parts[0]
        if len(parts) > 1:
            out = names.make_name(f"{statistic}_all")
            nodes.append(names.make_node("Concat", parts, out, axis=0))
        refs = (*(ref for vector in vectors for ref in vector.refs), *(scalar.ref for scalar in scalars))
        packed.append(PackedStatistic(refs, (scalars or vectors)[0].statistic, out, elem))
    return packed, nodes


def _vector(scalars: list[str], opset: int, names: NameGenerator, nodes: list[NodeProto]) -> str:
    """Add the nodes that make a vector of scalars, and return its name. A sequence takes two; it is new in opset 11."""
    out = names.make_name(f"{scalars[0]}_packed")
    if opset >= 11:
        sequence = names.make_name(f"{out}_sequence")
        nodes.append(names.make_node("SequenceConstruct", scalars, sequence))
        nodes.append(names.make_node("ConcatFromSequence", [sequence], out, axis=0, new_axis=1))
    else:
        vectors = [names.make_name(f"{scalar}_vector") for scalar in scalars]
        nodes += [
            names.make_node("Unsqueeze", [one], wide, axes=[0]) for one, wide in zip(scalars, vectors, strict=True)
        ]
        nodes.append(names.make_node("Concat", vectors, out, axis=0))
    return out


def neutral(body: GraphProto, packed: PackedStatistic, names: NameGenerator) -> str:
    """Let a body make the neutral elements of a statistic, and return the tensor's name."""
    out = names.make_name(f"{packed.name}_neutral")
    body.node.extend(float_constant(out, packed.elem, [len(packed.refs)], packed.statistic.neutral, names))
    return out


def join_rows(op_type: str, rows: str, out: str, opset: int, names: NameGenerator) -> list[NodeProto]:
    """Return nodes that reduce over the first axis; the axes are an input since opset 13 (ReduceSum) or 18."""
    if opset < (13 if op_type == "ReduceSum" else 18):
        return [names.make_node(op_type, [rows], out, axes=[0], keepdims=0)]
    axes = names.make_name(f"{out}_axes")
    return [names.make_constant(axes, types.INT64, [1], [0]), names.make_node(op_type, [rows, axes], out, keepdims=0)]


def add_output(graph: GraphProto, packed: PackedStatistic, name: str, rows: bool = False) -> None:
    """Let a graph yield the tensor ``name``, which holds packed statistics; ``rows``: with an axis of iterations."""
    tensor = graph.output.add(name=name).type.tensor_type
    tensor.elem_type = packed.elem
    if rows:
        tensor.shape.dim.add()
    tensor.shape.dim.add(dim_value=len(packed.refs))
