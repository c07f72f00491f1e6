"""What a plan rounds: at each node the inputs and outputs that become low, as the emulation does it.

A node that is low reads each input rounded to its low type and hands out rounded outputs. A plan that differs in a
list differs in these roundings alone, so a graph that can do all of them, each behind a gate, serves every plan.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from mixlist.graph.model import Graph, Node, Scope, Value
from mixlist.graph.naming import label, scope_path
from mixlist.graph.refs import NodeRef
from mixlist.ops import types
from mixlist.ops.low_precision import LOW
from mixlist.ops.traits import Trait, operators
from mixlist.resolver.classification import is_control_flow
from mixlist.resolver.decisions import Solution
from mixlist.resolver.uses import Use, node_uses, uses

Calls = tuple[NodeRef, ...]
_EXACT = operators(Trait.EXACT)


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
    """Element types that a node's inputs and outputs are rounded to, by slot; 0 where they are not."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...] = ()

    def covers(self, other: Rounding) -> bool:
        """Whether this one serves for the other: rounding what is rounded already changes nothing."""
        return self.outputs == other.outputs and all(
            theirs in (0, ours) for ours, theirs in zip(self.inputs, other.inputs, strict=True)
        )


Origin = Callable[[Solution], tuple[Solution, frozenset[Node]] | None]  # as ``IncrementalSolver.origin``


@dataclass
class Local:
    """The roundings of one Solution, without the calls below it: at its nodes, and at single slots."""

    nodes: dict[RoundingPoint, Rounding]
    slots: dict[RoundingPoint, Rounding]


TypesOf = Callable[[list[int]], Hashable]  # of what was decided, by id of the value, the types that count


class Sites:
    """The roundings of one model under many policies: names of nodes are made once, and what stays is kept.

    So are the roundings that follow from a node's types: a search comes by the same ones again and again.
    """

    def __init__(self) -> None:
        self._sites: dict[Node, RoundingPoint] = {}
        self._paths: dict[Scope, str] = {}
        self._known: WeakKeyDictionary[Solution, Local] = WeakKeyDictionary()
        self._types_of: dict[Node | Graph, TypesOf | None] = {}
        self._of_node: dict[Hashable, tuple[Any, Rounding | None]] = {}
        self._of_slots: dict[Hashable, dict[RoundingPoint, Rounding]] = {}

    def of(self, main: Solution, *, every: bool = False) -> dict[RoundingPoint, Rounding]:
        """What a main graph's Solution rounds. With ``every``, inputs of a low node also where they are low already."""
        found: dict[RoundingPoint, Rounding] = {}
        local: dict[Solution, Local] = {}
        for calls, solution in self.reached(main):
            if solution not in local:
                local[solution] = self._whole(solution, every)
            for sites in (local[solution].nodes, local[solution].slots):
                found.update((site.under(calls), what) for site, what in sites.items())
        return found

    def reached(self, solution: Solution, calls: Calls = ()) -> Iterator[tuple[Calls, Solution]]:
        """The Solution and those of all calls below, each with the calls that lead there."""
        yield calls, solution
        for call, callee in solution.callees.items():
            yield from self.reached(callee, (*calls, self.site(solution, solution.graph.order[call]).node))

    def local(self, solution: Solution, origin: Origin) -> Local:
        """The roundings of one Solution; of one that was decided from another, only what was decided anew is told."""
        found = self._known.get(solution)
        if found is None:
            before, nodes = origin(solution) or (None, frozenset[Node]())
            known = self._known.get(before) if before is not None else None
            if before is None or known is None or _arguments(before) != _arguments(solution):
                found = self._whole(solution, False)
            else:
                found = Local(known.nodes.copy(), self._slots(solution, False))
                for node in nodes:
                    self._put(found.nodes, solution, node, False)
            self._known[solution] = found
        return found

    def site(self, solution: Solution, node: Node) -> RoundingPoint:
        """Where a node stands, without the calls on the way to it."""
        known = self._sites.get(node)
        if known is None:
            known = self._sites[node] = RoundingPoint((), NodeRef(self._path(solution, node.scope), label(node)))
        return known

    def _path(self, solution: Solution, scope: Scope) -> str:
        known = self._paths.get(scope)
        if known is None:
            known = self._paths[scope] = scope_path(solution.graph, scope)
        return known

    def _whole(self, solution: Solution, every: bool) -> Local:
        found = Local({}, self._slots(solution, every))
        for node in solution.graph.order:
            self._put(found.nodes, solution, node, every)
        return found

    def _slots(self, solution: Solution, every: bool) -> dict[RoundingPoint, Rounding]:
        """Where control flow, calls and outputs read."""
        graph = solution.graph
        if graph not in self._types_of:
            self._types_of[graph] = _types_of(_linked(solution)) if _links_tell(graph) else None
        types_of = self._types_of[graph]
        if types_of is None:
            return dict(self._read_slots(solution, every))
        key = graph, every, types_of(solution.decided)
        if key not in self._of_slots:
            self._of_slots[key] = dict(self._read_slots(solution, every))
        return self._of_slots[key]

    def _read_slots(self, solution: Solution, every: bool) -> Iterator[tuple[RoundingPoint, Rounding]]:
        for use in uses(solution, plain=False):
            elem = _read_as(use, solution, every)
            if elem and use.node is None:
                yield RoundingPoint((), NodeRef(self._path(solution, use.scope), ""), use.slot), Rounding((elem,))
            elif elem and use.node is not None:
                yield self.site(solution, use.node)._replace(slot=use.slot), Rounding((elem,))
        yield from _outputs(solution, every)

    def _put(self, found: dict[RoundingPoint, Rounding], solution: Solution, node: Node, every: bool) -> None:
        """The rounding of a node by itself, in place of what was there."""
        if node.bodies or node.function is not None:
            return
        types_of = self._types_of.get(node)
        if types_of is None:
            types_of = self._types_of[node] = _types_of(filter(None, (*node.inputs, *node.outputs)))
        assignment = solution.assignments[node.id]
        key = node, every, id(assignment), types_of(solution.decided)
        known = self._of_node.get(key)
        if known is None:  # the assignment is kept beside it: its id stays its own
            known = self._of_node[key] = assignment, _rounding(solution, node, every)
        site, rounding = self.site(solution, node), known[1]
        if rounding is not None:
            found[site] = rounding
        else:
            found.pop(site, None)


