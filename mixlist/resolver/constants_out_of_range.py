"""Rule S4.7: constants out of range keep the authored type.

Under `--constants keep`, a slot that would become low precision keeps its authored type if it reads a constant that the
low type cannot hold; if the type of that slot is not independent, the whole node keeps its authored type with rule
`constant`.

Rule S4.19: `--constants ieee` and `clamp` convert every constant instead.

``patterns.constants`` knows the range of a constant, and whether the low type holds it.
"""

from __future__ import annotations

from mixlist.graph.model import Node, Value
from mixlist.ops import types
from mixlist.ops.signature import Assignment, Group
from mixlist.patterns.constants import origins
from mixlist.resolver.solver_state import SolverState


def misfit(value: Value, state: SolverState) -> str | None:
    """Return why a constant does not fit the low type; None if it fits, is converted anyway, or is no constant."""
    if not value.constant or state.policy.constants != "keep":
        return None
    elem = types.element(value.type)
    if elem != types.FLOAT and not (elem == types.BFLOAT16 and state.shared.facts.lowers_bfloat16):
        return None
    # A function does not know the numbers of its arguments: its caller has judged them.
    for origin in origins(value) if state.argument_misfits else ():
        if origin.id in state.argument_misfits:
            return state.argument_misfits[origin.id]
    known = state.shared.ranges.of(value)
    why = known.misfit(state.low) if known else None
    return f"constant {value.name!r} {why}" if why else None


def keep_constants(node: Node, assignment: Assignment, state: SolverState) -> Assignment:
    """Return the assignment of a node that goes for the low type, without the slots whose constants do not fit.

    The slots keep their authored type if nothing else has their type, else the whole node does.
    """
    signature = node.signature
    assert signature is not None
    kept: list[int] = []  # groups of slots
    reduced = state.solution.reduced.get(node, ())  # Rule S4.36: the constant of a mask comes into range
    for index, group in enumerate(signature.groups):
        if assignment.elements[index] != state.low or group.authored == state.low:
            continue
        for slot in group.inputs:
            value = node.inputs[slot]
            examined = value is not None and value.constant and slot not in reduced
            why = misfit(value, state) if value is not None and examined else None
            if why:
                kept.append(index)
                state.solution.notes[node.id] = why
                break
    if not kept:
        return assignment
    if all(_has_only_constants(signature.groups[index], node) for index in kept):
        wish = [g.authored if i in kept else assignment.elements[i] for i, g in enumerate(signature.groups)]
        partly_low = signature.assign(tuple(wish))
        if not partly_low.refused and state.low in partly_low.elements:
            return partly_low
    state.solution.rules[node.id] = "constant"
    return signature.authored()


def _has_only_constants(group: Group, node: Node) -> bool:
    """Return whether the type of these slots is independent of all values that are computed."""
    inputs = [node.inputs[slot] for slot in group.inputs]
    return not group.outputs and all(v is not None and v.constant for v in inputs)
