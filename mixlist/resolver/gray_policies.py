"""Gray nodes: find the type that a gray node takes from the nodes around it, under each gray policy.

Rule S4.8: `--gray-policy` is one of `ascend` (the default, S4.6), `between` (S4.22), `black-wins` (S4.23) and
`promote` (S4.24); it changes only gray nodes.

Rule S4.6: A gray node takes the decided type of its first float input that is not a constant, in input order; it keeps
its authored type if all of its float inputs are constants, or if it cannot have the followed type.

Rule S4.23: Under `black-wins`, a gray node is high precision if any of its float producers is high precision because of
a black node, else low precision if any is low precision, else it keeps its authored type.

Rule S4.24: Under `promote`, a gray node takes the widest type of its float inputs that are not constants; float16
together with bfloat16 gives float32.

``between_policy`` has the policy `between`, which looks at the whole graph (Rule S4.22).

A gray policy may only raise types, from undecided to low to high (Rule S4.28), and inlining a function must change no
decision: what a policy needs to know about the caller of a function goes into ``function_calls.CallContext``.
"""

from __future__ import annotations

from collections.abc import Iterable

from mixlist.graph.model import Node, Value
from mixlist.ops import dtypes
from mixlist.resolver.cast_look_through import find_followed_value
from mixlist.resolver.decisions import UNDECIDED, GraphSolution
from mixlist.resolver.solver_state import SolverState, find_authored_type

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
    # `promote` and `black-wins` combine all inputs that a gray node may follow.
    inputs = [find_followed_value(v, state) for v in node.inputs if v is not None and can_be_followed(v)]
    if not inputs:
        return find_authored_type(node), None
    elem, source = combine_input_types(inputs, find_authored_type(node), state)
    if source is not None and is_high_by_black(source, state.solution, state.low_type):
        mark_high_by_black(node.outputs, [True] * len(node.outputs), state)
    return elem, source


def combine_input_types(inputs: list[Value], authored: int, state: SolverState) -> TypeAndSource:
    """Return the type of a gray node that reads ``inputs``, under ``promote`` or ``black-wins``.

    ``inputs`` must not be empty. ``authored`` is the node's authored element type.
    """
    if state.policy.gray_policy == "promote":
        return _follow_widest_input(inputs, state)
    assert state.policy.gray_policy == "black-wins", f"{state.policy.gray_policy} does not combine types"
    return _follow_unless_black(inputs, authored, state)


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


def _follow_widest_input(inputs: list[Value], state: SolverState) -> TypeAndSource:
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


def _follow_unless_black(inputs: list[Value], authored: int, state: SolverState) -> TypeAndSource:
    """Return float32 if an input is high by black, else the low type if an input has it (Rule S4.23)."""
    first_low = None
    for value in inputs:
        # One black producer is enough, wherever it is among the inputs.
        if is_high_by_black(value, state.solution, state.low_type):
            return dtypes.FLOAT, value
        if state.decided_types[value.id] == state.low_type and first_low is None:
            first_low = value
    if first_low is not None:
        return state.low_type, first_low
    # Wait: an undecided input may still become low. Without one, no input can change the type any more.
    if any(state.decided_types[value.id] == UNDECIDED for value in inputs):
        return UNDECIDED, inputs[0]
    return authored, None


def is_high_by_black(value: Value, solution: GraphSolution, low_type: int) -> bool:
    """Return whether a value is high precision because of a black node, directly or through gray nodes.

    In short: the value is *high by black*. Only the gray policy ``black-wins`` asks for it.
    """
    if value.id in solution.high_by_black:
        return True
    producer = value.producer
    # A black node that was authored in the low type makes a low value, which is not high by black.
    if producer is None or producer.signature is None or solution.decided_types[value.id] == low_type:
        return False
    return solution.classifications[producer.id].is_black


def mark_high_by_black(
    targets: Iterable[Value | None], are_by_black: Iterable[bool], state: SolverState
) -> list[Value]:
    """Mark targets as high by black; return those that were not marked before.

    ``are_by_black``: for each target, whether to mark it. The rules of control flow, sequences and calls pass the mark
    on with the values. Under the gray policies other than ``black-wins`` nothing is marked.
    """
    if state.policy.gray_policy != "black-wins":
        return []
    marked = state.solution.high_by_black
    newly_marked = [
        value
        for value, is_by_black in zip(targets, are_by_black, strict=False)
        if is_by_black and value is not None and value.id not in marked
    ]
    marked.update(value.id for value in newly_marked)
    return newly_marked
