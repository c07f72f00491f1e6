"""Gray nodes: the type that a gray node takes from the nodes around it, under each gray policy.

Rule S4.8: `--gray-policy` is one of `ascend` (the default, S4.6), `between` (S4.22), `black-wins` (S4.23) and
`promote` (S4.24); it changes only gray nodes.

Rule S4.6: A gray node takes the decided type of its first float input that is not a constant, in input order; it keeps
its authored type if all of its float inputs are constants, or if it cannot have the followed type.

Rule S4.23: Under `black-wins`, a gray node is high precision if any of its float producers is high precision because of
a black node, else low precision if any is low precision, else it keeps its authored type.

Rule S4.24: Under `promote`, a gray node takes the widest type of its float inputs that are not constants; float16
together with bfloat16 gives float32.

``between`` (S4.22) is a module of its own.
"""

from __future__ import annotations

from collections.abc import Iterable

from mixlist.graph.model import Node, Value
from mixlist.ops import types
from mixlist.resolver.cast_look_through import followed_value
from mixlist.resolver.decisions import UNDECIDED, GraphSolution
from mixlist.resolver.solver_state import SolverState, authored_type


def follow(node: Node, state: SolverState) -> tuple[int, Value | None]:
    """Return the type that a gray node takes, and the value that it takes the type from.

    The type is UNDECIDED as long as that value is undecided, and the authored type if there is nothing to follow.
    """
    policy = state.policy.gray_policy
    if policy == "ascend":
        return _follow_first(node, state)
    if policy == "between":
        return (state.low if node.id in state.low_grays else authored_type(node)), None
    producers = [followed_value(v, state) for v in node.inputs if v is not None and is_followed(v)]
    if not producers:
        return authored_type(node), None
    elem, source = follow_all(producers, authored_type(node), state)
    if source is not None and is_high_by_black(source, state.solution, state.low):
        mark_high_by_black(node.outputs, [True] * len(node.outputs), state)
    return elem, source


def follow_all(producers: list[Value], authored: int, state: SolverState) -> tuple[int, Value | None]:
    """Return what a gray node that follows all of ``producers`` takes, under ``promote`` and ``black-wins``."""
    if state.policy.gray_policy == "promote":
        return _follow_widest(producers, state)
    return _follow_unless_black(producers, authored, state)


def is_followed(value: Value) -> bool:
    """Return whether a gray node may follow an input: float inputs that are not constants."""
    return not value.is_constant and types.element(value.type) in types.FLOATS


def _follow_first(node: Node, state: SolverState) -> tuple[int, Value | None]:
    for value in node.inputs:
        if value is not None and is_followed(value):
            if value.producer is not None and value.producer.op_type == "Cast":
                value = followed_value(value, state)
            return state.decided_types[value.id], value
    return authored_type(node), None


def _follow_widest(producers: list[Value], state: SolverState) -> tuple[int, Value | None]:
    chosen, source = UNDECIDED, producers[0]
    for value in producers:
        elem = state.decided_types[value.id]
        if elem == UNDECIDED:
            continue
        wider = _wider(chosen, elem)
        if wider != chosen:
            chosen, source = wider, value
    return chosen, source


def _wider(one: int, other: int) -> int:
    if one in (UNDECIDED, other):
        return other
    return types.DOUBLE if types.DOUBLE in (one, other) else types.FLOAT


def _follow_unless_black(producers: list[Value], authored: int, state: SolverState) -> tuple[int, Value | None]:
    first_low = None
    for value in producers:
        if is_high_by_black(value, state.solution, state.low):
            return types.FLOAT, value
        if state.decided_types[value.id] == state.low and first_low is None:
            first_low = value
    if first_low is not None:
        return state.low, first_low
    if any(state.decided_types[v.id] == UNDECIDED for v in producers):
        return UNDECIDED, producers[0]
    return authored, None


def is_high_by_black(value: Value, solution: GraphSolution, low: int) -> bool:
    """Return whether a value is high precision because of a black node, directly or through gray nodes."""
    if value.id in solution.high_by_black:
        return True
    maker = value.producer
    if maker is None or maker.signature is None or solution.decided_types[value.id] == low:
        return False
    fact = solution.classifications[maker.id]
    return fact.list == "black" and fact.kind == "authored"


def mark_high_by_black(targets: Iterable[Value | None], sources: Iterable[bool], state: SolverState) -> list[Value]:
    """Mark each target whose source is high by black; return the targets that were not marked before.

    The mark goes with a value through control flow and calls.
    """
    if state.policy.gray_policy != "black-wins":
        return []
    marked = state.solution.high_by_black
    fresh = [v for v, black in zip(targets, sources, strict=False) if black and v is not None and v.id not in marked]
    marked.update(v.id for v in fresh)
    return fresh
