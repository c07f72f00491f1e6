"""Find the edits that a search may try, and rank them by how likely they cause the base check to fail.

An edit of ``tune`` moves one op type of the model to the black list, so the precision mode must have lists.

The report of ``check`` under the base lists holds most of the evidence: the first offenders, the tensors whose float32
values are beyond the range of the low type, and the error that each node adds (the layerwise ranking). A good order
makes the search short. It does not change which sets of edits pass.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from mixlist.checker.findings import FAILING_KINDS
from mixlist.checker.intended_infinities import SENTINEL
from mixlist.checker.result import CheckReport
from mixlist.decide.solution import Solution
from mixlist.lists.node_rules import is_valid_rule_name
from mixlist.lists.policy import Policy
from mixlist.model import dtypes
from mixlist.model.graph import Node
from mixlist.model.low_precision import overflow_bound
from mixlist.model.naming import NodeRef, node_ref, unique_names
from mixlist.model.operator_names import ascend_forms
from mixlist.model.signature import TypeGroup
from mixlist.search.edits import Edit, ListEdit, NodeEdit
from mixlist.targets.estimate import Costs

_VERBS = {"overflow": "overflows", "saturated": "saturates", "refused": "is refused by ONNX Runtime"}
# The kinds of evidence against a candidate. The candidates with the smallest number are tried first.
_OFFENDER, _BEYOND_RANGE, _OTHER = range(3)


class Candidate(NamedTuple):
    """An edit that the search may try, and the nodes whose precision the edit decides, without repeated nodes."""

    edit: Edit
    nodes: tuple[NodeRef, ...]


def find_list_candidates(solution: Solution, base: Policy, low_nodes: set[NodeRef]) -> tuple[Candidate, ...]:
    """Return one candidate per op type that could go to the black list, sorted by op type.

    Each op type needs a node in ``low_nodes``. ``solution``: the decisions that say on which list each node is now.
    ``base``: the policy without edits. Its lists give ``before`` of each edit.
    """
    nodes_by_op: dict[str, dict[NodeRef, None]] = {}  # the inner dict is an ordered set
    for node in solution.graph.nodes:
        classification = solution.classifications[node.id]
        ref = node_ref(node)
        # No list decides this node (a rule does, or its type is fixed), or the node is on the black list already.
        if classification.list_match is None or classification.list_name == "black" or ref not in low_nodes:
            continue
        if base.space == "ascend" and not ascend_forms(node):
            continue  # the Ascend library has no name for this operator, so a mixlist cannot move it
        nodes_by_op.setdefault(classification.list_match.op, {})[ref] = None
    return tuple(Candidate(ListEdit(op, base.lists.list_of(op)), tuple(nodes_by_op[op])) for op in sorted(nodes_by_op))


def find_node_candidates(solution: Solution, nodes: set[NodeRef]) -> tuple[Candidate, ...]:
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
        candidates.append(Candidate(make_node_edit(name, node, movable_groups, "float32"), (ref,)))
    return tuple(candidates)


def make_node_edit(name: str, node: Node, groups: Sequence[TypeGroup], precision: str) -> NodeEdit:
    """Return the edit that gives the slots of some type groups of a node one type. ``name``: the node's, in rules."""
    inputs = _slot_types({slot for group in groups for slot in group.inputs}, node.inputs, precision)
    outputs = _slot_types({slot for group in groups for slot in group.outputs}, node.outputs, precision)
    return NodeEdit(name, node.op_type, inputs, outputs)


def _slot_types(slots: set[int], values: Sequence[object], precision: str) -> tuple[str, ...]:
    """Return the types of a NodeEdit by slot: ``precision`` at each of ``slots`` that has a value, "" at other slots.

    The result ends with the last slot that has a type.
    """
    present = [slot for slot in slots if slot < len(values) and values[slot] is not None]
    return tuple([precision if slot in present else "" for slot in range(max(present, default=-1) + 1)])


# --- rank the candidates ---


