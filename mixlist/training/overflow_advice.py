"""Find what to change when a training overflows (Rule S10.18): the first offenders, and lists that keep them high."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from mixlist.checker.result import NodeFinding
from mixlist.checker.run import check
from mixlist.lists.policy import Policy
from mixlist.resolver import Resolver
from mixlist.torch_export.step_format import LOSS_SCALE
from mixlist.training.step_graph import StepGraph
from mixlist.tuner.candidates import EditSet, ListEdit, list_candidates, policy_of
from mixlist.tuner.output_files import mixlist_text

if TYPE_CHECKING:
    from mixlist.runtime.session import Feed

ROUNDS = 8  # lists that are tried: behind an op type that is kept high another one may overflow


def advise_on_overflow(
    graph: StepGraph, policy: Policy, feed: Feed, provider: str
) -> tuple[tuple[NodeFinding, ...], float, str]:
    """Return the first nodes that overflow in a step, the scale of its loss, and a modify_mixlist that prevents it.

    ``feed``: of the first bad step. If nodes overflow with the loss unscaled, the lists are the cause. If none does,
    the scale was too large: then the offenders are those at the step's own scale, and no list is suggested ("").
    """
    unscaled = {**feed, LOSS_SCALE: np.ones_like(feed[LOSS_SCALE])}
    offenders = first = _offenders(graph, policy, unscaled, provider)
    if not first:
        return _offenders(graph, policy, feed, provider), float(feed[LOSS_SCALE].item()), ""
    edits: EditSet = frozenset()
    for _ in range(ROUNDS):
        more = _edits(graph, policy_of(policy, edits), offenders) - edits
        if not more:
            break
        edits |= more
        offenders = _offenders(graph, policy_of(policy, edits), unscaled, provider)
        if not offenders:
            return first, 1.0, mixlist_text(policy, edits)
    return first, 1.0, ""


def _offenders(graph: StepGraph, policy: Policy, feed: Feed, provider: str) -> tuple[NodeFinding, ...]:
    report = check(graph.loaded, policy, [feed], provider=provider)
    return tuple(node for node in report.nodes if node.first)


def _edits(graph: StepGraph, policy: Policy, offenders: Sequence[NodeFinding]) -> EditSet:
    """Return the edits that put the offenders' op types on the black list; none where lists do not decide on them."""
    nodes = {node.ref for node in offenders}
    main = Resolver(graph.loaded).plan(policy).solution.solutions[0]
    candidates = list_candidates(main, policy, "black", nodes)
    return frozenset(candidate.edit for candidate in candidates if isinstance(candidate.edit, ListEdit))
