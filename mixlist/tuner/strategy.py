"""Choose what a search tries, for each objective (Rules S9.5 to S9.7).

``min-edits``: of the minimal sets of op types that the two orders of candidates give, the one with the fewest edits,
where an edit more is worth a tenth of the matrix and convolution work that it keeps low (``WORTH``). ``max-low``
starts from everything white and keeps as little as possible high; what then is not needed is left as the base has it.
``max-speed`` takes the cheaper of both by the cost model, and goes on with single edits that make it cheaper.
Then, where node rules are allowed, an op type gives way to a few of its nodes: at most half of them, or as many as it
takes where more work stays low by it and edits are not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mixlist.graph.refs import NodeRef
from mixlist.lists.library import ListName
from mixlist.tuner.candidate_ranking import CandidateRanking
from mixlist.tuner.candidates import Candidate, Edit, EditSet, ListEdit, NodeEdit, list_candidates, node_candidates
from mixlist.tuner.cost_model import CostModel
from mixlist.tuner.options import Objective
from mixlist.tuner.search import Lookahead, minimal, tighten, with_lookahead
from mixlist.tuner.trials import Trials

WORTH = 0.1  # share of the matrix work that is worth one edit more
FEW = 0.5  # of an op type's low nodes: more by rule than that, and the list says it better
NO_EDITS: EditSet = frozenset()


def alternatives(objective: Objective) -> tuple[Objective, ...]:
    """Return under which objectives node rules are searched where lists alone keep too little work low (Rule S9.15)."""
    return ("min-edits", "max-low") if objective == "min-edits" else (objective,)


class Strategy:
    """One search. ``node_rules``: single nodes may be kept in float32. ``notes``: why no set of edits was found."""

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
        self.candidates: dict[Edit, Candidate] = {}
        self.notes: list[str] = []

    def run(self, objective: Objective) -> EditSet | None:
        """Return the best set of edits found; None where none keeps the limits."""
        self.objective = objective
        best = self._best_lists()
        if best is None:
            self.notes = ["no list of op types keeps the limits" + ("" if self.node_rules else "; --node-rules may")]
            if not self.node_rules:
                return None
            low_nodes = self._closed(NO_EDITS, lambda low: node_candidates(self.compiler.solution(NO_EDITS), low))
            best = self._best_nodes(NO_EDITS, low_nodes)
            if best is None:
                self.notes.append("rules of single nodes do not either")
                return None
        elif self.node_rules:
            for edit in sorted((e for e in best if isinstance(e, ListEdit) and e.after == "black"), key=self._weight):
                best = self._nodes_instead(best, edit)
        return self._tight(best)

    # --- op types ---

    def _best_lists(self) -> EditSet | None:
        """Return the best set of edits of lists."""
        if self.objective == "min-edits":
            return self._fewest()
        low = self._lowest()
        if self.objective == "max-low" or low is None:
            return low
        both = [edits for edits in (self._fewest(), low) if edits is not None]
        return self._cheaper(min(both, key=lambda edits: (self.cost(edits), len(edits))))

    def _fewest(self) -> EditSet | None:
        """Return the best minimal set of op types to make black."""
        return self._best_minimal(self._list_candidates(NO_EDITS, "black"), lambda edits: edits)

    def _lowest(self) -> EditSet | None:
        """Make everything white but for what must not be; then the edits that gain nothing go."""
        start = frozenset(candidate.edit for candidate in self._list_candidates(NO_EDITS, "white"))
        self.compiler.offer(start)
        order = self.ranking.orders(self._list_candidates(start, "black"))[0]
        black = self._minimal(order, lambda edits: _instead(start, edits))
        if black is None:
            return None
        best = _instead(start, black)
        for edit in sorted(best & start, key=str, reverse=True):
            rest = best - {edit}
            if self._share(rest) >= self._share(best) and self.trials.passes(rest):
                best = rest
        return best

    def _cheaper(self, start: EditSet) -> EditSet:
        """Add single edits that lower the cost and keep the limits; the last low node stays low."""
        best, cost = start, self.cost(start)
        for candidate in (*self._list_candidates(start, "black"), *self._list_candidates(start, "white")):
            edit = candidate.edit
            assert isinstance(edit, ListEdit)
            if edit.before == edit.after or edit.op in {e.op for e in best if isinstance(e, ListEdit)}:
                continue
            tried = best | {edit}
            tried_cost = self.cost(tried)
            if tried_cost < self.cost.threshold * cost and self.compiler.low_nodes(tried):
                self.compiler.offer(tried)
                if self.trials.passes(tried):
                    best, cost = tried, tried_cost
        return best

    def _list_candidates(self, edits: EditSet, after: ListName) -> tuple[Candidate, ...]:
        """Return the op types that could go to a list under some edits; to black only those with low nodes."""
        main, base = self.compiler.solution(edits), self.compiler.base
        if after == "white":
            return self._known(list_candidates(main, base, after, None))
        return self._known(self._closed(edits, lambda low: list_candidates(main, base, after, low)))

    def _closed(
        self, edits: EditSet, candidates_of: Callable[[set[NodeRef]], tuple[Candidate, ...]]
    ) -> tuple[Candidate, ...]:
        """Return candidates of the nodes that round under some edits, and of those that do once all these are high.

        (A Relu of what is low already rounds nothing, until its input comes in float32.)
        """
        low = self.compiler.low_nodes(edits)
        while True:
            candidates = candidates_of(low)
            more = frozenset(candidate.edit for candidate in candidates)
            rest = self.compiler.low_nodes(_instead(edits, more) | {e for e in more if isinstance(e, NodeEdit)})
            if rest <= low:
                return candidates
            low = low | rest

    # --- nodes ---

    def _nodes_instead(self, edits: EditSet, edit: ListEdit) -> EditSet:
        """Keep a few nodes of an op type high instead of all of them, where that keeps the limits (Rule S9.7)."""
        rest = edits - {edit}
        nodes = self.compiler.low_nodes(rest).intersection(self.candidates[edit].nodes)
        candidates = node_candidates(self.compiler.solution(rest), nodes)
        best = self._best_nodes(rest, candidates) if len(nodes) >= 2 and candidates else None
        if best is None:
            return edits
        gains = self.objective != "min-edits" and self._share(best) > self._share(edits)
        return best if gains or len(best - rest) <= FEW * len(nodes) else edits

    def _best_nodes(self, start: EditSet, candidates: Sequence[Candidate]) -> EditSet | None:
        """Return ``start`` with the best minimal set of nodes to keep high."""
        return self._best_minimal(self._known(candidates), lambda edits: start | edits)

    # --- common ---

    def _best_minimal(self, candidates: Sequence[Candidate], tried_of: Callable[[EditSet], EditSet]) -> EditSet | None:
        """Return the best of the minimal sets that the orders of the candidates give, as it is tried."""
        best = []
        for order in self.ranking.orders(candidates):
            edits = self._minimal(order, tried_of)
            if not edits:  # no set passes, or none is needed: another order gives the same
                return None if edits is None else tried_of(edits)
            best.append(tried_of(edits))
        return min(best, key=lambda edits: (len(edits) - self._share(edits) / WORTH, sorted(map(str, edits))))

    def _minimal(self, order: Sequence[Candidate], tried_of: Callable[[EditSet], EditSet]) -> EditSet | None:
        """Return a minimal set of edits that passes; ``tried_of`` says what is tried of a set."""
        ordered = [candidate.edit for candidate in order]

        def passes(edits: EditSet, lookahead: Lookahead[Edit]) -> bool:
            return self.trials.passes(tried_of(edits), lambda count: map(tried_of, lookahead(count)))

        return with_lookahead(lambda test: minimal(ordered, test), passes)

    def _tight(self, edits: EditSet) -> EditSet:
        """Remove the edits that can go; those stay that gain what the objective asks for."""
        gains = {edit for edit in edits if self.gain(edit, edits)}
        least = 0.0 if self.objective == "min-edits" else self._share(edits)

        def can_go(rest: EditSet, lookahead: Lookahead[Edit]) -> bool:
            if self._share(rest | gains) < least:
                return False
            return self.trials.passes(rest | gains, lambda count: [more | gains for more in lookahead(count)])

        order = sorted(edits - gains, key=self._weight)
        return with_lookahead(lambda test: tighten(edits - gains, order, test), can_go) | gains

    def gain(self, edit: Edit, edits: EditSet) -> str:
        """Return what the objective would lose if an edit were left out, in words; "" for nothing."""
        rest = edits - {edit}
        if self.objective != "min-edits" and self._share(rest) < self._share(edits):
            return "with less in low precision"
        if self.objective == "max-speed" and self.cost(edits) < self.cost.threshold * self.cost(rest):
            return "at a higher cost"
        return ""

    def merit(self, edits: EditSet) -> tuple[float, float, list[str]]:
        """Return how sets of edits that keep the limits compare: smaller is better."""
        few, much = len(edits) - self._share(edits) / WORTH, -self._share(edits)
        first = (few, much) if self.objective == "min-edits" else (much, few)
        return *first, sorted(map(str, edits))

    def _known(self, candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
        """Remember the candidates by their edits, for the report."""
        self.candidates = {candidate.edit: candidate for candidate in candidates} | self.candidates
        return tuple(candidates)

    def _weight(self, edit: Edit) -> tuple[int, bool, str]:
        """Return the work that an edit makes high: what costs little stays longest."""
        candidate = self.candidates.get(edit)
        work = self.ranking.matrix_flops(candidate) if candidate is not None else 0
        return work, isinstance(edit, NodeEdit), str(edit)

    def _share(self, edits: EditSet) -> float:
        return self.compiler.share(edits) or 0.0


def _instead(start: EditSet, black: EditSet) -> EditSet:
    """Return ``start`` with some op types black instead; one that the base has black already needs no edit."""
    ops = {edit.op for edit in black if isinstance(edit, ListEdit)}
    others = {edit for edit in start if not (isinstance(edit, ListEdit) and edit.op in ops)}
    return frozenset(others | {edit for edit in black if isinstance(edit, ListEdit) and edit.before != "black"})
