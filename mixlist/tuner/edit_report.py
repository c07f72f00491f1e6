"""Build the explanation of each edit: what the data showed, what it costs, and what happens without it."""

from __future__ import annotations

from collections.abc import Iterable

from mixlist.tuner.candidates import Candidate, Edit, EditSet, NodeEdit
from mixlist.tuner.result import TunedEdit
from mixlist.tuner.strategy import Strategy

NOT_NEEDED = "keeps the limits too"  # the effect of leaving out an edit that is not needed


def is_minimal(explained: Iterable[TunedEdit]) -> bool:
    """Return whether every edit is needed, after each was left out once."""
    return all(edit.without != NOT_NEEDED for edit in explained)


def explain_edits(edits: EditSet, strategy: Strategy, *, minimal: bool) -> tuple[TunedEdit, ...]:
    """Return one line per edit, lists before nodes. ``minimal``: try what happens without each."""
    compiler, explained = strategy.compiler, []
    for edit in sorted(edits, key=lambda e: (isinstance(e, NodeEdit), str(e))):
        rest = edits - {edit}
        without = _without(edit, edits, strategy) if minimal else ""
        share, rest_share = compiler.share(edits), compiler.share(rest)
        if isinstance(edit, NodeEdit):
            change = (edit.op_type, edit.pattern, str(compiler.base.mode.low), "float32")
        else:
            change = (edit.op, "", str(edit.before), str(edit.after))
        why = strategy.ranking.explain(strategy.candidates.get(edit, Candidate(edit, ())))
        nodes = len(compiler.low_nodes(edits) ^ compiler.low_nodes(rest))
        cost = rest_share - share if share is not None and rest_share is not None else None
        explained.append(TunedEdit(*change, why, nodes, cost, without))
    return tuple(explained)


def _without(edit: Edit, edits: EditSet, strategy: Strategy) -> str:
    outcome = strategy.trials.outcome(edits - {edit})
    if not outcome.passed:
        return outcome.why
    gain = strategy.gain(edit, edits)
    return f"{NOT_NEEDED}, {gain}" if gain else NOT_NEEDED
