"""Decide which nodes the reference computes in float64 with ``--baseline float64``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from mixlist.graph.dataflow import DataflowNode
from mixlist.graph.model import Node
from mixlist.ops import dtypes
from mixlist.targets.kernels import has_any_kernel, has_kernel_for

# ONNX Runtime 1.31.1's CPU provider registers float64 kernels of these operators, but refuses to run them.
_REFUSED_OPERATORS = frozenset({"LSTM", "GRU", "RNN"})


def has_float64_kernel(node: Node) -> bool:
    """Return True if ONNX Runtime's CPU provider has a float64 kernel for the node. A Constant needs none."""
    if node.op_type == "Constant" and not node.domain:
        return True
    schema = node.signature.schema if node.signature is not None else None
    if schema is None or node.op_type in _REFUSED_OPERATORS:
        return False
    # An operator without any kernel runs as its function body, and the nodes of the body may lack float64 kernels.
    if not has_any_kernel("cpu", node.domain, node.op_type):
        return False
    # The outputs that would be float64.
    outputs = tuple(i for i, v in enumerate(node.outputs) if v is not None and dtypes.element(v.type) == dtypes.FLOAT)
    return has_kernel_for("cpu", node.domain, node.op_type, schema.since_version, "double", outputs)


def describe_float32_nodes(nodes: Iterable[DataflowNode]) -> str:
    """Return a sentence on the operators that the reference computes in float32 although float64 is requested.

    The sentence names each op type with the number of its nodes. It is "" if there are none.
    """
    counts = Counter(
        dataflow_node.node.op_type
        for dataflow_node in nodes
        if _has_float32_slot(dataflow_node.node)
        and dataflow_node.node.op_type != "Cast"
        and not has_float64_kernel(dataflow_node.node)
    )
    ops = ", ".join(f"{op_type} ({count})" for op_type, count in sorted(counts.items()))
    if not ops:
        return ""
    return f"the float64 reference computes operators in float32 that have no float64 kernel in ONNX Runtime: {ops}"


def _has_float32_slot(node: Node) -> bool:
    """Return True if a node reads or computes a float32 tensor."""
    return any(v is not None and dtypes.element(v.type) == dtypes.FLOAT for v in (*node.inputs, *node.outputs))
