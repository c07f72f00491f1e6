"""How much a model holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mixlist.graph.traversal import nodes

if TYPE_CHECKING:
    from onnx import ModelProto


class NodeCounts(NamedTuple):
    """Numbers of nodes and of Casts among them, subgraphs and functions included."""

    nodes: int
    casts: int


def census(model: ModelProto) -> NodeCounts:
    """Count the nodes of a model."""
    op_types = [node.op_type for node in nodes(model)]
    return NodeCounts(len(op_types), op_types.count("Cast"))
