"""Compare the graph that ONNX Runtime optimized with the model's file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mixlist.graph.traversal import nodes_in
from mixlist.ops.names import operator_name

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto


@dataclass(frozen=True)
class GraphChanges:
    """Numbers of nodes and Casts, subgraphs included (and functions, in the file).

    ``inserted_casts``: Casts of the optimised graph that are not in the file. ``new_ops``: how many nodes it has of op
    types that the file does not have (``domain::type`` outside the standard domain): fused operators, changes of
    layout, copies between devices.
    """

    nodes: int
    casts: int
    optimised_nodes: int
    optimised_casts: int
    inserted_casts: int
    new_ops: dict[str, int] = field(default_factory=dict)


def graph_changes(model: ModelProto, optimised: ModelProto) -> GraphChanges:
    """Compare a ModelProto with the one that ONNX Runtime saved after optimising it.

    A Cast is known by the tensor it makes, which keeps its name, or ends in it after a function was inlined.
    """
    before, after = list(nodes_in(model.graph)), list(nodes_in(optimised.graph))
    inside = list(nodes_in(*model.functions))
    casts = [n for n in (*before, *inside) if n.op_type == "Cast"]
    known = {n.output[0] for n in casts} | set(_yielded_casts(model, (*before, *inside)))
    endings = tuple(f"_{n.output[0]}" for n in inside if n.op_type == "Cast")
    left = [n for n in after if n.op_type == "Cast"]
    inserted = [n for n in left if n.output[0] not in known and not n.output[0].endswith(endings)]
    ops = {(n.domain, n.op_type) for n in (*before, *inside)}
    new = Counter(operator_name(n.domain, n.op_type) for n in after if (n.domain, n.op_type) not in ops)
    return GraphChanges(
        nodes=len(before) + len(inside),
        casts=len(casts),
        optimised_nodes=len(after),
        optimised_casts=len(left),
        inserted_casts=len(inserted),
        new_ops=dict(sorted(new.items())),
    )


def _yielded_casts(model: ModelProto, nodes: Iterable[NodeProto]) -> Iterator[str]:
    """Yield the outputs of function calls that a Cast inside the function makes, by their names in the caller."""
    made = {
        (f.domain, f.name): [any(n.op_type == "Cast" and n.output[0] == name for n in f.node) for name in f.output]
        for f in model.functions
    }
    for node in nodes:
        for name, is_cast in zip(node.output, made.get((node.domain, node.op_type), ()), strict=False):
            if is_cast:
                yield name
