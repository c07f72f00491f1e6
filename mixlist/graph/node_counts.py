"""How much a model holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple


class NodeCounts(NamedTuple):
    """Numbers of nodes and of Casts among them, subgraphs and functions included."""

    nodes: int
    casts: int


def census(model: Any) -> NodeCounts:
    """Counts a ModelProto."""
    nodes = casts = 0
    for graph in _graphs(model):
        nodes += len(graph.node)
        casts += sum(node.op_type == "Cast" for node in graph.node)
    return NodeCounts(nodes, casts)


def _graphs(model: Any) -> Iterator[Any]:
    """The main graph, the functions, and every subgraph."""
    waiting = [model.graph, *model.functions]
    while waiting:
        graph = waiting.pop()
        yield graph
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    waiting.append(attribute.g)
                waiting.extend(attribute.graphs)
