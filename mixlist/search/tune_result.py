"""The result of ``tune``, as values only. ``show/`` renders it (schema: ``mixlist.tune/1``)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from mixlist.checker.result import CheckReport, Verdict
from mixlist.diagnostics import Diagnostic
from mixlist.errors import FileError, UsageError
from mixlist.files.atomic_writes import write_atomically
from mixlist.files.strict_json import JsonObject, result_json
from mixlist.lists.policy import Policy
from mixlist.option_spelling import spell
from mixlist.result_tables import Row, choose_table, flat_row, limited, notebook_facts

# A list that keeps less than this share of the matrix work low that the base lists make low gains too little.
LEAST_KEPT_WORK = 0.9
LEAST_MATRIX_WORK = 0.01  # with a smaller share of it, a pass shows nothing
LITTLE_MATRIX_WORK_LOW_REASON = "every limit is kept, but less than 1 % of the matrix work stays low"


@dataclass(frozen=True)
class TunedEdit:
    """One edit of the result, with its explanation: an op type that goes to the black list.

    ``op``: its name in the lists. ``before``: the list on which it was. ``why``: what the data showed. ``nodes``: the
    number of nodes that the edit makes high. ``cost``: the share of the model's matrix and convolution work that leaves
    low precision by the edit (0 to 1), None if the model has no such work. ``without``: what happens without the edit,
    "" if it was not tried.

    Example::

        batches = mixlist.random_batches("digits.onnx", 1, dims={"batch": 4}, ranges={"pixels": (0, 16)})
        report = mixlist.tune("digits.onnx", mixlist.load_policy(ops_info="mindspore-o3"), batches)
        for edit in report.edits:
            print(edit.op, edit.before, edit.why, edit.without)
    """

    op: str
    before: str
    why: str
    nodes: int
    cost: float | None
    without: str


@dataclass(frozen=True, repr=False)
class TuneReport:
    """The list that was found, and the evidence for it.

    ``verdict``: the verdict of the final check and, if there is validation data, of the check on that data.
    ``complete``: False after Ctrl-C. ``minimal``: True if every edit was left out once, and each time a limit broke.
    ``modify_mixlist``: the text of the file that replaces the base's own file, empty if no list keeps the limits.
    ``low_share``: the share of matrix and convolution work in low precision (0 to 1), with the keys ``base`` and
    ``tuned``; None if the model has no such work. ``trials``: how many trials ran. ``remembered``: how many outcomes
    came from the state file. ``check``: the final check, None after Ctrl-C. ``validation``: the check on validation
    data. ``held_out``: the names of the batches that were held out of the search for it. ``joined``: the names of those
    that an earlier search held out, and that joined this one because they failed. ``next_command``: the command line
    that writes the mixed model of the result or, if it keeps too little low or there is none, that lets ``convert``
    choose single nodes, or that goes on with an interrupted search; "" if there is no such command, and from Python.
    ``policy``: the policy with the list that was found, None without one.

    Example::

        batches = mixlist.random_batches("digits.onnx", 1, dims={"batch": 4}, ranges={"pixels": (0, 16)})
        report = mixlist.tune("digits.onnx", mixlist.load_policy(ops_info="mindspore-o3"), batches)
        print(report.verdict, report.modify_mixlist, report.low_share)
    """

    model: str
    verdict: Verdict
    complete: bool
    minimal: bool
    reasons: tuple[str, ...]
    edits: tuple[TunedEdit, ...]
    modify_mixlist: str
    low_share: dict[str, float | None]
    trials: int
    remembered: int
    check: CheckReport | None
    validation: CheckReport | None = None
    held_out: tuple[str, ...] = ()
    joined: tuple[str, ...] = ()
    next_command: str = ""
    log: tuple[dict[str, object], ...] = ()
    warnings: tuple[Diagnostic, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)
    policy: Policy | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        counts = f"edits {len(self.edits)}, trials {self.trials}, warnings {len(self.warnings)}"
        return f"<TuneReport of {self.model!r}: {self.verdict}; {counts}>"

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows."""
        edits = [f"{edit.op}: {edit.before} to black" for edit in self.edits]
        base, tuned = self.low_share.get("base"), self.low_share.get("tuned")
        shares = "" if base is None or tuned is None else f"{100 * base:.3g} % before, {100 * tuned:.3g} % after"
        return notebook_facts(
            f"tune of {self.model}: {self.verdict}",
            {
                "why": self.reasons,
                "edits": limited(edits),
                "matrix work in low precision": shares,
                "trials": str(self.trials),
                "page": "mixlist.html(report)",
            },
        )

    def save(self, path: str | os.PathLike[str], *, force: bool = False) -> None:
        """Write the modify_mixlist file to ``path``.

        Raises FileError if the file exists (unless ``force``) or cannot be written, and UsageError if there is no list
        to write.
        """
        if not self.modify_mixlist:
            raise UsageError(f"there is no list to write: {self.reasons[0]}")
        if not force and Path(path).exists():
            hint = f"remove it, or replace it with {spell('force', True)}"
            raise FileError(f"{os.fspath(path)} exists", hint=hint)
        write_atomically(os.fspath(path), self.modify_mixlist.encode())

    @property
    def keeps_nothing_low(self) -> bool:
        """Return True if every limit is kept because no node is low, or hardly any matrix work that was."""
        return self.loses_matrix_work or (self.check is not None and self.check.passes_without_low)

    @property
    def loses_matrix_work(self) -> bool:
        """Return True if every limit is kept, and some nodes are low, but hardly any matrix product or convolution."""
        return LITTLE_MATRIX_WORK_LOW_REASON in self.reasons

    @property
    def keeps_too_little_low(self) -> bool:
        """Return True if a complete search gained too little.

        There is no list, or it keeps less than ``LEAST_KEPT_WORK`` of the matrix and convolution work low that the
        base lists make low.
        """
        base, tuned = self.low_share["base"] or 0.0, self.low_share["tuned"] or 0.0
        return not self.modify_mixlist or self.keeps_nothing_low or tuned < LEAST_KEPT_WORK * base

    def to_rows(self, table: str = "edits") -> list[Row]:
        """Return the flat rows of a table, for pandas or polars.

        ``table``: ``edits`` (one row for each edit, with the fields of TunedEdit) or ``trials`` (one row for each entry
        of ``log``: ``edits``, ``passed``, ``why`` and ``remembered``). Raises UsageError for another table.
        """
        return choose_table(
            table,
            {
                "edits": lambda: [flat_row(edit) for edit in self.edits],
                "trials": lambda: [_trial_row(entry) for entry in self.log],
            },
        )

    def to_json(self) -> JsonObject:
        """Return the ``mixlist.tune/1`` object of schemas/tune.json."""
        json_form = result_json(replace(self, policy=None), "mixlist.tune/1")
        del json_form["policy"]  # the list is in ``modify_mixlist``
        return json_form


def _trial_row(entry: Mapping[str, object]) -> Row:
    """Return a row for an entry of the log, whose edits are a list of texts."""
    edits, why = entry["edits"], entry["why"]
    assert isinstance(edits, list) and isinstance(why, str)
    text = "; ".join(map(str, edits))
    return {"edits": text, "passed": bool(entry["passed"]), "why": why, "remembered": bool(entry["remembered"])}
