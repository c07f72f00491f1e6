"""A RoundingPlanner, which caches the roundings of earlier policies, gives those that a new one gives."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st

from mixlist import Policy
from mixlist.decide import Resolver
from mixlist.search.candidates import find_list_candidates, find_node_candidates
from mixlist.search.rounding_plan import RoundingPlanner
from tests.support.gate_comparison import PROFILE, draw_edits, models_and_policies
from tests.support.graphs import Case
from tests.support.package import edit_policy


@PROFILE
@given(models_and_policies(), st.data())
def test_earlier_policies_do_not_change_a_rounding(job: tuple[Case, Policy], data: st.DataObject) -> None:
    case, base = job
    assume("duplicate node name" not in case.features)  # roundings go by names, and ONNX Runtime refuses such a model
    resolver, planner = Resolver(case.model), RoundingPlanner()
    solution = resolver.solve(base)
    low_nodes = {point.node for point in RoundingPlanner().find_roundings(solution)}
    candidates = (*find_list_candidates(solution, base, low_nodes), *find_node_candidates(solution, low_nodes))
    for _ in range(6):
        solution = resolver.solve(edit_policy(base, draw_edits(data, candidates)))
        assert planner.find_roundings(solution) == RoundingPlanner().find_roundings(solution)
