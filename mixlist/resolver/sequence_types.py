"""Rules S4.29 and S4.30: all elements of a sequence share one type, which the gray policy helps to decide.

Rule S4.29: All elements of a sequence have one type, and so have an optional and its content. Sequences and optionals
that nodes and control flow connect have this type, too. White nodes vote for the low type, black nodes for the authored
type, and gray nodes for the decided type of their first float input that is not a constant. If the votes differ,
float32 wins. If a sequence operator lacks the low type, all stay in high precision.

Rule S4.30: Under the gray policies other than `ascend`, the gray operators of connected sequences are one gray node
that reads all tensors that these operators and control flow put into the sequences; its type is one vote.

A sequence or optional that enters or leaves the graph votes for its declared type.
"""

from __future__ import annotations

from collections.abc import Iterator

from mixlist.errors import list_error
from mixlist.graph.model import Node, Value
from mixlist.ops import dtypes
from mixlist.resolver import gray_policies
from mixlist.resolver.cast_look_through import find_followed_value
from mixlist.resolver.constants_out_of_range import explain_kept_constant
from mixlist.resolver.control_flow_types import takes_type
from mixlist.resolver.decisions import UNDECIDED, join_types
from mixlist.resolver.sequence_groups import SequenceGroup, Vote, is_container
from mixlist.resolver.solver_state import SolverState


def decide_sequence_group(group: SequenceGroup, state: SolverState) -> list[Value]:
    """Count the votes for a group; return its values if their type changed."""
    if state.policy.gray_policy != "ascend":
        group.gray_vote = _find_gray_vote(group, state)
    elem, source = _count_votes(group, state)
    changed = state.decide_types(group.values, [elem] * len(group.values))
    if changed:
        group.source = source
    return changed


def decide_sequence_node(node: Node, group: SequenceGroup, state: SolverState) -> list[Value]:
    """Give a node that reads or makes sequences the type of their group, whatever the node voted for.

    Return its outputs whose type changed. Raises ListError if a node rule asks for
    another type than the group's.
    """
    elem = state.decided_types[group.values[0].id]
    signature, solution = node.signature, state.solution
    assert signature is not None
    if elem == UNDECIDED:
        return []
    kind = solution.classifications[node.id].kind
    # While votes may still come, the type of the group is not final.
    if kind == "rule" and not state.is_voting:
        _check_node_rule(node, elem, state)
    assignment = solution.assignments[node.id] = signature.assign((elem,) * len(signature.groups))
    source = group.source
    solution.followed_values[node.id] = None if source is not None and source.producer is node else source
    # If the group got another type than the node voted for, the reports name the rule `control-flow`. Under Rule S4.30
    # the gray operators have one vote together, so this vote is compared instead of the node's.
    solution.rule_overrides.pop(node.id, None)
    votes_with_group = kind == "gray" and state.policy.gray_policy != "ascend"
    vote = group.gray_vote[0] if votes_with_group else _find_type_without_group(node, state)
    if kind != "rule" and vote not in (elem, UNDECIDED):
        solution.rule_overrides[node.id] = "control-flow"
    return state.decide_types(node.outputs, [dtypes.element(t) for t in assignment.outputs])


def _count_votes(group: SequenceGroup, state: SolverState) -> Vote:
    """Return the type that the votes so far give to a group, and the value whose vote decided.

    The type is UNDECIDED as long as there is no vote.
    """
    voted, source = UNDECIDED, None
    for elem, value in _collect_votes(group, state):
        joined = join_types(voted, elem)
        if joined != voted:
            voted, source = joined, value
        if voted == dtypes.FLOAT:
            break  # float32 wins over all votes that may follow
    # A fixed type cannot give way to a link. Otherwise one link that lacks the low type keeps all in float32.
    if voted == state.low_type and group.fixed_type != voted:
        refusing = next((link for link in group.links if not takes_type(link, voted, state.graph)), None)
        if refusing is not None:
            return dtypes.FLOAT, next(iter(refusing.targets), None)
    authored = dtypes.element(group.values[0].type)
    movable_types = state.model_solver.classifier.movable_types
    if voted in (UNDECIDED, state.low_type) or (voted == dtypes.FLOAT and authored in movable_types):
        return voted, source
    # Rule S4.9: lists never make the other low type, and leave a sequence of it alone.
    return authored, source


