"""Decide a model under many policies that differ little: decide again only the nodes that a difference reaches.

A search asks for the decisions under hundreds of policies, each similar to an earlier one. The decision for a node
depends on the node's classification and on the types that it reads. So a GraphSolution is computed from an earlier one:
the steps whose classification differs run again, and then those that read a changed value, in the order of the graph.
Decisions feed back from the first loop on: if one of the steps from there on has to run again, all of them do. With
sequences, and under ``between``, which looks at the graph as a whole, everything is decided anew.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from functools import cache, cached_property
from weakref import WeakKeyDictionary, WeakSet, ref

from mixlist.graph.model import Graph, Node
from mixlist.graph.traversal import reachable_graphs
from mixlist.lists.policy import NodeRule, Policy
from mixlist.ops.names import ascend_names, onnx_names
from mixlist.ops.signature import Assignment
from mixlist.patterns.constant_ranges import ConstantRanges
from mixlist.resolver.change_propagation import ChangePropagator
from mixlist.resolver.classification import Classification, Classifier
from mixlist.resolver.decisions import GraphSolution
from mixlist.resolver.function_calls import settle_constant_arguments
from mixlist.resolver.mask_protection import MaskTreatment, find_mask_notes
from mixlist.resolver.node_rules import NodeRules
from mixlist.resolver.position_protection import keep_positions
from mixlist.resolver.quantized_protection import add_unit_nodes, keep_quantized_units
from mixlist.resolver.schedule import Schedule
from mixlist.resolver.solver import GraphSolver, ModelSolver
from mixlist.resolver.solver_state import CallContext

# The solver keeps at most this many outcomes for each graph and kind of call. A new outcome starts from one of them. A
# search splits a set of edits into halves again and again, so one of the last few outcomes is similar.
MAX_OUTCOMES = 8


@dataclass(frozen=True, eq=False)
class ClassifiedNode:
    """A policy's classification of a node; under a node rule also the node's types.

    ``graph_id`` is the id() of the node's graph. Equal classifications of a node are one object, so that sets of them
    are compared by identity: a search compares such sets for every candidate.
    """

    graph_id: int
    node: Node
    classification: Classification
    assignment: Assignment | None = None


Operator = tuple[str, str]  # domain and op type
Changes = dict[Node, ClassifiedNode]  # the nodes whose classification differs from that under the base policy


class IncrementalSolver:
    """Decides one model under policies that differ from ``base`` in lists and in further rules for single nodes."""

    def __init__(self, graph: Graph, base: Policy, constant_ranges: ConstantRanges) -> None:
        self.graph, self.base, self.constant_ranges = graph, base, constant_ranges
        self.base_rules = NodeRules(base)
        self.outcomes: dict[object, deque[_Outcome]] = {}  # the last ones, by graph, call and mask repetition
        # Graphs are keyed by id(): Graph compares by identity, and an int hashes faster.
        self.graphs = {id(reachable): reachable for reachable in reachable_graphs(graph)}
        self.reachable_ids = {key: frozenset(map(id, reachable_graphs(g))) for key, g in self.graphs.items()}
        self._propagators: dict[int, ChangePropagator] = {}
        self._interned: dict[tuple[Node, Classification], ClassifiedNode] = {}
        self._with_mask_note: dict[tuple[ClassifiedNode, str], ClassifiedNode] = {}
        classifier = Classifier(base)
        self.cast_is_black = classifier.cast_is_black
        self.base_nodes = {key: self._classify_graph(g, classifier) for key, g in self.graphs.items()}
        self._nodes_of_operator: dict[Operator, list[ClassifiedNode]] = {}
        for classified_nodes in self.base_nodes.values():
            for classified in classified_nodes:
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
        # settle_constant_arguments() changes a solution in place, and must do so only once for a shared one.
        self._settled_solutions: WeakSet[GraphSolution] = WeakSet()

    def solve(self, policy: Policy) -> GraphSolution:
        """Return the solution of the main graph that ``resolve`` would compute under a policy.

        Do not use it for reports: specializations have no numbers, and a node under a rule shows the list of the base.
        The solution may be one that an earlier call returned, or share the solutions of functions with it.
        """
        model_solver = _IncrementalModelSolver(self, policy)
        solution = model_solver.solve(self.graph)
        settle_constant_arguments(solution, model_solver.fits_low_type, self._settled_solutions)
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

    def remember(self, key: object, outcome: _Outcome, origin: _Outcome | None, decided_again: frozenset[Node]) -> None:
        """Keep an outcome for later policies; ``origin`` is the outcome that it was computed from."""
        self.outcomes.setdefault(key, deque(maxlen=MAX_OUTCOMES)).append(outcome)
        if origin is not None:
            self._origins[outcome.solver.solution] = ref(origin.solver.solution), decided_again

    def propagator_of(self, graph: Graph, schedule: Schedule) -> ChangePropagator:
        """Return the propagator of a graph's steps, which is made once."""
        if id(graph) not in self._propagators:
            self._propagators[id(graph)] = ChangePropagator(schedule)
        return self._propagators[id(graph)]

    def with_mask_note(self, classified: ClassifiedNode, mask_note: str) -> ClassifiedNode:
        """Return the classification of a node with ``mask_note``, because its mask is kept (Rule S4.35)."""
        key = classified, mask_note
        if key not in self._with_mask_note:
            classification = replace(classified.classification, mask_note=mask_note)
            self._with_mask_note[key] = replace(classified, classification=classification)
        return self._with_mask_note[key]

    def _intern(self, graph_id: int, node: Node, classification: Classification) -> ClassifiedNode:
        """Return the one object for this classification of a node."""
        return self._interned.setdefault((node, classification), ClassifiedNode(graph_id, node, classification))

    def _classify_graph(self, graph: Graph, classifier: Classifier) -> list[ClassifiedNode]:
        """Return the classifications of a graph's nodes under the base, by node id."""
        by_rule = self.base_rules.match(graph)
        return [
            self._intern(id(graph), node, by_rule.get(node.id) or classifier.classify(graph, node))
            for node in graph.nodes
        ]

    def _changes_of_operator(self, operator: Operator, policy: Policy, classifier: Classifier) -> Changes:
        """Return the changed classifications of an operator's nodes.

        They depend only on the policy's moves of the operator's names. A *move* puts a name on another list.
        """
        key = operator, *(policy.lists.moves.get(name) for name in _list_names(operator))
        if key not in self._changes_by_moves:
            changes = self._changes_by_moves[key] = {}
            for before in self._nodes_of_operator[operator]:
                node, graph = before.node, self.graphs[before.graph_id]
                after = self._intern(before.graph_id, node, classifier.classify(graph, node))
                # A node rule of the base wins over the list.
                if after is not before and before.classification.kind != "rule":
                    changes[node] = after
        return self._changes_by_moves[key]

    def _changes_of_rule(self, rule: NodeRule) -> Changes:
        """Return the classifications of the nodes that a rule names; the rule comes before the rules of the base."""
        if rule not in self._changes_by_rule:
            rule_alone = NodeRules(replace(self.base, rules=(rule,)))
            changes = self._changes_by_rule[rule] = {}
            for key, graph in self.graphs.items():
                for node_id, classification in rule_alone.match(graph).items():
                    node = graph.nodes[node_id]
                    changes[node] = ClassifiedNode(key, node, classification, rule_alone.find_assignment(graph, node))
        return self._changes_by_rule[rule]


