"""Find the types of tensors that no inference, hint or declaration gives, from the tensors around them.

Rule S4.39: A slot of unknown type that shares a type parameter with a tensor of known type has that type. Example: the
schema of MatMul(u, W) has one type parameter T for both inputs, so ``u`` has the type of ``W``.

Here a node *proves* a type if the known types of its other slots leave no other choice. A known type moves forward
through a node by ONNX's inference, and backward by the type parameters of the schema. It also moves into and out of
bodies. When a value gets a type, only the nodes next to the value are visited again. Each value changes
at most a few times, so the time is linear.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator

from mixlist.model import control_flow, dtypes
from mixlist.model.graph import Graph, Node, Value
from mixlist.model.schema import FormalSlots, Schema

_MAX_CHANGES = 4  # of one value: more changes come from a model that contradicts itself
Proof = tuple[Value, dtypes.Type]  # a value of unknown type, and the type that it must have


def unify_types(graph: Graph, infer_outputs: Callable[[Node], None]) -> bool:
    """Give the values of unknown type the types that the graph proves; return True if any type was unknown before.

    ``infer_outputs`` infers the type and the flag ``is_from_shape`` of each output of a node from its inputs. It must
    not change a known type to UNKNOWN.
    """
    unknown = [value for value in graph.values if value.type == dtypes.UNKNOWN]
    if not unknown:
        return False
    neighbors = _find_neighbors(graph)
    # A queue of nodes to visit. A node is in it at most once at a time.
    pending = deque(dict.fromkeys(node for value in unknown for node in neighbors.get(value, ())))
    queued = set(pending)
    changes = Counter[Value]()
    while pending:
        node = pending.popleft()
        queued.discard(node)
        # Forward: from the inputs of the node to its outputs.
        outputs = [value for value in node.outputs if value is not None]
        before = [(value.type, value.is_from_shape) for value in outputs]
        infer_outputs(node)
        changed = [v for v, old in zip(outputs, before, strict=True) if (v.type, v.is_from_shape) != old]
        # In both directions, by the schema or the bodies. The list is made first, because _prove_types() reads the
        # types that the loop changes.
        for value, proven in list(_prove_types(node)):
            # A proof never replaces a type that inference, a hint or a declaration gave.
            if value.type == dtypes.UNKNOWN != proven:
                value.type = proven
                changed.append(value)
        changes.update(changed)
        # A model that contradicts itself would change a value forever. In a valid model, a value gets its
        # type once, and its flag once.
        to_propagate = [value for value in changed if changes[value] <= _MAX_CHANGES]
        for neighbor in (neighbor for value in to_propagate for neighbor in neighbors.get(value, ())):
            if neighbor not in queued:
                queued.add(neighbor)
                pending.append(neighbor)
    return True


def _find_neighbors(graph: Graph) -> dict[Value, list[Node]]:
    """Return the nodes next to each value: readers, the producer, and the owner of a body that it enters or leaves."""
    neighbors: dict[Value, list[Node]] = {}
    for node in graph.nodes:
        body_slots = (value for body in node.bodies.values() for value in (*body.inputs, *body.outputs))
        for value in dict.fromkeys((*node.inputs, *node.outputs, *body_slots)):
            if value is not None:
                neighbors.setdefault(value, []).append(node)
    return neighbors


def _prove_types(node: Node) -> Iterator[Proof]:
    """Yield the types that a node proves for its inputs and outputs, and for those of its bodies."""
    if node.signature is not None and node.signature.schema is not None:
        yield from _prove_by_schema(node, node.signature.schema)
    elif not node.domain and node.op_type == "SequenceMap":
        yield from _prove_elements(node)
    elif not node.domain and node.op_type in ("If", "Loop", "Scan"):
        for link in control_flow.type_links_of(node):
            values = [*link.targets, *(source.value for source in link.sources)]
            known_types = {value.type for value in values} - {dtypes.UNKNOWN}
            # Two known types contradict each other, so they prove nothing.
            if len(known_types) == 1:
                yield from ((value, next(iter(known_types))) for value in values)


def _prove_elements(node: Node) -> Iterator[Proof]:
    """Yield the types that the inputs and outputs of a SequenceMap prove for the inputs and outputs of its body.

    The inputs of the body prove nothing for the inputs of the node: each of these can be a sequence or a tensor.
    """
    body = node.bodies["body"]
    yield from zip(body.inputs, control_flow.body_input_types(node)["body"], strict=False)
    for sequence, element in zip(node.outputs, body.outputs, strict=False):
        if sequence is not None and isinstance(sequence.type, tuple):
            yield element, sequence.type[1]


def _prove_by_schema(node: Node, schema: Schema) -> Iterator[Proof]:
    """Yield the types of slots that share a type parameter with a slot of known type, or that admit only one type."""
    slots = list(_read_slots(node, schema))
    known_types: dict[str, set[dtypes.Type]] = {}
    for parameter, value_type, _ in slots:
        if value_type != dtypes.UNKNOWN:
            known_types.setdefault(parameter, set()).add(value_type)
    for parameter, value_type, value in slots:
        if value_type == dtypes.UNKNOWN:
            admitted = schema.types_of(parameter.partition("#")[0])
            proven = admitted if len(admitted) == 1 else known_types.get(parameter, set()) & admitted
            # Slots of one type parameter that have two types contradict each other: they prove nothing.
            if len(proven) == 1 and len(known_types.get(parameter, proven)) == 1:
                yield value, next(iter(proven))


def _read_slots(node: Node, schema: Schema) -> Iterator[tuple[str, dtypes.Type, Value]]:
    """Yield the type parameter, the type and the value of each slot of a node.

    The inputs of a heterogeneous variadic parameter can all have different types. Therefore each of them gets a type
    parameter of its own: ``V#2`` for slot 2 of the type parameter ``V``.
    """

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
