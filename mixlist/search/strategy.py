"""Search for the smallest set of edits that keeps the limits.

Under a policy with lists, an edit makes an op type black. Under a policy without lists (``repair``), an edit keeps one
node in float32. The search tries two orders of the candidates, and takes the better of the two minimal sets. A set with
one more edit is as good if it keeps a tenth more of the matrix and convolution work low (``EDIT_WORTH``).
"""

from __future__ import annotations

from mixlist.search.candidates import Candidate, CandidateRanking, find_list_candidates, find_node_candidates
from mixlist.search.edits import NO_EDITS, Edit, EditSet
from mixlist.search.minimal_sets import find_minimal, remove_unneeded
from mixlist.search.trials import Trials

EDIT_WORTH = 0.1  # the share of the matrix work that justifies one more edit


class Strategy:
    """One search for the smallest set of edits. ``candidates``: those of the search by their edits, for the report."""

    def __init__(self, trials: Trials, ranking: CandidateRanking) -> None:
        self.compiler, self.trials, self.ranking = trials.compiler, trials, ranking
        self.candidates: dict[Edit, Candidate] = {}

    @property
    def has_lists(self) -> bool:
        """Return True if the edits are edits of lists, and False if they are edits of nodes."""
        return self.compiler.base.mode.action == "lists"

    def run(self) -> EditSet | None:
        """Search, and return the best set of edits; None if no set keeps the limits."""
        candidates = self._find_candidates()
        self.candidates = {candidate.edit: candidate for candidate in candidates}
        results = []
        for order in self.ranking.orders(candidates):
            edits = find_minimal([candidate.edit for candidate in order], self.trials.passes)
            if not edits:  # no set passes, or no edit is needed: another order leads to the same result
                return edits
            results.append(edits)
        best = min(results, key=self.preference_key)
        return remove_unneeded(best, sorted(best, key=self._work_key), self.trials.passes)

    def preference_key(self, edits: EditSet) -> tuple[float, list[str]]:
        """Return a sort key of sets of edits that keep the limits: the smallest is the best.

        It is the number of edits, less one edit for each tenth of the matrix work that stays low.
        """
        return len(edits) - (self.compiler.low_share(edits) or 0.0) / EDIT_WORTH, sorted(map(str, edits))

    def _find_candidates(self) -> tuple[Candidate, ...]:
        """Return the candidates for the nodes that round, or begin to when other nodes become high.

        Example: in ``MatMul -> Relu`` with both low, the Relu rounds nothing, because its input is rounded already.
        With the MatMul in float32 the Relu rounds its input, so it needs a candidate too.
        """
        solution, low_nodes = self.compiler.solution(NO_EDITS), self.compiler.low_nodes(NO_EDITS)
        # The loop ends, because ``low_nodes`` grows with each turn and the model has a finite number of nodes.
        while True:
            if self.has_lists:
                candidates = find_list_candidates(solution, self.compiler.base, low_nodes)
            else:
                candidates = find_node_candidates(solution, low_nodes)
            still_low = self.compiler.low_nodes(frozenset(candidate.edit for candidate in candidates))
            if still_low <= low_nodes:
                return candidates
            low_nodes |= still_low

    def _work_key(self, edit: Edit) -> tuple[int, str]:
        """Return a sort key: edits that make little matrix work high come first.

        ``remove_unneeded`` starts at the end of the order, so the edits that cost most are removed first.
        """
        return self.ranking.matrix_flops(self.candidates[edit]), str(edit)
