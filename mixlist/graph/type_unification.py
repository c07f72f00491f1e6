"""Prove the types of tensors that no inference, hint or declaration gives, from the tensors around them.

Rule S4.39: A slot of unknown type that shares a type parameter with a tensor of known type has that type.

A type goes forward through a node by ONNX's inference, and back by the type parameters of its schema. It passes the
borders of bodies and functions in both directions. A value becomes known once, and then only the nodes that touch the
value are visited again, so that the time is linear.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator

from mixlist.graph import control_flow
from mixlist.graph.model import Graph, Node, Value
from mixlist.ops import types
from mixlist.ops.schema import FormalSlots, Schema

_MOST_CHANGES = 4  # of a value's type: more come from a model that contradicts itself
Proof = tuple[Value, types.Type]  # a value of unknown type, and the type that it must have


def unify_types(graph: Graph, infer_outputs: Callable[[Node], None], results: Iterable[types.Type] = ()) -> bool:
    """Give types to the values of unknown type, as far as the graph proves them; return whether any was unknown.

    ``infer_outputs`` derives the types of a node's outputs from those of its inputs, and whether they come from shapes;
    it changes no known type to UNKNOWN. ``results`` are the types that a caller proves of the graph's outputs.
    """
    unknown = [value for value in graph.values if value.type == types.UNKNOWN and value.kind != "absent"]
    if not unknown:
        return False
    for value, proven in zip(graph.root.outputs, results, strict=False):
        value.type = value.type or proven
    touching = _touching_nodes(graph)
    waiting = deque(dict.fromkeys(node for value in unknown for node in touching.get(value, ())))
    queued = set(waiting)
    changes = Counter[Value]()
    while waiting:
        node = waiting.popleft()
        queued.discard(node)
        outputs = [value for value in node.outputs if value is not None]
        before = [(value.type, value.is_from_shape) for value in outputs]
        infer_outputs(node)
        changed = [v for v, old in zip(outputs, before, strict=True) if (v.type, v.is_from_shape) != old]
        for value, proven in list(_proofs(node)):
            if value.type == types.UNKNOWN != proven:
                value.type = proven
                changed.append(value)
        changes.update(changed)
        # A model that contradicts itself would change a value forever: the types of a sound one settle at once.
        settling = [value for value in changed if changes[value] <= _MOST_CHANGES]
        for other in (other for value in settling for other in touching.get(value, ())):
            if other not in queued:
                queued.add(other)
                waiting.append(other)
    return True


def _touching_nodes(graph: Graph) -> dict[Value, list[Node]]:
    """Return the nodes that read or make each value; a node with bodies also touches their inputs and outputs."""
    touching: dict[Value, list[Node]] = {}
    for node in graph.nodes:
        border = (value for body in node.bodies.values() for value in (*body.inputs, *body.outputs))
        for value in dict.fromkeys((*node.inputs, *node.outputs, *border)):
            if value is not None:
                touching.setdefault(value, []).append(node)
    return touching


def _proofs(node: Node) -> Iterator[Proof]:
    """Yield the types that a node proves of its inputs and outputs."""
    if node.function is not None:
        yield from _proofs_by_call(node, node.function)
    elif node.signature is not None and node.signature.schema is not None:
        yield from _proofs_by_schema(node, node.signature.schema)
    elif not node.domain and node.op_type == "SequenceMap":
        yield from _proofs_by_elements(node)
    elif not node.domain and node.op_type in ("If", "Loop", "Scan"):
        for link in control_flow.links_of(node):
            values = [*link.targets, *(read.value for read in link.sources)]
            known = {value.type for value in values} - {types.UNKNOWN}
            if len(known) == 1:
                yield from ((value, next(iter(known))) for value in values)


def _proofs_by_elements(node: Node) -> Iterator[Proof]:
    """Yield the types that the sequences around the body of a SequenceMap prove of their elements in it.

    An element of known type does not prove an input: that may be a sequence or a tensor.
    """
    body = node.bodies["body"]
    yield from zip(body.inputs, control_flow.body_input_types(node)["body"], strict=False)
    for made, element in zip(node.outputs, body.outputs, strict=False):
        if made is not None and isinstance(made.type, tuple):
            yield element, made.type[1]


def _proofs_by_call(node: Node, body: Graph) -> Iterator[Proof]:
    """Yield the types that the body of a function proves of the arguments."""
    for value, parameter in zip(node.inputs, body.root.inputs, strict=False):
        if value is not None and parameter.type != types.UNKNOWN:
            yield value, parameter.type


def _proofs_by_schema(node: Node, schema: Schema) -> Iterator[Proof]:
    """Yield the types of slots of which the schema admits one type, or another slot has the type parameter."""
    slots = list(_slots(node, schema))
    known: dict[str, set[types.Type]] = {}
    for parameter, value_type, _ in slots:
        if value_type != types.UNKNOWN:
            known.setdefault(parameter, set()).add(value_type)
    for parameter, value_type, value in slots:
        if value_type == types.UNKNOWN:
            admitted = schema.types_of(parameter.partition("#")[0])
            proven = admitted if len(admitted) == 1 else known.get(parameter, set()) & admitted
            if len(proven) == 1 and len(known.get(parameter, proven)) == 1:
                yield value, next(iter(proven))


def _slots(node: Node, schema: Schema) -> Iterator[tuple[str, types.Type, Value]]:
    """Yield the type parameter, the type and the value of each slot; a slot whose type is its own has a number."""

    def parameters(formal: FormalSlots) -> list[str]:
        return [f.parameter if f.homogeneous else f"{f.parameter}#{index}" for index, f in enumerate(formal)]

    inputs = parameters(schema.formal_slots(schema.inputs, len(node.inputs)))
    for parameter, value_type, value in zip(inputs, node.input_types, node.inputs, strict=False):
        if value is not None:
            yield parameter, value_type, value
    outputs = parameters(schema.formal_slots(schema.outputs, len(node.outputs)))
    for parameter, value in zip(outputs, node.outputs, strict=False):
        if value is not None:
            yield parameter, value.type, value
