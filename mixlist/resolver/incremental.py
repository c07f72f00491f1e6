"""Deciding again under other lists: only the nodes of which the lists say something else, and what they reach.

A search asks for the decisions under hundreds of policies, each much like one before it. What a step decides depends on
its node's fact and on what it reads, so what is decided in one pass can be decided from an earlier outcome: steps
whose fact differs run anew, and those that read what has changed, in the order of the graph. From the first loop on,
where decisions feed back, all of it is decided anew if any is; where there are sequences, or decisions look at the
graph as a whole (``between``), everything always.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from functools import cache, cached_property
from heapq import heapify, heappop, heappush
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, ref

from mixlist.graph.control_flow import Link
from mixlist.graph.model import Graph, Node, Value
from mixlist.graph.traversal import reachable_graphs
from mixlist.lists.policy import NodeRule, Policy
from mixlist.ops.names import in_ascend
from mixlist.ops.signature import Assignment
from mixlist.patterns.constants import ConstantRanges
from mixlist.resolver.classification import Fact, Facts, is_control_flow
from mixlist.resolver.decisions import Solution
from mixlist.resolver.node_rules import Rules
from mixlist.resolver.schedule import Step, read_by
from mixlist.resolver.sequence_groups import Cluster
from mixlist.resolver.solve import Resolution, Solver
from mixlist.resolver.uses import settle_constant_arguments

RECENT = 8  # outcomes to begin from: the tests of a search halve, so one of the last few is near


@dataclass(frozen=True, eq=False)
class NodeClassification:
    """What a policy says of a node of the graph with this id; under a rule also its types.

    What is the same is one object: sets of them are compared for every choice of a search.
    """

    graph: int
    node: Node
    fact: Fact
    assignment: Assignment | None = None


Operator = tuple[str, str]  # domain and op type
Changes = dict[Node, NodeClassification]


class IncrementalSolver:
    """One model, decided under policies that differ from ``base`` in lists and in further rules of single nodes."""

    def __init__(self, graph: Graph, base: Policy, ranges: ConstantRanges) -> None:
        self.graph, self.base, self.ranges = graph, base, ranges
        self.rules = Rules(base)
        self.kept: dict[tuple[Any, ...], deque[_Kept]] = {}
        self.orders: dict[int, _Order] = {}
        self.graphs = {id(each): each for each in reachable_graphs(graph)}
        self.reach = {key: frozenset(map(id, reachable_graphs(each))) for key, each in self.graphs.items()}
        self._same: dict[tuple[Node, Fact], NodeClassification] = {}
        facts = Facts(base)
        self.cast_is_black = facts.cast_is_black
        self.said = {key: self._base(each, facts) for key, each in self.graphs.items()}
        self._nodes: dict[Operator, list[tuple[int, Node]]] = {}
        for key, each in self.graphs.items():
            for node in each.order:
                self._nodes.setdefault((node.domain, node.op_type), []).append((key, node))
        self._called: dict[str, list[Operator]] = {}  # the operators by every name that a list may have for them
        for operator in self._nodes:
            for name in _names(operator):
                self._called.setdefault(name, []).append(operator)
        self._listed: dict[tuple[Any, ...], Changes] = {}
        self._ruled: dict[NodeRule, Changes] = {}
        self._origin: WeakKeyDictionary[Solution, tuple[ref[Solution], frozenset[Node]]] = WeakKeyDictionary()
        self._settled: WeakSet[Solution] = WeakSet()

    def decide(self, policy: Policy) -> Solution:
        """What ``resolve`` decides for the main graph under a policy.

        For reports it is not meant: specialisations have no numbers, and a node under a rule shows the base's list. A
        Solution may be one that was returned before, and part of several.
        """
        shared = _Remembering(self, policy)
        found = shared.solve(self.graph)
        settle_constant_arguments(found, shared.fits, self._settled)
        return found

    def origin(self, solution: Solution) -> tuple[Solution, frozenset[Node]] | None:
        """The Solution that this one was decided from, and the nodes decided anew; None where that is all of them."""
        before, nodes = self._origin.get(solution, (None, frozenset[Node]()))
        known = before() if before is not None else None
        return (known, nodes) if known is not None else None

    def changes(self, policy: Policy, facts: Facts) -> Changes:
        """What ``policy`` says otherwise than ``base``."""
        found: Changes = {}
        moved = [op for op, move in policy.lists.moves.items() if self.base.lists.moves.get(op) != move]
        for operator in {each for op in moved for each in self._called.get(op, ())}:
            found.update(self._by_list(operator, policy, facts))
        for rule in policy.rules[: len(policy.rules) - len(self.base.rules)]:
            found.update(self._by_rule(rule))
        return found

    def keep(self, key: tuple[Any, ...], made: _Kept, near: _Kept | None, ran: frozenset[Node]) -> None:
        """Keep an outcome to begin from; ``near`` is what it was itself decided from."""
        self.kept.setdefault(key, deque(maxlen=RECENT)).append(made)
        if near is not None:
            self._origin[made.solver.solution] = ref(near.solver.solution), ran

    def _interned(self, graph: int, node: Node, fact: Fact) -> NodeClassification:
        return self._same.setdefault((node, fact), NodeClassification(graph, node, fact))

    def _base(self, graph: Graph, facts: Facts) -> list[NodeClassification]:
        ruled = self.rules.match(graph)
        return [self._interned(id(graph), node, ruled.get(node.id) or facts.of(graph, node)) for node in graph.order]

    def _by_list(self, operator: Operator, policy: Policy, facts: Facts) -> Changes:
        """What the lists say of an operator's nodes otherwise: it depends on where its names stand."""
        where = operator, *(policy.lists.moves.get(name) for name in _names(operator))
        if where not in self._listed:
            found = self._listed[where] = {}
            for key, node in self._nodes[operator]:
                before = self.said[key][node.id]
                said = self._interned(key, node, facts.of(self.graphs[key], node))
                if said is not before and before.fact.kind != "rule":
                    found[node] = said
        return self._listed[where]

    def _by_rule(self, rule: NodeRule) -> Changes:
        """The nodes that a rule decides; it comes before those of the base."""
        if rule not in self._ruled:
            alone = Rules(replace(self.base, rules=(rule,)))
            self._ruled[rule] = {
                node: NodeClassification(key, node, fact, alone.assignment(graph, node))
                for key, graph in self.graphs.items()
                for node, fact in ((graph.order[at], fact) for at, fact in alone.match(graph).items())
            }
        return self._ruled[rule]