def _types_of(values: Iterable[Value]) -> TypesOf:
    """What looks up the types of these values."""
    ids = [value.id for value in values]
    return itemgetter(*ids) if ids else lambda _: ()


def _links_tell(graph: Graph) -> bool:
    """Whether nothing but links and outputs reads as more than single nodes do: no calls, no operators with bodies."""
    return all(node.function is None and (not node.bodies or is_control_flow(node)) for node in graph.order)


def _linked(solution: Solution) -> Iterator[Value]:
    """The values whose types tell what links and outputs read."""
    for link in solution.links:
        yield from link.targets
        yield from (read.value for read in link.reads)
    yield from solution.graph.root.outputs


def _rounding(solution: Solution, node: Node, every: bool) -> Rounding | None:
    """What a node rounds by itself; None for nothing."""
    inputs = [0] * len(node.inputs)
    low = set()
    for use in node_uses(solution, node):
        elem = inputs[use.slot] = _read_as(use, solution, every)
        if elem or (solution.decided[use.value.id] if use.want is None else use.want) in LOW:
            low.add(use.slot)
    outputs = () if _moves_low(node, low) or node.op_type == "Constant" else _made(solution, node)
    return Rounding(tuple(inputs), outputs) if any(inputs) or any(outputs) else None


def _arguments(solution: Solution) -> list[int]:
    """The types of a function's parameters: settled last, so that no step tells that one has changed."""
    return [solution.decided[value.id] for value in solution.graph.root.inputs]


def _outputs(solution: Solution, every: bool) -> Iterator[tuple[RoundingPoint, Rounding]]:
    """The graph outputs that are declared low and made high: they keep their types, so a Cast goes before them."""
    root = solution.graph.root
    for slot, value in enumerate(root.outputs if not solution.graph.path else ()):
        declared = types.element(root.output_types[slot])
        if declared in LOW and isinstance(value.type, int) and (every or solution.decided[value.id] != declared):
            yield RoundingPoint((), NodeRef("", ""), slot), Rounding((declared,))


def _read_as(use: Use, solution: Solution, every: bool) -> int:
    """The low type that the value is rounded to where it is read; 0 where it comes as it is."""
    want, value = use.want, use.value
    if want is None or want not in LOW or not isinstance(value.type, int):
        return 0
    if value.tensor is not None:  # a constant is converted for whom it suits
        return want if types.element(value.type) != want else 0
    return want if every or solution.decided[value.id] != want else 0


def _made(solution: Solution, node: Node) -> tuple[int, ...]:
    """The low types of a node's outputs; () where none is low."""
    elems = [
        solution.decided[v.id] if v is not None and isinstance(v.type, int) else types.UNKNOWN for v in node.outputs
    ]
    return tuple([e if e in LOW else 0 for e in elems]) if not LOW.isdisjoint(elems) else ()


def _moves_low(node: Node, low: set[int]) -> bool:
    """Whether the outputs are values of inputs that are low, all of them: they need no rounding."""
    if not low or node.op_type not in _EXACT or node.domain:
        return False
    return all(
        slot in low for slot, v in enumerate(node.inputs) if v is not None and types.element(v.type) in types.LISTED
    )
