"""The result of a search, of which ``tune`` and ``repair`` make their reports."""

from __future__ import annotations

from dataclasses import dataclass, field

from mixlist.checker.result import CheckReport, Verdict
from mixlist.diagnostics import Diagnostic
from mixlist.search.edits import Edit, EditSet

NOT_NEEDED = "keeps the limits too"  # the text of ``ExplainedEdit.without`` for an edit that can be left out


@dataclass(frozen=True)
class ExplainedEdit:
    """An edit of the result, with its explanation.

    ``why``: what the data showed. ``nodes``: the number of nodes that the edit makes high. ``cost``: the share of the
    model's matrix and convolution work that leaves low precision by the edit (0 to 1), None if the model has no such
    work. ``without``: what happens without the edit, "" if it was not tried.
    """

    edit: Edit
    why: str
    nodes: int
    cost: float | None
    without: str


@dataclass(frozen=True)
class SearchResult:
    """The set of edits that was found, and the evidence for it.

    ``base``: the check under the policy without edits, on the data of the search. ``edits``: None if no set of edits
    keeps the limits. ``explained``: the edits with their explanations. ``check``: the final check; without edits the
    base check, or the last final check if all of them failed; None after Ctrl-C. The other fields are those of
    TuneReport.
    """

    model: str
    verdict: Verdict
    complete: bool
    minimal: bool
    reasons: tuple[str, ...]
    base: CheckReport
    edits: EditSet | None
    explained: tuple[ExplainedEdit, ...]
    low_share: dict[str, float | None]
    trials: int
    remembered: int
    check: CheckReport | None
    validation: CheckReport | None = None
    held_out: tuple[str, ...] = ()
    joined: tuple[str, ...] = ()
    log: tuple[dict[str, object], ...] = ()
    warnings: tuple[Diagnostic, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)
