"""The result of ``tune``, as values only. ``show/`` renders it (schema: ``mixlist.tune/1``)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields

from mixlist.checker.result import CheckReport, Verdict
from mixlist.diagnostics import Diagnostic, warnings_as_text
from mixlist.errors import UsageError
from mixlist.lists.save_lists import default_rules_path, save_list_files
from mixlist.result_tables import Row, choose_table, flat_row, limited, notebook_facts
from mixlist.write.result import NOTHING_LOW

NOT_NEEDED = "keeps the limits too"  # the text of ``TunedEdit.without`` for an edit that can be left out


@dataclass(frozen=True)
class TunedEdit:
    """One edit of the result, with its explanation.

    It moves an op type to another list (``node`` is ""), or is a rule for one node (``op`` is the op type of ``node``).
    ``before`` and ``after``: the lists, or the precisions of the node. ``why``: what the data showed. ``nodes``: the
    number of nodes that the edit makes high (or low). ``cost``: the share of the model's matrix and convolution work
    that leaves low precision by the edit (0 to 1; negative if the work moves to low precision), None if the model has
    no such work. ``without``: what happens without the edit, "" if it was not tried.

    Example::

        batches = mixlist.random_batches("digits.onnx", 1, dims={"batch": 4}, ranges={"pixels": (0, 16)})
        report = mixlist.tune("digits.onnx", mixlist.load_policy(ops_info="mindspore-o3"), batches)
        for edit in report.edits:
            print(edit.op, edit.before, edit.after, edit.why, edit.without)
    """

    op: str
    node: str
    before: str
    after: str
    why: str
    nodes: int
    cost: float | None
    without: str


@dataclass(frozen=True)
class TunedList:
    """The other result of ``tune``, which it does not recommend, if lists alone keep too little work in low precision.

    This is the result of the lists alone, or that with rules for single nodes if it does not keep the limits on the
    validation data. ``objective``: the objective of its search. ``recommended``: whether the search prefers the result;
    the report of ``tune`` then has it as its own, so that it is False there. ``low_share``: the share of matrix and
    convolution work in low precision (0 to 1). The other fields mean the same as in a TuneReport.

    Example::

        batches = mixlist.random_batches("digits.onnx", 1, dims={"batch": 4}, ranges={"pixels": (0, 16)})
        report = mixlist.tune("digits.onnx", mixlist.load_policy(ops_info="mindspore-o3"), batches)
        if report.alternative is not None:
            report.alternative.save("other.json", "other.rules.txt")
    """

    objective: str
    recommended: bool
    minimal: bool
    edits: tuple[TunedEdit, ...]
    modify_mixlist: str
    customize_dtypes: str
    low_share: float | None
    check: CheckReport
    validation: CheckReport | None = None

    def save(
        self, path: str | os.PathLike[str], node_rules: str | os.PathLike[str] | None = None, *, force: bool = False
    ) -> None:
        """Write the two files, as ``TuneReport.save`` does."""
        _save(self, path, node_rules, force)

    def to_rows(self) -> list[Row]:
        """Return a flat row for each edit, for pandas or polars, with the fields of TunedEdit."""
        return [flat_row(edit) for edit in self.edits]


@dataclass(frozen=True, repr=False)
class TuneReport:
    """The list that was found, and the evidence for it.

    ``verdict``: the verdict of the final check and, if there is validation data, of the check on that data.
    ``complete``: False after Ctrl-C. ``minimal``: True if every edit was left out once, and each time a limit broke or
    the result became worse for the objective (``max-low``, ``max-speed``). ``modify_mixlist`` and ``customize_dtypes``:
    the texts of the files that replace the base's own files; ``modify_mixlist`` is empty if no list keeps the limits.
    ``low_share``: the share of matrix and convolution work in low precision (0 to 1), with the keys ``base`` and
    ``tuned``; None if the model has no such work. ``trials``: how many trials ran. ``remembered``: how many outcomes
    came from the state file. ``check``: the final check, None after Ctrl-C. ``validation``: the check on validation
    data. ``held_out``: the names of the batches that were held out of the search for it. ``joined``: the names of those
    that an earlier search held out, and that joined this one because they failed. ``alternative``: the result that is
    not recommended, if lists alone keep too little work in low precision (Rule S9.15). ``next_command``:
    the command line that writes the mixed model of the result or, if it keeps no matrix work low or there is none, that
    searches another one, or goes on with an interrupted search; "" if there is no such command, and from Python.

    Example::

        batches = mixlist.random_batches("digits.onnx", 1, dims={"batch": 4}, ranges={"pixels": (0, 16)})
        report = mixlist.tune("digits.onnx", mixlist.load_policy(ops_info="mindspore-o3"), batches)
        print(report.verdict, report.modify_mixlist, report.low_share)
    """

    model: str
    objective: str
    verdict: Verdict
    complete: bool
    minimal: bool
    reasons: tuple[str, ...]
    edits: tuple[TunedEdit, ...]
    modify_mixlist: str
    customize_dtypes: str
    low_share: dict[str, float | None]
    trials: int
    remembered: int
    check: CheckReport | None
    validation: CheckReport | None = None
    held_out: tuple[str, ...] = ()
    joined: tuple[str, ...] = ()
    alternative: TunedList | None = None
    next_command: str = ""
    log: tuple[dict[str, object], ...] = ()
    warnings: tuple[Diagnostic, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)

    def __repr__(self) -> str:
        counts = f"edits {len(self.edits)}, trials {self.trials}, warnings {len(self.warnings)}"
        return f"<TuneReport of {self.model!r}: {self.verdict}; {counts}>"

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows."""
        edits = [f"{edit.node or edit.op}: {edit.before} to {edit.after}" for edit in self.edits]
        base, tuned = self.low_share.get("base"), self.low_share.get("tuned")
        shares = "" if base is None or tuned is None else f"{100 * base:.3g} % before, {100 * tuned:.3g} % after"
        return notebook_facts(
            f"tune of {self.model}: {self.verdict}",
            {
                "why": self.reasons,
                "edits": limited(edits),
                "matrix work in low precision": shares,
                "search": f"{self.objective}, trials: {self.trials}",
                "page": "mixlist.html(report)",
            },
        )

    def save(
        self, path: str | os.PathLike[str], node_rules: str | os.PathLike[str] | None = None, *, force: bool = False
    ) -> None:
        """Write the modify_mixlist file to ``path``, and the customize_dtypes file to ``node_rules``.

        The customize_dtypes file is empty if no node has a rule. If nodes have rules and ``node_rules`` is None, it is
        ``modify.rules.txt`` beside a ``path`` ``modify.json``. Raises FileError if a file exists (unless ``force``) or
        cannot be written, and UsageError if there is no list to write.
        """
        if not self.modify_mixlist:
            raise UsageError(f"there is no list to write: {self.reasons[0]}")
        _save(self, path, node_rules, force)

    @property
    def has_node_rules(self) -> bool:
        """Return whether an edit is a rule for one node."""
        return any(edit.node for edit in self.edits)

    @property
    def keeps_nothing_low(self) -> bool:
        """Return whether no node is low under the result, so that the mixed model is the original."""
        return self.check is not None and any(item.code == NOTHING_LOW.code for item in self.check.warnings)

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

    def to_json(self) -> dict[str, object]:
        """Return the ``mixlist.tune/1`` object of schemas/tune.json."""
        return {"format": "mixlist.tune/1", **_fields_to_json(self), "warnings": warnings_as_text(self.warnings)}


