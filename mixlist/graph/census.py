"""How much a model holds: nodes, Casts, and bytes on disk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mixlist.graph.weights import is_external


@dataclass(frozen=True, slots=True)
class Census:
    """Numbers of nodes and of Casts among them, subgraphs and functions included, and the files that hold weights."""

    nodes: int
    casts: int
    data_files: frozenset[str]

    def bytes_on_disk(self, path: Path) -> int:
        """The size of the model file at ``path`` and of its data files beside it, as far as they exist."""
        files = [path, *(path.parent / name for name in self.data_files)]
        return sum(file.stat().st_size for file in files if file.is_file())


def census(model: Any) -> Census:
    """Counts a ModelProto."""
    nodes = casts = 0
    files: set[str] = set()
    for graph in _graphs(model):
        nodes += len(graph.node)
        casts += sum(node.op_type == "Cast" for node in graph.node)
        for tensor in getattr(graph, "initializer", ()):
            if is_external(tensor):
                files.update(entry.value for entry in tensor.external_data if entry.key == "location")
    return Census(nodes, casts, frozenset(files))


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
