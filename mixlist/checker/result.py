"""The classes that hold the result of ``check``. ``mixlist/show`` renders them, schemas/check.json is their JSON."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Literal

from mixlist.diagnostics import Diagnostic
from mixlist.files.strict_json import JsonObject, result_json, to_strict_json
from mixlist.model.naming import NodeRef, NodeResult, qualified_name
from mixlist.number_text import format_share
from mixlist.result_tables import Row, choose_table, flat_row, limited, notebook_facts

Verdict = Literal["pass", "fail", "inconclusive"]  # of check, tune and train (Rules S8.20, S8.21)
FindingKind = Literal[
    "overflow",
    "propagated",
    "preexisting",
    "intended",
    "underflow",
    "near-limit",
    "saturated",
    "internal-risk",
    "refused",
]


@dataclass(frozen=True)
class LowSource(NodeResult):
    """The low node whose values a high node computes with.

    ``source``: the list entry or rule that made the node low; ``suggestion``: the smallest change that keeps it high.
    """

    source: str
    suggestion: str


@dataclass(frozen=True)
class NodeFinding(NodeResult):
    """One finding: one node, and one kind of event at its output or at a tensor that it reads converted.

    ``tensor``: the name of the output or of the converted tensor; ``input``: the same name for a converted tensor, ""
    for an output. ``first``: the node is a first offender in some batch: it overflows although all its inputs are
    finite and not saturated, or it reads a value that its conversion loses. ``count``: the number of values concerned
    in the first of ``batches``, None if they were not counted. ``batches``: the indices of the batches with this
    finding, from 0.

    ``max_abs_fp32`` and ``max_abs_low``: the largest magnitude in float32 and in the mixed model; of a converted
    tensor, the largest magnitude before the conversion (Rule S8.4) and after it. A magnitude is inf if
    a value is infinite, and NaN if a value is NaN. If the kind is ``refused``, ``max_abs_low`` is NaN, because nothing
    was computed. ``inside``: the finding is about the largest sum inside the operator (Rule S8.13), and
    ``max_abs_fp32`` is its magnitude.

    ``list``: the list of the operator: white, black, gray or none. ``source``: the list entry or rule that decided the
    node. ``suggestion``: the smallest change of the lists that keeps the node high, "" if there is none. If the node is
    high already, or is refused because of an integer, ``low_source`` is the low node upstream, and ``suggestion`` is
    about that node.

    Example::

        batches = mixlist.random_batches("digits.onnx", 2, dims={"batch": 16}, ranges={"pixels": (0, 16)})
        report = mixlist.check("digits.onnx", mixlist.load_policy(precision_mode_v2="fp16"), batches)
        for node in report.nodes:
            print(node.name, node.kind, node.max_abs_fp32, node.suggestion)
    """

    tensor: str
    kind: FindingKind
    first: bool
    count: int | None
    batches: tuple[int, ...]
    max_abs_fp32: float
    max_abs_low: float
    list: str
    source: str
    suggestion: str
    low_source: LowSource | None = None
    input: str = ""
    inside: bool = False


@dataclass(frozen=True)
class OrderChange(NodeResult):
    """A TopK or NonMaxSuppression of which the mixed model chose another order of nearly equal values (Rule S8.38).

    ``batches``: the indices of the batches with another order. ``places``: the places of the order that have another
    element, out of ``total``. ``gap``: the largest difference of two values that changed places, in the reference;
    ``relative_gap``: over the range of the values that are ordered together. ``outputs``: the outputs that
    follow the order, and are judged in the order of the reference.
    """

    batches: tuple[int, ...]
    places: int
    total: int
    gap: float
    relative_gap: float
    outputs: tuple[str, ...]

    def __str__(self) -> str:
        outputs = ("outputs " if len(self.outputs) > 1 else "output ") + ", ".join(map(repr, self.outputs))
        verb, pronoun = ("follow", "they keep their") if len(self.outputs) > 1 else ("follows", "it keeps its")
        return (
            f"{outputs} {verb} the order of {self.ref} ({self.op_type}), where the mixed model has another element at"
            f" {self.places:,} of {self.total:,} places: the values that changed places differ by at most"
            f" {self.gap:.3g} ({format_share(self.relative_gap)} of the range of all values), and in the reference's"
            f" order {pronoun} limits"
        )


@dataclass(frozen=True)
class Collapse:
    """A part of a float output whose values all became one value (Rule S8.33).

    ``axis`` and ``index``: the part is this index of this axis; None for the output as a whole. ``values``: the number
    of values in all batches. ``value``: the value in the mixed model.
    """

    axis: int | None
    index: int | None
    values: int
    value: float

    def __str__(self) -> str:
        place = "as a whole" if self.axis is None else f"index {self.index} of axis {self.axis}"
        return f"{place}: {self.values:,} values became {self.value:.4g}"


@dataclass(frozen=True)
class IndexFinding:
    """The errors of one index of an axis of an output; the measures are those of ``OutputFinding``."""

    axis: int
    index: int
    max_abs_error: float | None
    max_rel_error: float | None
    normalized_error: float | None
    cosine: float | None
    snr_db: float | None
    mismatches: float | None
    failed_limits: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"index {self.index} of axis {self.axis}"


@dataclass(frozen=True)
class LargestDifference:
    """The place where an output differs most: the batch, counted from 0, and the index in its array of ``shape``.

    ``mixed`` is None for NaN, so that equal results compare as equal.
    """

    batch: int
    index: tuple[int, ...]
    shape: tuple[int, ...]
    reference: float
    mixed: float | None

    def __str__(self) -> str:
        place = f"index {list(self.index)} of {list(self.shape)}" if self.shape else "the value"
        mixed = f"{self.mixed:.4g}" if self.mixed is not None else "NaN"
        return f"{place} in batch #{self.batch}, {self.reference:.4g} became {mixed}"


@dataclass(frozen=True)
class OutputFinding:
    """The errors of one graph output of the mixed model against the reference, the worst over all batches.

    ``max_rel_error``: relative to the reference's magnitude. ``normalized_error``: the L2 norm of the difference over
    that of the reference. ``snr_db``: 20 log10 of the inverse of ``normalized_error``; inf for equal outputs.
    ``mismatches``: the share of differing values of an output of integers, bools, strings or ids, else None.
    ``top1``: the share of rows of the last axis whose largest element is at the same place, None if that axis holds no
    classes.
    ``ignored_share``: the share of values that are not compared, because they are NaN in the reference or come from
    batches of NaN alone. It is 1 if no batch has a value. Then all errors are None, because nothing was compared.
    ``broken_reference``: why the output is NaN or infinite in float32 already, "" if it is not (Rule S8.40).
    ``collapses``: the parts of a float output that became one value (Rule S8.33). ``quantity``: the integers of the
    output are quantities, and no ids (Rule S8.34). ``id_columns``: the indices of the last axis at which a float output
    holds ids beside other values, whose share of differing values is ``mismatches``. ``worst_index``: with
    ``Limits.per_index``, the worst index of that axis. ``largest_difference``: where ``max_abs_error`` is, None if
    nothing differs, and for strings, sequences and maps.

    Example::

        batches = mixlist.random_batches("digits.onnx", 2, dims={"batch": 16}, ranges={"pixels": (0, 16)})
        (output,) = mixlist.check("digits.onnx", mixlist.load_policy(), batches).outputs
        print(output.name, output.normalized_error, output.cosine, output.passed)
    """

    name: str
    max_abs_error: float | None
    max_rel_error: float | None
    normalized_error: float | None
    cosine: float | None
    snr_db: float | None
    mismatches: float | None
    top1: float | None
    passed: bool
    failed_limits: tuple[str, ...] = ()
    ignored_share: float = 0.0
    collapses: tuple[Collapse, ...] = ()
    quantity: bool = False
    worst_index: IndexFinding | None = None
    broken_reference: str = ""
    id_columns: tuple[int, ...] = ()
    largest_difference: LargestDifference | None = None

    @property
    def verdict(self) -> Verdict:
        """Return the verdict on this output alone: inconclusive if too few values could be compared."""
        if self.passed:
            return "pass"
        # Rules S8.21, S8.40: too little evidence makes a verdict inconclusive only if no other limit breaks.
        return "inconclusive" if {"max_ignored", "reference"}.issuperset(self.failed_limits) else "fail"

    @property
    def place(self) -> str:
        """Return where the limits break: `` at index 3 of axis 1`` if an index misses them, else ""."""
        return f" at {self.worst_index}" if self.worst_index is not None and self.worst_index.failed_limits else ""

    @property
    def collapse_text(self) -> str:
        """Return which part of the output became one value, and the number of other such parts; "" if none did."""
        if not self.collapses:
            return ""
        others = len(self.collapses) - 1
        more = f", and {others:,} other indices became one value each" if others else ""
        return f"output {self.name!r}, {self.collapses[0]}{more}"

    def to_json(self) -> JsonObject:
        """Return the fields with the keys of schemas/check.json; infinities and NaN become strings."""
        return _with_pass(asdict(self))


def _with_pass(members: JsonObject) -> JsonObject:
    # ``pass`` is a keyword of Python, so the field cannot have the name that the JSON has.
    members["pass"] = members.pop("passed")
    return to_strict_json(members)


@dataclass(frozen=True)
class TensorRange:
    """The range of one float tensor over all batches, in float32 and in the mixed model.

    ``low``: the mixed model holds the tensor in low precision. ``nan`` and ``low_nan``: a value is NaN. Then minimum
    and maximum leave out the NaN, and they may miss a few other values, because reductions may drop values next to a
    NaN. Minimum and maximum are NaN if the NaN hides all other values.

    Example::

        batches = mixlist.random_batches("digits.onnx", 2, dims={"batch": 16}, ranges={"pixels": (0, 16)})
        report = mixlist.check("digits.onnx", mixlist.load_policy(), batches, per_tensor=True)
        print([(tensor.tensor, tensor.maximum) for tensor in report.tensors if tensor.low])
    """

    scope: str
    tensor: str
    node: str
    op_type: str
    low: bool
    minimum: float
    maximum: float
    low_minimum: float
    low_maximum: float
    nan: bool = False
    low_nan: bool = False

    @property
    def producer(self) -> NodeRef:
        """Return the node that makes the tensor; a node without a name for a graph input."""
        return NodeRef(self.scope, self.node)

    @property
    def qualified_name(self) -> str:
        """Return the tensor's name with its scope, as reports show it."""
        return qualified_name(self.scope, self.tensor)

    @property
    def magnitude(self) -> float:
        """Return the largest magnitude in float32, NaN if a value is NaN."""
        return math.nan if self.nan else max(abs(self.minimum), abs(self.maximum))

    @property
    def low_magnitude(self) -> float:
        """Return the largest magnitude in the mixed model, NaN if a value is NaN."""
        return math.nan if self.low_nan else max(abs(self.low_minimum), abs(self.low_maximum))


