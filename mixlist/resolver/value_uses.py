"""Find the type that every reader of a value wants, after the decisions.

A *use* is one place that reads a value: an input slot of a node, or an output of a scope. Its ``wanted_type`` is an
element type, or None if the reader takes every type (Cast, Shape, a function call).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce

from mixlist.graph.control_flow import Link
from mixlist.graph.model import Node, Scope, Value
from mixlist.ops import types
from mixlist.resolver.classification import is_control_flow
from mixlist.resolver.decisions import GraphSolution, join


@dataclass(frozen=True, slots=True)
class Use:
    """``node`` reads ``value`` at ``slot``; with ``node`` None it is output ``slot`` of ``scope``.

    ``magnitude_limit`` is not zero if the reader wants a constant whose magnitudes are reduced to it (Rule S4.36).
    """

    value: Value
    wanted_type: int | None
    scope: Scope
    node: Node | None
    slot: int
    magnitude_limit: float = 0.0


def find_uses(solution: GraphSolution, *, node_inputs: bool = True) -> Iterator[Use]:
    """Yield every use in a graph except its outputs.

    Without ``node_inputs``, yield only the uses of control flow, function calls and bodies.
    """
    linked = {(r.node, r.slot) for link in solution.links for r in link.sources if r.body is None}
    for node in solution.graph.nodes:
        if node.function is not None:
            yield from _call_uses(solution, node)
        elif not node.bodies:
            if node_inputs:
                yield from find_node_uses(solution, node)
        elif not is_control_flow(node):
            yield from _foreign_uses(solution, node)
        else:
            for slot, value in enumerate(node.inputs):
                if value is not None and (node, slot) not in linked:
                    yield Use(value, None, node.scope, node, slot)
    for link in solution.links:
        shared = link_type(solution, link)
        for read in link.sources:
            want = shared if read.value.type != types.UNKNOWN else None  # as authored: the link is that then
            reader = read.node if read.body is None else None
            yield Use(read.value, want, read.body or read.node.scope, reader, read.slot)
    yield from _unlinked_outputs(solution)


def link_type(solution: GraphSolution, link: Link) -> int | None:
    """Return the element type that a link's values share; None if lists do not move it."""
    for target in link.targets:
        if types.element(target.type) in types.MIXABLE:
            return solution.decided_types[target.id]
    reads = [r.value for r in link.sources if types.element(r.value.type) in types.MIXABLE]
    if link.targets or not reads:
        return None
    return reduce(join, (solution.decided_types[v.id] for v in reads))


def find_node_uses(solution: GraphSolution, node: Node) -> Iterator[Use]:
    """Yield the uses of a node's inputs."""
    assignment = solution.assignments[node.id]
    wanted = assignment.inputs if assignment is not None else ()
    limits = solution.reduced_slots.get(node, {})
    for slot, value in enumerate(node.inputs):
        if value is None:
            continue
        want = wanted[slot] if slot < len(wanted) else None
        if want is not None:
            limit = limits.get(slot, 0.0) if limits and value.constant_proto is not None else 0.0
            yield Use(value, types.element(want), node.scope, node, slot, limit)
        elif node.op_type == "Cast" and value.constant_proto is not None and types.element(value.type) in types.MIXABLE:
            # a user's Cast of a constant keeps its rounding: it reads the number that was written
            yield Use(value, types.element(value.type), node.scope, node, slot)
        elif _takes(node, slot, solution.decided_types[value.id]):
            yield Use(value, None, node.scope, node, slot)
        else:
            yield Use(value, types.element(node.input_types[slot]), node.scope, node, slot)


def _takes(node: Node, slot: int, elem: int) -> bool:
    """Return whether an operator that reads any float reads this one at the graph's opset (bfloat16 came late)."""
    schema = node.signature.schema if node.signature is not None else None
    if schema is None or elem not in types.MIXABLE or elem == types.element(node.input_types[slot]):
        return True
    formal = schema.formal_slots(schema.inputs, len(node.inputs))
    return slot >= len(formal) or types.with_element(node.input_types[slot], elem) in schema.types_of(
        formal[slot].parameter
    )


def _call_uses(solution: GraphSolution, node: Node) -> Iterator[Use]:
    callee = solution.callees[node.id]
    parameters = callee.graph.root.inputs
    for slot, value in enumerate(node.inputs):
        if value is not None:
            chosen = slot < len(parameters) and value.is_constant and types.element(value.type) in types.MIXABLE
            yield Use(value, callee.decided_types[parameters[slot].id] if chosen else None, node.scope, node, slot)


def _foreign_uses(solution: GraphSolution, node: Node) -> Iterator[Use]:
    """Yield the uses of an operator with bodies that is no control flow: its bodies keep the types at their border."""
    yield from find_node_uses(solution, node)
    for body in node.bodies.values():
        for slot, value in enumerate(body.outputs):
            elem = types.element(body.output_types[slot])
            yield Use(value, elem if elem in types.MIXABLE else None, body, None, slot)


def _unlinked_outputs(solution: GraphSolution) -> Iterator[Use]:
    """Yield the body outputs that no link reads: conditions, and scan outputs without a name."""
    linked = {(r.body, r.slot) for link in solution.links for r in link.sources if r.body is not None}
    for node in solution.graph.nodes:
        if not is_control_flow(node):
            continue
        for body in node.bodies.values():
            for slot, value in enumerate(body.outputs):
                if (body, slot) not in linked:
                    yield Use(value, None, body, None, slot)