@dataclass(frozen=True, eq=False)
class _Outcome:
    """A solver that has decided its graph, and the changes in the graph and in the functions that it reaches."""

    solver: GraphSolver
    changes: frozenset[ClassifiedNode]


class _IncrementalModelSolver(ModelSolver):
    """Decides a model under one policy, starting from the outcomes under earlier policies."""

    def __init__(self, incremental: IncrementalSolver, policy: Policy) -> None:
        classifier = Classifier(policy)
        self.incremental, self.changes = incremental, incremental.find_changes(policy, classifier)
        rules = _IncrementalNodeRules(incremental.base_rules, self.changes, policy)
        super().__init__(classifier, rules, incremental.constant_ranges)
        # Rule S4.17: a black Cast changes what every reader of a Cast follows.
        self.needs_full_solve = policy.gray_policy == "between" or classifier.cast_is_black != incremental.cast_is_black

    def specialize(self, graph: Graph, call: CallContext) -> GraphSolution:
        return self.solve_with_masks(graph, call)  # `solve_graph` finds the solutions that calls can share

    def classify(self, graph: Graph, node: Node) -> Classification:
        return self._classified(graph, node).classification

    def solve_graph(self, graph: Graph, call: CallContext, treatment: MaskTreatment) -> GraphSolution:
        # Phase 1: collect the changes in this graph and in the functions below it, with the masks that are kept.
        incremental = self.incremental
        # A repetition, with more masks kept, starts from an earlier repetition, so that few nodes differ.
        key = (id(graph), call.key, treatment.is_repeated)
        reachable_ids = incremental.reachable_ids[id(graph)]
        changed = {node: change for node, change in self.changes.items() if change.graph_id in reachable_ids}
        for node, mask_note in find_mask_notes(treatment.kept_groups):
            # A kept mask is a change like a list: the nodes of its group are decided again.
            changed[node] = incremental.with_mask_note(self._classified(graph, node), mask_note)
        changes = frozenset(changed.values())
        # Phase 2: find the most similar outcome that this call can start from.
        origin: _Outcome | None = None
        differences = frozenset[ClassifiedNode]()
        for outcome in incremental.outcomes.get(key, ()):
            # The solution depends on constants of its call, which may fit there and not here.
            if not self.can_share(outcome.solver.solution, call.call_frame):
                continue
            # Changes are interned objects, so this compares identities: equal changes cancel out.
            outcome_differences = outcome.changes ^ changes
            if origin is None or len(outcome_differences) < len(differences):
                origin, differences = outcome, outcome_differences
        # The same changes under another policy: the earlier solution is the answer.
        if origin is not None and not differences:
            return origin.solver.solution
        # Phase 3: decide the nodes that differ again, or all nodes. Without a start state the earlier solver ran its
        # steps to a fixpoint, so single steps of it cannot run again.
        if origin is None or origin.solver.start_types is None or self.needs_full_solve:
            solver, origin, decided_again = GraphSolver(self, graph), None, frozenset[Node]()
            solver.run(call, treatment)
        else:
            solver = _copy_solver(origin.solver, self, treatment)
            # The earlier outcome may be that of another call with the same key, which can_share() allows.
            solver.state.call_frame = call.call_frame
            decided_again = self._update(solver, differences, changed)
        incremental.remember(key, _Outcome(solver, changes), origin, decided_again)
        return solver.solution

    def _classified(self, graph: Graph, node: Node) -> ClassifiedNode:
        """Return a node's classification under the policy, without its masks."""
        return self.changes.get(node) or self.incremental.base_nodes[id(graph)][node.id]

    def _update(self, solver: GraphSolver, differences: frozenset[ClassifiedNode], current: Changes) -> frozenset[Node]:
        """Apply the differences to a copy of an earlier outcome; return the nodes that may have other types.

        ``current`` has the changes of the new policy, with kept masks. A node that differs and is not in ``current``
        goes back to its classification under the base.
        """
        graph, incremental = solver.graph, self.incremental
        base_nodes = incremental.base_nodes[id(graph)]
        changed = {difference.node for difference in differences if difference.graph_id == id(graph)}
        for node in changed:
            solver.solution.classifications[node.id] = current.get(node, base_nodes[node.id]).classification
        # A new classification lacks the protections, so apply them again. A node rule also moves the rest of its unit.
        changed = add_unit_nodes(graph, changed, solver.state.policy)
        keep_quantized_units(solver.state, changed)
        keep_positions(solver.solution, changed)
        # A call runs again if something changed in the function, or in the functions that the function calls.
        changed_ids = {difference.graph_id for difference in differences if difference.graph_id != id(graph)}
        calls = [
            node
            for node in graph.nodes
            if node.function is not None and changed_ids & incremental.reachable_ids[id(node.function)]
        ]
        return incremental.propagator_of(graph, solver.schedule).run_again(solver, changed, calls)


