"""Decide a model under many policies that differ little: decide again only the nodes that a difference reaches.

A search asks for the decisions under hundreds of policies, each similar to an earlier one. The decision for a node
depends on the node's fact and on the types that it reads, so a GraphSolution is computed from an earlier one: the steps
whose fact differs run again, and then those that read a changed value, in the order of the graph. From the first loop
on, where decisions feed back, all steps run again if any does. With sequences, and under ``between``, which looks at
the graph as a whole, everything is decided anew.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache, cached_property
from heapq import heapify, heappop, heappush
from weakref import WeakKeyDictionary, WeakSet, ref

from mixlist.graph.model import Graph, Node, Value
from mixlist.graph.traversal import reachable_graphs
from mixlist.lists.policy import NodeRule, Policy
from mixlist.ops.names import ascend_names, onnx_names
from mixlist.ops.signature import Assignment
from mixlist.patterns.constants import ConstantRanges
from mixlist.resolver.classification import Classification, Classifier
from mixlist.resolver.decisions import GraphSolution
from mixlist.resolver.function_calls import settle_constant_arguments
from mixlist.resolver.mask_protection import Masks, mask_notes
from mixlist.resolver.node_rules import NodeRules
from mixlist.resolver.position_protection import keep_positions
from mixlist.resolver.schedule import Schedule, Step, read_by, written_by
from mixlist.resolver.solver import GraphSolver, ModelSolver
from mixlist.resolver.solver_state import CallArguments

RECENT = 8  # outcomes to start from: a search tests halves of sets, so one of the last few is similar


@dataclass(frozen=True, eq=False)
class ClassifiedNode:
    """A policy's fact for a node of the graph with this id; under a node rule also its types.

    Equal classifications are one object, because a search compares sets of them for every candidate.
    """

    graph: int
    node: Node
    fact: Classification
    assignment: Assignment | None = None


Operator = tuple[str, str]  # domain and op type
Changes = dict[Node, ClassifiedNode]


class IncrementalSolver:
    """Decides one model under policies that differ from ``base`` in lists and in further rules for single nodes."""

    def __init__(self, graph: Graph, base: Policy, ranges: ConstantRanges) -> None:
        self.graph, self.base, self.ranges = graph, base, ranges
        self.rules = NodeRules(base)
        self.outcomes: dict[object, deque[_Outcome]] = {}  # the last ones, by graph and call
        self.graphs = {id(each): each for each in reachable_graphs(graph)}
        self.reach = {key: frozenset(map(id, reachable_graphs(each))) for key, each in self.graphs.items()}
        self._reruns: dict[int, _Rerun] = {}
        self._interned: dict[tuple[Node, Classification], ClassifiedNode] = {}
        self._with_mask: dict[tuple[ClassifiedNode, str], ClassifiedNode] = {}
        facts = Classifier(base)
        self.cast_is_black = facts.cast_is_black
        self.classified = {key: self._classify(each, facts) for key, each in self.graphs.items()}
        self._nodes: dict[Operator, list[ClassifiedNode]] = {}
        for classifications in self.classified.values():
            for each in classifications:
                self._nodes.setdefault((each.node.domain, each.node.op_type), []).append(each)
        self._operators: dict[str, list[Operator]] = {}  # by every name that a list may have for them
        for operator in self._nodes:
            for name in _names(operator):
                self._operators.setdefault(name, []).append(operator)
        self._changes_by_list: dict[object, Changes] = {}  # by operator and the moves of its names
        self._changes_by_rule: dict[NodeRule, Changes] = {}
        # For a GraphSolution the one that it was computed from, and the nodes that were decided again.
        self._origins: WeakKeyDictionary[GraphSolution, tuple[ref[GraphSolution], frozenset[Node]]] = (
            WeakKeyDictionary()
        )
        self._settled: WeakSet[GraphSolution] = WeakSet()

    def decide(self, policy: Policy) -> GraphSolution:
        """Return the GraphSolution of the main graph that ``resolve`` would compute under a policy.

        Do not use it for reports: specializations have no numbers, and a node under a rule shows the list of the base.
        A GraphSolution may be one that was returned before, and part of several.
        """
        resolution = _IncrementalResolution(self, policy)
        solution = resolution.solve(self.graph)
        settle_constant_arguments(solution, resolution.fits, self._settled)
        return solution

    def origin(self, solution: GraphSolution) -> tuple[GraphSolution, frozenset[Node]] | None:
        """Return the solution that this one was computed from and the nodes decided again; None if all of them were."""
        if solution not in self._origins:
            return None
        reference, nodes = self._origins[solution]
        before = reference()
        return (before, nodes) if before is not None else None

    def changes(self, policy: Policy, facts: Classifier) -> Changes:
        """Return the classifications in which ``policy`` differs from ``base``."""
        changes: Changes = {}
        moved = [op for op, move in policy.lists.moves.items() if self.base.lists.moves.get(op) != move]
        for operator in {each for op in moved for each in self._operators.get(op, ())}:
            changes.update(self._by_list(operator, policy, facts))
        for rule in policy.rules[: len(policy.rules) - len(self.base.rules)]:
            changes.update(self._by_rule(rule))
        return changes

    def remember(self, key: object, outcome: _Outcome, start: _Outcome | None, decided_again: frozenset[Node]) -> None:
        """Keep an outcome for later policies; ``start`` is the outcome that it was computed from."""
        self.outcomes.setdefault(key, deque(maxlen=RECENT)).append(outcome)
        if start is not None:
            self._origins[outcome.solver.solution] = ref(start.solver.solution), decided_again

    def rerun(self, graph: Graph, schedule: Schedule) -> _Rerun:
        """Return the order in which the steps of a graph run again."""
        if id(graph) not in self._reruns:
            self._reruns[id(graph)] = _Rerun(schedule)
        return self._reruns[id(graph)]

    def with_mask(self, classification: ClassifiedNode, mask: str) -> ClassifiedNode:
        """Return a classification of a node whose mask is kept (Rule S4.35)."""
        key = classification, mask
        if key not in self._with_mask:
            self._with_mask[key] = replace(classification, fact=replace(classification.fact, mask=mask))
        return self._with_mask[key]

    def _intern(self, graph: int, node: Node, fact: Classification) -> ClassifiedNode:
        return self._interned.setdefault((node, fact), ClassifiedNode(graph, node, fact))

    def _classify(self, graph: Graph, facts: Classifier) -> list[ClassifiedNode]:
        ruled = self.rules.match(graph)
        return [
            self._intern(id(graph), node, ruled.get(node.id) or facts.classify(graph, node)) for node in graph.nodes
        ]

    def _by_list(self, operator: Operator, policy: Policy, facts: Classifier) -> Changes:
        """Return the changed classifications of an operator's nodes, which depend on the moves of its names alone."""
        key = operator, *(policy.lists.moves.get(name) for name in _names(operator))
        if key not in self._changes_by_list:
            changes = self._changes_by_list[key] = {}
            for before in self._nodes[operator]:
                node = before.node
                after = self._intern(before.graph, node, facts.classify(self.graphs[before.graph], node))
                if after is not before and before.fact.kind != "rule":
                    changes[node] = after
        return self._changes_by_list[key]

    def _by_rule(self, rule: NodeRule) -> Changes:
        """Return the classifications of the nodes that a rule decides; it comes before the rules of the base."""
        if rule not in self._changes_by_rule:
            alone = NodeRules(replace(self.base, rules=(rule,)))
            self._changes_by_rule[rule] = {
                node: ClassifiedNode(key, node, fact, alone.assignment(graph, node))
                for key, graph in self.graphs.items()
                for node, fact in ((graph.nodes[at], fact) for at, fact in alone.match(graph).items())
            }
        return self._changes_by_rule[rule]