@dataclass(frozen=True, eq=False)
class _Kept:
    """An outcome: the solver that came to it, and the changes in its graph and in the functions below."""

    solver: Solver
    changes: frozenset[NodeClassification]


class _Remembering(Resolution):
    """The resolution under one policy, which begins from those before it."""

    def __init__(self, again: IncrementalSolver, policy: Policy) -> None:
        facts = Facts(policy)
        self.again, self.changes = again, again.changes(policy, facts)
        super().__init__(facts, _Known(again.rules, self.changes, policy), again.ranges)
        self.anew = policy.gray_policy == "between" or facts.cast_is_black != again.cast_is_black

    def solve(self, graph: Graph) -> Solution:
        return self._decide(graph, (), (), (), ())

    def specialise(self, graph: Graph, arguments: Any, wanted: Any, misfits: Any, blacks: Any) -> Solution:
        return self._decide(graph, arguments, wanted, misfits, blacks)

    def _decide(self, graph: Graph, arguments: Any, wanted: Any, misfits: Any, blacks: Any) -> Solution:
        again = self.again
        key = (id(graph), arguments, wanted, tuple([m is not None for m in misfits]), blacks)
        reach = again.reach[id(graph)]
        mine = frozenset([said for said in self.changes.values() if said.graph in reach])
        near: _Kept | None = None
        differ = frozenset[NodeClassification]()
        for kept in again.kept.get(key, ()):
            found = kept.changes ^ mine
            if near is None or len(found) < len(differ):
                near, differ = kept, found
        if near is not None and not differ:
            return near.solver.solution
        if near is None or near.solver.start is None or self.anew:
            made, near, ran = Solver(self, graph), None, frozenset[Node]()
            made.run(arguments, wanted, misfits, blacks)
        else:
            made = _copy(near.solver, self)
            ran = self._go_on(made, differ)
        again.keep(key, _Kept(made, mine), near, ran)
        return made.solution

    def _go_on(self, made: Solver, differ: frozenset[NodeClassification]) -> frozenset[Node]:
        """Bring a copy of an earlier outcome up to these changes; returns the nodes that may take other types."""
        graph, again = made.graph, self.again
        base = again.said[id(graph)]
        changed = {said.node for said in differ if said.graph == id(graph)}
        for node in changed:
            made.solution.facts[node.id] = self.changes.get(node, base[node.id]).fact
        below = {said.graph for said in differ if said.graph != id(graph)}
        calls = [n for n in graph.order if n.function is not None and below & again.reach[id(n.function)]]
        if id(graph) not in again.orders:
            again.orders[id(graph)] = _Order(made.steps, made.head)
        return again.orders[id(graph)].run(made, changed, calls)


