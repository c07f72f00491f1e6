"""What every reader of a value wants it to be, as the plan has decided.

A *use* is one place that reads a value: an input slot of a node, or an output of a scope. Its ``want`` is an
element type, or None where the reader takes what comes (Cast, Shape, a function call).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableSet
from dataclasses import dataclass
from functools import reduce

from mixlist.graph.control_flow import Link
from mixlist.graph.model import Node, Scope, Value
from mixlist.ops import types
from mixlist.resolver.classification import is_control_flow
from mixlist.resolver.decisions import Solution, join


@dataclass(frozen=True, slots=True)
class Use:
    """``node`` reads ``value`` at ``slot``; with ``node`` None it is output ``slot`` of ``scope``."""

    value: Value
    want: int | None
    scope: Scope
    node: Node | None
    slot: int


def uses(solution: Solution, *, plain: bool = True) -> Iterator[Use]:
    """Every use in a graph, its own outputs apart; without ``plain`` only those of control flow, calls and bodies."""
    linked = {(r.node, r.slot) for link in solution.links for r in link.reads if r.body is None}
    for node in solution.graph.order:
        if node.function is not None:
            yield from _call_uses(solution, node)
        elif not node.bodies:
            if plain:
                yield from node_uses(solution, node)
        elif not is_control_flow(node):
            yield from _foreign_uses(solution, node)
        else:
            for slot, value in enumerate(node.inputs):
                if value is not None and (node, slot) not in linked:
                    yield Use(value, None, node.scope, node, slot)
    for link in solution.links:
        shared = link_type(solution, link)
        for read in link.reads:
            want = shared if read.value.type != types.UNKNOWN else None  # as authored: the link is that then
            if read.body is None:
                yield Use(read.value, want, read.node.scope, read.node, read.slot)
            else:
                yield Use(read.value, want, read.body, None, read.slot)
    yield from _unlinked_outputs(solution)


def link_type(solution: Solution, link: Link) -> int | None:
    """The element type that a link's values share; None where lists do not touch it."""
    for target in link.targets:
        if types.element(target.type) in types.LISTED:
            return solution.decided[target.id]
    reads = [r.value for r in link.reads if types.element(r.value.type) in types.LISTED]
    if link.targets or not reads:
        return None
    return reduce(join, (solution.decided[v.id] for v in reads))


def node_uses(solution: Solution, node: Node) -> Iterator[Use]:
    """What a node itself reads."""
    assignment = solution.assignments[node.id]
    wanted = assignment.inputs if assignment is not None else ()
    for slot, value in enumerate(node.inputs):
        if value is None:
            continue
        want = wanted[slot] if slot < len(wanted) else None
        if want is not None:
            yield Use(value, types.element(want), node.scope, node, slot)
        elif node.op_type == "Cast" and value.tensor is not None and types.element(value.type) in types.LISTED:
            # a user's Cast of a constant keeps its rounding: it reads the number that was written
            yield Use(value, types.element(value.type), node.scope, node, slot)
        elif _takes(node, slot, solution.decided[value.id]):
            yield Use(value, None, node.scope, node, slot)
        else:
            yield Use(value, types.element(node.types[slot]), node.scope, node, slot)


def _takes(node: Node, slot: int, elem: int) -> bool:
    """Whether an operator that reads any float reads this one too, at the model's opset (bfloat16 came late)."""
    schema = node.signature.schema if node.signature is not None else None
    if schema is None or elem not in types.LISTED or elem == types.element(node.types[slot]):
        return True
    formal = schema.parameters(schema.inputs, len(node.inputs))
    return slot >= len(formal) or types.with_element(node.types[slot], elem) in schema.types_of(formal[slot].parameter)


def _call_uses(solution: Solution, node: Node) -> Iterator[Use]:
    callee = solution.callees[node.id]
    parameters = callee.graph.root.inputs
    for slot, value in enumerate(node.inputs):
        if value is not None:
            chosen = slot < len(parameters) and value.constant and types.element(value.type) in types.LISTED
            yield Use(value, callee.decided[parameters[slot].id] if chosen else None, node.scope, node, slot)


def _foreign_uses(solution: Solution, node: Node) -> Iterator[Use]:
    """An operator with bodies that is no control flow: what goes in or out of the bodies is as authored."""
    yield from node_uses(solution, node)
    for body in node.bodies.values():
        for slot, value in enumerate(body.outputs):
            yield Use(value, _listed(body.yields[slot]), body, None, slot)


def _listed(value_type: types.Type) -> int | None:
    elem = types.element(value_type)
    return elem if elem in types.LISTED else None


def _unlinked_outputs(solution: Solution) -> Iterator[Use]:
    """Body outputs that no link reads: conditions, and scan outputs without a name."""
    linked = {(r.body, r.slot) for link in solution.links for r in link.reads if r.body is not None}
    for node in solution.graph.order:
        if not is_control_flow(node):
            continue
        for body in node.bodies.values():
            for slot, value in enumerate(body.outputs):
                if (body, slot) not in linked:
                    yield Use(value, None, body, None, slot)


def settle_constant_arguments(solution: Solution, fits: Callable[[Value], bool], done: MutableSet[Solution]) -> None:
    """A parameter that gets a constant, of a function or of a Scan's body, takes the type that all its readers want.

    So the constant is converted once instead of cast in the body. Callees go first. ``fits``: whether a constant
    may be converted to the low type; in functions the nodes were asked already.
    """
    if solution in done:
        return
    done.add(solution)
    for callee in dict.fromkeys(solution.callees.values()):
        settle_constant_arguments(callee, fits, done)
    root = solution.graph.root
    settled = [v for v in root.inputs if solution.graph.path and v.constant and v not in root.outputs]
    settled += [link.targets[0] for link in solution.links if _hands_in_constant(link, fits)]
    if not settled:
        return
    wanted: dict[int, set[int | None]] = {}
    for use in uses(solution):
        wanted.setdefault(use.value.id, set()).add(use.want)
    for value in settled:
        wants = wanted.get(value.id, set())
        if types.element(value.type) in types.LISTED and len(wants) == 1:
            solution.decided[value.id] = wants.pop() or solution.decided[value.id]


def _hands_in_constant(link: Link, fits: Callable[[Value], bool]) -> bool:
    """Whether a link only hands an initializer or Constant to a body: what a Scan goes over, or a SequenceMap adds."""
    if len(link.reads) != 1 or len(link.targets) != 1 or link.targets[0].kind != "input":
        return False
    value = link.reads[0].value
    return value.tensor is not None and value.kind != "overridable" and fits(value)
