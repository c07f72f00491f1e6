"""Say what a plan rounds: at each node the inputs and outputs that become low, as the emulation rounds them.

A node that is low reads each input rounded to its low type and hands out rounded outputs. A plan that differs in a
list differs in these roundings alone, so a graph that can do all of them, each behind a gate, serves every plan.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple
from weakref import WeakKeyDictionary

from mixlist.graph.model import Graph, Node, Value
from mixlist.graph.naming import node_ref, scope_path
from mixlist.graph.refs import NodeRef
from mixlist.ops import types
from mixlist.ops.low_precision import LOW_TYPES
from mixlist.ops.signature import Assignment
from mixlist.ops.traits import Trait, operators
from mixlist.resolver.classification import is_control_flow
from mixlist.resolver.decisions import GraphSolution
from mixlist.resolver.value_uses import Use, find_node_uses, find_uses

Calls = tuple[NodeRef, ...]
_VALUE_PRESERVING = operators(Trait.VALUE_PRESERVING)


class RoundingPoint(NamedTuple):
    """A node, or (``slot`` not -1) one position where control flow, a call or a scope's output reads a value.

    ``calls`` are the calls of functions on the way to it; the name of ``node`` is "" for an output of the scope.
    """

    calls: Calls
    node: NodeRef
    slot: int = -1

    def under(self, calls: Calls) -> RoundingPoint:
        """Return the same point in what these calls lead to."""
        return RoundingPoint((*calls, *self.calls), self.node, self.slot) if calls else self


@dataclass(frozen=True, slots=True)
class Rounding:
    """Element types that a node's inputs and outputs are rounded to, by slot; 0 where they are not.

    ``limits``: by input slot the magnitude to which a mask's constant is reduced, 0 where it is not; () for none.
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...] = ()
    limits: tuple[float, ...] = ()

    def covers(self, other: Rounding) -> bool:
        """Return whether this one serves for the other: rounding a rounded tensor again changes nothing.

        If the other rounds nothing and only reduces a mask's constant, its node may be high precision, and its inputs
        are not rounded already.
        """
        if not (any(other.inputs) or any(other.outputs)):
            return self == other
        return (self.outputs, self.limits) == (other.outputs, other.limits) and all(
            needed in (0, elem) for elem, needed in zip(self.inputs, other.inputs, strict=True)
        )


Roundings = dict[RoundingPoint, Rounding]
Origin = Callable[[GraphSolution], tuple[GraphSolution, frozenset[Node]] | None]  # as ``IncrementalSolver.origin``
TypesOf = Callable[[list[int]], Hashable]  # picks the types that count out of what was decided, by id of the value


@dataclass
class LocalRoundings:
    """The roundings of one GraphSolution, without the calls below it: at its nodes, and at single slots."""

    nodes: Roundings
    slots: Roundings


class RoundingPlanner:
    """Finds the roundings of one model under many policies.

    A search decides the same things again and again, so three things are remembered: the points, which are named once;
    the roundings of a solution, from which those of the next one are made; and those that follow from a node's types.
    """

    def __init__(self) -> None:
        self._points: dict[Node, RoundingPoint] = {}
        self._local: WeakKeyDictionary[GraphSolution, LocalRoundings] = WeakKeyDictionary()
        self._types_of: dict[Node | Graph, TypesOf | None] = {}
        self._of_node: dict[Hashable, tuple[Assignment | None, Rounding | None]] = {}
        self._of_slots: dict[Hashable, Roundings] = {}

    def roundings(self, main: GraphSolution, *, every: bool = False) -> Roundings:
        """Return the roundings of a main graph; ``every``: inputs of a low node also where they are low already."""
        found: Roundings = {}
        local: dict[GraphSolution, LocalRoundings] = {}
        for calls, solution in self.reached(main):
            if solution not in local:
                local[solution] = self._all_of(solution, every)
            for roundings in (local[solution].nodes, local[solution].slots):
                found.update((point.under(calls), rounding) for point, rounding in roundings.items())
        return found

    def reached(self, solution: GraphSolution, calls: Calls = ()) -> Iterator[tuple[Calls, GraphSolution]]:
        """Yield the GraphSolution and those of all calls below, each with the calls that lead there."""
        yield calls, solution
        for call, callee in solution.callees.items():
            yield from self.reached(callee, (*calls, self._point(solution, solution.graph.nodes[call]).node))

    def local(self, solution: GraphSolution, origin: Origin) -> LocalRoundings:
        """Return the roundings of one GraphSolution; if it has an origin, only what was decided anew is made."""
        known = self._local.get(solution)
        if known is None:
            before, nodes = origin(solution) or (None, frozenset[Node]())
            roundings = self._local.get(before) if before is not None else None
            if before is None or roundings is None or _parameter_types(before) != _parameter_types(solution):
                known = self._all_of(solution, False)
            else:
                known = LocalRoundings(roundings.nodes.copy(), self._slots(solution, False))
                for node in nodes:
                    self._put(known.nodes, solution, node, False)
            self._local[solution] = known
        return known

    def _point(self, solution: GraphSolution, node: Node) -> RoundingPoint:
        """Return the point of a node, without the calls on the way to it."""
        point = self._points.get(node)
        if point is None:
            point = self._points[node] = RoundingPoint((), node_ref(solution.graph, node))
        return point

    def _all_of(self, solution: GraphSolution, every: bool) -> LocalRoundings:
        local = LocalRoundings({}, self._slots(solution, every))
        for node in solution.graph.nodes:
            self._put(local.nodes, solution, node, every)
        return local

    def _slots(self, solution: GraphSolution, every: bool) -> Roundings:
        """Return the roundings where control flow, calls and outputs read."""
        graph = solution.graph
        if graph not in self._types_of:
            self._types_of[graph] = _types_of(_linked(solution)) if _follows_from_links(graph) else None
        types_of = self._types_of[graph]
        if types_of is None:
            return dict(self._find_slots(solution, every))
        key = graph, every, types_of(solution.decided_types)
        if key not in self._of_slots:
            self._of_slots[key] = dict(self._find_slots(solution, every))
        return self._of_slots[key]

    def _find_slots(self, solution: GraphSolution, every: bool) -> Iterator[tuple[RoundingPoint, Rounding]]:
        for use in find_uses(solution, node_inputs=False):
            elem = _read_as(use, solution, every)
            if elem and use.node is None:
                scope = NodeRef(scope_path(solution.graph, use.scope), "")
                yield RoundingPoint((), scope, use.slot), Rounding((elem,))
            elif elem and use.node is not None:
                yield self._point(solution, use.node)._replace(slot=use.slot), Rounding((elem,))
        yield from _outputs(solution, every)

    def _put(self, roundings: Roundings, solution: GraphSolution, node: Node, every: bool) -> None:
        """Put the rounding of a node by itself in place of what was there."""
        if node.bodies or node.function is not None:
            return
        types_of = self._types_of.get(node)
        if types_of is None:
            types_of = self._types_of[node] = _types_of(filter(None, (*node.inputs, *node.outputs)))
        assignment = solution.assignments[node.id]
        key = node, every, id(assignment), types_of(solution.decided_types), node in solution.reduced_slots
        known = self._of_node.get(key)
        if known is None:  # with the assignment, which keeps its id then
            known = self._of_node[key] = assignment, _rounding(solution, node, every)
        point, rounding = self._point(solution, node), known[1]
        if rounding is not None:
            roundings[point] = rounding
        else:
            roundings.pop(point, None)


