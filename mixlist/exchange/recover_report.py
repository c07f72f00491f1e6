"""Describe a recovery: its edits, the nodes that have other types, and those without a counterpart (Rule S11.4)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from mixlist.exchange.mixed_types import MixedTypes, computes_float
from mixlist.exchange.model_matching import ModelMatch
from mixlist.exchange.recover_edits import Difference, RecoveredEdits
from mixlist.exchange.recover_result import RecoveredEdit, UnmatchedNode, UnrecoveredNode
from mixlist.model import dtypes
from mixlist.model.graph import Node
from mixlist.model.naming import node_ref
from mixlist.model.operator_names import ascend_names, onnx_names
from mixlist.model.signature import Assignment
from mixlist.model.traits import Trait, operators

_VALUE_MOVERS = operators(Trait.MOVES_VALUES)


def describe_edits(
    edits: RecoveredEdits, types: MixedTypes, without_rules: Sequence[Difference]
) -> Iterator[RecoveredEdit]:
    """Yield the edits: op types first, then rules. ``without_rules``: the nodes that differ under the lists alone."""
    names = [_list_names(node, edits.policy.space) for node in types.assignments]
    for op, move in sorted(edits.policy.lists.moves.items()):
        yield RecoveredEdit("list", op, move.before, move.after, sum(op in accepted for accepted in names))
    decided = {difference.node: difference.decided for difference in without_rules}
    for written in edits.rules:
        before = {_precision(node, decided.get(node, types.assignments[node])) for node in written.nodes}
        after = {_precision(node, types.assignments[node]) for node in written.nodes}
        name = f"OpType::{written.rule.pattern}" if written.rule.by == "type" else written.rule.pattern
        yield RecoveredEdit("rule", name, ", ".join(sorted(before)), ", ".join(sorted(after)), len(written.nodes))


def describe_exceptions(
    match: ModelMatch, types: MixedTypes, differences: Iterable[Difference]
) -> Iterator[UnrecoveredNode]:
    """Yield the nodes that do not get the types of the mixed model, and those that no node corresponds to."""
    for node, (partner, why) in types.problems.items():
        yield _unrecovered(node, "original", _mixed_precision(partner), "", why)
    for difference in differences:
        node = difference.node
        why = "no node rule can name it: its name is not unique, or reads as a pattern"
        precisions = _precision(node, difference.target), _precision(node, difference.decided)
        yield _unrecovered(node, "original", *precisions, why)
    paired = set(match.partners.values())
    for node in match.mixed.nodes:
        if computes_float(node) and node not in paired and (node.domain or node.op_type not in _VALUE_MOVERS):
            why = "no node of the original corresponds to it"
            yield _unrecovered(node, "mixed", _mixed_precision(node), "", why)


def describe_unmatched(match: ModelMatch) -> Iterator[UnmatchedNode]:
    """Yield the nodes of the original that compute with floats, so no Identity, and have no counterpart."""
    for node in match.original.nodes:
        if computes_float(node) and node not in match.partners and (node.domain or node.op_type != "Identity"):
            ref = node_ref(node)
            yield UnmatchedNode(ref.scope, ref.name, node.op_type)


def _list_names(node: Node, space: str) -> tuple[str, ...]:
    """Return the names by which the lists of a name space can mean a node."""
    return ascend_names(node.domain, node.op_type) if space == "ascend" else onnx_names(node.domain, node.op_type)


def _precision(node: Node, assignment: Assignment | None) -> str:
    """Return the type of the node's main slots."""
    signature = node.signature
    primary = signature.primary_group if signature is not None else None
    if signature is None or primary is None or assignment is None:
        return ""
    return dtypes.type_name(assignment.elements[signature.groups.index(primary)])


def _mixed_precision(node: Node) -> str:
    """Return the types of the outputs of a node of the mixed model; each type once."""
    elements = dict.fromkeys(dtypes.element(value.type) for value in node.outputs if value is not None)
    return ", ".join(dtypes.type_name(elem) for elem in elements if elem in dtypes.FLOATS)


def _unrecovered(node: Node, model: str, precision: str, decided: str, why: str) -> UnrecoveredNode:
    ref = node_ref(node)
    return UnrecoveredNode(ref.scope, ref.name, node.op_type, model, precision, decided, why)
