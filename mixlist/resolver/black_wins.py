"""Rule S4.23: black-wins, where one black producer makes high precision (Paddle).

Under `black-wins`, a gray node is high precision if any of its float producers is high precision because of a black
node, else low precision if any is low precision, else it keeps its authored type.

That a value is high by black goes with the value through control flow and calls, so it is marked in the Solution.
"""

from __future__ import annotations

from collections.abc import Iterable

from mixlist.graph.model import Node, Value
from mixlist.ops import types
from mixlist.resolver.decisions import UNDECIDED, Solution
from mixlist.resolver.solver_state import SolverState, authored_type


def follow(node: Node, producers: list[Value], state: SolverState) -> tuple[int, Value | None]:
    """Return the type that a gray node takes from its float producers, and the producer that decides."""
    first_low = None
    for value in producers:
        if is_high_by_black(value, state.solution, state.low):
            state.solution.high_by_black.update(v.id for v in node.outputs if v is not None)
            return types.FLOAT, value
        if state.decided[value.id] == state.low and first_low is None:
            first_low = value
    if first_low is not None:
        return state.low, first_low
    if any(state.decided[v.id] == UNDECIDED for v in producers):
        return UNDECIDED, producers[0]
    return authored_type(node), None


def is_high_by_black(value: Value, solution: Solution, low: int) -> bool:
    """Return whether a value is high precision because of a black node, directly or through gray nodes."""
    if value.id in solution.high_by_black:
        return True
    maker = value.producer
    if maker is None or maker.signature is None or solution.decided[value.id] == low:
        return False
    fact = solution.facts[maker.id]
    return fact.list == "black" and fact.kind == "authored"


def mark(targets: Iterable[Value | None], sources: Iterable[bool], state: SolverState) -> list[Value]:
    """Mark each target whose source is high by black; return the targets that were not marked before."""
    if state.shared.policy.gray_policy != "black-wins":
        return []
    marked = state.solution.high_by_black
    fresh = [v for v, black in zip(targets, sources, strict=False) if black and v is not None and v.id not in marked]
    marked.update(v.id for v in fresh)
    return fresh
