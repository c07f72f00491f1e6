"""Who is suspected first: what overflows for certain, then who adds most error.

One pass in float32 and one under the base lists tell most of it (``check``'s report): a low tensor whose values pass
the low type's range in float32 must overflow, and the layerwise ranking says where error is born. A good order makes
the search short; it decides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from mixlist.checker.finding_rules import SENTINEL
from mixlist.checker.result import CheckReport
from mixlist.cost.estimate import Costs
from mixlist.graph.naming import node_ref
from mixlist.graph.refs import NodeRef
from mixlist.ops.low_precision import overflow_bound
from mixlist.tuner.candidates import Unit


class Suspicion:
    """What a check under the base lists says of every node; ``low`` is the low type."""

    def __init__(self, report: CheckReport, low: int) -> None:
        bound = overflow_bound(low)
        self.offenders = {n.ref for n in report.nodes if n.kind in ("overflow", "saturated")}
        self.beyond = {t.producer for t in report.tensors if t.low and bound <= t.magnitude < SENTINEL}
        self.errors = {e.ref: e.normalized_error for e in report.layerwise}

    def rank(self, unit: Unit) -> tuple[int, float]:
        """0 for first offenders, 1 for what passes the range, 2 for others; and the error that its nodes add."""
        nodes = set(unit.nodes)
        step = 0 if nodes & self.offenders else 1 if nodes & self.beyond else 2
        return step, sum(self.errors.get(n, 0.0) ** 2 for n in nodes)

    def why(self, unit: Unit) -> str:
        """Why the unit is suspected, in words."""
        nodes = dict.fromkeys(unit.nodes)
        for told, group in (("overflows", self.offenders), ("has values beyond the range", self.beyond)):
            hit = [n for n in nodes if n in group]
            if hit:
                more = f" and {len(hit) - 1} more" if len(hit) > 1 else ""
                return f"{hit[0]}{more} {told}"
        error, node = max(((self.errors.get(n, 0.0), n) for n in nodes), default=(0.0, NodeRef("", "")))
        if math.isinf(error) or math.isnan(error):
            return f"{node} overflows on exact inputs"
        return f"{node} adds an error of {error:.2g}" if error else ""


def orders(units: Sequence[Unit], suspicion: Suspicion, work: Mapping[NodeRef, int]) -> list[list[Unit]]:
    """The orders worth a search: the cheap ones first (no matrix product, no convolution), and the worst first."""

    def cheap(unit: Unit) -> tuple[int, int, float, str]:
        step, error = suspicion.rank(unit)
        return step, int(step == 2 and work_of(unit, work) > 0), -error, str(unit.edit)

    def worst(unit: Unit) -> tuple[int, float, str]:
        step, error = suspicion.rank(unit)
        return step, -error, str(unit.edit)

    first, second = sorted(units, key=cheap), sorted(units, key=worst)
    return [first] if first == second else [first, second]


def work_of(unit: Unit, work: Mapping[NodeRef, int]) -> int:
    """FLOPs of matrix products and convolutions in the unit's nodes."""
    return sum(work.get(node, 0) for node in dict.fromkeys(unit.nodes))


def matrix_work(costs: Costs) -> dict[NodeRef, int]:
    """FLOPs of each matrix product and convolution; a function's calls together."""
    found: dict[NodeRef, int] = {}
    for part in costs.graphs():
        for node in part.graph.order:
            cost = part.nodes.get(node.id)
            if cost is not None and cost.matrix and cost.flops:
                ref = node_ref(part.graph, node)
                found[ref] = found.get(ref, 0) + cost.flops
    return found
