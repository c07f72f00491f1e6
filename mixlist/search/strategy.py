"""Search for the best set of edits under each objective (Rules S9.5 to S9.7).

- ``min-edits`` looks for the fewest op types to make black. It tries two orders of the candidates, and takes the better
  of the two minimal sets. A set with one more edit is as good if it keeps a tenth more of the matrix and convolution
  work low (``EDIT_WORTH``).
- ``max-low`` first moves every op type to the white list, and then makes as few of them black as it can. Edits that
  gain nothing are undone: they add no matrix and convolution work in low precision, and save no bytes between nodes.
- ``max-speed`` takes the cheaper of these two results by the cost model, and adds single edits that lower the cost.

If node rules are allowed, rules for a few nodes may then replace the edit of a whole op type.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from mixlist.errors import ModelError
from mixlist.lists.library import ListName
from mixlist.model.naming import NodeRef
from mixlist.search.candidates import (
    MOST_ORDERS,
    Candidate,
    CandidateRanking,
    find_list_candidates,
    find_node_candidates,
)
from mixlist.search.cheapest_nodes import FLOPS_PER_BYTE
from mixlist.search.edits import NO_EDITS, Edit, EditSet, ListEdit, NodeEdit
from mixlist.search.minimal_sets import NextTests, find_minimal, remove_unneeded, search_with_lookahead
from mixlist.search.options import Objective
from mixlist.search.rounding_plan import Rounding, RoundingPoint
from mixlist.search.trial_compiler import TrialCompiler
from mixlist.search.trials import Trials
from mixlist.targets.estimate import estimate_work
from mixlist.write import RewriteResult, rewrite

if TYPE_CHECKING:
    from mixlist.run.session import Feed

EDIT_WORTH = 0.1  # the share of the matrix work that justifies one more edit (Rule S9.6)
# Rule S9.7: if more than this share of an op type's low nodes needs a rule, the op type goes to the black list instead.
MAX_RULE_SHARE = 0.5


def alternative_objectives(objective: Objective) -> tuple[Objective, ...]:
    """Return the objectives of the searches with node rules, if lists alone keep too little work low (Rule S9.15)."""
    return ("min-edits", "max-low") if objective == "min-edits" else (objective,)


class Strategy:
    """One search for the best set of edits.

    ``node_rules``: True if the search may keep single nodes in float32. ``candidates``: the candidates of the search by
    their edits, for the report. ``notes``: the reasons why no set of edits was found.
    """

    def __init__(
        self,
        trials: Trials,
        ranking: CandidateRanking,
        cost: CostModel,
        *,
        node_rules: bool,
    ) -> None:
        self.compiler, self.trials, self.ranking, self.cost = trials.compiler, trials, ranking, cost
        self.node_rules = node_rules
        self.objective: Objective = "min-edits"
        # For the forecast: the number of searches after the current one, None if it is not known.
        self._searches_after: int | None = None
        self.candidates: dict[Edit, Candidate] = {}
        self.notes: list[str] = []

    def run(self, objective: Objective) -> EditSet | None:
        """Search, and return the best set of edits; None if no set keeps the limits."""
        self.objective = objective
        self._searches_after = None if self.node_rules or objective == "max-speed" else 0
        # Lists first: one op type is easier to keep in a file than many nodes.
        has_lists = self.compiler.base.mode.action == "lists"
        best = self._find_list_edits() if has_lists else None
        if best is None:
            # No list keeps the limits. Rules may: they can also name nodes that have no name in the Ascend library.
            if has_lists:
                advice = "" if self.node_rules else "; try --node-rules"
                self.notes = [f"no list of op types keeps the limits{advice}"]
            if not self.node_rules:
                return None
            self._searches_after = 0
            solution = self.compiler.solution(NO_EDITS)
            candidates = self._include_exposed_nodes(NO_EDITS, lambda nodes: find_node_candidates(solution, nodes))
            best = self._find_node_edits(NO_EDITS, candidates)
            if best is None:
                self.notes.append(f"rules for single nodes do not keep the limits{' either' if has_lists else ''}")
                return None
        elif self.node_rules:
            best = self._replace_black_edits(best)
        best = self._remove_unneeded(best)
        if self.node_rules and has_lists and objective == "max-low":
            best = self._remove_unneeded(self._lower_more_op_types(best))
        return best

    # --- edits of lists ---

    def _find_list_edits(self) -> EditSet | None:
        """Return the best set of edits of lists; None if no set keeps the limits."""
        if self.objective == "min-edits":
            return self._find_fewest_black()
        most_low = self._find_most_low()
        if self.objective == "max-low" or most_low is None:
            return most_low
        # max-speed: start from the cheaper of the two results, and of equal costs from the one with fewer edits.
        results = [edits for edits in (self._find_fewest_black(), most_low) if edits is not None]
        return self._add_cheaper_edits(min(results, key=lambda edits: (self.cost(edits), len(edits))))

    def _find_fewest_black(self) -> EditSet | None:
        """Return the best minimal set of op types to make black."""
        # A trial has the edits of the candidates and no others.
        return self._find_best_minimal(self._list_candidates(NO_EDITS, "black"), lambda edits: edits)

    def _find_most_low(self) -> EditSet | None:
        """Return the edits that make every op type white, except for those that must be black to keep the limits.

        An edit to white is then removed if without it the result is as good for the objective and the limits hold.
        """
        all_white = frozenset(candidate.edit for candidate in self._list_candidates(NO_EDITS, "white"))
        # Each trial of this search makes some low nodes of this start high, so these gates serve all of them.
        self.compiler.add_gates(all_white)
        # Of the two orders, this one makes nodes without matrix work high first. So more of that work stays low.
        order = self.ranking.orders(self._list_candidates(all_white, "black"))[0]
        black = self._find_minimal(order, lambda edits: _make_black(all_white, edits))
        if black is None:
            return None
        best = _make_black(all_white, black)
        # An edit to white that gains nothing only makes the list longer.
        for edit in sorted(best & all_white, key=str, reverse=True):
            fewer = best - {edit}
            if not self._find_loss(fewer, best) and self.trials.passes(fewer):
                best = fewer
        return best

    def _add_cheaper_edits(self, start: EditSet) -> EditSet:
        """Return ``start`` with single edits that lower the cost and keep the limits.

        An edit that makes the last low node high is not tried: that model is float32, which needs no list.
        """
        best, cost = start, self.cost(start)
        for candidate in (*self._list_candidates(start, "black"), *self._list_candidates(start, "white")):
            edit = candidate.edit
            assert isinstance(edit, ListEdit)
            # ``best`` changes this op type already. (Its candidate may move it back: then both lists are equal.)
            if edit.before == edit.after or edit.op in {e.op for e in best if isinstance(e, ListEdit)}:
                continue
            extended = best | {edit}
            extended_cost = self.cost(extended)
            if extended_cost < self.cost.threshold * cost and self.compiler.low_nodes(extended):
                # A move to the white list makes nodes low that had no gates.
                self.compiler.add_gates(extended)
                if self.trials.passes(extended):
                    best, cost = extended, extended_cost
        return best

    def _list_candidates(self, edits: EditSet, after: ListName) -> tuple[Candidate, ...]:
        """Return the op types that could go to the list ``after`` under some edits.

        Only op types with a low node can go to the black list.
        """
        solution, base = self.compiler.solution(edits), self.compiler.base
        if after == "white":
            return self._register(find_list_candidates(solution, base, after, None))
        return self._register(
            self._include_exposed_nodes(edits, lambda low_nodes: find_list_candidates(solution, base, after, low_nodes))
        )

    def _include_exposed_nodes(
        self, edits: EditSet, find_candidates: Callable[[set[NodeRef]], tuple[Candidate, ...]]
    ) -> tuple[Candidate, ...]:
        """Return the candidates for the nodes that round under some edits, or begin to when other nodes become high.

        ``find_candidates`` returns the candidates for a set of nodes. Example: in ``MatMul -> Relu`` with both low, the
        Relu rounds nothing, because its input is rounded already. With the MatMul in float32 the Relu rounds its input,
        so it needs a candidate too.
        """
        low_nodes = self.compiler.low_nodes(edits)
        # The loop ends, because ``low_nodes`` grows with each turn and the model has a finite number of nodes.
        while True:
            candidates = find_candidates(low_nodes)
            all_high = frozenset(candidate.edit for candidate in candidates)
            node_edits = {edit for edit in all_high if isinstance(edit, NodeEdit)}
            still_low = self.compiler.low_nodes(_make_black(edits, all_high) | node_edits)
            if still_low <= low_nodes:
                return candidates
            low_nodes = low_nodes | still_low

    # --- edits of nodes ---

    def _replace_black_edits(self, edits: EditSet) -> EditSet:
        """Return ``edits`` with edits of few nodes in place of black op types, if they keep the limits (Rule S9.7)."""
        black_edits = [edit for edit in edits if isinstance(edit, ListEdit) and edit.after == "black"]
        pending, waiting = sorted(black_edits, key=self._work_key), []
        # A gray op type has low nodes only next to others that are low. So it may need no edit as long as those are
        # black, and it waits until rules have replaced them.
        while pending:
            for index, edit in enumerate(pending, start=1):
                self._searches_after = len(pending) - index
                nodes = self._nodes_made_high(edit, edits)
                # For a single node a rule would only replace one edit by another.
                replaced = self._replace_by_node_edits(edits, edit, nodes) if len(nodes) > 1 else edits - {edit}
                if replaced == edits - {edit}:
                    waiting.append(edit)
                else:
                    edits = replaced
            pending, waiting = (waiting, []) if len(waiting) < len(pending) else ([], [])
        return edits

    def _lower_more_op_types(self, edits: EditSet) -> EditSet:
        """Return ``edits`` with further op types white and some of their nodes high, if that gains (Rule S9.7).

        An op type of which one node fails is not white in the best lists.
        """
        for candidate in self._list_candidates(edits, "white"):
            edit = candidate.edit
            assert isinstance(edit, ListEdit)
            extended = edits | {edit}
            is_edited = edit.op in {e.op for e in edits if isinstance(e, ListEdit)}
            if edit.before == edit.after or is_edited or not self._find_loss(edits, extended):
                continue
            self.compiler.add_gates(extended)
            new_nodes = self.compiler.low_nodes(extended) - self.compiler.low_nodes(edits)
            candidates = find_node_candidates(self.compiler.solution(extended), new_nodes)
            best = self._find_node_edits(extended, candidates) if candidates else None
            if best is not None and self._find_loss(edits, best):
                edits = best
        return edits

    def _nodes_made_high(self, edit: ListEdit, edits: EditSet) -> set[NodeRef]:
        """Return the nodes that are low without ``edit``, and that it makes high."""
        return self.compiler.low_nodes(edits - {edit}).intersection(self.candidates[edit].nodes)

    def _replace_by_node_edits(self, edits: EditSet, edit: ListEdit, nodes: set[NodeRef]) -> EditSet:
        """Return ``edits`` with edits of few of the nodes instead of ``edit``, if they keep the limits (Rule S9.7)."""
        other_edits = edits - {edit}
        candidates = find_node_candidates(self.compiler.solution(other_edits), nodes)
        best = self._find_node_edits(other_edits, candidates) if candidates else None
        if best is None:
            return edits
        # Rule S9.7: the objective must gain, as ``min-edits`` never does, or few nodes must need a rule.
        gains = bool(self._find_loss(edits, best))
        return best if gains or len(best - other_edits) <= MAX_RULE_SHARE * len(nodes) else edits

    def _find_node_edits(self, start: EditSet, candidates: Sequence[Candidate]) -> EditSet | None:
        """Return ``start`` with the best minimal set of nodes to keep high."""
        return self._find_best_minimal(self._register(candidates), lambda edits: start | edits)

    # --- both kinds of edits ---

    def _find_best_minimal(
        self, candidates: Sequence[Candidate], make_trial_edits: Callable[[EditSet], EditSet]
    ) -> EditSet | None:
        """Find a minimal set of edits for each order of the candidates, and return the edits of the best trial.

        ``make_trial_edits`` turns a set of the candidates' edits into the set of edits of a trial.
        """
        results = []
        orders = self.ranking.orders(candidates)
        for index, order in enumerate(orders, start=1):
            edits = self._find_minimal(order, make_trial_edits, later_orders=len(orders) - index)
            if not edits:  # no set passes, or no edit is needed: another order leads to the same result
                return None if edits is None else make_trial_edits(edits)
            results.append(make_trial_edits(edits))
        return min(results, key=lambda edits: (self._penalty(edits), sorted(map(str, edits))))

    def _find_minimal(
        self, order: Sequence[Candidate], make_trial_edits: Callable[[EditSet], EditSet], *, later_orders: int = 0
    ) -> EditSet | None:
        """Return a minimal set of the candidates' edits for which the trial of ``make_trial_edits(set)`` passes."""
        searches_after = self._searches_after
        steps_after = None if searches_after is None else later_orders + MOST_ORDERS * searches_after
        self.trials.forecast.begin_step(steps_after)
        ordered = [candidate.edit for candidate in order]

        def passes(edits: EditSet, next_tests: NextTests[Edit]) -> bool:
            return self.trials.passes(make_trial_edits(edits), lambda count: map(make_trial_edits, next_tests(count)))

        return search_with_lookahead(lambda test: find_minimal(ordered, test), passes)

    def _remove_unneeded(self, edits: EditSet) -> EditSet:
        """Return ``edits`` without those that neither the limits nor the objective need.

        An edit that gains next to another one may gain nothing without it. So this ends when every edit is needed.
        """
        while (needed := self._remove_unneeded_once(edits)) != edits:
            edits = needed
        return edits

    def _remove_unneeded_once(self, edits: EditSet) -> EditSet:
        # Without one of these edits the result becomes worse for the objective, so they stay in every trial.
        gaining = {edit for edit in edits if self.describe_objective_loss(edit, edits)}

        def passes(remaining: EditSet, next_tests: NextTests[Edit]) -> bool:
            # Leaving out several edits may lose something, although leaving out each alone loses nothing.
            if self._find_loss(remaining | gaining, edits):
                return False
            return self.trials.passes(
                remaining | gaining, lambda count: [tested | gaining for tested in next_tests(count)]
            )

        self.trials.forecast.begin_step(0, is_bounded=True)
        order = sorted(edits - gaining, key=self._work_key)
        return search_with_lookahead(lambda test: remove_unneeded(edits - gaining, order, test), passes) | gaining

    def describe_objective_loss(self, edit: Edit, edits: EditSet) -> str:
        """Return what the objective loses if ``edit`` is left out of ``edits``, in words; "" if it loses nothing."""
        other_edits = edits - {edit}
        loss = self._find_loss(other_edits, edits)
        if (
            not loss
            and self.objective == "max-speed"
            and self.cost(edits) < self.cost.threshold * self.cost(other_edits)
        ):
            return "at a higher cost"
        return loss

    def _find_loss(self, edits: EditSet, than: EditSet) -> str:
        """Return in words why ``edits`` keep less in low precision than the edits ``than``; "" if they do not.

        First the matrix and convolution work counts, and for ``max-low`` then the bytes between nodes (Rule S9.6).
        """
        share, other_share = self._low_share(edits), self._low_share(than)
        if self.objective != "min-edits" and share != other_share:
            return "with less in low precision" if share < other_share else ""
        if self.objective != "max-low":
            return ""
        moved = self.compiler.bytes_between
        return "with more bytes between nodes" if moved(edits) > moved(than) else ""

    def preference_key(self, edits: EditSet) -> tuple[float, float, float, list[str]]:
        """Return a sort key of sets of edits that keep the limits: the smallest is the best under the objective."""
        penalty, lost_share = self._penalty(edits), -self._low_share(edits)
        moved = self.compiler.bytes_between(edits) if self.objective == "max-low" else 0
        first = (penalty, lost_share, moved) if self.objective == "min-edits" else (lost_share, moved, penalty)
        return *first, sorted(map(str, edits))

    def _penalty(self, edits: EditSet) -> float:
        """Return the number of edits, less one edit for each tenth of the matrix work that stays low (Rule S9.6)."""
        return len(edits) - self._low_share(edits) / EDIT_WORTH

    def _register(self, candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
        """Add the candidates to ``self.candidates``, and return them. An earlier candidate of the same edit stays."""
        self.candidates = {candidate.edit: candidate for candidate in candidates} | self.candidates
        return tuple(candidates)

    def _work_key(self, edit: Edit) -> tuple[int, bool, str]:
        """Return a sort key: edits that make little matrix work high come first.

        ``remove_unneeded`` starts at the end of the order, so the edits that cost most are removed first.
        """
        candidate = self.candidates.get(edit)
        work = self.ranking.matrix_flops(candidate) if candidate is not None else 0
        return work, isinstance(edit, NodeEdit), str(edit)

    def _low_share(self, edits: EditSet) -> float:
        return self.compiler.low_share(edits) or 0.0


def _make_black(start: EditSet, black: EditSet) -> EditSet:
    """Return ``start`` with the op types of the edits ``black`` on the black list.

    An op type that is on the black list of the base needs no edit for that: only its edit in ``start`` is removed.
    """
    black_edits = [edit for edit in black if isinstance(edit, ListEdit)]
    ops = {edit.op for edit in black_edits}
    other_edits = {edit for edit in start if not (isinstance(edit, ListEdit) and edit.op in ops)}
    return frozenset(other_edits | {edit for edit in black_edits if edit.before != "black"})


# --- the cost of edits, for max-speed ---


class CostModel:
    """Computes the cost of a set of edits: a static cost in bytes, or a measured time in seconds.

    The static cost is a sum over the op types of the model, in bytes. For each op type it adds the larger of two
    numbers: the bytes that the operators move (traffic), and the bytes that could be moved during their arithmetic:

    - Arithmetic in a 16-bit type runs at twice the rate of float32. Vector and matrix units do at least that.
    - Traffic is the bytes that ``estimate_work`` counts, with the Casts that a rewrite inserts.

    ``measure_seconds``: returns the seconds of a run of a rewritten model on a batch, and raises ModelError if the
    model cannot run; None for the static cost. Sets of edits that round at the same points share one cost, which is
    computed once. ``threshold``: a cost counts as lower than another one only if it is below ``threshold`` times the
    other one.
    """

    def __init__(self, compiler: TrialCompiler, measure_seconds: Callable[[RewriteResult, Feed], float] | None) -> None:
        self.compiler, self._measure_seconds = compiler, measure_seconds
        self.threshold = 0.99 if measure_seconds is None else 0.95  # times vary by some percent between sessions
        self._costs: dict[frozenset[tuple[RoundingPoint, Rounding]], float] = {}

    def __call__(self, edits: EditSet) -> float:
        """Return the cost of a set of edits."""
        # Different edits often lead to the same plan, for example if an op type that is low already becomes white.
        key = frozenset(self.compiler.planner.find_roundings(self.compiler.solution(edits)).items())
        if key not in self._costs:
            self._costs[key] = self._static_cost(edits) if self._measure_seconds is None else self._measured_time(edits)
        return self._costs[key]

    def _static_cost(self, edits: EditSet) -> float:
        """Return the cost in bytes: the sum over op types of the longer of arithmetic and traffic."""
        plan = self.compiler.plan(edits)
        # The rewritten model has the Casts that the edits make necessary: their traffic can outweigh what is gained.
        work = estimate_work(rewrite(plan.solution.loaded, plan).proto, None, self.compiler.shapes)
        # ``flops`` includes the low operations, which take half the time: subtract the other half.
        return sum(max((op.flops - op.low_flops / 2) / FLOPS_PER_BYTE, op.bytes) for op in work.ops)

    def _measured_time(self, edits: EditSet) -> float:
        """Return the seconds of a run of the first batch; inf if the model cannot run.

        The model that runs is the rewritten one, not the emulation.
        """
        assert self._measure_seconds is not None, "the cost is static"
        plan = self.compiler.plan(edits)
        try:
            return self._measure_seconds(rewrite(plan.solution.loaded, plan), self.compiler.feeds[0])
        except ModelError:
            # ONNX Runtime refuses this model or crashes on it, so these edits must not win.
            return math.inf
