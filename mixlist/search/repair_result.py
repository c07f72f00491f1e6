"""The result of ``repair``. ``mixlist/show`` renders it, schemas/repair.json is its JSON (``mixlist.repair/1``)."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from mixlist.checker.result import CheckReport, LowSource, NodeFinding, OutputFinding, Verdict
from mixlist.diagnostics import Diagnostic
from mixlist.errors import FileError, UsageError
from mixlist.files.atomic_writes import write_atomically
from mixlist.files.strict_json import JsonObject, result_json
from mixlist.model.naming import NodeResult
from mixlist.option_spelling import spell
from mixlist.result_tables import Row, choose_table, flat_row, limited, notebook_facts

if TYPE_CHECKING:
    from onnx import ModelProto

    from mixlist.write import RewriteResult


@dataclass(frozen=True)
class RaisedNode(NodeResult):
    """A node that computes in float32 in the repaired model. ``precision``: its low type in the given model.

    Example::

        policy = mixlist.load_policy(precision_mode_v2="fp16")
        mixlist.rewrite("digits.onnx", mixlist.resolve("digits.onnx", policy)).save("half.onnx")
        batches = mixlist.random_batches("half.onnx", 1, dims={"batch": 4}, ranges={"pixels": (0, 16)})
        print([node for edit in mixlist.repair("half.onnx", batches).edits for node in edit.nodes])
    """

    precision: str


@dataclass(frozen=True)
class RepairEdit:
    """One edit: connected nodes that are raised to float32, a Clip in place of such a group, or a correction of types.

    A ``cast`` corrects types that clash, and a ``declaration`` (one for all of them) the declared types of inner
    tensors, so that the model loads. ``nodes``: the raised nodes in order of computation, () for the other kinds.
    ``tensor``: the tensor that the Clip bounds, that is cast, or whose declaration is the first wrong one, "" for
    raised nodes. ``limit``: the magnitude that the Clip leaves, else None. ``why``: what the data showed, or which
    types clash. ``without``: what happens if one of the nodes stays low. ``cost``: the share of the model's matrix and
    convolution work that leaves low precision (0 to 1), None if the model has no such work.

    Example::

        policy = mixlist.load_policy(precision_mode_v2="fp16")
        mixlist.rewrite("digits.onnx", mixlist.resolve("digits.onnx", policy)).save("half.onnx")
        batches = mixlist.random_batches("half.onnx", 1, dims={"batch": 4}, ranges={"pixels": (0, 16)})
        for edit in mixlist.repair("half.onnx", batches).edits:
            print(edit.kind, [node.name for node in edit.nodes], edit.why)
    """

    kind: Literal["raise", "clip", "cast", "declaration"]
    nodes: tuple[RaisedNode, ...]
    tensor: str
    limit: float | None
    why: str
    without: str
    cost: float | None

    @property
    def corrects_types(self) -> bool:
        """True if the given model does not load without the edit."""
        return self.kind in ("cast", "declaration")


@dataclass(frozen=True)
class OutputErrors:
    """The errors of one output against the model in float32: of the given model, and of the repaired one.

    ``before`` and ``after`` are None if the model was not compared: ``before`` if ONNX Runtime refused it or its types
    clash, ``after`` if no model is written.

    Example::

        policy = mixlist.load_policy(precision_mode_v2="fp16")
        mixlist.rewrite("digits.onnx", mixlist.resolve("digits.onnx", policy)).save("half.onnx")
        batches = mixlist.random_batches("half.onnx", 1, dims={"batch": 4}, ranges={"pixels": (0, 16)})
        for output in mixlist.repair("half.onnx", batches).errors:
            print(output.name, output.before, output.after)
    """

    name: str
    before: OutputFinding | None
    after: OutputFinding | None


@dataclass(frozen=True, repr=False)
class RepairReport:
    """The repaired model, and the evidence for it.

    ``precision``: the low type of the model. ``verdict``: ``pass`` if the repaired model keeps every limit, also if
    there was nothing to repair; ``complete``: False after Ctrl-C. ``first_offenders``: where overflow starts in the
    given model. ``edits``: the groups of raised nodes, and the Clips. ``errors``: the errors of each output before and
    after. ``low_nodes`` and ``raised_nodes``: how many nodes of the given model compute in low precision, and how many
    of these are raised. ``low_share``: the share of matrix and convolution work in low precision (0 to 1), with the
    keys ``base`` and ``repaired``; None if the model has no such work. ``customize_dtypes``: the raised nodes as node
    rules, "" without any. ``trials``: how many trials ran. ``remembered``: how many outcomes came from the state file.
    ``check``: the check of the repaired model (with Clips, against the same Clips in float32), or of the given one if
    no repair was found. ``validation``: the check on the data of ``validate_on``, before groups are replaced by Clips.
    ``next_command``: the command line that compares the speed of the repaired model, makes wide outputs float32, or
    goes on with an interrupted search; "" from Python. ``check_command``: the one that checks the repaired model.
    ``wide_outputs``: without a repair, the low outputs whose values need an interface in float32. ``rewritten``: the
    repaired model as ``mixlist.rewrite`` returns it, None if there is none; without edits it is the given model.

    Example::

        policy = mixlist.load_policy(precision_mode_v2="fp16")
        mixlist.rewrite("digits.onnx", mixlist.resolve("digits.onnx", policy)).save("half.onnx")
        batches = mixlist.random_batches("half.onnx", 1, dims={"batch": 4}, ranges={"pixels": (0, 16)})
        report = mixlist.repair("half.onnx", batches)
        print(report.verdict, report.raised_nodes, "of", report.low_nodes)
    """

    model: str
    precision: str
    verdict: Verdict
    complete: bool
    reasons: tuple[str, ...]
    first_offenders: tuple[NodeFinding, ...]
    edits: tuple[RepairEdit, ...]
    errors: tuple[OutputErrors, ...]
    low_nodes: int
    raised_nodes: int
    low_share: dict[str, float | None]
    customize_dtypes: str
    trials: int
    remembered: int
    check: CheckReport | None
    validation: CheckReport | None = None
    next_command: str = ""
    check_command: str = ""
    wide_outputs: tuple[str, ...] = ()
    warnings: tuple[Diagnostic, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)
    rewritten: RewriteResult | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        counts = f"edits {len(self.edits)}, raised {self.raised_nodes} of {self.low_nodes}, trials {self.trials}"
        return f"<RepairReport of {self.model!r}: {self.verdict}; {counts}>"

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows."""
        return notebook_facts(
            f"repair of {self.model}: {self.verdict}",
            {
                "why": self.reasons,
                "first offenders": limited([f"{f.ref} ({f.op_type}): {f.kind}" for f in self.first_offenders]),
                "raised": limited([f"{node.ref} ({node.op_type})" for edit in self.edits for node in edit.nodes]),
                "nodes": f"{self.raised_nodes} of {self.low_nodes} {self.precision} nodes raised",
            },
        )

    @property
    def repaired_model(self) -> ModelProto:
        """Return the repaired model, as ``RewriteResult.model`` does.

        Raises UsageError if there is no repair.
        """
        return self._require_model().model

    def save(
        self, path: str | os.PathLike[str], *, rules: str | os.PathLike[str] | None = None, force: bool = False
    ) -> tuple[Path, ...]:
        """Write the repaired model to ``path``, and the node rules to ``rules`` if it is given.

        Returns the files of the model. Raises UsageError if there is no repair, or if both paths are one file, and
        FileError if a file exists (unless ``force``) or cannot be written.
        """
        rewritten = self._require_model()
        if rules is not None:
            if os.path.realpath(path) == os.path.realpath(rules):
                raise UsageError(f"{os.fspath(path)} would hold both the model and the rules", hint="give two files")
            if not force and Path(rules).exists():
                hint = f"remove it, or replace it with {spell('force', True)}"
                raise FileError(f"{os.fspath(rules)} exists", hint=hint)
        written_paths = rewritten.save(Path(path), force=force)
        if rules is not None:
            write_atomically(os.fspath(rules), self.customize_dtypes.encode())
        return written_paths

    def _require_model(self) -> RewriteResult:
        if self.rewritten is None:
            raise UsageError(f"there is no repaired model: {self.reasons[0]}")
        return self.rewritten

    def to_rows(self, table: str = "edits") -> list[Row]:
        """Return the flat rows of a table, for pandas or polars.

        ``table``: ``edits`` (one row for each raised node, with the number of its edit) or ``first_offenders`` (the
        fields of NodeFinding). Raises UsageError for another table.
        """
        raised = [(number, node) for number, edit in enumerate(self.edits) for node in edit.nodes]
        return choose_table(
            table,
            {
                "edits": lambda: [{"edit": number} | flat_row(node) for number, node in raised],
                "first_offenders": lambda: [flat_row(f, low_source=LowSource) for f in self.first_offenders],
            },
        )

    def to_json(self) -> JsonObject:
        """Return the ``mixlist.repair/1`` object of schemas/repair.json; infinities and NaN become strings."""
        json_form = result_json(replace(self, rewritten=None), "mixlist.repair/1")
        del json_form["rewritten"]  # the model itself
        return json_form
