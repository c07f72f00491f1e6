"""Find the type that every reader of a value wants, after the decisions.

A *use* is one place that reads a value: an input slot of a node, or an output of a scope. Its ``wanted_type`` is an
element type, or None if the reader takes every type (Cast, Shape).

``control_flow_types`` needs the uses for the types of constants that bodies read. The rewriter converts each value for
its uses.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import NamedTuple

from mixlist.decide.solution import Solution, join_types
from mixlist.model import dtypes
from mixlist.model.control_flow import TypeLink, is_control_flow
from mixlist.model.graph import Node, Scope, Value


class Use(NamedTuple):
    """One place that reads ``value``: input ``slot`` of ``node``, or with ``node`` None output ``slot`` of ``scope``.

    ``magnitude_limit`` is not zero if the reader wants a constant whose magnitudes are reduced to it (Rule S4.36), or
    below 1, whose numbers are raised to it (Rule S4.43).
    """

    value: Value
    wanted_type: int | None
    scope: Scope
    node: Node | None
    slot: int
    magnitude_limit: float = 0.0


def find_uses(solution: Solution, *, node_inputs: bool = True) -> Iterator[Use]:
    """Yield every use in a graph except the graph's own outputs.

    Without ``node_inputs``, yield only the uses of control flow and bodies.
    """
    linked_slots = {
        (source.node, source.slot) for link in solution.links for source in link.sources if source.body is None
    }
    for node in solution.graph.nodes:
        if not node.bodies:
            if node_inputs:
                yield from find_node_uses(solution, node)
        elif not is_control_flow(node):
            yield from _find_custom_uses(solution, node)
        else:
            # No link has the condition of an If or the trip count of a Loop, and no list changes their types.
            for slot, value in enumerate(node.inputs):
                if value is not None and (node, slot) not in linked_slots:
                    yield Use(value, None, node.scope, node, slot)
    for link in solution.links:
        shared_type = _find_link_type(solution, link)
        for source in link.sources:
            # A link with a value of unknown type keeps its authored type, so this value needs no conversion.
            wanted_type = shared_type if source.value.type != dtypes.UNKNOWN else None
            reader = source.node if source.body is None else None
            yield Use(source.value, wanted_type, source.body or source.node.scope, reader, source.slot)
    yield from _find_unlinked_outputs(solution)


def _find_link_type(solution: Solution, link: TypeLink) -> int | None:
    """Return the element type that a link's values share; None if lists do not move it."""
    for target in link.targets:
        if dtypes.element(target.type) in dtypes.MIXABLE:
            return solution.decided_types[target.id]
    values = [source.value for source in link.sources if dtypes.element(source.value.type) in dtypes.MIXABLE]
    if link.targets or not values:
        return None
    # An If output without a name: no target has a type, but the branches still have to agree.
    return reduce(join_types, (solution.decided_types[value.id] for value in values))


def find_node_uses(solution: Solution, node: Node) -> Iterator[Use]:
    """Yield the uses of a node's inputs."""
    assignment = solution.assignments[node.id]
    input_types = assignment.inputs if assignment is not None else ()
    limits = solution.changed_slots.get(node, {})
    for slot, value in enumerate(node.inputs):
        if value is None:
            continue
        wanted_type = input_types[slot] if slot < len(input_types) else None
        if wanted_type is not None:
            is_reduced = limits and (value.constant_proto is not None or value.producer in solution.reduced_fills)
            limit = limits.get(slot, 0.0) if is_reduced else 0.0
            yield Use(value, dtypes.element(wanted_type), node.scope, node, slot, limit)
        elif (
            node.op_type == "Cast" and value.constant_proto is not None and dtypes.element(value.type) in dtypes.MIXABLE
        ):
            # A user's Cast of a constant reads the number in the file. Conversion of the constant would round the
            # number before the Cast.
            yield Use(value, dtypes.element(value.type), node.scope, node, slot)
        # No group of the node has this slot, so no decision gives its type. It takes what it gets, or needs the
        # authored type.
        elif _takes_type(node, slot, solution.decided_types[value.id]):
            yield Use(value, None, node.scope, node, slot)
        else:
            yield Use(value, dtypes.element(node.input_types[slot]), node.scope, node, slot)


def _takes_type(node: Node, slot: int, elem: int) -> bool:
    """Return whether an operator that reads any float, such as Cast, reads this element type at the graph's opset.

    Many of these operators allow bfloat16 only from a later opset on than float16.
    """
    schema = node.signature.schema if node.signature is not None else None
    if schema is None or elem not in dtypes.MIXABLE or elem == dtypes.element(node.input_types[slot]):
        return True
    formal_inputs = schema.formal_slots(schema.inputs, len(node.inputs))
    if slot >= len(formal_inputs):
        return True
    return dtypes.with_element(node.input_types[slot], elem) in schema.types_of(formal_inputs[slot].parameter)


def _find_custom_uses(solution: Solution, node: Node) -> Iterator[Use]:
    """Yield the uses of a custom operator with bodies: the outputs of its bodies keep their types (Rule S4.14)."""
    yield from find_node_uses(solution, node)
    for body in node.bodies.values():
        for slot, value in enumerate(body.outputs):
            elem = dtypes.element(body.output_types[slot])
            yield Use(value, elem if elem in dtypes.MIXABLE else None, body, None, slot)


def _find_unlinked_outputs(solution: Solution) -> Iterator[Use]:
    """Yield the body outputs that no link reads: conditions, and scan outputs without a name."""
    linked_slots = {
        (source.body, source.slot) for link in solution.links for source in link.sources if source.body is not None
    }
    for node in solution.graph.nodes:
        if not is_control_flow(node):
            continue
        for body in node.bodies.values():
            for slot, value in enumerate(body.outputs):
                if (body, slot) not in linked_slots:
                    yield Use(value, None, body, None, slot)