class _Known(Rules):
    """The rules of a policy of which most is known already: what its own rules say, and those of the base."""

    def __init__(self, base: Rules, changes: Changes, policy: Policy) -> None:
        self._base, self._changes, self._whole = base, changes, policy

    @cached_property
    def _all(self) -> Rules:
        return Rules(self._whole)

    def match(self, graph: Graph) -> dict[int, Fact]:
        return self._all.match(graph)

    def assignment(self, graph: Graph, node: Node) -> Assignment:
        said = self._changes.get(node)
        if said is not None and said.assignment is not None:
            return said.assignment
        return self._base.assignment(graph, node)


class _Order:
    """The steps of a graph: where each stands, what it writes, who reads it. From ``head`` on they may feed back."""

    def __init__(self, steps: list[Step], head: int) -> None:
        self.steps, self.head = steps, head
        self.alone = [step if isinstance(step, Node) and step.function is None else None for step in steps]
        self.places = {step: place for place, step in reversed([*enumerate(steps)])}  # links stand twice
        self.writes = [_written(step) for step in steps]
        self.readers: dict[int, list[int]] = {}
        for place, step in enumerate(steps):
            for value in read_by(step):
                self.readers.setdefault(value.id, []).append(place)

    def run(self, made: Solver, changed: set[Node], calls: list[Node]) -> frozenset[Node]:
        """Run the steps of ``changed`` nodes and ``calls``, and of all that follow what changes by it.

        Returns these nodes, and those that read what changes but are decided by themselves.
        """
        assert made.start is not None
        decided, high, facts = made.decided, made.solution.high_by_black, made.solution.facts
        waiting = [self.places[node] for node in {*changed, *calls}]
        queued = set(waiting)
        heapify(waiting)
        ran: set[Node] = set()
        while waiting:
            place = heappop(waiting)
            if place >= self.head:
                return frozenset(ran | self._all_behind(made))
            step, written = self.steps[place], self.writes[place]
            before = [(decided[value.id], value.id in high) for value in written]
            _forget(made, step, written)
            if isinstance(step, Node):
                ran.add(step)
            made.step(step)
            if step not in changed and before == [(decided[value.id], value.id in high) for value in written]:
                continue
            for reader in (reader for value in written for reader in self.readers.get(value.id, ())):
                if reader in queued:
                    continue
                queued.add(reader)
                node = self.alone[reader]
                if node is not None and facts[node.id].kind != "gray":
                    ran.add(node)  # what it reads does not decide it
                else:
                    heappush(waiting, reader)
        return frozenset(ran)

    def _all_behind(self, made: Solver) -> set[Node]:
        """Decide everything from the first loop on anew; returns its nodes."""
        for step, written in zip(self.steps[self.head :], self.writes[self.head :], strict=True):
            _forget(made, step, written)
        made.to_fixpoint(self.steps[self.head :], final=True)
        return {step for step in self.steps[self.head :] if isinstance(step, Node)}


def _written(step: Step) -> list[Value]:
    """The values that a step decides."""
    if isinstance(step, Link):
        return list(step.targets)
    if isinstance(step, Cluster) or (step.function is None and is_control_flow(step)):
        return []
    return [value for value in step.outputs if value is not None]


def _forget(made: Solver, step: Step, written: list[Value]) -> None:
    """What a step decided, and what it said of its node."""
    assert made.start is not None
    decided, high = made.start
    for value in written:
        made.decided[value.id] = decided[value.id]
        made.solution.high_by_black.discard(value.id)
        made.solution.high_by_black.update({value.id} & high)
    if isinstance(step, Node):
        made.solution.assignments[step.id] = made.solution.followed[step.id] = None
        made.solution.notes.pop(step.id, None)
        made.solution.rules.pop(step.id, None)


def _copy(before: Solver, shared: Resolution) -> Solver:
    """A solver with the outcome of another; parameters have the types of their arguments again."""
    assert before.start is not None
    old = before.solution
    solution = Solution(
        old.graph,
        old.facts.copy(),
        old.decided.copy(),
        old.assignments.copy(),
        old.followed.copy(),
        old.links,
        old.notes.copy(),
        old.rules.copy(),
        old.callees.copy(),
        old.high_by_black.copy(),
    )
    for value in old.graph.root.inputs:
        solution.decided[value.id] = before.start[0][value.id]
    made = Solver(shared, old.graph, solution)
    made.start, made.head, made.steps = before.start, before.head, before.steps
    made.argument_misfits = before.argument_misfits
    return made


@cache
def _names(operator: Operator) -> tuple[str, ...]:
    """Every name that a list of either name space may have for an operator."""
    domain, op_type = operator
    return op_type, f"{domain or 'ai.onnx'}::{op_type}", *in_ascend(domain, op_type)
