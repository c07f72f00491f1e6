"""Find the smallest lists and node rules under which a model gets given types (Rule S11.3).

1. Choose the list of each op type, so that the fewest nodes need a rule.
2. Decide the model under these lists and rules, and add rules for nodes that still differ: where loops feed back, or
   where a gray policy looks at more than one producer.
3. Leave out every edit that is not needed.

Suppose that all other nodes have the types of the mixed model. Then it is known which types each list gives a node
(``PinnedSolver``). The *misfits* of an operator under a list are its nodes whose types under the list differ from those
of the mixed model. A node that is no misfit needs no rule, as long as the nodes that it reads have their types. So the
number of nodes with a rule is the sum of the misfits under the chosen lists, and each op type can be moved by itself.

Few rules are written for the nodes that no list gives their types (Rules S6.2 to S6.7):

- A rule for an op type serves all of its nodes. The nodes that need other types have rules by name, which win
  (Rule S6.3).
- A rule with a pattern serves the nodes whose names differ in numbers only: ``/layers.*/attn/Softmax``.

Such a rule may also name nodes that need no rule, as long as it gives them the types that they must have.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from mixlist.decide import Resolver
from mixlist.decide.classification import Classifier, find_input_rank
from mixlist.decide.constant_ranges import ConstantRanges
from mixlist.decide.incremental_solver import IncrementalSolver
from mixlist.decide.node_rules import NodeRules
from mixlist.decide.pinned_solver import PinnedSolver
from mixlist.diagnostics import FilePlace
from mixlist.errors import ListError
from mixlist.lists.library import ListName, Lists, Move
from mixlist.lists.node_rules import is_valid_rule_name
from mixlist.lists.policy import NodeRule, Policy
from mixlist.model import dtypes
from mixlist.model.graph import Graph, Node, Value
from mixlist.model.naming import node_ref, unique_names
from mixlist.model.operator_names import ascend_names, find_list, onnx_names, operator_name
from mixlist.model.signature import Assignment
from mixlist.search.minimal_sets import remove_unneeded

LIST_NAMES: tuple[ListName, ...] = get_args(ListName)
_MAX_SWEEPS = 10  # over all operators; each sweep that goes on has lowered the number of rules
Operator = tuple[str, str, int | None]  # domain, op type, and in Ascend names the rank of the first input
NodeSet = dict[Node, None]  # in order of computation
_PLACE = FilePlace("recover", 1, 1)  # stands for the file and position of a rule before it is written
_MAX_PATTERNS = 200  # trying a pattern reads the names of all nodes
NodeTypes = Mapping[Node, Assignment]
SlotTypes = tuple[str | None, ...]
# The lists decide the nodes that match no node of the mixed model, so the lists are chosen again after they changed.
_MAX_ROUNDS = 3
# Rules are added at most this many times, each time for the nodes where a difference begins. The last time, they are
# added for all nodes that differ.
_MAX_ADDITIONS = 20
# Of at most this many edits each one is left out once, and the model is decided again. With more edits this takes too
# long. Each edit is needed in any case as long as all other nodes have their types.
_MAX_LEFT_OUT = 300


# --- choose the lists ---


@dataclass(eq=False)
class Misfits:
    """The nodes of each operator that have other types under a list than in the mixed model.

    ``by_list``: these nodes, by operator and list. ``refusals``: the names of the rules that give these nodes other
    types on the white list. For example, ``constant`` keeps a node high that is low in the mixed model.
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
    names = {name for node in nodes for name in list_names(policy, node.domain, node.op_type)}
    classifiers = {name: Classifier(_move_all(policy, names, name)) for name in LIST_NAMES}
    misfits = Misfits()
    for node in nodes:
        rank = find_input_rank(graph, node) if policy.space == "ascend" else None
        by_list = misfits.by_list.setdefault((node.domain, node.op_type, rank), {name: {} for name in LIST_NAMES})
        for list_name, classifier in classifiers.items():
            assignment, rule = solver.decide_alone(node, classifier.classify(graph, node))
            if assignment is not None and assignment.elements == assignments[node].elements:
                continue
            by_list[list_name][node] = None
            if list_name == "white":
                misfits.refusals.add(rule)
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
            for name in list_names(policy, operator[0], operator[1]):
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
        names = list_names(self.policy, domain, op_type)
        match = find_list(self.lists, self.policy.space, domain, op_type, lambda: rank)
        if self.policy.space == "onnx":
            # ``domain::Op`` is needed only if the model has the op type in several domains.
            has_twin = len(self.operators_by_name[names[0]]) > 1
            return [(match.op,), (names[1],)] if has_twin and match.op != names[1] else [(match.op,)]
        if not names:
            return []
        listed = tuple(name for name in names if self.lists.has_entry(name))
        return [(match.op,), listed] if match.op in names and listed else [(match.op,)]


