"""Decide a model under many policies that differ little: decide again only the nodes that a difference reaches.

A search asks for the decisions under hundreds of policies, each similar to an earlier one. The decision for a node
depends on the node's classification and on the types that it reads. So a GraphSolution is computed from an earlier one:
the steps whose classification differs run again, and then those that read a changed value, in the order of the graph.

Example: in ``a -> MatMul -> b -> Relu -> c -> MatMul -> d``, the first MatMul becomes black. Its step runs again and
changes the type of ``b``, so the step of the gray Relu runs again, too. The second MatMul is white: its list decides
it, whatever ``c`` is, so the change ends there.

From the first Loop or Scan on, decisions feed back: if one step from there on has to run again, all of them do. Under
``between``, which looks at the graph as a whole, everything is decided anew.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from functools import cache, cached_property
from heapq import heapify, heappop, heappush
from weakref import WeakKeyDictionary, WeakSet, ref

from mixlist.decide.classification import Classification, Classifier
from mixlist.decide.constant_ranges import ConstantRanges
from mixlist.decide.control_flow_types import settle_body_constants
from mixlist.decide.decisions import GraphSolution, keep_positions_and_guards
from mixlist.decide.node_rules import NodeRules
from mixlist.decide.plan_masks import MaskTreatment, find_mask_notes
from mixlist.decide.quantized_units import add_unit_nodes, keep_quantized_units
from mixlist.decide.solver import (
    DecisionStep,
    GraphSolver,
    ModelSolver,
    Schedule,
    find_read_values,
    find_written_values,
)
from mixlist.lists.policy import NodeRule, Policy
from mixlist.model.graph import Graph, Node, Value
from mixlist.model.operator_names import ascend_names, onnx_names
from mixlist.model.signature import Assignment

# The solver keeps at most this many outcomes, and as many of graphs that are decided again with more masks kept. A new
# outcome starts from one of them. A search splits a set of edits into halves again and again, so one of the last few
# outcomes is similar.
MAX_OUTCOMES = 8


@dataclass(frozen=True, eq=False)
class ClassifiedNode:
    """A policy's classification of a node; under a node rule also the node's types.

    Equal classifications of a node are one object, so that sets of them are compared by identity: a search compares
    such sets for every candidate.
    """

    node: Node
    classification: Classification
    assignment: Assignment | None = None


Operator = tuple[str, str]  # domain and op type
Changes = dict[Node, ClassifiedNode]  # the nodes whose classification differs from that under the base policy


class IncrementalSolver:
    """Decides one model under policies that differ from ``base`` in lists and in further rules for single nodes."""

    def __init__(self, graph: Graph, base: Policy, constant_ranges: ConstantRanges) -> None:
        self.graph, self.base, self.constant_ranges = graph, base, constant_ranges
        self.base_rules = NodeRules(base, graph)
        # The last outcomes, by whether the graph was decided before with fewer kept masks.
        self.outcomes: dict[bool, deque[_Outcome]] = {}
        self._propagator: _ChangePropagator | None = None
        self._interned: dict[tuple[Node, Classification], ClassifiedNode] = {}
        self._with_mask_note: dict[tuple[ClassifiedNode, str], ClassifiedNode] = {}
        classifier = Classifier(base)
        self.cast_is_black = classifier.cast_is_black
        by_rule = self.base_rules.match()
        self.base_nodes = [  # by node id
            self._intern(node, by_rule.get(node.id) or classifier.classify(graph, node)) for node in graph.nodes
        ]
        self._nodes_of_operator: dict[Operator, list[ClassifiedNode]] = {}
        for classified in self.base_nodes:
            operator = classified.node.domain, classified.node.op_type
            self._nodes_of_operator.setdefault(operator, []).append(classified)
        self._operators_by_name: dict[str, list[Operator]] = {}  # by every name that a list may have for them
        for operator in self._nodes_of_operator:
            for name in _list_names(operator):
                self._operators_by_name.setdefault(name, []).append(operator)
        # Neighboring policies of a search share most moves and rules, so the changes of each one are computed once.
        self._changes_by_moves: dict[object, Changes] = {}  # by operator and the moves of its names
        self._changes_by_rule: dict[NodeRule, Changes] = {}
        # By solution: the solution that it was computed from, and the nodes that were decided again.
        self._origins: WeakKeyDictionary[GraphSolution, tuple[ref[GraphSolution], frozenset[Node]]]
        self._origins = WeakKeyDictionary()
        # settle_body_constants() changes a solution in place, and must do so only once for each solution.
        self._settled_solutions: WeakSet[GraphSolution] = WeakSet()

    def solve(self, policy: Policy) -> GraphSolution:
        """Return the solution that ``resolve`` would compute under a policy.

        Do not use it for reports: a node under a rule shows the list of the base. The solution may be one that an
        earlier call returned.
        """
        model_solver = _IncrementalModelSolver(self, policy)
        solution = model_solver.solve()
        if solution not in self._settled_solutions:
            settle_body_constants(solution, model_solver.fits_low_type)
            self._settled_solutions.add(solution)
        return solution

    def find_origin(self, solution: GraphSolution) -> tuple[GraphSolution, frozenset[Node]] | None:
        """Return the solution that this one was computed from and the nodes decided again; None if all of them were."""
        if solution not in self._origins:
            return None
        origin_ref, nodes = self._origins[solution]
        origin = origin_ref()
        return (origin, nodes) if origin is not None else None

    def find_changes(self, policy: Policy, classifier: Classifier) -> Changes:
        """Return the classifications in which ``policy`` differs from ``base``."""
        changes: Changes = {}
        # A list change moves names. Only the operators that have such a name in the model can change their list.
        moved = [op for op, move in policy.lists.moves.items() if self.base.lists.moves.get(op) != move]
        for operator in {operator for op in moved for operator in self._operators_by_name.get(op, ())}:
            changes.update(self._changes_of_operator(operator, policy, classifier))
        # The policy's own rules come before those of the base, and a node rule wins over a list. Of several rules that
        # name a node the first one decides (Rule S6.3), so it is applied last.
        for rule in reversed(policy.rules[: len(policy.rules) - len(self.base.rules)]):
            changes.update(self._changes_of_rule(rule))
        return changes

    def remember(
        self, is_repeated: bool, outcome: _Outcome, origin: _Outcome | None, decided_again: frozenset[Node]
    ) -> None:
        """Keep an outcome for later policies; ``origin`` is the outcome that it was computed from."""
        self.outcomes.setdefault(is_repeated, deque(maxlen=MAX_OUTCOMES)).append(outcome)
        if origin is not None:
            self._origins[outcome.solver.solution] = ref(origin.solver.solution), decided_again

    def propagator(self, schedule: Schedule) -> _ChangePropagator:
        """Return the propagator of the graph's steps, which is made once."""
        if self._propagator is None:
            self._propagator = _ChangePropagator(schedule)
        return self._propagator

    def with_mask_note(self, classified: ClassifiedNode, mask_note: str) -> ClassifiedNode:
        """Return the classification of a node with ``mask_note``, because its mask is kept (Rule S4.35)."""
        key = classified, mask_note
        if key not in self._with_mask_note:
            classification = replace(classified.classification, mask_note=mask_note)
            self._with_mask_note[key] = replace(classified, classification=classification)
        return self._with_mask_note[key]

    def _intern(self, node: Node, classification: Classification) -> ClassifiedNode:
        """Return the one object for this classification of a node."""
        return self._interned.setdefault((node, classification), ClassifiedNode(node, classification))

    def _changes_of_operator(self, operator: Operator, policy: Policy, classifier: Classifier) -> Changes:
        """Return the changed classifications of an operator's nodes.

        They depend only on the policy's moves of the operator's names. A *move* puts a name on another list.
        """
        key = operator, *(policy.lists.moves.get(name) for name in _list_names(operator))
        if key not in self._changes_by_moves:
            changes = self._changes_by_moves[key] = {}
            for before in self._nodes_of_operator[operator]:
                after = self._intern(before.node, classifier.classify(self.graph, before.node))
                # A node rule of the base wins over the list.
                if after is not before and before.classification.kind != "rule":
                    changes[before.node] = after
        return self._changes_by_moves[key]

    def _changes_of_rule(self, rule: NodeRule) -> Changes:
        """Return the classifications of the nodes that a rule names; the rule comes before the rules of the base."""
        if rule not in self._changes_by_rule:
            rule_alone = NodeRules(replace(self.base, rules=(rule,)), self.graph)
            changes = self._changes_by_rule[rule] = {}
            for node_id, classification in rule_alone.match().items():
                node = self.graph.nodes[node_id]
                changes[node] = ClassifiedNode(node, classification, rule_alone.find_assignment(node))
        return self._changes_by_rule[rule]


