"""The result of ``recover``, as values only. ``show/`` renders it (schema: ``mixlist.recover/1``)."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, fields
from typing import Literal

from mixlist.diagnostics import Diagnostic, warnings_as_text
from mixlist.lists.save_lists import save_list_files
from mixlist.model.naming import NodeResult
from mixlist.result_tables import Row, choose_table, flat_row, limited, notebook_facts


@dataclass(frozen=True)
class RecoveredEdit:
    """One edit of the result: an op type that goes to another list, or a rule for single nodes.

    ``kind``: ``list`` if ``name`` is an op type that moves, ``rule`` if ``name`` is the subject of a rule: a node, a
    pattern, or ``OpType::`` and an op type. ``before`` and ``after``: the lists, or the precision that the lists alone
    give the nodes and the precision that the rule gives them. ``nodes``: the number of nodes that the edit names and
    that have types to vary.

    Example::

        plan = mixlist.resolve("digits.onnx", mixlist.load_policy(ops_info="mindspore-o2"))
        mixlist.rewrite("digits.onnx", plan).save("mixed.onnx")
        for edit in mixlist.recover("digits.onnx", "mixed.onnx").edits:
            print(edit.kind, edit.name, edit.before, edit.after, edit.nodes)
    """

    kind: Literal["list", "rule"]
    name: str
    before: str
    after: str
    nodes: int


@dataclass(frozen=True)
class UnrecoveredNode(NodeResult):
    """A node that the lists and rules do not give the types of the mixed model.

    ``model``: the model that has the node, ``original`` or, if no node of the original corresponds to it, ``mixed``.
    ``precision``: that of the node in the mixed model; ``decided``: that by the lists and rules, "" if there is none.

    Example::

        plan = mixlist.resolve("digits.onnx", mixlist.load_policy(ops_info="mindspore-o2"))
        mixlist.rewrite("digits.onnx", plan).save("mixed.onnx")
        print([(node.name, node.why) for node in mixlist.recover("digits.onnx", "mixed.onnx").exceptions])
    """

    model: str
    precision: str
    decided: str
    why: str


@dataclass(frozen=True)
class UnmatchedNode(NodeResult):
    """A node of the original that computes with floats, and to which no node of the mixed model corresponds.

    Example::

        plan = mixlist.resolve("digits.onnx", mixlist.load_policy(ops_info="mindspore-o2"))
        mixlist.rewrite("digits.onnx", plan).save("mixed.onnx")
        print([node.name for node in mixlist.recover("digits.onnx", "mixed.onnx").unmatched])
    """


@dataclass(frozen=True, repr=False)
class RecoverReport:
    """The lists and node rules that decide as the mixed model does, and what they do not give.

    ``complete``: True if no node is in ``exceptions``. ``matched``: how many nodes of the original that compute with
    floats have a counterpart in the mixed model. ``differing``: how many of these the library alone gives other types.
    ``precision_mode_v2``, ``gray_policy``, ``constants``, ``protect``: the options that ``resolve`` needs with the
    files. ``modify_mixlist`` and ``customize_dtypes``: the texts of the files; the second one is empty without rules.
    ``unmatched``: nodes that the mixed model lacks, for example because the other tool removed them. ``next_command``:
    the command line that applies the result, "" from Python.

    Example::

        plan = mixlist.resolve("digits.onnx", mixlist.load_policy(ops_info="mindspore-o2"))
        mixlist.rewrite("digits.onnx", plan).save("mixed.onnx")
        report = mixlist.recover("digits.onnx", "mixed.onnx")
        print(report.complete, report.modify_mixlist)
    """

    original: str
    mixed: str
    complete: bool
    precision_mode_v2: str
    gray_policy: str
    constants: str
    protect: str
    matched: int
    differing: int
    edits: tuple[RecoveredEdit, ...]
    exceptions: tuple[UnrecoveredNode, ...]
    unmatched: tuple[UnmatchedNode, ...]
    modify_mixlist: str
    customize_dtypes: str
    next_command: str = ""
    warnings: tuple[Diagnostic, ...] = ()

    def __repr__(self) -> str:
        state = "complete" if self.complete else f"exceptions {len(self.exceptions)}"
        counts = f"matched {self.matched}, edits {len(self.edits)}, unmatched {len(self.unmatched)}"
        return f"<RecoverReport of {self.mixed!r}: {state}; {counts}>"

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows."""
        facts = {
            "complete": "yes" if self.complete else "no",
            "edits": limited([f"{edit.name}: {edit.before} to {edit.after}" for edit in self.edits]),
            "exceptions": limited([f"{node.ref}: {node.why}" for node in self.exceptions]),
        }
        return notebook_facts(f"recover of {self.mixed} from {self.original}", facts)

    def save(
        self, path: str | os.PathLike[str], node_rules: str | os.PathLike[str] | None = None, *, force: bool = False
    ) -> None:
        """Write the modify_mixlist file to ``path``, and the customize_dtypes file to ``node_rules``.

        The customize_dtypes file is empty if no node needs a rule. Raises FileError if a file exists (unless ``force``)
        or cannot be written, and UsageError if there are node rules and ``node_rules`` is None.
        """
        rules = self.customize_dtypes
        save_list_files(path, self.modify_mixlist, node_rules, rules, has_node_rules=bool(rules), force=force)

    def to_rows(self, table: str = "edits") -> list[Row]:
        """Return a flat row for each item of ``table``, for pandas or polars.

        ``table``: ``edits``, ``exceptions`` or ``unmatched``. Raises UsageError for another table.
        """
        tables = {
            "edits": lambda: [flat_row(edit) for edit in self.edits],
            "exceptions": lambda: [flat_row(node) for node in self.exceptions],
            "unmatched": lambda: [flat_row(node) for node in self.unmatched],
        }
        return choose_table(table, tables)

    def to_json(self) -> dict[str, object]:
        """Return the ``mixlist.recover/1`` object of schemas/recover.json."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        lists = {name: list(map(asdict, values[name])) for name in ("edits", "exceptions", "unmatched")}
        return {"format": "mixlist.recover/1", **values, **lists, "warnings": warnings_as_text(self.warnings)}
