"""What to change when a training overflows: the nodes where it starts, and the lists that keep them high."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mixlist.checker.result import NodeFinding
from mixlist.checker.run import check
from mixlist.lists.policy import Policy
from mixlist.resolver import Resolver
from mixlist.training.stepgraph import SCALE, StepGraph
from mixlist.tuner.candidates import EditSet, ListEdit, list_candidates, policy_of
from mixlist.tuner.output_files import mixlist_text

ROUNDS = 8  # lists that are tried: behind an op type that is kept high another one may overflow


@dataclass(frozen=True)
class Advice:
    """``offenders``: the first nodes that overflow in a step, with the loss multiplied by ``scale``.

    ``suggestion``: a modify_mixlist under which that step does not overflow, or "".
    """

    offenders: tuple[NodeFinding, ...]
    scale: float
    suggestion: str


def advise(graph: StepGraph, policy: Policy, feed: Mapping[str, Any], provider: str) -> Advice:
    """Advice on the first bad step, from what it read.

    What overflows with the loss unscaled is a matter of the lists. Where nothing does, the scale was too large: then
    the offenders are those at the step's own scale, and no list is suggested.
    """
    unscaled = {**feed, SCALE: np.ones_like(feed[SCALE])}
    first = _offenders(graph, policy, unscaled, provider)
    if not first:
        return Advice(_offenders(graph, policy, feed, provider), float(feed[SCALE].reshape(())), "")
    choice: EditSet = frozenset()
    found: Sequence[NodeFinding] = first
    for _ in range(ROUNDS):
        more = _edits(graph, policy_of(policy, choice), found) - choice
        if not more:
            break
        choice |= more
        found = _offenders(graph, policy_of(policy, choice), unscaled, provider)
        if not found:
            return Advice(first, 1.0, mixlist_text(policy, choice))
    return Advice(first, 1.0, "")


def _offenders(graph: StepGraph, policy: Policy, feed: Mapping[str, Any], provider: str) -> tuple[NodeFinding, ...]:
    report = check(graph.loaded, policy, [feed], provider=provider)
    return tuple(node for node in report.nodes if node.first)


def _edits(graph: StepGraph, policy: Policy, offenders: Sequence[NodeFinding]) -> EditSet:
    """The op types of the offenders, to the black list; none where lists do not decide about them."""
    nodes = {node.ref for node in offenders}
    main = Resolver(graph.loaded).plan(policy).solution.solutions[0]
    candidates = list_candidates(main, policy, "black", nodes)
    return frozenset(candidate.edit for candidate in candidates if isinstance(candidate.edit, ListEdit))
