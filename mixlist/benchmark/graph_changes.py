"""Compare the graph that ONNX Runtime optimized with the model's file."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mixlist.model.operator_names import operator_name
from mixlist.model.protos import nodes_in

if TYPE_CHECKING:
    from onnx import ModelProto


@dataclass(frozen=True)
class GraphChanges:
    """The numbers of nodes and Casts in the file and in the graph that ONNX Runtime optimized.

    The nodes of bodies count. ``inserted_casts``: Casts of the optimized graph that are not in the file. ``new_ops``:
    for each op type that only the optimized graph has, the number of its nodes: fused operators, changes of layout,
    copies between devices. The key is the op type, or ``domain::type`` outside the standard domain.
    """

    nodes: int
    casts: int
    optimised_nodes: int
    optimised_casts: int
    inserted_casts: int
    new_ops: dict[str, int] = field(default_factory=dict)


def compare_graphs(model: ModelProto, optimized_model: ModelProto) -> GraphChanges:
    """Compare a ModelProto with the one that ONNX Runtime saved after its optimization.

    A Cast of the optimized graph comes from the file if a Cast of the file makes a tensor with the same name. The nodes
    that ONNX Runtime puts in place of the call of a model-local function are nodes that it adds.
    """
    file_nodes, optimized_nodes = list(nodes_in(model.graph)), list(nodes_in(optimized_model.graph))
    # 1. The Casts of the file, by the name of the tensor that they make. Optimization keeps these names.
    cast_outputs = {node.output[0] for node in file_nodes if node.op_type == "Cast"}
    # 2. The Casts of the optimized graph that are not among them. Optimization also removes Casts of the file, so the
    # difference of the two numbers of Casts would be too small.
    optimized_casts = [node for node in optimized_nodes if node.op_type == "Cast"]
    # 3. The operators that the optimization added.
    file_ops = {(node.domain, node.op_type) for node in file_nodes}
    new_ops = Counter(
        operator_name(node.domain, node.op_type)
        for node in optimized_nodes
        if (node.domain, node.op_type) not in file_ops
    )
    return GraphChanges(
        nodes=len(file_nodes),
        casts=sum(node.op_type == "Cast" for node in file_nodes),
        optimised_nodes=len(optimized_nodes),
        optimised_casts=len(optimized_casts),
        inserted_casts=sum(node.output[0] not in cast_outputs for node in optimized_casts),
        new_ops=dict(sorted(new_ops.items())),
    )