class CandidateRanking:
    """Ranks candidates by the evidence of a check under the base lists.

    ``low_type``: the element type of low precision. ``costs``: the costs of the model's main graph.
    """

    def __init__(self, report: CheckReport, low_type: int, costs: Costs) -> None:
        bound = overflow_bound(low_type)
        failing = [node for node in report.nodes if node.kind in FAILING_KINDS]
        self.offenders = {node.ref: _VERBS[node.kind] for node in failing}
        # A high-precision offender reads bad values from a low-precision node: only an edit of that node may help.
        self.offender_by_source = {node.low_source.ref: node for node in failing if node.low_source is not None}
        # Values from SENTINEL on are those of masks, which are large by design.
        beyond_range = (t.producer for t in report.tensors if t.low and bound <= t.magnitude < SENTINEL)
        self.beyond_range = dict.fromkeys(beyond_range, "has values beyond the range")
        self.errors = {error.ref: error.normalized_error for error in report.layerwise}
        self._matrix_flops = _matrix_flops_by_node(costs)

    def orders(self, candidates: Sequence[Candidate]) -> list[list[Candidate]]:
        """Return the orders in which a search should try the candidates.

        In both orders the first offenders come first, then the nodes with values beyond the range, then all others. The
        first order puts the others without matrix products and convolutions before those with them, because it costs
        little to make them high. The second order sorts the others by error alone. If both orders are equal, only one
        is returned.
        """

        # Both keys end with the text of the edit, so that candidates with equal errors have the same order in each run.
        def cheap_first(candidate: Candidate) -> tuple[int, int, float, str]:
            evidence, error = self._rank(candidate)
            # A likely cause comes first even if it holds much work. Only the others are sorted by their work.
            has_matrix_work = evidence == _OTHER and self.matrix_flops(candidate) > 0
            return evidence, int(has_matrix_work), -error, str(candidate.edit)

        def largest_error_first(candidate: Candidate) -> tuple[int, float, str]:
            evidence, error = self._rank(candidate)
            return evidence, -error, str(candidate.edit)

        first, second = sorted(candidates, key=cheap_first), sorted(candidates, key=largest_error_first)
        return [first] if first == second else [first, second]

    def matrix_flops(self, candidate: Candidate) -> int:
        """Return the operations of matrix products and convolutions in the candidate's nodes."""
        return sum(self._matrix_flops[node] for node in candidate.nodes)

    def explain(self, candidate: Candidate) -> str:
        """Return in words why the candidate is likely to cause the failure; "" if there is no evidence."""
        # 1. The candidate's node is low, and a high-precision node that reads its values fails.
        for node in candidate.nodes:
            if node in self.offender_by_source:
                offender = self.offender_by_source[node]
                return f"{offender.ref}, which computes with values of {node}, {_VERBS[offender.kind]}"
        # 2. The candidate's own nodes fail, or have float32 values that the low type cannot hold.
        for evidence in (self.offenders, self.beyond_range):
            nodes = [node for node in candidate.nodes if node in evidence]
            if nodes:
                more = f" (and {len(nodes) - 1} more)" if len(nodes) > 1 else ""
                return f"{nodes[0]} {evidence[nodes[0]]}{more}"
        # 3. The error that a node adds alone. It is infinite if the node makes an infinity of finite reference values.
        error, node = max(((self.errors.get(n, 0.0), n) for n in candidate.nodes), default=(0.0, NodeRef("", "")))
        if not math.isfinite(error):
            return f"{node} overflows on exact inputs"
        return f"{node} adds an error of {error:.2g}" if error else ""

    def _rank(self, candidate: Candidate) -> tuple[int, float]:
        """Return the kind of evidence against a candidate, and the sum of the squared errors of its nodes."""
        nodes = set(candidate.nodes)
        # With squares, one large error weighs more than many small ones: 0.1 more than ten times 0.02.
        error = sum(self.errors.get(node, 0.0) ** 2 for node in nodes)
        if nodes & (self.offenders.keys() | self.offender_by_source.keys()):
            return _OFFENDER, error
        return _BEYOND_RANGE if nodes & self.beyond_range.keys() else _OTHER, error


def _matrix_flops_by_node(costs: Costs) -> Counter[NodeRef]:
    """Return the operations of each matrix product and convolution."""
    flops: Counter[NodeRef] = Counter()
    for node in costs.graph.nodes:
        cost = costs.nodes.get(node.id)
        if cost is not None and cost.is_matrix:
            flops[node_ref(node)] += cost.flops
    return flops
