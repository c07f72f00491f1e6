"""Rule S4.29: all elements of a sequence share one type.

All elements of a sequence, and an optional and its content, share one type with everything that nodes and control flow
connect to them: white nodes vote for the low type, black nodes for the authored type, gray nodes and inserted tensors
for the type of the tensor, and float32 wins. If a sequence operator lacks the low type, all stay in high precision.

A sequence or optional that enters or leaves the graph votes for its declared type.
"""

from __future__ import annotations

from mixlist.errors import ListError
from mixlist.graph.model import Node, Value
from mixlist.ops import types
from mixlist.resolver import gray_policies
from mixlist.resolver.constants_out_of_range import misfit
from mixlist.resolver.control_flow import takes_type
from mixlist.resolver.decisions import UNDECIDED, join
from mixlist.resolver.sequence_groups import SequenceGroup, is_container
from mixlist.resolver.solver_state import SolverState


def decide_group(group: SequenceGroup, state: SolverState) -> list[Value]:
    """Count the votes for a group; return its values if their type rose."""
    return state.raise_types(group.values, [_vote(group, state)] * len(group.values))


def decide_member(node: Node, group: SequenceGroup, state: SolverState) -> list[Value]:
    """Give a node that touches a group the type of the group, whatever the node voted for."""
    elem = state.decided[group.values[0].id]
    signature, solution = node.signature, state.solution
    assert signature is not None
    if elem == UNDECIDED:
        return []
    kind = solution.facts[node.id].kind
    target = state.low if kind == "low" else signature.groups[0].authored if kind == "authored" else elem
    if kind == "gray":
        target, solution.followed[node.id] = gray_policies.follow(node, state)
    elif kind == "rule" and not state.is_settling:
        _check_rule(node, elem, state)
    assignment = solution.assignments[node.id] = signature.assign((elem,) * len(signature.groups))
    solution.rules.pop(node.id, None)
    if target not in (elem, UNDECIDED):
        solution.rules[node.id] = "control-flow"
    return state.raise_types(node.outputs, [types.element(t) for t in assignment.outputs])


def _vote(group: SequenceGroup, state: SolverState) -> int:
    """Return the group's type as far as the votes go; UNDECIDED as long as there is none."""
    voted = group.fixed
    for value in group.tensors:
        voted = join(voted, state.decided[value.id])
    for argument in group.arguments:
        callee = state.solution.callees.get(argument.call.id)
        if callee is not None and argument.slot < len(callee.graph.root.inputs):
            voted = join(voted, callee.decided[callee.graph.root.inputs[argument.slot].id])
    for node in group.nodes:
        if voted not in (UNDECIDED, state.low):
            break
        voted = join(voted, _node_vote(node, state))
    if voted == state.low and group.fixed != voted and not all(takes_type(k, voted, state.graph) for k in group.links):
        return types.FLOAT
    authored = types.element(group.values[0].type)
    return voted if voted in (UNDECIDED, state.low, types.FLOAT) else authored  # lists never make the other low type


def _node_vote(node: Node, state: SolverState) -> int:
    fact, signature = state.solution.facts[node.id], node.signature
    assert signature is not None
    if fact.kind == "rule":
        return state.shared.rules.assignment(state.graph, node).elements[0]
    authored = signature.groups[0].authored
    votes = {"low": state.low, "raise": types.FLOAT, "gray": _tensor_vote(node, state)}
    target = votes.get(fact.kind, authored)
    if target == state.low and authored != state.low:
        refused = signature.assign((state.low,)).refused
        if refused or any(misfit(v, state) for v in node.inputs if v is not None):
            return types.FLOAT
    return target


def _tensor_vote(node: Node, state: SolverState) -> int:
    """Return the type of a gray node's first float tensor, if no sequence comes before it; else UNDECIDED."""
    first = next((v for v in node.inputs if v is not None and gray_policies.is_followed(v)), None)
    return UNDECIDED if first is None or is_container(first) else state.decided[first.id]


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