@dataclass(frozen=True, eq=False)
class _Outcome:
    """A solver that has decided the graph, and the changes from the base under which it did."""

    solver: GraphSolver
    changes: frozenset[ClassifiedNode]


class _IncrementalModelSolver(ModelSolver):
    """Decides a model under one policy, starting from the outcomes under earlier policies."""

    def __init__(self, incremental: IncrementalSolver, policy: Policy) -> None:
        classifier = Classifier(policy)
        self.incremental, self.changes = incremental, incremental.find_changes(policy, classifier)
        rules = _IncrementalNodeRules(incremental.base_rules, self.changes, policy)
        super().__init__(incremental.graph, classifier, rules, incremental.constant_ranges)
        # Rule S4.17: a black Cast changes what every reader of a Cast follows.
        self.needs_full_solve = policy.gray_policy == "between" or classifier.cast_is_black != incremental.cast_is_black

    def classify(self, node: Node) -> Classification:
        return self._classified(node).classification

    def solve_once(self, treatment: MaskTreatment) -> GraphSolution:
        # Phase 1: collect the changes, with the masks that are kept.
        incremental = self.incremental
        changed = dict(self.changes)
        for node, mask_note in find_mask_notes(treatment.kept_groups):
            # A kept mask is a change like a list: the nodes of its group are decided again.
            changed[node] = incremental.with_mask_note(self._classified(node), mask_note)
        changes = frozenset(changed.values())
        # Phase 2: find the most similar outcome. A repetition, with more masks kept, starts from an earlier repetition,
        # so that few nodes differ. Changes are interned objects, so this compares identities: equal changes cancel out.
        outcomes = incremental.outcomes.get(treatment.is_repeated, ())
        origin = min(outcomes, key=lambda outcome: len(outcome.changes ^ changes), default=None)
        differences = origin.changes ^ changes if origin is not None else frozenset()
        # The same changes under another policy: the earlier solution is the answer.
        if origin is not None and not differences:
            return origin.solver.solution
        # Phase 3: decide the nodes that differ again, or all nodes.
        if origin is None or self.needs_full_solve:
            solver, origin, decided_again = GraphSolver(self), None, frozenset[Node]()
            solver.run(treatment)
        else:
            solver = _copy_solver(origin.solver, self, treatment)
            decided_again = self._update(solver, differences, changed)
        incremental.remember(treatment.is_repeated, _Outcome(solver, changes), origin, decided_again)
        return solver.solution

    def _classified(self, node: Node) -> ClassifiedNode:
        """Return a node's classification under the policy, without its masks."""
        return self.changes.get(node) or self.incremental.base_nodes[node.id]

    def _update(self, solver: GraphSolver, differences: frozenset[ClassifiedNode], current: Changes) -> frozenset[Node]:
        """Apply the differences to a copy of an earlier outcome; return the nodes that may have other types.

        ``current`` has the changes of the new policy, with kept masks. A node that differs and is not in ``current``
        goes back to its classification under the base.
        """
        base_nodes = self.incremental.base_nodes
        changed = {difference.node for difference in differences}
        for node in changed:
            solver.solution.classifications[node.id] = current.get(node, base_nodes[node.id]).classification
        # A new classification lacks the protections, so apply them again. A node rule also moves the rest of its unit.
        changed = add_unit_nodes(self.graph, changed, solver.state.policy)
        keep_quantized_units(solver.state, changed)
        keep_positions_and_guards(solver.solution, changed)
        return self.incremental.propagator(solver.schedule).run_again(solver, changed)


