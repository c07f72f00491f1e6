"""Pack the statistics of many tensors into few tensors, and pass them out of bodies.

An instrumented model has thousands of statistics. One graph output for each would take more time than the model itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mixlist.emulation.graph_statistics import Statistic
from mixlist.graph.naming import NameGenerator
from mixlist.graph.refs import TensorRef
from mixlist.ops import dtypes

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto


@dataclass
class ScalarStatistic:
    """One statistic of one tensor. ``name`` is the scalar that holds it in its scope, ``elem`` its element type."""

    ref: TensorRef
    statistic: Statistic
    name: str
    elem: int


@dataclass
class PackedStatistic:
    """One statistic of many tensors, with a column for each tensor of ``refs``.

    name: the tensor that holds it, with the shape [columns], or with ``stacked`` the shape [iterations, columns].
    """

    refs: tuple[TensorRef, ...]
    statistic: Statistic
    name: str
    elem: int
    stacked: bool = False


def pack(
    scalars: Iterable[ScalarStatistic], vectors: Iterable[PackedStatistic], opset: int, names: NameGenerator
) -> tuple[list[PackedStatistic], list[NodeProto]]:
    """Pack the statistics of a scope into as few tensors as possible; return these, and the nodes that compute them.

    scalars: the statistics of the scope itself. vectors: those of its bodies and calls. A stacked vector stays alone,
    because its number of rows is known only at run time.
    """
    packed: list[PackedStatistic] = []
    nodes: list[NodeProto] = []
    # The same statistic in the same element type goes into one tensor. Each group has its vectors and its scalars.
    groups: dict[tuple[str, int], tuple[list[PackedStatistic], list[ScalarStatistic]]] = {}
    for scalar in scalars:
        groups.setdefault((scalar.statistic.name, scalar.elem), ([], []))[1].append(scalar)
    for vector in vectors:
        if vector.stacked:
            packed.append(vector)
        else:
            groups.setdefault((vector.statistic.name, vector.elem), ([], []))[0].append(vector)
    for (statistic_name, elem), (group_vectors, group_scalars) in groups.items():
        parts = [vector.name for vector in group_vectors]
        if group_scalars:
            parts.append(_make_vector([scalar.name for scalar in group_scalars], opset, names, nodes))
        out = parts[0]
        if len(parts) > 1:
            out = names.make_name(f"{statistic_name}_all")
            nodes.append(names.make_node("Concat", parts, out, axis=0))
        # In the order in which the parts are concatenated: first the vectors, then the scalars.
        refs = (*(ref for vector in group_vectors for ref in vector.refs), *(scalar.ref for scalar in group_scalars))
        packed.append(PackedStatistic(refs, (group_scalars or group_vectors)[0].statistic, out, elem))
    return packed, nodes


def _make_vector(scalars: list[str], opset: int, names: NameGenerator, nodes: list[NodeProto]) -> str:
    """Add the nodes that join scalars to a vector, and return the name of the vector."""
    out = names.make_name(f"{scalars[0]}_packed")
    if opset >= 11:
        # Two nodes for any number of scalars. Sequences exist since opset 11.
        sequence = names.make_name(f"{out}_sequence")
        nodes.append(names.make_node("SequenceConstruct", scalars, sequence))
        nodes.append(names.make_node("ConcatFromSequence", [sequence], out, axis=0, new_axis=1))
    else:
        vectors = [names.make_name(f"{scalar}_vector") for scalar in scalars]
        nodes += [
            names.make_node("Unsqueeze", [scalar], vector, axes=[0])
            for scalar, vector in zip(scalars, vectors, strict=True)
        ]
        nodes.append(names.make_node("Concat", vectors, out, axis=0))
    return out


def add_neutral_vector(body: GraphProto, packed: PackedStatistic, names: NameGenerator) -> str:
    """Add nodes to a body that make a vector of the neutral element of a statistic, and return the name of the vector.

    The branch of an If that does not compute the tensors yields this vector.
    """
    out = names.make_name(f"{packed.name}_neutral")
    body.node.extend(names.make_float_constant(out, packed.elem, [len(packed.refs)], packed.statistic.neutral))
    return out


def reduce_rows(op_type: str, rows: str, out: str, opset: int, names: NameGenerator) -> list[NodeProto]:
    """Return the nodes that reduce a matrix [iterations, columns] to a vector [columns]."""
    # The axes are an input since opset 13 (ReduceSum) or 18 (the other reductions), before that an attribute.
    if opset < (13 if op_type == "ReduceSum" else 18):
        return [names.make_node(op_type, [rows], out, axes=[0], keepdims=0)]
    axes = names.make_name(f"{out}_axes")
    return [
        names.make_constant(axes, dtypes.INT64, [1], [0]),
        names.make_node(op_type, [rows, axes], out, keepdims=0),
    ]


def add_output(graph: GraphProto, packed: PackedStatistic, name: str, stacked: bool = False) -> None:
    """Declare the tensor ``name``, which holds packed statistics, as an output of a graph.

    stacked: the tensor has the shape [iterations, columns] instead of [columns].
    """
    tensor_type = graph.output.add(name=name).type.tensor_type
    tensor_type.elem_type = packed.elem
    if stacked:
        tensor_type.shape.dim.add()
    tensor_type.shape.dim.add(dim_value=len(packed.refs))
