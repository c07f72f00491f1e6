"""Rules S4.29 and S4.30: all elements of a sequence share one type, which the gray policy helps to decide.

Rule S4.29: All elements of a sequence, and an optional and its content, share one type with everything that nodes and
control flow connect to them: white nodes vote for the low type, black nodes for the authored type, gray nodes for the
decided type of their first float input that is not a constant, and float32 wins. If a sequence operator lacks the low
type, all stay in high precision.

Rule S4.30: Under the gray policies other than `ascend`, the gray operators of connected sequences are one gray node
that reads all tensors that these operators and control flow put into the sequences; its type is one vote.

A sequence or optional that enters or leaves the graph votes for its declared type.
"""

from __future__ import annotations

from collections.abc import Iterator

from mixlist.errors import ListError
from mixlist.graph.model import Node, Value
from mixlist.ops import types
from mixlist.resolver import gray_policies
from mixlist.resolver.cast_look_through import followed_value
from mixlist.resolver.constants_out_of_range import misfit
from mixlist.resolver.control_flow_types import takes_type
from mixlist.resolver.decisions import UNDECIDED, join
from mixlist.resolver.sequence_groups import SequenceGroup, Vote, is_container
from mixlist.resolver.solver_state import SolverState


def decide_group(group: SequenceGroup, state: SolverState) -> list[Value]:
    """Count the votes for a group; return its values if their type rose, or if they are high by black from now on."""
    if state.policy.gray_policy != "ascend":
        group.gray_vote = _gray_vote(group, state)
    elem, source = _outcome(group, state)
    changed = state.raise_types(group.values, [elem] * len(group.values))
    if changed:
        group.source = source
    by_black = elem == types.FLOAT and _is_high_by_black(group, state)
    return changed + gray_policies.mark_high_by_black(group.values, [by_black] * len(group.values), state)


def decide_member(node: Node, group: SequenceGroup, state: SolverState) -> list[Value]:
    """Give a node that touches a group the type of the group, whatever the node voted for."""
    elem = state.decided_types[group.values[0].id]
    signature, solution = node.signature, state.solution
    assert signature is not None
    if elem == UNDECIDED:
        return []
    kind = solution.classifications[node.id].kind
    if kind == "rule" and not state.is_settling:
        _check_rule(node, elem, state)
    assignment = solution.assignments[node.id] = signature.assign((elem,) * len(signature.groups))
    source = group.source
    solution.followed_values[node.id] = None if source is not None and source.producer is node else source
    solution.rule_overrides.pop(node.id, None)
    is_part = kind == "gray" and state.policy.gray_policy != "ascend"
    if kind != "rule" and (group.gray_vote[0] if is_part else _wanted(node, state)) not in (elem, UNDECIDED):
        solution.rule_overrides[node.id] = "control-flow"
    changed = state.raise_types(node.outputs, [types.element(t) for t in assignment.outputs])
    by_black = group.values[0].id in solution.high_by_black
    return changed + gray_policies.mark_high_by_black(node.outputs, [by_black] * len(node.outputs), state)


def _outcome(group: SequenceGroup, state: SolverState) -> Vote:
    """Return the group's type as far as the votes go, UNDECIDED as long as there is none, and the vote that gave it."""
    voted, source = UNDECIDED, None
    for elem, value in _votes(group, state):
        joined = join(voted, elem)
        if joined != voted:
            voted, source = joined, value
        if voted == types.FLOAT:
            break
    if voted == state.low and group.fixed != voted:
        refusing = next((link for link in group.links if not takes_type(link, voted, state.graph)), None)
        if refusing is not None:
            return types.FLOAT, next(iter(refusing.targets), None)
    authored = types.element(group.values[0].type)
    if voted in (UNDECIDED, state.low) or (voted == types.FLOAT and authored in state.shared.classifier.movable):
        return voted, source
    return authored, source  # lists never make the other low type, and leave a sequence of it alone


def _votes(group: SequenceGroup, state: SolverState) -> Iterator[Vote]:
    """Yield the votes: of the border, of tensors, of calls, and of the nodes that touch the group."""
    yield group.fixed, None
    is_ascend = state.policy.gray_policy == "ascend"
    for value in group.tensors:
        if is_ascend or is_container(value):
            yield state.decided_types[value.id], value
    for argument in group.arguments:
        callee = state.solution.callees.get(argument.call.id)
        if callee is not None and argument.slot < len(callee.graph.root.inputs):
            yield (
                callee.decided_types[callee.graph.root.inputs[argument.slot].id],
                next(iter(argument.call.outputs), None),
            )
    for node in group.nodes:
        if is_ascend or state.solution.classifications[node.id].kind != "gray":
            yield _node_vote(node, state)
    yield group.gray_vote


