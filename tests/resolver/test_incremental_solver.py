"""The IncrementalSolver gives the decisions, notes and roundings that a fresh resolve gives, policy after policy."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from mixlist.lists.policy import Policy
from mixlist.resolver import Resolver
from mixlist.resolver.decisions import GraphSolution, find_precision
from mixlist.resolver.incremental_solver import IncrementalSolver
from mixlist.tuner.candidates import Candidate, EditSet, edit_policy, find_list_candidates, find_node_candidates
from mixlist.tuner.rounding_plan import RoundingPlanner
from tests.support.builders import customize, model, policy
from tests.support.gate_comparison import models_and_policies
from tests.support.graphs import Case

EXAMPLES = int(os.environ.get("MIXLIST_EXAMPLES", "125"))


def comparable_decisions(main: GraphSolution) -> list[Any]:
    """Return the decisions of a solution and of all solutions below it, in the order of their first calls."""
    decisions, waiting, visited = [], [main], {main}
    while waiting:
        solution = waiting.pop(0)
        # The IncrementalSolver shows the list of the base for a node under a rule, and the list does not matter there.
        classifications = [c if c.kind != "rule" else "rule" for c in solution.classifications]
        # Several calls share the body of a function, and each could have written the text of the notes.
        notes = sorted(solution.reason_notes) if solution.graph.path else solution.reason_notes
        decisions.append(
            (
                classifications,
                solution.decided_types,
                solution.assignments,
                solution.followed_values,
                notes,
                solution.rule_overrides,
                sorted(solution.high_by_black),
            )
        )
        for _, callee in sorted(solution.callees.items()):
            if callee not in visited:
                visited.add(callee)
                waiting.append(callee)
    return decisions


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
        fresh_main = self.resolver.plan(edited_policy).solution.solutions[0]
        main = self.incremental.solve(edited_policy)
        assert comparable_decisions(main) == comparable_decisions(fresh_main)
        roundings = {}
        for calls, solution in self.planner.walk_calls(main):
            self.reused_count += self.incremental.find_origin(solution) is not None
            local = self.planner.find_local(solution, self.incremental.find_origin)
            by_point = {**local.nodes, **local.slots}
            roundings.update((point.called_through(calls), rounding) for point, rounding in by_point.items())
        assert roundings == RoundingPlanner().find_roundings(fresh_main)

    def candidates(self) -> tuple[Candidate, ...]:
        """Return the candidates that a search has: moves to the black and the white list, and rules for low nodes."""
        main = self.incremental.solve(self.base)
        low_nodes = {point.node for point in RoundingPlanner().find_roundings(main)}
        moves = (
            *find_list_candidates(main, self.base, "black", None),
            *find_list_candidates(main, self.base, "white", None),
        )
        return (*moves, *find_node_candidates(main, low_nodes))


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize="MIXLIST_SEED" not in os.environ,
    phases=(Phase.explicit, Phase.generate),  # shrinking takes minutes, without output
    suppress_health_check=list(HealthCheck),
)
@given(models_and_policies(), st.data())
def test_earlier_policies_do_not_change_a_decision(job: tuple[Case, Policy], data: st.DataObject) -> None:
    case, rules = job
    assume("duplicate node name" not in case.features)  # roundings go by names, and ONNX Runtime refuses such a model
    comparison = SolverComparison(case.model, rules)
    candidates = comparison.candidates()
    for _ in range(6):
        comparison.compare(frozenset(candidate.edit for candidate in candidates if data.draw(st.booleans())))


def test_only_nodes_that_a_change_reaches_are_decided_again() -> None:
    comparison = SolverComparison(
        model("""g (float[2] x) => (float[2] y, float[2] z)
        { [a] a = Mul (x, x) [b] b = Relu (a) [y] y = Neg (b) [c] c = Mul (x, x) [d] d = Relu (c) [z] z = Neg (d) }"""),
        policy(white=["Mul"]),
    )
    comparison.compare(frozenset())
    rules = (candidate for candidate in comparison.candidates() if not hasattr(candidate.edit, "after"))
    candidates = {candidate.nodes[0][1]: candidate for candidate in rules}
    comparison.compare(frozenset([candidates["c"].edit]))
    main = comparison.incremental.solve(edit_policy(comparison.base, frozenset([candidates["c"].edit])))
    origin = comparison.incremental.find_origin(main)
    assert origin is not None and {node.proto.name for node in origin[1]} == {"c", "d", "z"}


def test_the_solution_of_a_function_that_a_change_does_not_reach_is_reused() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "my" : 1]>
    g (float[2] x) => (float[2] y) { a = my.f (x) y = my.h (a) }
    <domain: "my", opset_import: ["" : 17]> f (a) => (c) { [m] b = Mul (a, a) c = Relu (b) }
    <domain: "my", opset_import: ["" : 17]> h (a) => (c) { [n] b = Mul (a, a) c = Neg (b) }"""
    comparison = SolverComparison(model(text), policy(white=["Mul"]))
    comparison.compare(frozenset())
    first = comparison.incremental.solve(edit_policy(comparison.base, frozenset()))
    rules = (candidate for candidate in comparison.candidates() if not hasattr(candidate.edit, "after"))
    (edit,) = (candidate.edit for candidate in rules if candidate.nodes[0][1] == "n")
    comparison.compare(frozenset([edit]))
    second = comparison.incremental.solve(edit_policy(comparison.base, frozenset([edit])))
    pairs = zip(first.callees.values(), second.callees.values(), strict=True)
    assert [before is after for before, after in pairs] == [True, False] and comparison.reused_count > 0


def test_the_first_of_two_rules_that_name_a_node_decides() -> None:
    """Rule S6.3, for rules that a search adds: a rule by name comes before a rule by op type."""
    rules = (
        customize("first", ["float32"], ["float32"]),
        customize("Exp", ["float16"], ["float16"], by_type=True),
    )
    proto = model("g (float[2] x) => (float[2] y) { [first] a = Exp(x) [second] y = Exp(a) }")
    base = policy(black=["Exp"])
    solution = Resolver(proto).make_incremental_solver(base).solve(replace(base, rules=rules))
    assert [find_precision(solution, node) for node in solution.graph.nodes] == ["float32", "float16"]