def _list_of(lists: Lists, policy: Policy, operator: Operator) -> ListName:
    domain, op_type, rank = operator
    return find_list(lists, policy.space, domain, op_type, lambda: rank).list


def list_names(policy: Policy, domain: str, op_type: str) -> tuple[str, ...]:
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


# --- write the rules ---


@dataclass(frozen=True)
class RecoveredRule:
    """A rule, and the nodes that get the types that they must have from it."""

    rule: NodeRule
    nodes: tuple[Node, ...]


class RuleWriter:
    """Writes the rules of one model. ``types``: the types that its nodes must have."""

    def __init__(self, graph: Graph, policy: Policy, types: NodeTypes) -> None:
        self.graph, self.policy, self.types = graph, policy, types
        refs = {node: node_ref(node) for node in graph.nodes}
        names = unique_names(dict.fromkeys(refs.values()))
        # The names by which a rule means one node and no other. Some nodes have no such name.
        self.names = {node: names[ref] for node, ref in refs.items() if is_valid_rule_name(names.get(ref, ""))}

    def can_name(self, node: Node) -> bool:
        """Return whether a rule can give a node the types that it must have."""
        return node in self.names and node in self.types

    def write(self, nodes: Iterable[Node]) -> tuple[RecoveredRule, ...]:
        """Return rules that give each node its types. All nodes must be such that ``can_name`` is true."""
        waiting = dict.fromkeys(nodes)
        by_type = [*self._write_type_rules(waiting)]
        by_pattern = [*self._write_patterns(waiting)]
        by_name = [self._name_one(node) for node in waiting]
        return (*sorted((*by_pattern, *by_name), key=lambda written: written.rule.pattern), *by_type)

    def _write_type_rules(self, waiting: dict[Node, None]) -> Iterator[RecoveredRule]:
        """Yield a rule for each op type that saves rules; take its nodes from ``waiting``, and add exceptions."""
        by_operator: dict[tuple[str, str], list[Node]] = {}
        for node in waiting:
            by_operator.setdefault((node.domain, node.op_type), []).append(node)
        for (domain, op_type), nodes in sorted(by_operator.items()):
            elements, _ = Counter(self.types[node].elements for node in nodes).most_common(1)[0]
            model_node = next(node for node in nodes if self.types[node].elements == elements)
            rule = self._make_rule("type", operator_name(domain, op_type), model_node, every_slot=False)
            outcome = self._apply_rule(rule)
            if outcome is None:
                continue
            exceptions = [node for node, fits in outcome.items() if not fits]
            if 1 + len(exceptions) < len(nodes) and all(map(self.can_name, exceptions)):
                for node in outcome:
                    waiting.pop(node, None)
                waiting.update(dict.fromkeys(exceptions))
                yield RecoveredRule(rule, tuple(node for node, fits in outcome.items() if fits))

    def _write_patterns(self, waiting: dict[Node, None]) -> Iterator[RecoveredRule]:
        """Yield a rule for each pattern that serves several nodes; take these from ``waiting``."""
        for replaced in (0, 1):  # how many numbers of a name ``*`` replaces: first all (0 of re.sub), then one
            groups: dict[tuple[str, str, tuple[int, ...]], list[Node]] = {}
            for node in waiting:
                pattern = re.sub(r"\d+", "*", self.names[node], count=replaced)
                groups.setdefault((pattern, node.op_type, self.types[node].elements), []).append(node)
            largest = sorted(groups.items(), key=lambda item: -len(item[1]))[:_MAX_PATTERNS]
            for (pattern, _, _), nodes in largest:
                if len(nodes) == 1 or any(node not in waiting for node in nodes):
                    continue
                rule = self._make_rule("name", pattern, nodes[0], every_slot=False)
                outcome = self._apply_rule(rule)
                if outcome is not None and all(outcome.values()) and outcome.keys() >= set(nodes):
                    for node in outcome:
                        waiting.pop(node, None)
                    yield RecoveredRule(rule, tuple(outcome))

    def _name_one(self, node: Node) -> RecoveredRule:
        return RecoveredRule(self._make_rule("name", self.names[node], node, every_slot=True), (node,))

    def _apply_rule(self, rule: NodeRule) -> dict[Node, bool] | None:
        """Return for each node that a rule names whether the rule gives it the types that it must have.

        None: the rule names a node that has other slots, or a node without types that it must have.
        """
        matched = NodeRules(replace(self.policy, rules=(rule,)), self.graph)
        outcome = {}
        try:
            for node_id in matched.match():
                node = self.graph.nodes[node_id]
                if node not in self.types:
                    return None
                outcome[node] = matched.find_assignment(node).elements == self.types[node].elements
        except ListError:
            return None
        return outcome

    def _make_rule(self, by: Literal["name", "type"], pattern: str, node: Node, *, every_slot: bool) -> NodeRule:
        """Return the rule with the types of a node: for every slot, or only for the first ones of each type group."""
        assert node.signature is not None
        inputs: dict[int, str] = {}
        outputs: dict[int, str] = {}
        for group, elem in zip(node.signature.groups, self.types[node].elements, strict=True):
            end = None if every_slot else 1  # the other slots of a group follow the first one
            inputs |= dict.fromkeys(group.inputs[:end], dtypes.type_name(elem))
            outputs |= dict.fromkeys(group.outputs[:end], dtypes.type_name(elem))
        return NodeRule(by, pattern, False, _PLACE, _by_slot(inputs, node.inputs), _by_slot(outputs, node.outputs))