def _node_vote(node: Node, state: SolverState) -> Vote:
    """Return what one node votes for; the type is that of a value that the node makes, or that a gray node follows."""
    made = next((v for v in node.outputs if v is not None), None)
    elem = _wanted(node, state)
    if elem == state.low and state.solution.classifications[node.id].kind != "rule" and _refuses_low(node, state):
        return types.FLOAT, made
    is_gray = state.solution.classifications[node.id].kind == "gray"
    return elem, _first_tensor(node) if is_gray else made


def _wanted(node: Node, state: SolverState) -> int:
    """Return the type that a node would have if it were alone; UNDECIDED for a gray node that reads no tensor."""
    fact, signature = state.solution.classifications[node.id], node.signature
    assert signature is not None
    if fact.kind == "rule":
        return state.shared.rules.assignment(state.graph, node).elements[0]
    if fact.kind == "gray":
        first = _first_tensor(node)
        return UNDECIDED if first is None else state.decided_types[first.id]
    return {"low": state.low, "raise": types.FLOAT}.get(fact.kind, signature.groups[0].authored)


def _refuses_low(node: Node, state: SolverState) -> bool:
    """Return whether a node cannot have the low type, because of its schema or of a constant out of range."""
    signature = node.signature
    assert signature is not None
    if signature.groups[0].authored == state.low:
        return False
    return bool(signature.assign((state.low,)).refused) or any(misfit(v, state) for v in node.inputs if v is not None)


def _first_tensor(node: Node) -> Value | None:
    """Return a gray node's first float tensor, if no sequence comes before it."""
    first = next((v for v in node.inputs if v is not None and gray_policies.is_followed(v)), None)
    return None if first is None or is_container(first) else first


# --- other gray policies than ascend ---


def _gray_vote(group: SequenceGroup, state: SolverState) -> Vote:
    """Return what the gray operators of a group vote for, as one gray node that reads all tensors put in (S4.30)."""
    grays = [node for node in group.nodes if state.solution.classifications[node.id].kind == "gray"]
    tensors = _tensors_put_in(group, grays)
    if not grays and not tensors:
        return UNDECIDED, None
    authored = types.element(group.values[0].type)
    if state.policy.gray_policy == "between":
        elem, source = (state.low if group.place in state.low_grays else authored), None
    else:
        producers = [followed_value(value, state) for value in tensors]
        elem, source = gray_policies.follow_all(producers, authored, state) if producers else (UNDECIDED, None)
    refusing = next((node for node in grays if elem == state.low and _refuses_low(node, state)), None)
    if refusing is not None:
        return types.FLOAT, next((v for v in refusing.outputs if v is not None), None)
    return elem, source


def _tensors_put_in(group: SequenceGroup, grays: list[Node]) -> list[Value]:
    """Return the tensors that gray operators and control flow put into a group."""
    by_nodes = (v for node in grays for v in node.inputs if v is not None)
    return [v for v in (*group.tensors, *by_nodes) if not is_container(v) and gray_policies.is_followed(v)]


def _is_high_by_black(group: SequenceGroup, state: SolverState) -> bool:
    """Return whether a group is high precision because of a black node, in it or before it (Rule S4.23)."""
    if state.policy.gray_policy != "black-wins":
        return False
    solution = state.solution
    if any(
        solution.classifications[n.id].list == "black" and solution.classifications[n.id].kind == "authored"
        for n in group.nodes
    ):
        return True
    grays = [node for node in group.nodes if solution.classifications[node.id].kind == "gray"]
    read = [followed_value(value, state) for value in _tensors_put_in(group, grays)]
    made_by_calls = [value for value in group.tensors if is_container(value)]
    return any(gray_policies.is_high_by_black(v, solution, state.low) for v in (*read, *made_by_calls))


def _check_rule(node: Node, elem: int, state: SolverState) -> None:
    """Refuse a node rule that asks for another type than the one of the node's group."""
    asked = state.shared.rules.assignment(state.graph, node).elements[0]
    if asked != elem:
        rule = state.shared.rules.rule_of(state.graph, node)
        raise ListError(
            f"{rule.place}: the rule asks for {types.type_name(asked)}, but all elements of a sequence or optional "
            f"share one type, and another node or the graph's border makes it {types.type_name(elem)}",
            hint="give the other nodes of the sequence the same rule",
        )
