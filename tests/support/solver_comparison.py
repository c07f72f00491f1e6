"""Compare the decisions of the IncrementalSolver with those of a fresh resolve."""

from __future__ import annotations

from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from mixlist import Policy
from mixlist.decide import Resolver
from mixlist.decide.decisions import GraphSolution
from mixlist.decide.incremental_solver import IncrementalSolver
from mixlist.search.candidates import Candidate, find_list_candidates, find_node_candidates
from mixlist.search.edits import EditSet
from mixlist.search.rounding_plan import RoundingPlanner
from tests.support.gate_comparison import draw_edits
from tests.support.graphs import Case
from tests.support.package import edit_policy


def comparable_decisions(solution: GraphSolution) -> list[Any]:
    """Return what a solution decides."""
    # The IncrementalSolver shows the list of the base for a node under a rule, and the list does not matter there.
    classifications = [c if c.kind != "rule" else "rule" for c in solution.classifications]
    return [
        classifications,
        solution.decided_types,
        solution.assignments,
        solution.followed_values,
        solution.reason_notes,
        solution.rule_overrides,
    ]


class SolverComparison:
    """One model decided under many policies, each by the IncrementalSolver and by a fresh resolve.

    ``reused_count`` counts the solutions that the IncrementalSolver computed from an earlier one.
    """

    def __init__(self, proto: Any, base: Policy) -> None:
        self.resolver, self.base = Resolver(proto), base
        self.incremental: IncrementalSolver = self.resolver.make_incremental_solver(base)
        self.planner = RoundingPlanner()
        self.reused_count = 0

    def compare(self, edits: EditSet) -> None:
        """Assert that both give the same decisions and roundings under the base policy with these edits."""
        edited_policy = edit_policy(self.base, edits)
        fresh = self.resolver.plan(edited_policy).solution.graph_solution
        solution = self.incremental.solve(edited_policy)
        assert comparable_decisions(solution) == comparable_decisions(fresh)
        self.reused_count += self.incremental.find_origin(solution) is not None
        roundings = self.planner.update_roundings(solution, self.incremental.find_origin)
        assert roundings.nodes | roundings.slots == RoundingPlanner().find_roundings(fresh)

    def candidates(self) -> tuple[Candidate, ...]:
        """Return the candidates that a search has: moves to the black and the white list, and rules for low nodes."""
        solution = self.incremental.solve(self.base)
        low_nodes = {point.node for point in RoundingPlanner().find_roundings(solution)}
        moves = (
            *find_list_candidates(solution, self.base, "black", None),
            *find_list_candidates(solution, self.base, "white", None),
        )
        return (*moves, *find_node_candidates(solution, low_nodes))


def compare_drawn_edits(case: Case, base: Policy, data: st.DataObject, count: int) -> None:
    """Assert for ``count`` drawn sets of edits, one after another, that both give the same decisions."""
    assume("duplicate node name" not in case.features)  # roundings go by names, and ONNX Runtime refuses such a model
    comparison = SolverComparison(case.model, base)
    candidates = comparison.candidates()
    for _ in range(count):
        comparison.compare(draw_edits(data, candidates))