@dataclass(frozen=True, eq=False)
class _Outcome:
    """A solver that has decided its graph, and the changes in the graph and in the functions that it reaches."""

    solver: GraphSolver
    changes: frozenset[ClassifiedNode]


class _IncrementalResolution(ModelSolver):
    """The resolution under one policy, which starts from the outcomes under earlier policies."""

    def __init__(self, incremental: IncrementalSolver, policy: Policy) -> None:
        facts = Classifier(policy)
        self.incremental, self.changes = incremental, incremental.changes(policy, facts)
        super().__init__(facts, _ChangedRules(incremental.rules, self.changes, policy), incremental.ranges)
        self.needs_fresh_start = policy.gray_policy == "between" or facts.cast_is_black != incremental.cast_is_black

    def specialize(self, graph: Graph, call: CallArguments) -> GraphSolution:
        return self.settle_masks(graph, call)

    def fact(self, graph: Graph, node: Node) -> Classification:
        return self._classification(graph, node).fact

    def decide(self, graph: Graph, call: CallArguments, masks: Masks) -> GraphSolution:
        incremental = self.incremental
        # A repetition, with more masks kept, starts from an earlier repetition, so that few nodes differ.
        key = (id(graph), call.key, masks.is_repeated)
        reach = incremental.reach[id(graph)]
        changed = {node: each for node, each in self.changes.items() if each.graph in reach}
        for node, mask in mask_notes(masks.kept):
            changed[node] = incremental.with_mask(self._classification(graph, node), mask)
        changes = frozenset(changed.values())
        start: _Outcome | None = None  # the most similar outcome
        differences = frozenset[ClassifiedNode]()
        for outcome in incremental.outcomes.get(key, ()):
            if not self.admits(call.frame, outcome.solver.solution):
                continue
            others = outcome.changes ^ changes
            if start is None or len(others) < len(differences):
                start, differences = outcome, others
        if start is not None and not differences:
            return start.solver.solution
        if start is None or start.solver.start is None or self.needs_fresh_start:
            solver, start, decided_again = GraphSolver(self, graph), None, frozenset[Node]()
            solver.run(call, masks)
        else:
            solver = _copy(start.solver, self, masks)
            solver.state.frame = call.frame
            decided_again = self._update(solver, differences, changed)
        incremental.remember(key, _Outcome(solver, changes), start, decided_again)
        return solver.solution

    def _classification(self, graph: Graph, node: Node) -> ClassifiedNode:
        """Return a node's classification under the policy, without its masks."""
        return self.changes.get(node) or self.incremental.classified[id(graph)][node.id]

    def _update(self, solver: GraphSolver, differences: frozenset[ClassifiedNode], current: Changes) -> frozenset[Node]:
        """Apply the differences to a copy of an earlier outcome; return the nodes that may have other types.

        ``current`` are the changes, masks included, to bring about.
        """
        graph, incremental = solver.graph, self.incremental
        base = incremental.classified[id(graph)]
        changed = {each.node for each in differences if each.graph == id(graph)}
        for node in changed:
            solver.solution.classifications[node.id] = current.get(node, base[node.id]).fact
        keep_positions(solver.solution, changed)
        below = {each.graph for each in differences if each.graph != id(graph)}
        calls = [n for n in graph.nodes if n.function is not None and below & incremental.reach[id(n.function)]]
        return incremental.rerun(graph, solver.schedule).run(solver, changed, calls)


