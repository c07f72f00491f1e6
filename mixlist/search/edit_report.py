"""Explain each edit of a result: what the data showed, what the edit costs, and what happens without it."""

from __future__ import annotations

from collections.abc import Iterable

from mixlist.search.candidates import Candidate, Edit, EditSet, NodeEdit
from mixlist.search.strategy import Strategy
from mixlist.search.tune_result import TunedEdit

NOT_NEEDED = "keeps the limits too"  # the text of ``TunedEdit.without`` for an edit that can be left out


def is_minimal(explained: Iterable[TunedEdit]) -> bool:
    """Return True if every edit is needed, after each was left out once (Rule S9.5)."""
    return all(edit.without != NOT_NEEDED for edit in explained)


def explain_edits(edits: EditSet, strategy: Strategy, *, try_without: bool) -> tuple[TunedEdit, ...]:
    """Return the explanation of each edit, edits of lists first.

    ``try_without``: run a trial without each edit and say what it breaks. Otherwise ``TunedEdit.without`` is "".
    """
    compiler, explained = strategy.compiler, []
    for edit in sorted(edits, key=lambda e: (isinstance(e, NodeEdit), str(e))):
        other_edits = edits - {edit}
        without = _describe_without(edit, edits, strategy) if try_without else ""
        if isinstance(edit, NodeEdit):
            change = (edit.op_type, edit.pattern, str(compiler.base.mode.low), "float32")
        else:
            change = (edit.op, "", str(edit.before), str(edit.after))
        why = strategy.ranking.explain(strategy.candidates.get(edit, Candidate(edit, ())))
        # One edit changes low nodes to high nodes or the reverse, so the symmetric difference counts both.
        changed_nodes = len(compiler.low_nodes(edits) ^ compiler.low_nodes(other_edits))
        share, share_without = compiler.low_share(edits), compiler.low_share(other_edits)
        cost = share_without - share if share is not None and share_without is not None else None
        explained.append(TunedEdit(*change, why, changed_nodes, cost, without))
    return tuple(explained)


def _describe_without(edit: Edit, edits: EditSet, strategy: Strategy) -> str:
    """Return what breaks without an edit, from a trial without it."""
    outcome = strategy.trials.try_edits(edits - {edit})
    if not outcome.passed:
        return outcome.why
    # The limits hold without the edit. It may still be needed for the objective (``max-low``, ``max-speed``).
    loss = strategy.describe_objective_loss(edit, edits)
    return f"{NOT_NEEDED}, {loss}" if loss else NOT_NEEDED
