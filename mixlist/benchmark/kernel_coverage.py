"""How many low-precision nodes of a model have a kernel in their low type."""

from __future__ import annotations

from collections.abc import Iterator

from mixlist.graph.build import build_main
from mixlist.graph.io import Loaded
from mixlist.graph.model import Graph, Node
from mixlist.graph.traversal import linked_scopes, reachable_graphs
from mixlist.ops import types
from mixlist.ops.low_precision import LOW
from mixlist.targets.kernels import has_low_kernel


def low_coverage(model: Loaded, provider: str) -> tuple[int, int]:
    """(nodes that compute in float16 or bfloat16, those of them for which ``provider`` has a kernel of that type).

    Subgraphs and functions count; Casts, calls and control flow do not. Raises UsageError if the installed ONNX Runtime
    has no such provider.
    """
    low = covered = 0
    main = build_main(model.proto, show_marked=True)
    for graph in reachable_graphs(main):
        for node, elem, outputs in _low_nodes(graph):
            low += 1
            opset = graph.opsets.get(node.domain, 1)
            covered += has_low_kernel(provider, node.domain, node.op_type, opset, types.type_name(elem), outputs)
    return low, covered


def _low_nodes(graph: Graph) -> Iterator[tuple[Node, int, tuple[int, ...]]]:
    """The low nodes, their element type and which of their outputs have it."""
    for scope in linked_scopes(graph.root):
        for node in scope.nodes:
            if node.bodies or node.function is not None or (node.op_type in ("Cast", "Constant") and not node.domain):
                continue
            elements = [types.element(v.type) for v in (*node.outputs, *node.inputs) if v is not None]
            elem = next((e for e in elements if e in LOW), None)
            if elem is not None:
                outputs = enumerate(node.outputs)
                yield node, elem, tuple(i for i, v in outputs if v is not None and types.element(v.type) == elem)