def _types_of(values: Iterable[Value]) -> TypesOf:
    """Return what picks the types of these values."""
    ids = [value.id for value in values]
    return itemgetter(*ids) if ids else lambda _: ()


def _follows_from_links(graph: Graph) -> bool:
    """Return whether links and outputs alone read as more than single nodes do: no calls, no operators with bodies."""
    return all(node.function is None and (not node.bodies or is_control_flow(node)) for node in graph.nodes)


def _linked(solution: GraphSolution) -> Iterator[Value]:
    """Yield the values whose types decide what links and outputs read."""
    for link in solution.links:
        yield from link.targets
        yield from (read.value for read in link.sources)
    yield from solution.graph.root.outputs


def _rounding(solution: GraphSolution, node: Node, every: bool) -> Rounding | None:
    """Return what a node rounds by itself; None for nothing."""
    inputs, limits = [0] * len(node.inputs), [0.0] * len(node.inputs)
    low = set()
    for use in find_node_uses(solution, node):
        elem, limits[use.slot] = _read_as(use, solution, every), use.magnitude_limit
        inputs[use.slot] = elem
        if elem or (solution.decided_types[use.value.id] if use.wanted_type is None else use.wanted_type) in LOW_TYPES:
            low.add(use.slot)
    outputs = () if _moves_low(node, low) or node.op_type == "Constant" else _output_types(solution, node)
    if not (any(inputs) or any(outputs) or any(limits)):
        return None
    return Rounding(tuple(inputs), outputs, tuple(limits) if any(limits) else ())


def _parameter_types(solution: GraphSolution) -> list[int]:
    """Return the types of a function's parameters. They are decided last: no step says that one has changed."""
    return [solution.decided_types[value.id] for value in solution.graph.root.inputs]


def _outputs(solution: GraphSolution, every: bool) -> Iterator[tuple[RoundingPoint, Rounding]]:
    """Yield the graph outputs that are declared low and made high: they keep their types, so a Cast precedes them."""
    root = solution.graph.root
    for slot, value in enumerate(root.outputs if not solution.graph.path else ()):
        declared = types.element(root.declared_output_types[slot])
        if (
            declared in LOW_TYPES
            and isinstance(value.type, int)
            and (every or solution.decided_types[value.id] != declared)
        ):
            yield RoundingPoint((), NodeRef("", ""), slot), Rounding((declared,))


def _read_as(use: Use, solution: GraphSolution, every: bool) -> int:
    """Return the low type that the value is rounded to where it is read; 0 where it is read as it is."""
    want, value = use.wanted_type, use.value
    if want is None or want not in LOW_TYPES or not isinstance(value.type, int):
        return 0
    if value.constant_proto is not None:  # converted once for each type that a consumer needs
        return want if types.element(value.type) != want else 0
    return want if every or solution.decided_types[value.id] != want else 0


def _output_types(solution: GraphSolution, node: Node) -> tuple[int, ...]:
    """Return the low types of a node's outputs; () where none is low."""
    elems = [
        solution.decided_types[v.id] if v is not None and isinstance(v.type, int) else types.UNKNOWN
        for v in node.outputs
    ]
    return tuple([e if e in LOW_TYPES else 0 for e in elems]) if not LOW_TYPES.isdisjoint(elems) else ()


def _moves_low(node: Node, low: set[int]) -> bool:
    """Return whether the outputs are values of inputs that are all low: they need no rounding."""
    if not low or node.op_type not in _VALUE_PRESERVING or node.domain:
        return False
    return all(
        slot in low for slot, v in enumerate(node.inputs) if v is not None and types.element(v.type) in types.MIXABLE
    )
