"""The result of ``convert``. ``mixlist/show`` renders it, schemas/convert.json is its JSON (``mixlist.convert/1``)."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mixlist.checker.result import CheckReport, Verdict
from mixlist.diagnostics import Diagnostic
from mixlist.errors import FileError, UsageError
from mixlist.files.atomic_writes import write_atomically
from mixlist.files.strict_json import JsonObject, result_json
from mixlist.model.naming import NodeResult
from mixlist.option_spelling import spell
from mixlist.result_tables import Row, choose_table, flat_row, limited, notebook_facts

if TYPE_CHECKING:
    from onnx import ModelProto

    from mixlist.decide.plan import Plan
    from mixlist.write import RewriteResult

# The advice for a model whose products a low float type does not change.
RANDOM_DATA = "no data was given: the values are random, so real values may overflow or miss the limits"
# Parts of the reasons of nodes that the search raised.
BEYOND_RANGE = "beyond the range of"
ADDED_ERROR = re.compile(r"^(adds.* an error) of (\S+)")
INTEGER_PRODUCTS = "most matrix products of the model are on integers already, so a low float type saves little"


@dataclass(frozen=True)
class HighNode(NodeResult):
    """A node that computes in float32 in the result, and the reason.

    ``raised``: the search raised the node; the lists keep the others, except Casts, whose type the model sets.

    Example::

        batches = mixlist.random_batches("digits.onnx", 2, dims={"batch": 16}, ranges={"pixels": (0, 16)})
        for node in mixlist.convert("digits.onnx", batches).report.high_nodes:
            print(node.name, node.raised, node.reason)
    """

    raised: bool
    reason: str


@dataclass(frozen=True)
class ModelSize:
    """The numbers of one model: the given one, or the result.

    ``low_nodes``: the nodes in the low type, out of ``nodes`` that are in the low type or float32. ``low_share``: the
    share of matrix and convolution work in the low type (0 to 1), None if the model has no such work. ``bytes``: what
    the nodes move in one batch, with weights and Casts. ``file_bytes``: the size of the model with its weights.
    ``casts``: the Casts in the model. ``uncounted``: the nodes of unknown shape, which are not counted in the
    share and the bytes.

    Example::

        batches = mixlist.random_batches("digits.onnx", 2, dims={"batch": 16}, ranges={"pixels": (0, 16)})
        report = mixlist.convert("digits.onnx", batches).report
        print(report.before.file_bytes, report.after.file_bytes)
    """

    nodes: int
    low_nodes: int
    low_share: float | None
    bytes: int
    file_bytes: int
    casts: int
    uncounted: int = 0


@dataclass(frozen=True)
class ConvertTrial:
    """One choice of low nodes that was tried.

    ``low_nodes`` and ``low_share``: as in ModelSize. ``cost``: the estimated cost in bytes.
    ``passed``: True if the limits held on the batches of the search. ``why``: the limit that broke, "" if none did.
    ``kept_limit``: the least limit of the normalized error with which the choice passes on the batches of the search;
    None if it misses another limit, and if that is not known, because not all batches ran or each index must keep the
    limits.

    Example::

        batches = mixlist.random_batches("digits.onnx", 2, dims={"batch": 16}, ranges={"pixels": (0, 16)})
        report = mixlist.convert("digits.onnx", batches).report
        print([(trial.low_nodes, trial.passed, trial.kept_limit) for trial in report.log])
    """

    low_nodes: int
    low_share: float | None
    cost: int
    passed: bool
    why: str
    kept_limit: float | None = None


@dataclass(frozen=True, repr=False)
class ConvertReport:
    """The evidence of a conversion: the verdict, the numbers before and after, and the nodes in float32.

    ``precision``: the low type. ``verdict``: ``pass`` if the result keeps every limit and has a low node. ``reasons``:
    why, one sentence each. ``random_data``: True if no data was given. ``batches``: the number of batches that judged
    the result. ``before`` and ``after``: the numbers of the given model and of the result; ``after`` is None without a
    result. ``high_nodes``: the nodes in float32, those that the search raised first. ``customize_dtypes``: the node
    rules with which ``apply`` writes the same model, "" if the lists alone do. ``trials``: how many choices of nodes
    were tried, 0 if the lists pass. ``log``: these choices, and those that were checked before. ``joined``: the names
    of held-out batches that failed, and joined the search. ``advice``: what would help besides a choice of nodes, one
    sentence each. ``later_opset``: an opset that allows the low type for more nodes, None if there is none.
    ``next_command``: the command line that converts at this opset, or that writes the same model from a file of rules.
    ``judge_command``: the one that compares detections of the result; both are "" from Python. ``check``: the check of
    the result, or of the lists if there is no result.

    Example::

        batches = mixlist.random_batches("digits.onnx", 2, dims={"batch": 16}, ranges={"pixels": (0, 16)})
        report = mixlist.convert("digits.onnx", batches).report
        print(report.verdict, report.trials, report.after)
    """

    model: str
    precision: str
    verdict: Verdict
    reasons: tuple[str, ...]
    random_data: bool
    batches: int
    before: ModelSize
    after: ModelSize | None
    high_nodes: tuple[HighNode, ...]
    customize_dtypes: str
    trials: int
    check: CheckReport
    log: tuple[ConvertTrial, ...] = ()
    joined: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    later_opset: int | None = None
    next_command: str = ""
    judge_command: str = ""
    warnings: tuple[Diagnostic, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)

    def __repr__(self) -> str:
        low = "no result" if self.after is None else f"low {self.after.low_nodes} of {self.after.nodes}"
        return f"<ConvertReport of {self.model!r}: {self.verdict}; {low}, trials {self.trials}>"

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows."""
        after = self.after
        raised = [f"{node.ref} ({node.op_type}): {node.reason}" for node in self.high_nodes if node.raised]
        return notebook_facts(
            f"convert of {self.model}: {self.verdict}",
            {
                "why": self.reasons,
                "low nodes": "" if after is None else f"{after.low_nodes} of {after.nodes}",
                "Casts": "" if after is None else str(after.casts),
                "raised": limited(raised),
                "trials": str(self.trials),
                "page": "mixlist.html(result)",
            },
        )

    @property
    def keeps_nothing_low(self) -> bool:
        """Return True if there is a result without a low node."""
        return self.after is not None and self.check.passes_without_low

    def to_rows(self, table: str = "high_nodes") -> list[Row]:
        """Return the flat rows of a table, for pandas or polars.

        ``table``: ``high_nodes`` (the fields of HighNode) or ``trials`` (those of ConvertTrial). Raises UsageError for
        another table.
        """
        return choose_table(
            table,
            {
                "high_nodes": lambda: [flat_row(node) for node in self.high_nodes],
                "trials": lambda: [flat_row(trial) for trial in self.log],
            },
        )

    def to_json(self) -> JsonObject:
        """Return the ``mixlist.convert/1`` object of schemas/convert.json; infinities and NaN become strings."""
        # The ranges of all tensors are for the page.
        return result_json(replace(self, check=replace(self.check, tensors=())), "mixlist.convert/1")


