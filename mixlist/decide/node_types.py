"""Find the types of a node from its classification, after the types of its inputs are decided.

docs/semantics.md has the rules: of white nodes (S4.4), black nodes (S4.5), gray nodes (S4.6; ``gray_policies`` finds
their type), the types that lists move (S4.9), constants out of range (S4.7, S4.19, S4.20; ``constant_ranges`` finds
these), and masks (S4.35; ``plan_masks`` finds these). Control flow is decided in ``control_flow_types``.

A mode without lists (S3.4 to S3.7) gives a node the kind "low" or "authored", which white and black nodes also have, or
the kind "raise": such a node becomes float32.
"""

from __future__ import annotations

from mixlist.decide import gray_policies
from mixlist.decide.solution import UNDECIDED, Solution, find_authored_type
from mixlist.model import dtypes
from mixlist.model.graph import Graph, Node, Value
from mixlist.model.protos import standard_opset
from mixlist.model.schema import find_schema
from mixlist.model.signature import Assignment, Signature, TypeGroup


def decide_node(node: Node, solution: Solution) -> list[Value]:
    """Decide a node that is no control flow; return the outputs whose decided type changed."""
    signature = node.signature
    assert signature is not None
    classifier = solution.classifier
    kind = solution.classifications[node.id].kind
    if kind == "gray":
        target, source = gray_policies.find_gray_type(node, solution)
        unvoted = solution.unvoted_ids
        if target == solution.low_type and any(v is not None and v.id in unvoted for v in node.outputs):
            # No vote had decided the outputs of this node, so they took their authored type (Rule S4.28). The node that
            # it follows became low precision only afterwards. A type never goes back to low, so this node stays.
            target, source = find_authored_type(node), None
        solution.followed_values[node.id] = source
        if target == UNDECIDED:
            return []
        assignment = assign_target(node, target, classifier.movable_types, solution)
    elif kind == "low":
        assignment = assign_target(node, solution.low_type, classifier.white_movable_types, solution)
    elif kind == "raise":
        assignment = assign_target(node, dtypes.FLOAT, classifier.movable_types, solution)
    elif kind == "rule":
        assignment = solution.node_rules.find_assignment(node)
    else:
        assignment = signature.authored_assignment()
    solution.assignments[node.id] = assignment
    output_types = [t if isinstance(t, int) else dtypes.element(t) for t in assignment.outputs]
    if UNDECIDED in output_types:
        # The schema does not give the output type of a Constant or of a custom operator: the authored type counts.
        authored = [dtypes.element(v.type) if v is not None else UNDECIDED for v in node.outputs]
        pairs = zip(output_types, authored, strict=False)
        output_types = [authored_elem if elem == UNDECIDED else elem for elem, authored_elem in pairs]
    return solution.decide_types(node.outputs, output_types)


def assign_target(node: Node, target: int, movable_types: frozenset[int], solution: Solution) -> Assignment:
    """Return the node's types after its slots took the type ``target`` as far as possible.

    Only slots that were authored in one of ``movable_types`` change. The schema, a mask (Rule S4.35) and constants out
    of range (Rule S4.7) can keep slots or the whole node as authored; then the solution notes the rule.
    """
    signature, low_type = node.signature, solution.low_type
    assert signature is not None
    # Thousands of nodes share one signature, and `tune` decides each of them hundreds of times: so the signature keeps
    # the answer.
    answer = signature.solver_cache.get((target, low_type, movable_types))
    if answer is None:
        requested_types = tuple(
            [target if group.authored in movable_types else group.authored for group in signature.groups]
        )
        if can_become(target, low_type, solution.graph):
            assignment = signature.assign(requested_types)
            answer = (assignment, _is_refused(assignment, target, requested_types, signature))
        else:
            # The graph cannot have this type at all. That is a refusal only if a slot should change.
            is_refused = target == low_type and requested_types != signature.authored_assignment().elements
            answer = (signature.authored_assignment(), is_refused)
        signature.solver_cache[target, low_type, movable_types] = answer
    assignment, is_refused = answer
    # A step of a loop runs several times, and only the last result counts.
    solution.rule_overrides.pop(node.id, None)
    solution.reason_notes.pop(node.id, None)
    # First the schema, then a mask, then constants: the first one that keeps the node gives the reason.
    if is_refused:
        solution.rule_overrides[node.id] = "schema"
        return assignment
    mask_note = solution.mask_notes.get(node.id)
    if mask_note and assignment.elements != signature.authored_assignment().elements:
        solution.rule_overrides[node.id] = "mask"
        solution.reason_notes[node.id] = mask_note
        return signature.authored_assignment()
    return _keep_constants_out_of_range(node, assignment, solution) if target == low_type else assignment


