"""A list decides one node, with all others in given types, as a resolve with rules for the others does."""

from __future__ import annotations

import pytest

from mixlist.decide import Resolver
from mixlist.decide.classification import Classifier
from mixlist.decide.pinned_solver import PinnedSolver
from tests.support.builders import model, policy
from tests.support.package import ListName

TEXT = """
g (float[2] x) => (float[2] y) <float[2] w = {1, 2}, float big = {1e6}>
{ [a] a = Exp(x) [b] b = Relu(a) [c] c = Add(w, b) [d] y = Add(c, big) }
"""


@pytest.mark.parametrize(
    ("list_name", "types", "rules"),
    [
        ("white", ["float16", "float16", "float16", "float32"], ["white", "white", "white", "constant"]),
        ("black", ["float32"] * 4, ["black"] * 4),
        # The pinned types: a is float16, b float32, c float16. So b follows a, c follows b, and d cannot follow c.
        ("gray", ["float32", "float16", "float32", "float32"], ["follow", "follow", "follow", "constant"]),
    ],
)
def test_each_list_decides_a_node_by_the_given_types_of_the_others(
    list_name: ListName, types: list[str], rules: list[str]
) -> None:
    resolver = Resolver(model(TEXT))
    base = policy()
    nodes = resolver.graph.nodes
    low, high = 10, 1
    given = {}
    for node, elem in zip(nodes, (low, high, low, high), strict=True):
        assert node.signature is not None
        given[node] = node.signature.assign((elem,))
    solver = PinnedSolver(resolver.graph, base, resolver.constant_ranges, given)
    solution = solver.solve()
    operators = {node.op_type for node in nodes}
    listed = {"white": policy(white=operators), "black": policy(black=operators), "gray": base}[list_name]
    classifier = Classifier(listed)
    before = (list(solution.decided_types), list(solution.assignments), list(solution.classifications))
    decisions = [solver.decide_alone(node, classifier.classify(resolver.graph, node)) for node in nodes]
    names = {low: "float16", high: "float32"}
    assert [names[assignment.elements[0]] for assignment, _ in decisions if assignment] == types
    assert [rule for _, rule in decisions] == rules
    assert (solution.decided_types, solution.assignments, solution.classifications) == before
