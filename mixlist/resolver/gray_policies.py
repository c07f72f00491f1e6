"""Gray nodes: the type that a gray node takes from the nodes around it, under each gray policy.

Rule S4.8: `--gray-policy` is one of `ascend` (the default, S4.6), `between` (S4.22), `black-wins` (S4.23) and
`promote` (S4.24); it changes only gray nodes.

Rule S4.6: A gray node takes the decided type of its first float input that is not a constant, in input order; it keeps
its authored type if all of its float inputs are constants, or if it cannot have the followed type.

Rule S4.24: Under `promote`, a gray node takes the widest type of its float inputs that are not constants; float16
together with bfloat16 gives float32.

``between`` and ``black_wins`` are modules of their own.
"""

from __future__ import annotations

from mixlist.graph.model import Node, Value
from mixlist.ops import types
from mixlist.resolver import black_wins
from mixlist.resolver.cast_look_through import followed_value
from mixlist.resolver.decisions import UNDECIDED
from mixlist.resolver.solver_state import SolverState, authored_type


def follow(node: Node, state: SolverState) -> tuple[int, Value | None]:
    """Return the type that a gray node takes, and the value that it takes the type from.

    The type is UNDECIDED as long as that value is undecided, and the authored type if there is nothing to follow.
    """
    policy = state.shared.policy.gray_policy
    if policy == "ascend":
        return _follow_first(node, state)
    if policy == "between":
        return (state.low if node.id in state.low_grays else authored_type(node)), None
    producers = [followed_value(v, state) for v in node.inputs if v is not None and is_followed(v)]
    if not producers:
        return authored_type(node), None
    if policy == "promote":
        return _follow_widest(producers, state)
    return black_wins.follow(node, producers, state)


def is_followed(value: Value) -> bool:
    """Return whether a gray node may follow an input: float inputs that are not constants."""
    return not value.constant and types.element(value.type) in types.FLOATS


def _follow_first(node: Node, state: SolverState) -> tuple[int, Value | None]:
    for value in node.inputs:
        if value is not None and not value.constant and types.element(value.type) in types.FLOATS:
            if value.producer is not None and value.producer.op_type == "Cast":
                value = followed_value(value, state)
            return state.decided[value.id], value
    return authored_type(node), None


def _follow_widest(producers: list[Value], state: SolverState) -> tuple[int, Value | None]:
    chosen, source = UNDECIDED, producers[0]
    for value in producers:
        elem = state.decided[value.id]
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