class _IncrementalNodeRules(NodeRules):
    """The node rules of a policy: those of the base, which are matched already, and the changes.

    ``match`` and ``find_rule`` are needed only when a graph is decided anew or an error is reported.
    """

    def __init__(self, base_rules: NodeRules, changes: Changes, policy: Policy) -> None:
        self._base_rules, self._changes, self._changed_policy = base_rules, changes, policy

    @cached_property
    def _all_rules(self) -> NodeRules:
        return NodeRules(self._changed_policy)

    def match(self, graph: Graph) -> dict[int, Classification]:
        return self._all_rules.match(graph)

    def find_assignment(self, graph: Graph, node: Node) -> Assignment:
        change = self._changes.get(node)
        if change is not None and change.assignment is not None:
            return change.assignment
        return self._base_rules.find_assignment(graph, node)

    def find_rule(self, graph: Graph, node: Node) -> NodeRule:
        return self._all_rules.find_rule(graph, node)


def _copy_solver(before: GraphSolver, model_solver: ModelSolver, treatment: MaskTreatment) -> GraphSolver:
    """Return a solver with a copy of the outcome of ``before``, in which each parameter has its argument's type."""
    assert before.start_types is not None
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
        kept_masks=treatment.kept_groups,
        reduced_slots=treatment.reduced_slots,
    )
    # `settle_constant_arguments` gave some parameters the type that their readers want: undo that.
    for value in old.graph.root.inputs:
        solution.decided_types[value.id] = before.start_types[value.id]
    solver = GraphSolver(model_solver, old.graph, solution)
    solver.start_types, solver.schedule = before.start_types, before.schedule
    return solver


@cache
def _list_names(operator: Operator) -> tuple[str, ...]:
    """Return every name that a list of either name space may have for an operator."""
    return *onnx_names(*operator), *ascend_names(*operator)
