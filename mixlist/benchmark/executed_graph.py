"""Find out what ONNX Runtime ran: how it changed the graph of a model, and which low-precision nodes have a kernel.

ONNX Runtime computes low-precision nodes that have no kernel in their low type in float32, with Casts around them.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from mixlist.benchmark.result import GraphChanges
from mixlist.model import dtypes
from mixlist.model.build import build_graph
from mixlist.model.graph import Node
from mixlist.model.load import LoadedModel
from mixlist.model.low_precision import LOW_TYPES
from mixlist.model.operator_names import operator_name
from mixlist.model.protos import nodes_in
from mixlist.targets.target import Target, load_target

if TYPE_CHECKING:
    from onnx import ModelProto


# --- changes of the graph ---


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


# --- kernels of low-precision nodes ---


def count_nodes_with_low_kernel(model: LoadedModel, provider: str) -> tuple[int, int]:
    """Return two numbers: the nodes that compute in float16 or bfloat16, and those of them that have a kernel.

    Nodes in bodies count. Casts, Constants, calls of functions and control flow do not, nor do operators that read only
    a shape: as in the numbers of ``convert``, which also counts authored Casts. If the installed ONNX Runtime
    lacks the provider, the stored tables of kernels decide.
    """
    # By default a Graph hides the Casts that mixlist inserted, and its nodes have their authored types. Here the types
    # in which the nodes run are needed.
    graph = build_graph(model.proto, show_marked_casts=True)
    target = load_target(provider)
    has_kernel = [
        _has_kernel(node, elem, graph.opsets.get(node.domain, 1), target)
        for node in graph.nodes
        if (elem := _low_type(node)) is not None
    ]
    return len(has_kernel), sum(has_kernel)


def _low_type(node: Node) -> int | None:
    """Return the low type in which a node computes; None if it computes in none."""
    if node.bodies or node.is_call or (node.op_type in ("Cast", "Constant") and not node.domain):
        return None
    # Inputs count, too: a comparison of float16 tensors has no float output. But Shape and Size compute nothing in the
    # type of their input.
    inputs = () if node.op_type in ("Shape", "Size") and not node.domain else node.inputs
    elements = (dtypes.element(value.type) for value in (*node.outputs, *inputs) if value is not None)
    return next((elem for elem in elements if elem in LOW_TYPES), None)


def _has_kernel(node: Node, elem: int, opset: int, target: Target) -> bool:
    # A kernel can have several types: the low outputs say which of them must be low.
    outputs = enumerate(node.outputs)
    low_outputs = tuple(slot for slot, value in outputs if value is not None and dtypes.element(value.type) == elem)
    subject = (node.domain, node.op_type, opset, dtypes.type_name(elem), low_outputs)
    return target.runs(*subject, node.text_attributes)