class _IncrementalNodeRules(NodeRules):
    """The node rules of a policy: those of the base, which are matched already, and the changes.

    ``match`` and ``find_rule`` are needed only when a graph is decided anew or an error is reported.
    """

    def __init__(self, base_rules: NodeRules, changes: Changes, policy: Policy) -> None:
        self._base_rules, self._changes, self._changed_policy = base_rules, changes, policy

    @cached_property
    def _all_rules(self) -> NodeRules:
        return NodeRules(self._changed_policy, self._base_rules.graph)

    def match(self) -> dict[int, Classification]:
        return self._all_rules.match()

    def find_assignment(self, node: Node) -> Assignment:
        change = self._changes.get(node)
        if change is not None and change.assignment is not None:
            return change.assignment
        return self._base_rules.find_assignment(node)

    def find_rule(self, node: Node) -> NodeRule:
        return self._all_rules.find_rule(node)


def _copy_solver(before: GraphSolver, model_solver: ModelSolver, treatment: MaskTreatment) -> GraphSolver:
    """Return a solver with a copy of the outcome of ``before``."""
    old = before.solution
    solution = replace(
        old,
        classifications=old.classifications.copy(),
        decided_types=old.decided_types.copy(),
        assignments=old.assignments.copy(),
        followed_values=old.followed_values.copy(),
        reason_notes=old.reason_notes.copy(),
        rule_overrides=old.rule_overrides.copy(),
        kept_masks=treatment.kept_groups,
        reduced_slots=treatment.reduced_slots,
    )
    solver = GraphSolver(model_solver, solution)
    solver.start_types, solver.schedule = before.start_types, before.schedule
    return solver


