"""Choose the list of each op type, so that as few nodes as possible need a node rule.

With all nodes in the types of the mixed model, each list gives each node certain types (``PinnedSolver``). The
*misfits* of an operator under a list are its nodes for which these differ from the mixed model. A node that is no
misfit needs no rule, as long as the nodes that it reads have their types. So the number of nodes with a rule is the sum
of the misfits under the chosen lists, and each op type can be moved by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import get_args

from mixlist.decide.classification import Classifier, find_rank
from mixlist.decide.constant_ranges import ConstantRanges
from mixlist.decide.pinned_solver import PinnedSolver
from mixlist.lists.library import ListName, Lists, Move
from mixlist.lists.policy import Policy
from mixlist.model.graph import Graph, Node
from mixlist.model.operator_names import ascend_names, find_list, onnx_names
from mixlist.model.signature import Assignment

LIST_NAMES: tuple[ListName, ...] = get_args(ListName)
_MAX_SWEEPS = 10  # over all operators; each sweep that goes on has lowered the number of rules

Operator = tuple[str, str, int | None]  # domain, op type, and in Ascend names the rank of the first input
NodeSet = dict[Node, None]  # in order of computation


@dataclass(eq=False)
class Misfits:
    """The nodes of each operator that have other types under a list than in the mixed model.

    ``by_list``: these nodes, by operator and list. ``refusals``: the names of the rules that keep nodes in high
    precision on the white list although they are low precision in the mixed model.
    """

    by_list: dict[Operator, dict[ListName, NodeSet]] = field(default_factory=dict)
    refusals: set[str] = field(default_factory=set)


def find_misfits(
    graph: Graph, policy: Policy, ranges: ConstantRanges, assignments: Mapping[Node, Assignment]
) -> Misfits:
    """Return the misfits of all operators. ``policy`` decides the nodes that have no types in ``assignments``."""
    solver = PinnedSolver(graph, policy, ranges, assignments)
    solver.solve()
    nodes = [node for node in graph.nodes if node in assignments]
    names = {name for node in nodes for name in _list_names(policy, node.domain, node.op_type)}
    classifiers = {name: Classifier(_move_all(policy, names, name)) for name in LIST_NAMES}
    misfits = Misfits()
    for node in nodes:
        rank = find_rank(graph, node) if policy.space == "ascend" else None
        by_list = misfits.by_list.setdefault((node.domain, node.op_type, rank), {name: {} for name in LIST_NAMES})
        for list_name, classifier in classifiers.items():
            lone = solver.decide_alone(node, classifier.classify(graph, node))
            if lone.assignment is not None and lone.assignment.elements == assignments[node].elements:
                continue
            by_list[list_name][node] = None
            if list_name == "white":
                misfits.refusals.add(lone.rule)
    return misfits


def choose_lists(policy: Policy, misfits: Misfits) -> Policy:
    """Return the policy with the op types moved that lower the number of rules; of equal choices, the fewest moves."""
    choice = _ListChoice(policy, misfits)
    for _ in range(_MAX_SWEEPS):
        before = choice.cost()
        for operator in misfits.by_list:
            choice.improve(operator)
        if choice.cost() == before:
            break
    return replace(policy, lists=choice.lists)


def find_list_misfits(policy: Policy, misfits: Misfits) -> NodeSet:
    """Return the nodes that need a rule under the lists of a policy."""
    return {
        node: None
        for operator, by_list in misfits.by_list.items()
        for node in by_list[_list_of(policy.lists, policy, operator)]
    }


class _ListChoice:
    """The lists so far, and the moves that may improve them."""

    def __init__(self, policy: Policy, misfits: Misfits) -> None:
        self.policy, self.misfits, self.lists = policy, misfits, policy.lists
        self.operators_by_name: dict[str, list[Operator]] = {}
        for operator in misfits.by_list:
            for name in _list_names(policy, operator[0], operator[1]):
                self.operators_by_name.setdefault(name, []).append(operator)

    def cost(self) -> tuple[int, int]:
        """Return the number of rules and the number of moved op types."""
        return self._cost_of(self.misfits.by_list, self.lists)

    def improve(self, operator: Operator) -> None:
        """Move the names of an operator to the lists that need the fewest rules."""
        for names in self._candidate_names(operator):
            affected = dict.fromkeys(op for name in names for op in self.operators_by_name[name])
            for list_name in LIST_NAMES:
                moved = _move(self.lists, names, list_name)
                if self._cost_of(affected, moved) < self._cost_of(affected, self.lists):
                    self.lists = moved

    def _cost_of(self, operators: Iterable[Operator], lists: Lists) -> tuple[int, int]:
        by_list = self.misfits.by_list
        rules = sum(len(by_list[operator][_list_of(lists, self.policy, operator)]) for operator in operators)
        return rules, len(lists.moves)

    def _candidate_names(self, operator: Operator) -> list[tuple[str, ...]]:
        """Return the sets of names whose moves may change the list of an operator."""
        domain, op_type, rank = operator
        names = _list_names(self.policy, domain, op_type)
        match = find_list(self.lists, self.policy.space, domain, op_type, lambda: rank)
        if self.policy.space == "onnx":
            # ``domain::Op`` is needed only if the model has the op type in several domains.
            has_twin = len(self.operators_by_name[names[0]]) > 1
            return [(match.op,), *([(names[1],)] if has_twin and match.op != names[1] else [])]
        listed = tuple(name for name in names if self.lists.has_entry(name))
        return [(match.op,), listed] if match.op in names and listed else [(match.op,)] if names else []


def _list_of(lists: Lists, policy: Policy, operator: Operator) -> ListName:
    domain, op_type, rank = operator
    return find_list(lists, policy.space, domain, op_type, lambda: rank).list


def _list_names(policy: Policy, domain: str, op_type: str) -> tuple[str, ...]:
    """Return the names by which the lists of a policy can mean an operator."""
    return ascend_names(domain, op_type) if policy.space == "ascend" else onnx_names(domain, op_type)


def _move(lists: Lists, names: Iterable[str], list_name: ListName) -> Lists:
    """Return the lists after moves; a move to the list that the library has is no move."""
    moves = dict(lists.moves)
    for name in names:
        moves.pop(name, None)
    without = Lists(lists.library, moves, frozenset(moves))
    moves |= {n: Move(n, without.list_of(n), list_name, None) for n in names if without.list_of(n) != list_name}
    return Lists(lists.library, moves, frozenset(moves))


def _move_all(policy: Policy, names: Iterable[str], list_name: ListName) -> Policy:
    """Return a policy with all names on one list."""
    moves = {name: Move(name, policy.lists.list_of(name), list_name, None) for name in names}
    return replace(policy, lists=Lists(policy.lists.library, moves, frozenset(moves)))
