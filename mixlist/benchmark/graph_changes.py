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
    """The numbers of nodes and Casts in the file and in the graph that ONNX Runtime optimized.

    The nodes of subgraphs count. In the file, those of function bodies count, too, because ONNX Runtime inlines
    functions. ``inserted_casts``: Casts of the optimized graph that are not in the file. ``new_ops``: for each op type
    that only the optimized graph has, the number of its nodes: fused operators, changes of layout, copies between
    devices. The key is the op type, or ``domain::type`` outside the standard domain.
    """

    nodes: int
    casts: int
    optimised_nodes: int
    optimised_casts: int
    inserted_casts: int
    new_ops: dict[str, int] = field(default_factory=dict)


def compare_graphs(model: ModelProto, optimized_model: ModelProto) -> GraphChanges:
    """Compare a ModelProto with the one that ONNX Runtime saved after its optimization.

    A Cast of the optimized graph comes from the file if a Cast of the file makes a tensor with the same name. Inlining
    changes the names of tensors inside functions, but only in front: ``h`` becomes for example ``_inlfunc_f_h``.
    """
    file_nodes, optimized_nodes = list(nodes_in(model.graph)), list(nodes_in(optimized_model.graph))
    function_nodes = list(nodes_in(*model.functions))
    # 1. The Casts of the file, by the name of the tensor that they make. Optimization keeps these names.
    casts = [node for node in (*file_nodes, *function_nodes) if node.op_type == "Cast"]
    cast_outputs = {node.output[0] for node in casts} | set(
        _call_results_of_casts(model, (*file_nodes, *function_nodes))
    )
    # Inlining puts a prefix in front of a name, which ends with "_".
    inlined_endings = tuple(f"_{node.output[0]}" for node in function_nodes if node.op_type == "Cast")
    # 2. The Casts of the optimized graph that are not among them. Optimization also removes Casts of the file, so the
    # difference of the two numbers of Casts would be too small.
    optimized_casts = [node for node in optimized_nodes if node.op_type == "Cast"]
    inserted_casts = [
        node
        for node in optimized_casts
        if node.output[0] not in cast_outputs and not node.output[0].endswith(inlined_endings)
    ]
    # 3. The operators that the optimization added.
    file_ops = {(node.domain, node.op_type) for node in (*file_nodes, *function_nodes)}
    new_ops = Counter(
        operator_name(node.domain, node.op_type)
        for node in optimized_nodes
        if (node.domain, node.op_type) not in file_ops
    )
    return GraphChanges(
        nodes=len(file_nodes) + len(function_nodes),
        casts=len(casts),
        optimised_nodes=len(optimized_nodes),
        optimised_casts=len(optimized_casts),
        inserted_casts=len(inserted_casts),
        new_ops=dict(sorted(new_ops.items())),
    )


def _call_results_of_casts(model: ModelProto, nodes: Iterable[NodeProto]) -> Iterator[str]:
    """Yield the names of the results of function calls that come from a Cast inside the function.

    After inlining, such a Cast makes the tensor with the caller's name.
    """
    # For each function, by output slot: True if a Cast of the body makes the output.
    is_cast_output = {
        (function.domain, function.name): [
            any(node.op_type == "Cast" and node.output[0] == name for node in function.node) for name in function.output
        ]
        for function in model.functions
    }
    # y = f(x), and f ends with a Cast: after inlining, that Cast makes y. A call may leave out trailing outputs.
    for node in nodes:
        flags = is_cast_output.get((node.domain, node.op_type), ())
        for name, is_cast in zip(node.output, flags, strict=False):
            if is_cast:
                yield name
