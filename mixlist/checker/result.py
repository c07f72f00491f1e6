"""Hold the result of ``check`` as values only; the report room renders them (schemas/check.json)."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from mixlist.diagnostics import Diagnostic, warnings_as_text
from mixlist.files.strict_json import to_strict_json
from mixlist.graph.refs import NodeRef, NodeResult, qualified_name

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
    """The low node whose values a high node computes with: what made it low, and what would keep it high."""

    source: str
    suggestion: str


@dataclass(frozen=True)
class NodeFinding(NodeResult):
    """One node and what happened to its output ``tensor`` in low precision, or to a tensor that it reads converted.

    ``input``: the name of the converted tensor, which is ``tensor`` then; "" for an output. ``first``: among the first
    offenders, whose inputs were all finite, and not saturated. ``count``: values concerned in the worst batch, None if
    they were not counted. ``batches``: indices of the batches where it happened, from 0.
    ``max_abs_fp32`` and ``max_abs_low``: largest magnitude in float32 and in the mixed model (inf where it overflowed,
    NaN if a value is NaN, and if the run was ``refused``, so that it was not computed). ``max_number_fp32`` and
    ``max_number_low``: the same without NaN. If there is a NaN, they are those of the first batch of each kind, and
    None if there is no other value or it was not computed.
    ``list``: white, black, gray or none; ``source``: the list entry or rule that made it low; ``suggestion``: the
    smallest list change that would keep it high ("" where there is none to give). Where the node is high already, or is
    refused because of an integer, ``low_source`` is the low node upstream, and ``suggestion`` is about that one.
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
    max_number_fp32: float | None = None
    max_number_low: float | None = None


@dataclass(frozen=True)
class OutputFinding:
    """The errors of one graph output of the mixed model against the reference, the worst over all batches.

    ``max_rel_error`` is relative to the reference's magnitude; ``normalized_error`` is the L2 norm of the difference
    over that of the reference; ``snr_db`` is 20 log10 of its inverse (inf where they are equal). ``mismatches`` is the
    share of differing values of an integer, bool or string output, None for floats; ``top1`` the share of rows whose
    largest element is at the same place, None where that means nothing. ``ignored_share`` is the share of values that
    are NaN in the reference or come from NaN alone, and say nothing; 1 where no batch has a value. All figures are None
    then, because nothing was compared.
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

    @property
    def verdict(self) -> Verdict:
        """Return the verdict on this output alone: inconclusive if too few values could be compared."""
        if self.passed:
            return "pass"
        return "inconclusive" if self.failed_limits == ("max_ignored",) else "fail"


@dataclass(frozen=True)
class ValueCounts:
    """The exact numbers of a tensor's values in the mixed model, by kind (``--full-statistics``).

    ``values``: all of them. ``nonzero``: not zero in float32. ``nonfinite``: infinite or NaN. ``flushed``: zeros beyond
    those of float32. ``subnormal``: not zero, and below the smallest normal number of the low type. ``near_limit``:
    finite, from half the largest finite value on.
    """

    values: int
    nonzero: int
    nonfinite: int
    flushed: int
    subnormal: int
    near_limit: int

    def __add__(self, other: ValueCounts) -> ValueCounts:
        """The counts of both."""
        return ValueCounts(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))


@dataclass(frozen=True)
class TensorRange:
    """The dynamic range of one float tensor over all batches, in float32 and in the mixed model.

    ``smallest`` is the smallest non-zero magnitude in float32, None where nobody looked or all values are zero.
    ``low``: held in low precision. ``counts``: over all batches, None where nobody counted or the tensor is not low.
    ``nan`` and ``low_nan``: True if there is a NaN. The minimum and maximum leave it out, and may miss other values
    then; they are NaN if it hides all values.
    """

    scope: str
    tensor: str
    node: str
    op_type: str
    low: bool
    minimum: float
    maximum: float
    smallest: float | None
    low_minimum: float
    low_maximum: float
    counts: ValueCounts | None = None
    nan: bool = False
    low_nan: bool = False

    @property
    def producer(self) -> NodeRef:
        """The node that makes the tensor; one without a name for a graph input."""
        return NodeRef(self.scope, self.node)

    @property
    def qualified_name(self) -> str:
        """The tensor's name with its scope, as reports show it."""
        return qualified_name(self.scope, self.tensor)

    @property
    def magnitude(self) -> float:
        """The largest magnitude in float32, NaN where a value is NaN."""
        return math.nan if self.nan else max(abs(self.minimum), abs(self.maximum))

    @property
    def low_magnitude(self) -> float:
        """The largest magnitude in the mixed model, NaN where a value is NaN."""
        return math.nan if self.low_nan else max(abs(self.low_minimum), abs(self.low_maximum))


@dataclass(frozen=True)
class NodeError(NodeResult):
    """The error that one node adds when all its inputs are exact (``--layerwise``), as normalised error.

    ``source``: the list entry or rule that made it low; ``suggestion``: the smallest change that would keep it high.
    """

    normalized_error: float
    source: str = ""
    suggestion: str = ""


@dataclass(frozen=True)
class TaskResult:
    """Task accuracy with ``--labels``: share of right answers of the reference and of the mixed model.

    ``count``: labels that counted. ``used``: labels that had their samples, those of padding too.
    """

    reference: float
    mixed: float
    count: int
    used: int


@dataclass(frozen=True)
class EmulationComparison:
    """The result of the emulation on the CPU for a natively checked model; ``differences``: one sentence each."""

    verdict: Verdict
    exception_rate: float
    differences: tuple[str, ...]


@dataclass(frozen=True, repr=False)
class CheckReport:
    """The verdict and everything behind it.

    ``mode``: ``emulated`` (float32 with rounding) or ``native`` (real low precision on ``provider``).
    ``exception_rate``: share of batches with at least one overflow or saturation. ``limits``: name to value.
    ``reasons``: why the verdict is what it is, one sentence each. ``precision``: the low type. ``emulated``: the
    emulation beside a native check, where it was asked for; it changes no verdict. ``layerwise`` is filled where it was
    asked for, and where nothing but the limits of outputs is missed. ``next_command``: the command line that searches a
    list that passes, "" from Python and where there is none.
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
    tensors: tuple[TensorRange, ...] = ()
    layerwise: tuple[NodeError, ...] = ()
    task: TaskResult | None = None
    emulated: EmulationComparison | None = None
    warnings: tuple[Diagnostic, ...] = ()
    next_command: str = ""
    seconds: dict[str, float] = field(default_factory=dict)  # wall time of each phase

    def __repr__(self) -> str:
        counts = f"batches {self.batches}, findings {len(self.nodes)}, warnings {len(self.warnings)}"
        return f"<CheckReport of {self.model!r}: {self.verdict}; {counts}>"

    def to_json(self) -> dict[str, Any]:
        """Return the ``mixlist.check/1`` object of schemas/check.json; infinities and NaN become strings."""
        plain: dict[str, Any] = asdict(self)
        for output in plain["outputs"]:
            output["pass"] = output.pop("passed")
        plain["warnings"] = warnings_as_text(self.warnings)
        return {"format": "mixlist.check/1", **to_strict_json(plain)}