def _trial_row(entry: Mapping[str, object]) -> Row:
    """Return a row for an entry of the log, whose edits are a list of texts."""
    edits, why = entry["edits"], entry["why"]
    assert isinstance(edits, list) and isinstance(why, str)
    text = "; ".join(map(str, edits))
    return {"edits": text, "passed": bool(entry["passed"]), "why": why, "remembered": bool(entry["remembered"])}


def _save(
    result: TuneReport | TunedList,
    path: str | os.PathLike[str],
    node_rules: str | os.PathLike[str] | None,
    force: bool,
) -> None:
    has_node_rules = any(edit.node for edit in result.edits)
    if has_node_rules and node_rules is None:
        node_rules = default_rules_path(path)
    texts = result.modify_mixlist, node_rules, result.customize_dtypes
    save_list_files(path, *texts, has_node_rules=has_node_rules, force=force)


def _fields_to_json(result: TuneReport | TunedList) -> dict[str, object]:
    return {f.name: _value_to_json(getattr(result, f.name)) for f in fields(result)}


def _value_to_json(value: object) -> object:
    if isinstance(value, CheckReport):
        return value.to_json()
    if isinstance(value, TunedList):  # the report has the recommended result as its own
        return {name: item for name, item in _fields_to_json(value).items() if name != "recommended"}
    if isinstance(value, TunedEdit):
        return asdict(value)
    return list(map(_value_to_json, value)) if isinstance(value, tuple) else value
