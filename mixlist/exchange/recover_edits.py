"""Find the smallest lists and node rules under which a model gets given types (Rule S11.3).

1. Choose the list of each op type, so that the fewest nodes need a rule (``recover_lists``).
2. Decide the model under these lists and rules, and add rules for nodes that still differ: where loops feed back, or
   where a gray policy looks at more than one producer.
3. Leave out every edit that is not needed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from mixlist.decide import Resolver
from mixlist.decide.incremental_solver import IncrementalSolver
from mixlist.exchange.mixed_types import MixedTypes
from mixlist.exchange.recover_lists import Misfits, choose_lists, find_list_misfits, find_misfits
from mixlist.exchange.recover_rules import RecoveredRule, RuleWriter
from mixlist.lists.library import Lists
from mixlist.lists.policy import Policy
from mixlist.model.graph import Node
from mixlist.model.signature import Assignment
from mixlist.search.minimal_sets import remove_unneeded

_MAX_ROUNDS = 3  # nodes without a partner get their types from the lists, so the lists are chosen again
_MAX_REPAIRS = 20  # rounds that add rules only where a difference begins; a last one adds all
# Leaving out one edit takes a decision of the model. The edits of a larger set are needed by construction: without one
# of them, one of its nodes has other types while all other nodes have theirs.
_MAX_LEFT_OUT = 300


@dataclass(frozen=True, eq=False)
class Difference:
    """A node of the original whose decided types are not those of the mixed model."""

    node: Node
    partner: Node
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

    def __init__(self, resolver: Resolver, types: MixedTypes) -> None:
        self.resolver, self.types = resolver, types
        self.pinned = types.assignments

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
            best = min(best, edits, key=lambda candidate: (len(candidate.differences), len(candidate.rules)))
        return replace(best, refusals=frozenset(misfits.refusals))

    def find_differences(self, policy: Policy, solver: IncrementalSolver | None = None) -> tuple[Difference, ...]:
        """Return the nodes that a policy gives other types than the mixed model has."""
        solution = (solver or self.resolver.make_incremental_solver(policy)).solve(policy)
        differences = []
        for pair in self.types.pairs:
            decided = solution.assignments[pair.node.id]
            # A signature makes one Assignment for equal types: most nodes need no comparison of the types.
            if decided is pair.target or (decided is not None and decided.elements == pair.target.elements):
                continue
            followed = solution.followed_values[pair.node.id]
            follows = followed.producer if followed is not None else None
            differences.append(Difference(pair.node, pair.partner, decided, pair.target, follows))
        return tuple(differences)

    def _choose_lists(self, policy: Policy) -> tuple[Policy, Misfits]:
        """Return the policy with the chosen lists, and the misfits."""
        with_lists = policy
        for _ in range(_MAX_ROUNDS):
            misfits = find_misfits(self.resolver.graph, with_lists, self.resolver.constant_ranges, self.pinned)
            before, with_lists = with_lists, choose_lists(policy, misfits)
            if with_lists.lists.moves == before.lists.moves:
                break
        return with_lists, misfits

    def _add_rules(self, with_lists: Policy, misfits: Iterable[Node], solver: IncrementalSolver) -> RecoveredEdits:
        """Add rules for ``misfits``, then for the nodes that differ, until no node differs that a rule can name."""
        writer = RuleWriter(self.resolver.graph, with_lists, self.pinned)
        needed = {node: None for node in misfits if writer.can_name(node)}
        for repair in range(_MAX_REPAIRS + 1):
            rules = writer.write(needed)
            policy = _with_rules(with_lists, rules)
            differences = self.find_differences(policy, solver)
            differing = {difference.node for difference in differences}
            # A node that follows a node that differs may have its types once that node has.
            first = [d.node for d in differences if d.follows not in differing or repair == _MAX_REPAIRS - 1]
            new = [node for node in first if writer.can_name(node) and node not in needed]
            if not new:
                break
            needed.update(dict.fromkeys(new))
        return RecoveredEdits(policy, rules, differences)

    def _leave_out(self, base: Policy, edits: RecoveredEdits, solver: IncrementalSolver) -> RecoveredEdits:
        """Return the edits without those that are not needed. ``base``: the policy without edits."""
        moves = edits.policy.lists.moves
        elements: list[str | RecoveredRule] = [*moves, *edits.rules]  # the last ones are left out first
        if len(elements) > _MAX_LEFT_OUT:
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

        return edits_with(remove_unneeded(frozenset(elements), elements, passes))


def _with_rules(policy: Policy, rules: Iterable[RecoveredRule]) -> Policy:
    return replace(policy, rules=tuple(recovered.rule for recovered in rules))