class _ChangedRules(NodeRules):
    """The rules of a policy of which most are matched already: the changes, and the rules of the base."""

    def __init__(self, base: NodeRules, changes: Changes, policy: Policy) -> None:
        self._base, self._changes, self._policy_of_all = base, changes, policy

    @cached_property
    def _all(self) -> NodeRules:
        return NodeRules(self._policy_of_all)

    def match(self, graph: Graph) -> dict[int, Classification]:
        return self._all.match(graph)

    def assignment(self, graph: Graph, node: Node) -> Assignment:
        change = self._changes.get(node)
        if change is not None and change.assignment is not None:
            return change.assignment
        return self._base.assignment(graph, node)

    def rule_of(self, graph: Graph, node: Node) -> NodeRule:
        return self._all.rule_of(graph, node)


class _Rerun:
    """The steps of a graph, the values that each writes, and the steps that read each value."""

    def __init__(self, schedule: Schedule) -> None:
        self.steps = steps = schedule.steps
        self.first_repeated = len(steps) if schedule.first_repeated is None else schedule.first_repeated
        self.plain_nodes = [step if isinstance(step, Node) and step.function is None else None for step in steps]
        self.places = {step: place for place, step in reversed([*enumerate(steps)])}  # links come twice
        self.writes = [written_by(step) for step in steps]
        self.readers: dict[int, list[int]] = {}
        for place, step in enumerate(steps):
            for value in read_by(step):
                self.readers.setdefault(value.id, []).append(place)

    def run(self, solver: GraphSolver, changed: set[Node], calls: Iterable[Node]) -> frozenset[Node]:
        """Run the steps of ``changed`` nodes and ``calls``, and of all nodes that follow a changed value.

        Return these nodes, and those that read a changed value but whose decision does not depend on it.
        """
        decided, high, facts = (
            solver.solution.decided_types,
            solver.solution.high_by_black,
            solver.solution.classifications,
        )
        waiting = [self.places[node] for node in {*changed, *calls}]
        queued = set(waiting)
        heapify(waiting)
        ran: set[Node] = set()
        while waiting:
            place = heappop(waiting)
            if place >= self.first_repeated:
                return frozenset(ran | self._run_all_repeated(solver))
            step, written = self.steps[place], self.writes[place]
            before = [(decided[value.id], value.id in high) for value in written]
            _forget(solver, step, written)
            if isinstance(step, Node):
                ran.add(step)
            solver.step(step)
            if step not in changed and before == [(decided[value.id], value.id in high) for value in written]:
                continue
            for reader in (reader for value in written for reader in self.readers.get(value.id, ())):
                if reader in queued:
                    continue
                queued.add(reader)
                node = self.plain_nodes[reader]
                if node is not None and facts[node.id].kind != "gray":
                    ran.add(node)
                else:
                    heappush(waiting, reader)
        return frozenset(ran)

    def _run_all_repeated(self, solver: GraphSolver) -> set[Node]:
        """Decide everything from the first loop on anew; return its nodes."""
        steps = self.steps[self.first_repeated :]
        for step, written in zip(steps, self.writes[self.first_repeated :], strict=True):
            _forget(solver, step, written)
        solver.to_fixpoint(steps, final=True)
        return {step for step in steps if isinstance(step, Node)}


