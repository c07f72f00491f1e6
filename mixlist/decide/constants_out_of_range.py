"""Rule S4.7: constants out of range keep the authored type.

Under `--constants keep`, a constant that the low type cannot hold keeps all slots of its type parameter in their
authored type. If one of these slots is an output, or reads a value that is no constant, the whole node keeps its
authored type with rule `constant`.

Rule S4.20: S4.7 applies to the value of every constant, however it is computed. A low-precision node does not fit
either if its inputs are all constants and its own result does not fit.

Rule S4.19: `--constants ieee` and `clamp` convert every constant instead.

``patterns.constant_ranges`` finds the range of a constant, and whether the low type holds it.
"""

from __future__ import annotations

from mixlist.decide.solver_state import SolverState
from mixlist.model import dtypes
from mixlist.model.graph import Node, Value
from mixlist.model.signature import Assignment, TypeGroup


def explain_kept_constant(value: Value, state: SolverState) -> str | None:
    """Return why a value is a constant that must not become low precision; None if it may.

    None means: the value is no constant, the low type holds it, or `--constants` converts it in any case.
    """
    if not value.is_constant or state.policy.constants != "keep":
        return None
    elem = dtypes.element(value.type)
    # Only float32 constants become low precision, and bfloat16 constants of a white node under Rule S3.8.
    if elem != dtypes.FLOAT and not (elem == dtypes.BFLOAT16 and state.applied.classifier.lowers_bfloat16):
        return None
    return state.applied.explain_misfit(value)


def keep_constants_out_of_range(node: Node, assignment: Assignment, state: SolverState) -> Assignment:
    """Return the types of a node that becomes low precision; constants out of range keep their authored type.

    ``assignment`` has the node's types without regard to constants. A group of slots with such a constant keeps its
    authored type if all slots of the group are inputs that read constants; otherwise the whole node keeps its types.
    The whole node also keeps them if its own result is a constant that does not fit.
    """
    signature = node.signature
    assert signature is not None
    # Phase 1: find the groups of slots that read a constant out of range.
    kept_groups: list[int] = []
    # The constants of a mask are brought into range before they are converted (Rule S4.36), so they count as fitting.
    reduced_slots = state.solution.reduced_slots.get(node, ())
    for index, group in enumerate(signature.groups):
        # Only a group that is moved to the low type rounds its constants.
        if assignment.elements[index] != state.low_type or group.authored == state.low_type:
            continue
        for slot in group.inputs:
            value = node.inputs[slot]
            is_examined = value is not None and value.is_constant and slot not in reduced_slots
            reason = explain_kept_constant(value, state) if value is not None and is_examined else None
            if reason:
                kept_groups.append(index)
                state.solution.reason_notes[node.id] = reason
                break
    # Phase 2: keep these groups, or the whole node.
    partly_low = _keep_groups(node, assignment, kept_groups, state.low_type) if kept_groups else assignment
    reason = _explain_result_misfit(node, partly_low, state) if partly_low is not None and not reduced_slots else None
    if reason:
        state.solution.reason_notes[node.id] = reason
    elif partly_low is not None:
        return partly_low
    state.solution.rule_overrides[node.id] = "constant"
    return signature.authored_assignment()


def _keep_groups(node: Node, assignment: Assignment, kept_groups: list[int], low_type: int) -> Assignment | None:
    """Return the assignment with the authored type for some groups of slots; None if the whole node has to keep it.

    Example: a white ``Pow(x, 1e6)`` is float16 with a float32 exponent, because base and exponent have a type parameter
    each. A white ``Add(x, 1e6)`` stays float32, because all slots of Add share one.
    """
    signature = node.signature
    assert signature is not None
    # A slot that computes shares its type with the constant, so the constant cannot stay alone.
    if not all(_has_only_constants(signature.groups[index], node) for index in kept_groups):
        return None
    elements = assignment.elements
    requested_types = [g.authored if i in kept_groups else elements[i] for i, g in enumerate(signature.groups)]
    # The schema or inference may refuse this combination, or nothing low may remain: then the whole node stays.
    partly_low = signature.assign(tuple(requested_types))
    return partly_low if not partly_low.refused and low_type in partly_low.elements else None


def _explain_result_misfit(node: Node, assignment: Assignment, state: SolverState) -> str | None:
    """Return why the node's own result is a constant that does not fit the low type; None if it fits."""
    for value, output_type in zip(node.outputs, assignment.outputs, strict=False):
        if value is None or not value.is_constant or output_type != state.low_type:
            continue
        reason = explain_kept_constant(value, state)
        if reason:
            return reason
    return None


def _has_only_constants(group: TypeGroup, node: Node) -> bool:
    """Return whether the slots of a group are inputs only, and all of them read constants."""
    inputs = [node.inputs[slot] for slot in group.inputs]
    return not group.outputs and all(value is not None and value.is_constant for value in inputs)