def can_become(target: int, low_type: int, graph: Graph) -> bool:
    """Return whether float32 slots of a graph can become ``target``.

    float16 never becomes bfloat16 or the reverse, and the Cast of the graph's opset must know the type: Cast to
    bfloat16 exists from opset 13 on.
    """
    if target != low_type:
        return target == dtypes.FLOAT
    cast = find_schema("", "Cast", standard_opset(graph.model))
    return cast is None or target in cast.allowed["T2"]


def _is_refused(assignment: Assignment, target: int, requested_types: tuple[int, ...], signature: Signature) -> bool:
    """Return whether the operator refuses ``target`` on every group of slots that should change.

    A node whose main slots have the type already is not refused. Example: a Dropout with bfloat16 data keeps its
    float32 ratio.
    """
    pairs = zip(requested_types, signature.groups, strict=True)
    to_change = [index for index, (elem, group) in enumerate(pairs) if elem != group.authored]
    if signature.primary_group is not None and signature.primary_group.authored == target:
        return False
    return bool(to_change) and all(i in assignment.refused for i in to_change)


# --- constants out of range ---


def _keep_constants_out_of_range(node: Node, assignment: Assignment, solution: Solution) -> Assignment:
    """Return the types of a node that becomes low precision; constants out of range keep their authored type.

    ``assignment`` has the node's types without regard to constants. A group of slots with such a constant keeps its
    authored type if all slots of the group are inputs that read constants; otherwise the whole node keeps its types.
    The whole node also keeps them if its own result is a constant that does not fit.
    """
    signature = node.signature
    assert signature is not None
    # Phase 1: find the groups of slots that read a constant out of range.
    slot_groups: list[int] = []
    # The constants of masks and guards are brought into range before they are converted (Rules S4.36, S4.43).
    changed_slots = solution.changed_slots.get(node, ())
    for index, group in enumerate(signature.groups):
        # A group that stays as authored, because the schema refuses the low type for it, does not round its constants.
        if assignment.elements[index] != solution.low_type:
            continue
        for slot in group.inputs:
            value = node.inputs[slot]
            assert value is not None  # an omitted slot belongs to no group
            reason = solution.applied.explain_kept_constant(value) if slot not in changed_slots else None
            if reason:
                slot_groups.append(index)
                solution.reason_notes[node.id] = reason
                break
    # Phase 2: keep these groups, or the whole node.
    partly_low = _keep_slot_groups(node, assignment, slot_groups, solution.low_type) if slot_groups else assignment
    reason = (
        _explain_result_misfit(node, partly_low, solution) if partly_low is not None and not changed_slots else None
    )
    if reason:
        solution.reason_notes[node.id] = reason
    elif partly_low is not None:
        return partly_low
    solution.rule_overrides[node.id] = "constant"
    return signature.authored_assignment()


def _keep_slot_groups(node: Node, assignment: Assignment, slot_groups: list[int], low_type: int) -> Assignment | None:
    """Return the assignment with the authored type for some groups of slots; None if the whole node has to keep it.

    Example: a white ``Pow(x, 1e6)`` is float16 with a float32 exponent, because base and exponent have a type parameter
    each. A white ``Add(x, 1e6)`` stays float32, because all slots of Add share one.
    """
    signature = node.signature
    assert signature is not None
    # A slot that computes shares its type with the constant, so the constant cannot stay alone.
    if not all(_has_only_constants(signature.groups[index], node) for index in slot_groups):
        return None
    elements = assignment.elements
    requested_types = [g.authored if i in slot_groups else elements[i] for i, g in enumerate(signature.groups)]
    # Nothing low may remain: then the whole node stays.
    partly_low = signature.assign(tuple(requested_types))
    return partly_low if low_type in partly_low.elements else None


def _explain_result_misfit(node: Node, assignment: Assignment, solution: Solution) -> str | None:
    """Return why the node's own result is a constant that does not fit the low type; None if it fits."""
    for value, output_type in zip(node.outputs, assignment.outputs, strict=False):
        if output_type == solution.low_type:
            assert value is not None  # an omitted output has no type
            reason = solution.applied.explain_kept_constant(value)
            if reason:
                return reason
    return None


def _has_only_constants(group: TypeGroup, node: Node) -> bool:
    """Return whether the slots of a group are inputs only, and all of them read constants."""
    inputs = filter(None, [node.inputs[slot] for slot in group.inputs])
    return not group.outputs and all(value.is_constant for value in inputs)
