"""The IncrementalSolver gives the decisions, notes and roundings that a fresh resolve gives, policy after policy."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from mixlist import Policy
from mixlist.decide import Resolver
from mixlist.decide.decisions import find_precision
from tests.support.builders import customize, model, policy
from tests.support.gate_comparison import PROFILE, models_and_policies
from tests.support.graphs import Case
from tests.support.package import edit_policy
from tests.support.solver_comparison import SolverComparison, compare_drawn_edits


@PROFILE
@given(models_and_policies(), st.data())
def test_earlier_policies_do_not_change_a_decision(job: tuple[Case, Policy], data: st.DataObject) -> None:
    case, rules = job
    compare_drawn_edits(case, rules, data, 6)


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
