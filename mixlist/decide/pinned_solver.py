"""Decide a model in which the types of many nodes are given, and ask which types a list would give to one node alone.

The search for the lists behind given types needs the answer for every node and every list, with all other nodes in
their given types. Each answer takes one step of the solver, so all answers together take linear time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mixlist.decide.classification import Classification, Classifier
from mixlist.decide.constant_ranges import ConstantRanges
from mixlist.decide.decisions import GraphSolution, keep_positions_and_guards
from mixlist.decide.node_rules import NodeRules
from mixlist.decide.node_types import decide_node
from mixlist.decide.plan_masks import MaskTreatment, find_mask_notes
from mixlist.decide.quantized_units import keep_quantized_units
from mixlist.decide.solver import GraphSolver, ModelSolver
from mixlist.lists.policy import Policy
from mixlist.model.graph import Graph, Node
from mixlist.model.signature import Assignment


class _PinnedTypes(NodeRules):
    """Node rules that give nodes their types directly, whatever their names are."""

    def __init__(self, policy: Policy, graph: Graph, assignments: Mapping[Node, Assignment]) -> None:
        super().__init__(replace(policy, rules=()), graph)
        self._assignments = assignments

    def match(self) -> dict[int, Classification]:
        pinned = Classification("none", "rule", "node-rule")
        return {node.id: pinned for node in self._assignments}

    def find_assignment(self, node: Node) -> Assignment:
        return self._assignments[node]


class PinnedSolver(ModelSolver):
    """Decides a model under a policy without node rules; the nodes of ``assignments`` have these types.

    No node of ``assignments`` may read or make a sequence or an optional.
    """

    def __init__(
        self, graph: Graph, policy: Policy, ranges: ConstantRanges, assignments: Mapping[Node, Assignment]
    ) -> None:
        super().__init__(graph, Classifier(policy), _PinnedTypes(policy, graph, assignments), ranges)
        self._solver: GraphSolver | None = None  # that of the last solution
        self._mask_notes: dict[Node, str] = {}

    def solve_once(self, treatment: MaskTreatment) -> GraphSolution:
        self._solver = GraphSolver(self)
        self._mask_notes = dict(find_mask_notes(treatment.kept_groups))
        return self._solver.run(treatment)

    def decide_alone(self, node: Node, classification: Classification) -> tuple[Assignment | None, str]:
        """Return the types of a pinned node under ``classification``, and the name of the rule that decides them.

        All other nodes have their types. The result has no types if the node follows a value that has no type yet.
        Call it after ``solve``, whose solution is not changed.
        """
        assert self._solver is not None
        state, solution = self._solver.state, self._solver.solution
        # Save what the step changes.
        types_before = [(value.id, solution.decided_types[value.id]) for value in node.outputs if value is not None]
        before = solution.classifications[node.id], solution.assignments[node.id]
        # Run the step, with the classification that the node would have under the list.
        note = self._mask_notes.get(node)
        solution.classifications[node.id] = replace(classification, mask_note=note)
        keep_quantized_units(state, [node])
        keep_positions_and_guards(solution, [node])
        solution.assignments[node.id] = None
        decide_node(node, state)
        rule = solution.rule_overrides.get(node.id, solution.classifications[node.id].rule)
        assignment = solution.assignments[node.id]
        # Bring everything back. A pinned node has no notes and follows no value.
        solution.classifications[node.id], solution.assignments[node.id] = before
        solution.followed_values[node.id] = None
        solution.rule_overrides.pop(node.id, None)
        solution.reason_notes.pop(node.id, None)
        for value_id, elem in types_before:
            solution.decided_types[value_id] = elem
        return assignment, rule
