"""Advise what to change when the gradients of a training overflow (Rule S10.18).

The advice names the nodes that overflow first, and a modify_mixlist that keeps their op types in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from mixlist.checker.options import CheckOptions
from mixlist.checker.result import NodeFinding
from mixlist.checker.run import run_check
from mixlist.lists.policy import Policy
from mixlist.resolver import Resolver
from mixlist.torch_export.step_names import LOSS_SCALE
from mixlist.training.options import TrainOptions
from mixlist.training.step_graph import StepGraph
from mixlist.tuner.candidates import EditSet, ListEdit, edit_policy, find_list_candidates
from mixlist.tuner.output_texts import render_modify_mixlist

if TYPE_CHECKING:
    from mixlist.runtime.session import Feed

# One round keeps the op types of the first offenders in float32. Another op type after them may overflow then, so
# several rounds are needed; each costs a check of one batch.
MAX_ROUNDS = 8


def advise_on_overflow(
    graph: StepGraph, policy: Policy, feed: Feed, options: TrainOptions
) -> tuple[tuple[NodeFinding, ...], float, str]:
    """Return the nodes that overflow first in a step, the loss scale they overflow at, and a modify_mixlist text.

    ``feed`` holds every input of the first step with an exception, its loss scale included.

    - If nodes overflow at the loss scale 1, a smaller scale does not help. The result is these nodes, 1.0, and a
      modify_mixlist under which the step does not overflow, or "" if no such list is found in ``MAX_ROUNDS``.
    - If no node overflows at the loss scale 1, the step's own scale is too large. The result is the nodes that overflow
      at the step's scale, that scale, and "".
    """
    # ones_like, because the loss scale may have the shape () or (1,).
    unscaled_feed = {**feed, LOSS_SCALE: np.ones_like(feed[LOSS_SCALE])}
    unscaled_offenders = _find_first_offenders(graph, policy, unscaled_feed, options)
    if not unscaled_offenders:
        return _find_first_offenders(graph, policy, feed, options), float(feed[LOSS_SCALE].item()), ""

    edits: EditSet = frozenset()
    offenders = unscaled_offenders
    for _ in range(MAX_ROUNDS):
        new_edits = _make_edits(graph, edit_policy(policy, edits), offenders) - edits
        if not new_edits:  # no list decides on the remaining offenders, so further rounds would change nothing
            break
        edits |= new_edits
        offenders = _find_first_offenders(graph, edit_policy(policy, edits), unscaled_feed, options)
        if not offenders:
            return unscaled_offenders, 1.0, render_modify_mixlist(policy, edits)
    return unscaled_offenders, 1.0, ""


def _find_first_offenders(
    graph: StepGraph, policy: Policy, feed: Feed, options: TrainOptions
) -> tuple[NodeFinding, ...]:
    """Check the step graph on one feed; return the findings that are marked as first offenders."""
    check_options = CheckOptions(provider=options.provider, overflow_mode=options.overflow_mode)
    report = run_check(graph.loaded, policy, [feed], check_options, clips_repair=not options.examines_every_node)
    return tuple(finding for finding in report.nodes if finding.first)


def _make_edits(graph: StepGraph, policy: Policy, offenders: Sequence[NodeFinding]) -> EditSet:
    """Return the edits that put the op types of the offenders on the black list.

    An offender gets no edit if no list decides its precision, for example because a node rule does.
    """
    # The plan says which list decides each node under the edits so far.
    offender_refs = {offender.ref for offender in offenders}
    # The first solution is that of the main graph; the others are those of functions.
    main_solution = Resolver(graph.loaded).plan(policy).solution.solutions[0]
    candidates = find_list_candidates(main_solution, policy, "black", offender_refs)
    return frozenset(candidate.edit for candidate in candidates if isinstance(candidate.edit, ListEdit))
