"""Rule S4.7: constants out of range keep the authored type.

Under `--constants keep`, the slots of a type parameter that would become low precision keep their authored type if one
of them reads a constant that the low type cannot hold; if another of them is an output, or reads a value that is no
constant, the whole node keeps its authored type with rule `constant`.

Rule S4.20: S4.7 applies to the value of every constant, however it is computed. A low-precision node does not fit
either if its inputs are all constants and its own result does not fit.

Rule S4.19: `--constants ieee` and `clamp` convert every constant instead.

``patterns.constants`` knows the range of a constant, and whether the low type holds it. In the body of a function that
depends on the call: the answers are kept, so that calls with the same answers share a GraphSolution.
"""

from __future__ import annotations

from mixlist.graph.model import Node, Value
from mixlist.ops import types
from mixlist.ops.signature import Assignment, TypeGroup
from mixlist.resolver.solver_state import SolverState


def misfit(value: Value, state: SolverState) -> str | None:
    """Return why a constant does not fit the low type; None if it fits, is converted anyway, or is no constant."""
    if not value.is_constant or state.policy.constants != "keep":
        return None
    elem = types.element(value.type)
    if elem != types.FLOAT and not (elem == types.BFLOAT16 and state.shared.classifier.lowers_bfloat16):
        return None
    why = state.shared.misfit(value, state.frame)
    if state.frame is not None and state.shared.ranges.frames.depends_on_call(value, state.frame):
        state.solution.constant_fits.setdefault(state.step, {})[value] = why is None
    return why


def keep_constants(node: Node, assignment: Assignment, state: SolverState) -> Assignment:
    """Return the assignment of a node that goes for the low type, without the slots whose constants do not fit.

    The slots keep their authored type if nothing else has their type, else the whole node does. It does as well if its
    own result is a constant that does not fit.
    """
    signature = node.signature
    assert signature is not None
    kept: list[int] = []  # groups of slots
    reduced = state.solution.reduced_slots.get(node, ())  # Rule S4.36: the constant of a mask comes into range
    for index, group in enumerate(signature.groups):
        if assignment.elements[index] != state.low or group.authored == state.low:
            continue
        for slot in group.inputs:
            value = node.inputs[slot]
            examined = value is not None and value.is_constant and slot not in reduced
            why = misfit(value, state) if value is not None and examined else None
            if why:
                kept.append(index)
                state.solution.reason_notes[node.id] = why
                break
    remaining = _without_groups(node, assignment, kept, state.low) if kept else assignment
    why = _result_misfit(node, remaining, state) if remaining is not None and not reduced else None
    if why:
        state.solution.reason_notes[node.id] = why
    elif remaining is not None:
        return remaining
    state.solution.rule_overrides[node.id] = "constant"
    return signature.authored()


def _without_groups(node: Node, assignment: Assignment, kept: list[int], low: int) -> Assignment | None:
    """Return the assignment with the authored type for some groups of slots; None if the whole node has to keep it."""
    signature = node.signature
    assert signature is not None
    if not all(_has_only_constants(signature.groups[index], node) for index in kept):
        return None
    wish = [g.authored if i in kept else assignment.elements[i] for i, g in enumerate(signature.groups)]
    partly_low = signature.assign(tuple(wish))
    return partly_low if not partly_low.refused and low in partly_low.elements else None


def _result_misfit(node: Node, assignment: Assignment, state: SolverState) -> str | None:
    """Return why a constant that the node would compute in the low type does not fit it."""
    for value, made in zip(node.outputs, assignment.outputs, strict=False):
        if value is not None and value.is_constant and made == state.low and (why := misfit(value, state)):
            return why
    return None


def _has_only_constants(group: TypeGroup, node: Node) -> bool:
    """Return whether the type of these slots is independent of all values that are computed."""
    inputs = [node.inputs[slot] for slot in group.inputs]
    return not group.outputs and all(v is not None and v.is_constant for v in inputs)
