"""Deciding again against deciding from nothing: the same decisions, reasons and roundings, choice after choice."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from mixlist.lists.policy import Policy
from mixlist.resolver import Resolver
from mixlist.resolver.decisions import GraphSolution
from mixlist.resolver.incremental_solver import IncrementalSolver
from mixlist.tuner.candidates import Candidate, EditSet, edit_policy, find_list_candidates, find_node_candidates
from mixlist.tuner.rounding_plan import RoundingPlanner
from tests.support.builders import model, policy
from tests.support.graphs import Case
from tests.tuner.test_gated_graph import jobs

EXAMPLES = int(os.environ.get("MIXLIST_EXAMPLES", "125"))


def told(main: GraphSolution) -> list[Any]:
    """All that a GraphSolution and those below it say, in the order of their first calls."""
    found, waiting, seen = [], [main], {main}
    while waiting:
        at = waiting.pop(0)
        by_black = sorted(at.high_by_black)
        facts = [fact if fact.kind != "rule" else "rule" for fact in at.classifications]  # its list decides nothing
        notes = (
            at.reason_notes if not at.graph.path else sorted(at.reason_notes)
        )  # calls share a body: the text is of one of them
        found.append((facts, at.decided_types, at.assignments, at.followed_values, notes, at.rule_overrides, by_black))
        for _, callee in sorted(at.callees.items()):
            if callee not in seen:
                seen.add(callee)
                waiting.append(callee)
    return found


class Both:
    """One model and policy; ``compare`` decides a choice both ways. ``halfway`` counts what was begun from another."""

    def __init__(self, proto: Any, rules: Policy) -> None:
        self.resolver, self.rules = Resolver(proto), rules
        self.again: IncrementalSolver = self.resolver.make_incremental_solver(rules)
        self.planner = RoundingPlanner()
        self.halfway = 0

    def compare(self, choice: EditSet) -> None:
        tried = edit_policy(self.rules, choice)
        whole = self.resolver.plan(tried).solution.solutions[0]
        main = self.again.solve(tried)
        assert told(main) == told(whole)
        rounded = {}
        for calls, solution in self.planner.walk_calls(main):
            self.halfway += self.again.find_origin(solution) is not None
            local = self.planner.find_local(solution, self.again.find_origin)
            both = {**local.nodes, **local.slots}
            rounded.update((site.called_through(calls), what) for site, what in both.items())
        assert rounded == RoundingPlanner().find_roundings(whole)

    def units(self) -> tuple[Candidate, ...]:
        main = self.again.solve(self.rules)
        low = {site.node for site in RoundingPlanner().find_roundings(main)}
        lists = (
            *find_list_candidates(main, self.rules, "black", None),
            *find_list_candidates(main, self.rules, "white", None),
        )
        return (*lists, *find_node_candidates(main, low))


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize="MIXLIST_SEED" not in os.environ,
    suppress_health_check=list(HealthCheck),
)
@given(jobs(), st.data())
def test_a_choice_after_others_is_decided_as_if_it_were_the_first(
    job: tuple[Case, Policy], data: st.DataObject
) -> None:
    case, rules = job
    assume("duplicate node name" not in case.features)  # ONNX Runtime loads no such model, and sites go by names
    both = Both(case.model, rules)
    units = both.units()
    for _ in range(6):
        both.compare(frozenset(unit.edit for unit in units if data.draw(st.booleans())))


def test_only_what_a_change_reaches_is_decided_anew() -> None:
    both = Both(
        model("""g (float[2] x) => (float[2] y, float[2] z)
        { [a] a = Mul (x, x) [b] b = Relu (a) [y] y = Neg (b) [c] c = Mul (x, x) [d] d = Relu (c) [z] z = Neg (d) }"""),
        policy(white=["Mul"]),
    )
    both.compare(frozenset())
    units = {unit.nodes[0][1]: unit for unit in both.units() if not hasattr(unit.edit, "after")}
    both.compare(frozenset([units["c"].edit]))
    main = both.again.solve(edit_policy(both.rules, frozenset([units["c"].edit])))
    origin = both.again.find_origin(main)
    assert origin is not None and {node.proto.name for node in origin[1]} == {"c", "d", "z"}


def test_functions_that_a_change_does_not_reach_are_the_same_ones() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "my" : 1]>
    g (float[2] x) => (float[2] y) { a = my.f (x) y = my.h (a) }
    <domain: "my", opset_import: ["" : 17]> f (a) => (c) { [m] b = Mul (a, a) c = Relu (b) }
    <domain: "my", opset_import: ["" : 17]> h (a) => (c) { [n] b = Mul (a, a) c = Neg (b) }"""
    both = Both(model(text), policy(white=["Mul"]))
    both.compare(frozenset())
    first = both.again.solve(edit_policy(both.rules, frozenset()))
    (edit,) = (unit.edit for unit in both.units() if unit.nodes[0][1] == "n" and not hasattr(unit.edit, "after"))
    both.compare(frozenset([edit]))
    second = both.again.solve(edit_policy(both.rules, frozenset([edit])))
    same = [one is other for one, other in zip(first.callees.values(), second.callees.values(), strict=True)]
    assert same == [True, False] and both.halfway > 0
