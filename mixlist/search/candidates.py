"""Find the edits that a search may try, and apply a set of edits to a policy (Rule S9.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter

from mixlist.decide.decisions import GraphSolution
from mixlist.diagnostics import FilePlace
from mixlist.lists.library import ListName, Lists, Move
from mixlist.lists.node_rules import is_valid_rule_name
from mixlist.lists.policy import NodeRule, Policy
from mixlist.model import dtypes
from mixlist.model.naming import NodeRef, node_ref, unique_names
from mixlist.model.operator_names import ascend_names

_TUNE_PLACE = FilePlace("tune", 1, 1)  # stands for the file and position of a rule that the search makes


@dataclass(frozen=True, order=True)
class ListEdit:
    """The move of an op type to another list. ``op`` is the name in the lists, which may be an Ascend name."""

    op: str
    before: ListName
    after: ListName

    @cached_property
    def text(self) -> str:
        """The edit in reports, in state files and as a sort key."""
        return f"{self.op}: {self.before} to {self.after}"

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, order=True)
class NodeEdit:
    """A rule that keeps one node in float32. ``pattern`` names the node in a customize_dtypes file.

    ``inputs`` and ``outputs``: by slot ``float32`` if the slot has a float type, "" if the rule leaves it alone.
    """

    pattern: str
    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @cached_property
    def text(self) -> str:
        """The edit in reports, in state files and as a sort key."""
        return f"{self.pattern} ({self.op_type}): float32"

    def __str__(self) -> str:
        return self.text

    @cached_property
    def rule(self) -> NodeRule:
        """The edit as a rule of a customize_dtypes file."""
        inputs, outputs = (tuple(name or None for name in names) for names in (self.inputs, self.outputs))
        return NodeRule("name", self.pattern, False, _TUNE_PLACE, inputs, outputs)


Edit = ListEdit | NodeEdit
EditSet = frozenset[Edit]


@dataclass(frozen=True)
class Candidate:
    """An edit that the search may try, and the nodes whose precision the edit decides, without repeated nodes."""

    edit: Edit
    nodes: tuple[NodeRef, ...]


def edit_policy(base: Policy, edits: EditSet) -> Policy:
    """Return the policy under a set of edits: the base's lists after the edits, and the base's rules.

    The rules of NodeEdits come before the base's own rules, because the first rule that matches a node decides.
    """
    moves = dict(base.lists.moves)
    named = set(base.lists.named_ops)
    rules = []
    # A set has no order of its own, and the order of rules matters: sort, so that equal sets give equal policies.
    for edit in sorted(edits, key=attrgetter("text")):
        if isinstance(edit, ListEdit):
            moves[edit.op] = Move(edit.op, base.lists.list_of(edit.op), edit.after, None)
            named.add(edit.op)
        else:
            rules.append(edit.rule)
    lists = Lists(base.lists.library, moves, frozenset(named), base.lists.entry_places)
    return replace(base, lists=lists, rules=(*rules, *base.rules))


def find_list_candidates(
    solution: GraphSolution, base: Policy, after: ListName, low_nodes: set[NodeRef] | None
) -> tuple[Candidate, ...]:
    """Return one candidate per op type that could go to the list ``after``, sorted by op type.

    Each op type needs a node in ``low_nodes``; if ``low_nodes`` is None, any node will do. ``solution``: the decisions
    that say on which list each node is now. ``base``: the policy without edits. Its lists give ``before`` of each edit.
    """
    nodes_by_op: dict[str, dict[NodeRef, None]] = {}  # the inner dict is an ordered set
    for node in solution.graph.nodes:
        classification = solution.classifications[node.id]
        ref = node_ref(node)
        # No list decides this node (a rule does, or its type is fixed), or the node is on the wanted list already.
        if classification.list_match is None or classification.list_name == after:
            continue
        if low_nodes is not None and ref not in low_nodes:
            continue
        if base.space == "ascend" and not ascend_names(node.domain, node.op_type):
            continue  # the Ascend library has no name for this operator, so a mixlist cannot move it
        nodes_by_op.setdefault(classification.list_match.op, {})[ref] = None
    return tuple(
        Candidate(ListEdit(op, base.lists.list_of(op), after), tuple(nodes_by_op[op])) for op in sorted(nodes_by_op)
    )


def find_node_candidates(solution: GraphSolution, nodes: set[NodeRef]) -> tuple[Candidate, ...]:
    """Return a candidate for each of ``nodes`` that a rule can name and keep in float32, in order of computation.

    If several nodes share a name, the rule also names the scope. A node is left out if no rule can hold its name, or if
    a rule of the policy decides it already.
    """
    names = unique_names(node_ref(node) for node in solution.graph.nodes)
    candidates = []
    for node in solution.graph.nodes:
        ref, signature = node_ref(node), node.signature
        # A rule cannot change a node whose output type an attribute fixes (Cast), or that has no types to choose from.
        if ref not in nodes or signature is None or signature.has_fixed_output or not signature.groups:
            continue
        name = names.get(ref, "")
        if not is_valid_rule_name(name) or solution.classifications[node.id].kind == "rule":
            continue
        # Slots of integers, and of float64, keep their types.
        movable_groups = [group for group in signature.groups if group.authored in dtypes.MIXABLE]
        inputs = _float32_slots({slot for group in movable_groups for slot in group.inputs}, node.inputs)
        outputs = _float32_slots({slot for group in movable_groups for slot in group.outputs}, node.outputs)
        candidates.append(Candidate(NodeEdit(name, node.op_type, inputs, outputs), (ref,)))
    return tuple(candidates)


def _float32_slots(slots: set[int], values: Sequence[object]) -> tuple[str, ...]:
    """Return the types of a NodeEdit by slot: ``float32`` at each of ``slots`` that has a value, "" at other slots.

    The result ends with the last ``float32``.
    """
    present = [slot for slot in slots if slot < len(values) and values[slot] is not None]
    return tuple(["float32" if slot in present else "" for slot in range(max(present, default=-1) + 1)])