@dataclass(frozen=True, repr=False)
class ConvertResult:
    """The converted model, and the report about it.

    ``rewritten``: the model as ``mixlist.rewrite`` returns it, None if no choice of nodes keeps the limits. ``plan``:
    the decision for each node of the result, or of the lists if there is no result.

    Example::

        batches = mixlist.random_batches("digits.onnx", 2, dims={"batch": 16}, ranges={"pixels": (0, 16)})
        result = mixlist.convert("digits.onnx", batches)
        result.save("mixed.onnx", rules="keep.txt")
    """

    report: ConvertReport
    plan: Plan
    rewritten: RewriteResult | None

    def __repr__(self) -> str:
        return f"<ConvertResult{repr(self.report).removeprefix('<ConvertReport')}"

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows."""
        return self.report._repr_html_()

    @property
    def model(self) -> ModelProto:
        """Return the converted model, as ``RewriteResult.model`` does.

        Raises UsageError if there is no result.
        """
        return self._require_model().model

    def save(
        self, path: str | os.PathLike[str], *, rules: str | os.PathLike[str] | None = None, force: bool = False
    ) -> tuple[Path, ...]:
        """Write the model to ``path``, and the node rules to ``rules`` if it is given.

        Returns the files of the model. Raises UsageError if there is no result, or if both paths are one file, and
        FileError if a file exists (unless ``force``) or cannot be written.
        """
        rewritten = self._require_model()
        if rules is not None and os.path.realpath(path) == os.path.realpath(rules):
            raise UsageError(f"{os.fspath(path)} would hold both the model and the rules", hint="give two files")
        if rules is not None and not force and Path(rules).exists():
            raise FileError(f"{os.fspath(rules)} exists", hint=f"remove it, or replace it with {spell('force', True)}")
        written_paths = rewritten.save(Path(path), force=force)
        if rules is not None:
            self.save_rules(rules, force=True)
        return written_paths

    def save_rules(self, path: str | os.PathLike[str], *, force: bool = False) -> None:
        """Write the node rules alone: with them and the same lists, ``apply`` writes the same model.

        Raises UsageError if there is no result, and FileError if the file exists (unless ``force``) or cannot be
        written.
        """
        self._require_model()
        if not force and Path(path).exists():
            raise FileError(f"{os.fspath(path)} exists", hint=f"remove it, or replace it with {spell('force', True)}")
        write_atomically(os.fspath(path), self.report.customize_dtypes.encode())

    def _require_model(self) -> RewriteResult:
        if self.rewritten is None:
            raise UsageError(f"there is no converted model: {self.report.reasons[0]}")
        return self.rewritten