@dataclass(frozen=True)
class NodeError(NodeResult):
    """The normalized error that one low node adds if its inputs are those of the reference (``--layerwise``).

    ``source``: the list entry or rule that made the node low; ``suggestion``: the smallest change that keeps it high.

    Example::

        batches = mixlist.random_batches("digits.onnx", 2, dims={"batch": 16}, ranges={"pixels": (0, 16)})
        report = mixlist.check("digits.onnx", mixlist.load_policy(), batches, layerwise=True)
        print(max(report.layerwise, key=lambda node: node.normalized_error).name)
    """

    normalized_error: float
    source: str = ""
    suggestion: str = ""


@dataclass(frozen=True)
class JudgeResult:
    """The worst value of one number of the user's judge (``--judge``), and the batch that has it, counted from 0.

    ``limit``: the largest value that passes, None without a limit. Then ``passed`` is True. ``value`` is None if there
    was nothing to compare, for the judge ``boxes`` no detection; then ``passed`` is True, too.
    """

    name: str
    value: float | None
    batch: int
    limit: float | None
    passed: bool

    def to_json(self) -> JsonObject:
        """Return the fields with the keys of schemas/check.json; infinities and NaN become strings."""
        return _with_pass(asdict(self))


@dataclass(frozen=True)
class LowPart:
    """The part of the mixed model that is in low precision.

    ``low_nodes``: the nodes in the low type, out of ``nodes`` that are in the low type or float32. ``low_share``: the
    share of matrix and convolution work in the low type (0 to 1), None if the model has no such work. ``bytes``: what
    the nodes move in the first batch, with weights and Casts; ``reference_bytes``: the same in the original.
    ``uncounted``: the nodes of unknown shape, which are not counted in these three.
    """

    low_nodes: int
    nodes: int
    low_share: float | None
    bytes: int
    reference_bytes: int
    uncounted: int = 0