@cache
def _list_names(operator: Operator) -> tuple[str, ...]:
    """Return every name that a list of either name space may have for an operator."""
    return *onnx_names(*operator), *ascend_names(*operator)


# --- run again the steps that a change reaches ---


class _ChangePropagator:
    """Runs again the steps that a change reaches, found by the values that each step writes and reads."""

    def __init__(self, schedule: Schedule) -> None:
        self.steps = steps = schedule.steps
        self.first_repeated = len(steps) if schedule.first_repeated is None else schedule.first_repeated
        self.node_of_step = [step if isinstance(step, Node) else None for step in steps]  # None for links
        # Links of loops come twice in the schedule; reversed, so that the first position wins.
        self.position_of = {step: position for position, step in reversed([*enumerate(steps)])}
        # These lists and the readers do not depend on a policy, so they serve all policies of a search.
        self.written_values = [find_written_values(step) for step in steps]
        self.readers: dict[int, list[int]] = {}  # positions of steps, by the id of a value
        for position, step in enumerate(steps):
            for value in find_read_values(step):
                self.readers.setdefault(value.id, []).append(position)

    def run_again(self, solver: GraphSolver, changed: set[Node]) -> frozenset[Node]:
        """Run the steps of ``changed`` nodes, and of all nodes that follow a changed value.

        Return these nodes, and those that read a changed value but whose decision does not depend on it.
        """
        solution = solver.solution
        decided_types = solution.decided_types
        # A heap of positions: each step runs after all steps that it reads from, so it runs once.
        waiting = [self.position_of[node] for node in changed]
        queued = set(waiting)
        heapify(waiting)
        affected: set[Node] = set()
        while waiting:
            position = heappop(waiting)
            # Steps in and behind a loop depend on each other: they cannot run one by one.
            if position >= self.first_repeated:
                return frozenset(affected | self._run_all_repeated(solver))
            step, written = self.steps[position], self.written_values[position]
            before = [decided_types[value.id] for value in written]
            # A type can only rise, so a step that runs again must start from the types before its first run.
            _undo_step(solver, step, written)
            if isinstance(step, Node):
                affected.add(step)
            solver.run_step(step)
            if before == [decided_types[value.id] for value in written]:
                continue
            for reader in (reader for value in written for reader in self.readers.get(value.id, ())):
                if reader in queued:
                    continue
                queued.add(reader)
                node = self.node_of_step[reader]
                if node is not None and solution.classifications[node.id].kind != "gray":
                    affected.add(node)  # its list decides it, whatever it reads
                else:
                    heappush(waiting, reader)
        return frozenset(affected)

    def _run_all_repeated(self, solver: GraphSolver) -> set[Node]:
        """Decide all steps from the first loop on anew; return the nodes among these steps."""
        steps = self.steps[self.first_repeated :]
        for step, written in zip(steps, self.written_values[self.first_repeated :], strict=True):
            _undo_step(solver, step, written)
        solver.run_to_fixpoint(steps)
        return {step for step in steps if isinstance(step, Node)}


def _undo_step(solver: GraphSolver, step: DecisionStep, written: list[Value]) -> None:
    """Undo a step: forget the types of its values, and the notes about its node."""
    solution = solver.solution
    for value in written:
        solution.decided_types[value.id] = solver.start_types[value.id]
    if isinstance(step, Node):
        solution.assignments[step.id] = solution.followed_values[step.id] = None
        solution.reason_notes.pop(step.id, None)
        solution.rule_overrides.pop(step.id, None)
