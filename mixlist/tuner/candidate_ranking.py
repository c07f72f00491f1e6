"""Rank the candidates by how likely they cause the failure: what overflows for certain, then who adds most error.

One pass in float32 and one under the base lists tell most of it (``check``'s report): a low tensor whose values pass
the low type's range in float32 must overflow, and the layerwise ranking says where error arises. A good order makes the
search short; it decides nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from mixlist.checker.findings import FAILING_KINDS
from mixlist.checker.result import CheckReport
from mixlist.cost.estimate import Costs
from mixlist.graph.naming import node_ref
from mixlist.graph.refs import NodeRef
from mixlist.ops.low_precision import overflow_bound
from mixlist.patterns.masks import SENTINEL
from mixlist.tuner.candidates import Candidate

_VERBS = {"overflow": "overflows", "saturated": "saturates", "refused": "is refused by ONNX Runtime"}


class CandidateRanking:
    """Ranks candidates by a check under the base lists; ``low`` is the low type, ``costs`` are those of the model."""

    def __init__(self, report: CheckReport, low: int, costs: Costs) -> None:
        bound = overflow_bound(low)
        failing = [node for node in report.nodes if node.kind in FAILING_KINDS]
        self.offenders = {node.ref: _VERBS[node.kind] for node in failing}
        # A high offender computes with what a low node made: the edit that may help is about that node.
        self.sources = {node.low_source.ref: node for node in failing if node.low_source is not None}
        beyond = (t.producer for t in report.tensors if t.low and bound <= t.magnitude < SENTINEL)
        self.beyond = dict.fromkeys(beyond, "has values beyond the range")
        self.errors = {error.ref: error.normalized_error for error in report.layerwise}
        self._matrix_flops = _matrix_flops(costs)

    def orders(self, candidates: Sequence[Candidate]) -> list[list[Candidate]]:
        """Return the orders worth a search: those without matrix products and convolutions first, and worst first."""

        def cheap(candidate: Candidate) -> tuple[int, int, float, str]:
            step, error = self._rank(candidate)
            return step, int(step == 2 and self.matrix_flops(candidate) > 0), -error, str(candidate.edit)

        def worst(candidate: Candidate) -> tuple[int, float, str]:
            step, error = self._rank(candidate)
            return step, -error, str(candidate.edit)

        first, second = sorted(candidates, key=cheap), sorted(candidates, key=worst)
        return [first] if first == second else [first, second]

    def matrix_flops(self, candidate: Candidate) -> int:
        """Return the FLOPs of matrix products and convolutions in the candidate's nodes."""
        return sum(self._matrix_flops[node] for node in candidate.nodes)

    def explain(self, candidate: Candidate) -> str:
        """Return why the candidate may cause the failure, in words."""
        for node in candidate.nodes:
            if node in self.sources:
                offender = self.sources[node]
                return f"{offender.ref}, which computes with values of {node}, {_VERBS[offender.kind]}"
        for group in (self.offenders, self.beyond):
            hit = [node for node in candidate.nodes if node in group]
            if hit:
                more = f" and {len(hit) - 1} more" if len(hit) > 1 else ""
                return f"{hit[0]}{more} {group[hit[0]]}"
        error, node = max(((self.errors.get(n, 0.0), n) for n in candidate.nodes), default=(0.0, NodeRef("", "")))
        if not math.isfinite(error):
            return f"{node} overflows on exact inputs"
        return f"{node} adds an error of {error:.2g}" if error else ""

    def _rank(self, candidate: Candidate) -> tuple[int, float]:
        """Return 0 for first offenders, 1 for what passes the range, 2 for others; and the error of its nodes."""
        nodes = set(candidate.nodes)
        step = 0 if nodes & (self.offenders.keys() | self.sources.keys()) else 1 if nodes & self.beyond.keys() else 2
        return step, sum(self.errors.get(node, 0.0) ** 2 for node in nodes)


def _matrix_flops(costs: Costs) -> Counter[NodeRef]:
    """Return the FLOPs of each matrix product and convolution; those of all calls of a function together."""
    flops: Counter[NodeRef] = Counter()
    for part in costs.with_calls():
        for node in part.graph.nodes:
            cost = part.nodes.get(node.id)
            if cost is not None and cost.matrix:
                flops[node_ref(part.graph, node)] += cost.flops
    return flops
