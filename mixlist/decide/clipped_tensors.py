"""Find the tensors that only Clips read: an infinity in them has the same effect as any large value (Rule S8.30)."""

from __future__ import annotations

from mixlist.model.graph import Graph, Node, Value
from mixlist.model.naming import TensorRef, output_ref
from mixlist.model.weights import is_external, read_pieces


def find_clipped_tensors(graph: Graph, bound: float) -> frozenset[TensorRef]:
    """Return the tensors of which every reader is a Clip between two constants of a magnitude below ``bound``."""
    clipped: set[Value] = set()
    # The values that are read otherwise: by another operator, by a body, or as the output of a scope.
    read_otherwise = {value for scope in {graph.root, *(node.scope for node in graph.nodes)} for value in scope.outputs}
    for node in graph.nodes:
        is_clip = _clips_within(node, bound)
        for slot, value in enumerate(node.inputs):
            if value is not None:
                (clipped if is_clip and slot == 0 else read_otherwise).add(value)
    return frozenset(
        output_ref(value.producer, value.output_slot)
        for value in clipped - read_otherwise
        if value.producer is not None
    )


def _clips_within(node: Node, bound: float) -> bool:
    """Return True if a node is a Clip with a lower and an upper constant of a magnitude below ``bound``."""
    if node.op_type != "Clip" or node.domain:
        return False
    # The bounds are inputs from opset 11 on, and attributes before.
    attributes = {attribute.name: attribute.f for attribute in node.proto.attribute}
    inputs = [*node.inputs[1:], None, None]
    limits = [
        _single_number(value) if value is not None else attributes.get(name)
        for value, name in zip(inputs, ("min", "max"), strict=False)
    ]
    return all(limit is not None and abs(limit) < bound for limit in limits)


def _single_number(value: Value) -> float | None:
    """Return the number of a constant with one element; None for any other value."""
    tensor = value.constant_proto
    if tensor is None or is_external(tensor):
        return None
    numbers = [float(number) for piece in read_pieces(tensor, None) for number in piece.reshape(-1)]
    return numbers[0] if len(numbers) == 1 else None