def _forget(solver: GraphSolver, step: Step, written: list[Value]) -> None:
    """Remove the outcome of a step: the types of its values, the notes about its node, the answers it asked for."""
    start, solution = solver.start, solver.solution
    assert start is not None
    for value in written:
        solution.decided_types[value.id] = start.decided_types[value.id]
        solution.high_by_black.discard(value.id)
        solution.high_by_black.update({value.id} & start.high_by_black)
    if isinstance(step, Node):
        solution.assignments[step.id] = solution.followed_values[step.id] = None
        solution.reason_notes.pop(step.id, None)
        solution.rule_overrides.pop(step.id, None)
        solution.tried_callees.pop(step, None)
    solution.constant_fits.pop(step, None)


def _copy(before: GraphSolver, shared: ModelSolver, masks: Masks) -> GraphSolver:
    """Return a solver with the outcome of another; parameters have the types of their arguments again."""
    assert before.start is not None
    old = before.solution
    solution = replace(
        old,
        classifications=old.classifications.copy(),
        decided_types=old.decided_types.copy(),
        assignments=old.assignments.copy(),
        followed_values=old.followed_values.copy(),
        reason_notes=old.reason_notes.copy(),
        rule_overrides=old.rule_overrides.copy(),
        callees=old.callees.copy(),
        constant_fits=old.constant_fits.copy(),
        tried_callees=old.tried_callees.copy(),
        high_by_black=old.high_by_black.copy(),
        kept_masks=masks.kept,
        reduced_slots=masks.reduced,
    )
    for value in old.graph.root.inputs:
        solution.decided_types[value.id] = before.start.decided_types[value.id]
    solver = GraphSolver(shared, old.graph, solution)
    solver.start, solver.schedule = before.start, before.schedule
    return solver


@cache
def _names(operator: Operator) -> tuple[str, ...]:
    """Return every name that a list of either name space may have for an operator."""
    return *onnx_names(*operator), *ascend_names(*operator)
