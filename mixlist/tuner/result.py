"""The result of ``tune``: values only, rendered by the report rooms (schema: ``mixlist.tune/1``)."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from mixlist.checker.result import CheckReport, Verdict
from mixlist.diagnostics import Diagnostic, warnings_as_text
from mixlist.errors import FileError, UsageError
from mixlist.files.atomic_writes import write_atomically


@dataclass(frozen=True)
class TunedEdit:
    """One edit of the result: an op type's list, or the rule of one node (``op`` is its op type, ``node`` its name).

    ``before`` and ``after``: lists, of a node precisions. ``why``: what the data showed. ``nodes``: how many
    nodes it makes high (or low). ``cost``: share of matrix and convolution work that leaves low precision by it (of the
    model's, 0 to 1; negative where it gains), None where the model has none. ``without``: what happens without it.
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
    """Another result, with rules of single nodes, where the lists alone keep too little work in low precision.

    ``objective``: that of its search. ``recommended``: it keeps the limits on all data that was checked. ``low_share``:
    as ``tuned`` of a TuneReport's. The other fields are those of a TuneReport.
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
        """Write the two files as ``TuneReport.save`` does."""
        _save(self, path, node_rules, force)


@dataclass(frozen=True, repr=False)
class TuneReport:
    """The list that was found, and what it rests on.

    ``verdict``: that of the final check (and of the one on other data, where there was one). ``complete``: False after
    Ctrl-C. ``minimal``: every edit was left out once, and a limit broke, or the objective (``max-low``, ``max-speed``)
    lost by it. ``modify_mixlist`` and ``customize_dtypes``: the texts of the files that take the place of the base's
    own, the first empty where no list keeps the limits.
    ``low_share``: share of matrix and convolution work in low precision under the base lists and under the result, None
    where there is none. ``trials`` were run, ``remembered`` came from the state. ``validation``: the check on data that
    the search did not see, and ``held_out`` its batches where they were taken from the data of the search.
    ``alternative``: another result with node rules, where the lists alone keep too little work in low precision.
    ``next_command``: the command line that writes it, "" from Python.
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
    alternative: TunedList | None = None
    next_command: str = ""
    log: tuple[dict[str, object], ...] = ()
    warnings: tuple[Diagnostic, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)

    def __repr__(self) -> str:
        counts = f"edits {len(self.edits)}, trials {self.trials}, warnings {len(self.warnings)}"
        return f"<TuneReport of {self.model!r}: {self.verdict}; {counts}>"

    def save(
        self, path: str | os.PathLike[str], node_rules: str | os.PathLike[str] | None = None, *, force: bool = False
    ) -> None:
        """Write the modify_mixlist file and, before it, the customize_dtypes file (empty where no node has a rule).

        Raises FileError where a file exists (unless ``force``) or cannot be written, UsageError where there is no list
        to write, and where there are node rules and no file for them.
        """
        if not self.modify_mixlist:
            raise UsageError(f"there is no list to write: {self.reasons[0]}")
        _save(self, path, node_rules, force)

    def to_json(self) -> dict[str, object]:
        """Return the ``mixlist.tune/1`` object of schemas/tune.json."""
        plain = {field.name: _plain(getattr(self, field.name)) for field in fields(self)}
        return {"format": "mixlist.tune/1", **plain, "warnings": warnings_as_text(self.warnings)}


def _save(
    result: TuneReport | TunedList,
    path: str | os.PathLike[str],
    node_rules: str | os.PathLike[str] | None,
    force: bool,
) -> None:
    if node_rules is None and any(edit.node for edit in result.edits):
        raise UsageError("the result has node rules, and no file was named for them", hint="give node_rules")
    if node_rules is not None and os.path.realpath(path) == os.path.realpath(node_rules):
        raise UsageError(f"{os.fspath(path)} would hold both the lists and the node rules", hint="name two files")
    texts = {} if node_rules is None else {os.fspath(node_rules): result.customize_dtypes}
    texts[os.fspath(path)] = result.modify_mixlist
    for name in texts:
        if not force and Path(name).exists():
            raise FileError(f"{name} exists", hint="remove it, or replace it with --force")
    for name, text in texts.items():
        write_atomically(name, text.encode())


def _plain(value: object) -> object:
    if isinstance(value, CheckReport):
        return value.to_json()
    if isinstance(value, TunedList):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, TunedEdit):
        return asdict(value)
    return list(map(_plain, value)) if isinstance(value, tuple) else value