def _collect_votes(group: SequenceGroup, state: SolverState) -> Iterator[Vote]:
    """Yield the votes for a group: its fixed type, and those of tensors, calls and nodes."""
    yield group.fixed_type, None
    is_ascend = state.policy.gray_policy == "ascend"
    for value in group.voting_values:
        # Under the other gray policies, the gray vote counts the tensors.
        if is_ascend or is_container(value):
            yield state.decided_types[value.id], value
    # The group of the parameter in the body votes in the group of the argument.
    for argument in group.arguments:
        callee = state.solution.callees.get(argument.call.id)
        if callee is not None and argument.slot < len(callee.graph.root.inputs):
            parameter = callee.graph.root.inputs[argument.slot]
            yield callee.decided_types[parameter.id], next(iter(argument.call.outputs), None)
    for node in group.nodes:
        if is_ascend or state.solution.classifications[node.id].kind != "gray":
            yield _find_node_vote(node, state)
    yield group.gray_vote


def _find_node_vote(node: Node, state: SolverState) -> Vote:
    """Return the vote of one node; its value is the one that a gray node follows, or the first output."""
    first_output = next((value for value in node.outputs if value is not None), None)
    kind = state.solution.classifications[node.id].kind
    elem = _find_type_without_group(node, state)
    # A node rule may ask for the low type although a constant does not fit (Rule S4.2).
    if elem == state.low_type and kind != "rule" and _refuses_low_type(node, state):
        return dtypes.FLOAT, first_output
    return elem, _find_first_tensor(node) if kind == "gray" else first_output


def _find_type_without_group(node: Node, state: SolverState) -> int:
    """Return the type that a node would have without its group; UNDECIDED for a gray node that reads no tensor."""
    classification, signature = state.solution.classifications[node.id], node.signature
    assert signature is not None
    if classification.kind == "rule":
        return state.model_solver.node_rules.find_assignment(state.graph, node).elements[0]
    if classification.kind == "gray":
        tensor = _find_first_tensor(node)
        return UNDECIDED if tensor is None else state.decided_types[tensor.id]
    types_by_kind = {"low": state.low_type, "raise": dtypes.FLOAT}
    return types_by_kind.get(classification.kind, signature.groups[0].authored)


def _refuses_low_type(node: Node, state: SolverState) -> bool:
    """Return whether a node cannot have the low type, because of its schema or of a constant out of range."""
    signature = node.signature
    assert signature is not None
    if signature.groups[0].authored == state.low_type:
        return False
    if signature.assign((state.low_type,)).refused:
        return True
    return any(explain_kept_constant(value, state) for value in node.inputs if value is not None)


def _find_first_tensor(node: Node) -> Value | None:
    """Return the first float input that a gray node may follow; None if that input is a sequence or optional."""
    followed = next((v for v in node.inputs if v is not None and gray_policies.can_be_followed(v)), None)
    return None if followed is None or is_container(followed) else followed


# --- other gray policies than ascend ---


def _find_gray_vote(group: SequenceGroup, state: SolverState) -> Vote:
    """Return the vote of a group's gray operators, as one gray node that reads all tensors put in (Rule S4.30)."""
    grays = [node for node in group.nodes if state.solution.classifications[node.id].kind == "gray"]
    tensors = _find_tensors_put_in(group, grays)
    if not grays and not tensors:
        return UNDECIDED, None
    authored = dtypes.element(group.values[0].type)
    if state.policy.gray_policy == "between":
        elem, source = (state.low_type if group.stand_in_id in state.low_gray_ids else authored), None
    else:
        inputs = [find_followed_value(value, state) for value in tensors]
        elem, source = gray_policies.follow_widest_input(inputs, state) if inputs else (UNDECIDED, None)
    refusing = next((node for node in grays if elem == state.low_type and _refuses_low_type(node, state)), None)
    if refusing is not None:
        return dtypes.FLOAT, next((value for value in refusing.outputs if value is not None), None)
    return elem, source


def _find_tensors_put_in(group: SequenceGroup, grays: list[Node]) -> list[Value]:
    """Return the tensors that gray operators and control flow put into a group."""
    read_by_nodes = (value for node in grays for value in node.inputs if value is not None)
    tensors = (value for value in (*group.voting_values, *read_by_nodes) if not is_container(value))
    return [value for value in tensors if gray_policies.can_be_followed(value)]


def _check_node_rule(node: Node, elem: int, state: SolverState) -> None:
    """Raise ListError if a node rule asks for another type than that of the node's group, ``elem``."""
    rule_type = state.model_solver.node_rules.find_assignment(state.graph, node).elements[0]
    if rule_type != elem:
        rule = state.model_solver.node_rules.find_rule(state.graph, node)
        message = (
            f"the rule asks for {dtypes.type_name(rule_type)}, but all elements of a sequence or optional share one "
            f"type, and another node, or an input or output of the graph, makes it {dtypes.type_name(elem)}"
        )
        hint = "give the other nodes of the sequence the same rule"
        raise list_error(rule.place.finding("ML308", "error", message, hint))