NOTHING_LOW_REASON = "every limit is kept, because nothing is low"
OTHER_NOT_LOW_REASON = "every limit is kept, but no node of the mixed model is low: only the outputs were compared"
NOTHING_CHANGED_REASON = "every limit is kept, because the lists change nothing"
LOW_REFERENCE_REASON = "the given model is in low precision already, and is the reference"
IN_FLOAT32 = "compares the model with its form in float32"


@dataclass(frozen=True, repr=False)
class CheckReport:
    """The verdict of a check, with its reasons, findings and measures.

    ``reasons``: why the verdict is what it is, one sentence each. ``mode``: ``emulated`` (float32 with rounding) or
    ``native`` (real low precision on ``provider``). ``precision``: the low type. ``exception_rate``: the share of
    batches with an overflow or a saturated value. ``limits``: the value of each limit by its name. ``layerwise``: the
    errors that nodes add, with ``--layerwise`` or if only limits of outputs fail. ``next_command``: the command line
    that writes the mixed model after a pass, or that searches a list that passes. It is "" if there is no such command,
    and in a report of the Python function.
    ``order_changes``: the nodes that chose another order, whose outputs are judged in the order of the reference
    (Rule S8.38). ``segment_bytes``: the most bytes of weights in a segment; None if the models ran whole.
    ``advice``: the options that help after a failure, one sentence each, or after a pass on random
    values of the command line, those that give real ones. ``judge``: the numbers of the user's judge. ``low``: how much
    of the mixed model is low, None for a mixed model that was given, and if ONNX Runtime crashed while it loaded one.
    ``mixed_model``: the name of a mixed model that was given, "" of the one of the lists.

    Example::

        batches = mixlist.random_batches("digits.onnx", 2, dims={"batch": 16}, ranges={"pixels": (0, 16)})
        report = mixlist.check("digits.onnx", mixlist.load_policy(precision_mode_v2="fp16"), batches)
        if report.verdict == "fail":
            print(report.reasons, [node.name for node in report.nodes if node.first])
    """

    model: str
    verdict: Verdict
    reasons: tuple[str, ...]
    provider: str
    mode: Literal["emulated", "native"]
    precision: str
    batches: int
    exception_rate: float
    limits: dict[str, float]
    nodes: tuple[NodeFinding, ...]
    outputs: tuple[OutputFinding, ...]
    low: LowPart | None = None
    order_changes: tuple[OrderChange, ...] = ()
    tensors: tuple[TensorRange, ...] = ()
    layerwise: tuple[NodeError, ...] = ()
    warnings: tuple[Diagnostic, ...] = ()
    next_command: str = ""
    segment_bytes: int | None = None
    advice: tuple[str, ...] = ()
    judge: tuple[JudgeResult, ...] = ()
    mixed_model: str = ""
    seconds: dict[str, float] = field(default_factory=dict)  # wall time of each phase

    def __repr__(self) -> str:
        counts = f"batches {self.batches}, findings {len(self.nodes)}, warnings {len(self.warnings)}"
        return f"<CheckReport of {self.model!r}: {self.verdict}; {counts}>"

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows."""
        first = [finding for finding in self.nodes if finding.first]
        outputs = [
            f"{output.name}: {output.verdict}" + (f", misses {', '.join(output.failed_limits)}" * (not output.passed))
            for output in self.outputs
        ]
        return notebook_facts(
            f"check of {self.model}: {self.verdict}",
            {
                "why": self.reasons,
                "run": f"{self.precision}, {self.mode} on {self.provider}, batches: {self.batches}",
                "first offenders": limited([f"{f.ref} ({f.op_type}): {f.kind}" for f in first]),
                "to keep them high": limited(list(dict.fromkeys(f.suggestion for f in first if f.suggestion))),
                "outputs": limited(outputs),
                "page": "mixlist.html(report)",
            },
        )

    @property
    def passes_without_low(self) -> bool:
        """Return True if every limit is kept because nothing becomes low, which is no evidence for the lists."""
        return not {NOTHING_LOW_REASON, OTHER_NOT_LOW_REASON, NOTHING_CHANGED_REASON}.isdisjoint(self.reasons)

    @property
    def changes_nothing(self) -> bool:
        """Return True if every limit is kept because the lists change nothing in a model that is low already."""
        return NOTHING_CHANGED_REASON in self.reasons

    @property
    def compares_low_with_low(self) -> bool:
        """Return True if the check passes against a model that has most of the low nodes itself."""
        return LOW_REFERENCE_REASON in self.reasons

    def to_rows(self, table: str = "nodes") -> list[Row]:
        """Return the flat rows of a table, for pandas or polars.

        ``table``: ``nodes`` (one row for each finding), ``outputs``, ``tensors``, ``layerwise`` or ``judge``. The
        columns are the fields of NodeFinding, OutputFinding, TensorRange, NodeError and JudgeResult. Raises UsageError
        for another table.
        """
        return choose_table(
            table,
            {
                "nodes": lambda: [flat_row(finding, low_source=LowSource) for finding in self.nodes],
                "outputs": lambda: [flat_row(output) for output in self.outputs],
                "tensors": lambda: [flat_row(tensor) for tensor in self.tensors],
                "layerwise": lambda: [flat_row(error) for error in self.layerwise],
                "judge": lambda: [flat_row(result) for result in self.judge],
            },
        )

    def to_json(self) -> JsonObject:
        """Return the ``mixlist.check/1`` object of schemas/check.json; infinities and NaN become strings."""
        return result_json(self, "mixlist.check/1")
