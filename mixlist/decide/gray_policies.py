"""Gray nodes: find the type that a gray node takes from the nodes around it, under each gray policy.

Rule S4.8: `--gray-policy` is one of `ascend` (the default, S4.6), `between` (S4.22) and `promote` (S4.24); it changes
only gray nodes.

Rule S4.6: A gray node takes the decided type of its first float input that is not a constant, in input order; it keeps
its authored type if all of its float inputs are constants, or if it cannot have the followed type.

Rule S4.24: Under `promote`, a gray node takes the widest type of its float inputs that are not constants; float16
together with bfloat16 gives float32.

``between_policy`` has the policy `between`, which looks at the whole graph (Rule S4.22).

A gray policy may only raise types, from undecided to low to high (Rule S4.28).
"""

from __future__ import annotations

from mixlist.decide.cast_look_through import find_followed_value
from mixlist.decide.decisions import UNDECIDED
from mixlist.decide.solver_state import SolverState, find_authored_type
from mixlist.model import dtypes
from mixlist.model.graph import Node, Value

# The element type, and the value from which the gray node takes the type.
TypeAndSource = tuple[int, Value | None]


def find_gray_type(node: Node, state: SolverState) -> TypeAndSource:
    """Return the element type that a gray node takes, and the value that it takes the type from.

    The type is UNDECIDED as long as that value is undecided. It is the authored type, and the value None, if the node
    has no input to follow.
    """
    policy = state.policy.gray_policy
    if policy == "ascend":
        return _follow_first_input(node, state)
    if policy == "between":
        return (state.low_type if node.id in state.low_gray_ids else find_authored_type(node)), None
    inputs = [find_followed_value(v, state) for v in node.inputs if v is not None and can_be_followed(v)]
    return follow_widest_input(inputs, state) if inputs else (find_authored_type(node), None)


def can_be_followed(value: Value) -> bool:
    """Return whether a gray node may follow an input: the input holds floats and is no constant."""
    return not value.is_constant and dtypes.element(value.type) in dtypes.FLOATS


def _follow_first_input(node: Node, state: SolverState) -> TypeAndSource:
    """Return the type of the first float input that is no constant (Rule S4.6)."""
    for value in node.inputs:
        if value is not None and can_be_followed(value):
            # The test for Cast only saves a call: this loop runs for every gray node of the default policy.
            if value.producer is not None and value.producer.op_type == "Cast":
                value = find_followed_value(value, state)
            return state.decided_types[value.id], value
    return find_authored_type(node), None


def follow_widest_input(inputs: list[Value], state: SolverState) -> TypeAndSource:
    """Return the widest type of the inputs that are decided, and the first input of this type (Rule S4.24)."""
    widest, source = UNDECIDED, inputs[0]
    for value in inputs:
        elem = state.decided_types[value.id]
        if elem == UNDECIDED:
            continue
        wider = _wider_type(widest, elem)
        if wider != widest:
            widest, source = wider, value
    return widest, source


def _wider_type(first: int, second: int) -> int:
    """Return the narrowest type that holds the values of both types; float16 and bfloat16 need float32."""
    if first in (UNDECIDED, second):
        return second
    # Two different floats: float64 holds all others, and float32 both low types.
    return dtypes.DOUBLE if dtypes.DOUBLE in (first, second) else dtypes.FLOAT