def _by_slot(types: Mapping[int, str], values: Sequence[Value | None]) -> SlotTypes:
    """Return the types as a rule has them: None for a slot without a type; the last type ends the result."""
    present = {slot: name for slot, name in types.items() if slot < len(values) and values[slot] is not None}
    return tuple(present.get(slot) for slot in range(max(present, default=-1) + 1))


# --- search the edits ---


@dataclass(frozen=True, eq=False)
class Difference:
    """A node of the original whose decided types are not those of the mixed model."""

    node: Node
    decided: Assignment | None
    target: Assignment
    follows: Node | None  # the node whose type it follows, if it is gray


@dataclass(frozen=True)
class RecoveredEdits:
    """A policy with the chosen lists and the rules, and what still differs.

    ``refusals``: see ``Misfits.refusals``.
    """

    policy: Policy
    rules: tuple[RecoveredRule, ...]
    differences: tuple[Difference, ...]
    refusals: frozenset[str] = frozenset()

    @property
    def size(self) -> tuple[int, int, int]:
        """Return the number of nodes that differ, of edits, and of rules, which are harder to keep than op types."""
        return len(self.differences), len(self.rules) + len(self.policy.lists.moves), len(self.rules)


class EditSearch:
    """Finds the edits for one model. ``types``: the types that its nodes have in the mixed model."""

    def __init__(self, resolver: Resolver, types: NodeTypes) -> None:
        self.resolver, self.types = resolver, types

    def search(self, policy: Policy) -> RecoveredEdits:
        """Return the edits over the library of a policy, which has no edits and rules."""
        solver = self.resolver.make_incremental_solver(policy)
        with_lists, misfits = self._choose_lists(policy)
        list_misfits = find_list_misfits(with_lists, misfits)
        best = self._leave_out(policy, self._add_rules(with_lists, list_misfits, solver), solver)
        if policy.gray_policy == "between" and len(best.rules) > 1:
            # A gray node looks at its readers, too, so that the misfits of each node alone can be far too many. Begin
            # with the lists of the library and the nodes that differ.
            edits = self._leave_out(policy, self._add_rules(policy, (), solver), solver)
            # Here the number of rules decides, and not that of all edits as in ``size``.
            best = min(best, edits, key=lambda candidate: (len(candidate.differences), len(candidate.rules)))
        return replace(best, refusals=frozenset(misfits.refusals))

    def find_differences(self, policy: Policy, solver: IncrementalSolver | None = None) -> tuple[Difference, ...]:
        """Return the nodes that a policy gives other types than the mixed model has."""
        solution = (solver or self.resolver.make_incremental_solver(policy)).solve(policy)
        differences = []
        for node, target in self.types.items():
            decided = solution.assignments[node.id]
            # A signature makes one Assignment for equal types: most nodes need no comparison of the types.
            if decided is target or (decided is not None and decided.elements == target.elements):
                continue
            followed = solution.followed_values[node.id]
            follows = followed.producer if followed is not None else None
            differences.append(Difference(node, decided, target, follows))
        return tuple(differences)

    def _choose_lists(self, policy: Policy) -> tuple[Policy, Misfits]:
        """Return the policy with the chosen lists, and the misfits."""
        with_lists = policy
        for _ in range(_MAX_ROUNDS):
            misfits = find_misfits(self.resolver.graph, with_lists, self.resolver.constant_ranges, self.types)
            before, with_lists = with_lists, choose_lists(policy, misfits)
            if with_lists.lists.moves == before.lists.moves:
                break
        return with_lists, misfits

    def _add_rules(self, with_lists: Policy, misfits: Iterable[Node], solver: IncrementalSolver) -> RecoveredEdits:
        """Add rules for ``misfits``, then for the nodes that differ, until no node differs that a rule can name."""
        writer = RuleWriter(self.resolver.graph, with_lists, self.types)
        needed = {node: None for node in misfits if writer.can_name(node)}
        for addition in range(_MAX_ADDITIONS + 1):
            rules = writer.write(needed)
            policy = _with_rules(with_lists, rules)
            differences = self.find_differences(policy, solver)
            differing = {difference.node for difference in differences}
            # A node that follows a node that differs may have its types once that node has.
            is_last_addition = addition == _MAX_ADDITIONS - 1
            first = [d.node for d in differences if d.follows not in differing or is_last_addition]
            new = [node for node in first if writer.can_name(node) and node not in needed]
            if not new or addition == _MAX_ADDITIONS:
                break
            needed.update(dict.fromkeys(new))
        return RecoveredEdits(policy, rules, differences)

    def _leave_out(self, base: Policy, edits: RecoveredEdits, solver: IncrementalSolver) -> RecoveredEdits:
        """Return the edits without those that are not needed. ``base``: the policy without edits."""
        moves = edits.policy.lists.moves
        all_edits: list[str | RecoveredRule] = [*moves, *edits.rules]  # the last ones are left out first
        if len(all_edits) > _MAX_LEFT_OUT:
            return edits
        accepted = {difference.node for difference in edits.differences}

        def edits_with(remaining: frozenset[str | RecoveredRule]) -> RecoveredEdits:
            remaining_moves = {name: move for name, move in moves.items() if name in remaining}
            lists = Lists(base.lists.library, remaining_moves, frozenset(remaining_moves))
            remaining_rules = tuple(rule for rule in edits.rules if rule in remaining)
            policy = _with_rules(replace(base, lists=lists), remaining_rules)
            return replace(
                edits, policy=policy, rules=remaining_rules, differences=self.find_differences(policy, solver)
            )

        def passes(remaining: frozenset[str | RecoveredRule]) -> bool:
            return accepted.issuperset(difference.node for difference in edits_with(remaining).differences)

        return edits_with(remove_unneeded(frozenset(all_edits), all_edits, passes))


def _with_rules(policy: Policy, rules: Iterable[RecoveredRule]) -> Policy:
    return replace(policy, rules=tuple(recovered.rule for recovered in rules))
