"""The cheapest choice of low nodes: a minimum cut, compared with all choices of small random graphs."""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from mixlist.search.cheapest_nodes import CAST_BYTES, FLOPS_PER_BYTE, ChoiceCosts, LowSlots
from mixlist.targets.estimate import estimate_costs
from tests.support.builders import model
from tests.support.package import build_graph

BINARY, UNARY = ("Add", "Mul", "MatMul"), ("Relu", "Exp", "Neg")
SIDE = 64


def random_text(seed: int) -> str:
    """Return a model of up to eight nodes, in which some tensors have several readers."""
    chance = random.Random(seed)
    values, lines = ["x", "w"], []
    for index in range(chance.randint(2, 8)):
        if chance.random() < 0.6:
            first, second = chance.choice(values[-3:]), chance.choice(values)
            lines.append(f"[n{index}] t{index} = {chance.choice(BINARY)}({first}, {second})")
        else:
            lines.append(f"[n{index}] t{index} = {chance.choice(UNARY)}({chance.choice(values)})")
        values.append(f"t{index}")
    shape = f"float[{SIDE}, {SIDE}]"
    outputs = ", ".join(f"{shape} {value}" for value in (values[-1], *chance.sample(values[2:-1], k=len(values) > 4)))
    return f"g ({shape} x, {shape} w) => ({outputs}) {{ {' '.join(lines)} }}"


def costs_of(text: str, *, fixed: int = 0) -> ChoiceCosts:
    """Return the costs of a model in which every node but the first ``fixed`` ones can be low."""
    graph = build_graph(model(text))
    low_slots = {
        node: LowSlots(index, frozenset(range(len(node.inputs))), frozenset({0}))
        for index, node in enumerate(graph.nodes[fixed:])
    }
    return ChoiceCosts(graph, estimate_costs(graph), low_slots, len(low_slots))


@pytest.mark.parametrize("seed", range(60))
def test_no_choice_costs_less_than_the_cheapest(seed: int) -> None:
    costs = costs_of(random_text(seed), fixed=seed % 2)
    groups = range(costs.group_count)
    for high in [frozenset[int](), frozenset({0}), frozenset(groups[::2])]:
        low = costs.find_cheapest(high)
        assert not low & high
        choices = [frozenset(c) for size in range(len(groups) + 1) for c in combinations(groups, size)]
        allowed = [choice for choice in choices if not choice & high]
        least = min(map(costs.cost, allowed))
        assert costs.cost(low) == least
        assert len(low) == max(len(choice) for choice in allowed if costs.cost(choice) == least)


def test_the_cost_counts_bytes_casts_and_matrix_work() -> None:
    shape, size = f"float[{SIDE}, {SIDE}]", SIDE * SIDE
    costs = costs_of(f"g ({shape} x) => ({shape} y) {{ [a] t = MatMul(x, x) [b] y = Relu(t) }}")
    high = 5 * 4 * size + int(2 * SIDE**3 / FLOPS_PER_BYTE)  # three tensors of the MatMul, two of the Relu
    cast = 6 * size + CAST_BYTES
    assert costs.cost(frozenset()) == high
    work = int(2 * SIDE**3 / FLOPS_PER_BYTE)
    assert costs.cost(frozenset({0, 1})) == 5 * 2 * size + work // 2 + 2 * cast
    # One Cast of t serves the Relu; x needs none, and y is float32.
    assert costs.cost(frozenset({0})) == high - 3 * 2 * size - (work - work // 2) + 2 * cast


def test_a_node_between_high_nodes_is_high() -> None:
    shape = f"float[{SIDE}, {SIDE}]"
    costs = costs_of(f"g ({shape} x) => ({shape} y) {{ [a] t = Exp(x) [b] u = Relu(t) [c] y = Exp(u) }}")
    assert costs.find_cheapest({0, 2}) == frozenset()


def test_a_view_moves_nothing() -> None:
    shape = f"float[{SIDE}, {SIDE}]"
    costs = costs_of(f"g ({shape} x) => (float[{SIDE * SIDE}] y) <int64[1] s = {{-1}}> {{ [a] y = Reshape(x, s) }}")
    # Two Casts of float32 to float16 are the only difference.
    assert costs.cost(frozenset({0})) - costs.cost(frozenset()) == 2 * (6 * SIDE * SIDE + CAST_BYTES)
