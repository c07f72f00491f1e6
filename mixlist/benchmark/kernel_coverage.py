"""Count the low-precision nodes of a model, and the nodes among them that have a kernel in their low type.

ONNX Runtime computes low-precision nodes without such a kernel in float32, with Casts around them.
"""

from __future__ import annotations

from mixlist.model import dtypes
from mixlist.model.build import build_graph
from mixlist.model.graph import Node
from mixlist.model.load import LoadedModel
from mixlist.model.low_precision import LOW_TYPES
from mixlist.targets.providers import has_kernel_for


def count_nodes_with_low_kernel(model: LoadedModel, provider: str) -> tuple[int, int]:
    """Return two numbers: the nodes that compute in float16 or bfloat16, and those of them that have a kernel.

    Nodes in bodies count. Casts, Constants, calls of functions and control flow do not. If the installed ONNX Runtime
    lacks the provider, the stored tables of kernels decide.
    """
    # By default a Graph hides the Casts that mixlist inserted, and its nodes have their authored types. Here the types
    # in which the nodes run are needed.
    graph = build_graph(model.proto, show_marked_casts=True)
    has_kernel = [
        _has_kernel(node, elem, graph.opsets.get(node.domain, 1), provider)
        for node in graph.nodes
        if (elem := _low_type(node)) is not None
    ]
    return len(has_kernel), sum(has_kernel)


def _low_type(node: Node) -> int | None:
    """Return the low type in which a node computes; None if it computes in none."""
    if node.bodies or node.is_call or (node.op_type in ("Cast", "Constant") and not node.domain):
        return None
    # Inputs count, too: a comparison of float16 tensors has no float output.
    elements = (dtypes.element(value.type) for value in (*node.outputs, *node.inputs) if value is not None)
    return next((elem for elem in elements if elem in LOW_TYPES), None)


def _has_kernel(node: Node, elem: int, opset: int, provider: str) -> bool:
    # A kernel can have several types: the low outputs say which of them must be low.
    outputs = enumerate(node.outputs)
    low_outputs = tuple(slot for slot, value in outputs if value is not None and dtypes.element(value.type) == elem)
    return has_kernel_for(provider, node.domain, node.op_type, opset, dtypes.type_name(elem), low_outputs)
