"""Decide what the reference computes in float64 with ``--baseline float64``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from mixlist.graph.dataflow import DataflowNode
from mixlist.graph.model import Node
from mixlist.ops import types
from mixlist.targets.kernels import has_any_kernel, has_low_kernel

# ONNX Runtime 1.31.1's CPU provider registers float64 kernels of these and refuses to run them.
_REFUSED = frozenset({"LSTM", "GRU", "RNN"})


def has_float64_kernel(node: Node) -> bool:
    """Return whether ONNX Runtime's CPU provider has a float64 kernel of the node; a Constant needs none."""
    if node.op_type == "Constant" and not node.domain:
        return True
    schema = node.signature.schema if node.signature is not None else None
    if schema is None or node.op_type in _REFUSED:
        return False
    if not has_any_kernel("cpu", node.domain, node.op_type):  # its function body may lack kernels in its turn
        return False
    outputs = tuple(i for i, v in enumerate(node.outputs) if v is not None and types.element(v.type) == types.FLOAT)
    return has_low_kernel("cpu", node.domain, node.op_type, schema.since_version, "double", outputs)


def describe_float32_nodes(nodes: Iterable[DataflowNode]) -> str:
    """Return a sentence on the operators that the reference computes in float32 all the same; "" for none."""
    counts = Counter(
        each.node.op_type
        for each in nodes
        if types.FLOAT in (types.element(v.type) for v in (*each.node.inputs, *each.node.outputs) if v is not None)
        and each.node.op_type != "Cast"
        and not has_float64_kernel(each.node)
    )
    ops = ", ".join(f"{op} ({number})" for op, number in sorted(counts.items()))
    return f"the float64 reference computes in float32 what ONNX Runtime has no float64 kernel of: {ops}" if ops else ""
