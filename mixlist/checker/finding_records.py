"""Collect over all batches what was found about one tensor."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from mixlist.checker.result import FindingKind
from mixlist.emulation.conversions import Conversion
from mixlist.emulation.observed_range import ObservedRange
from mixlist.graph.dataflow import DataflowNode
from mixlist.graph.refs import NodeRef, TensorRef

OperandKey = tuple[NodeRef, str]  # a node, and the name of a tensor that the node reads converted


@dataclass
class FindingRecord:
    """The findings of one tensor over the batches: the batches of each kind, and the largest magnitudes.

    The tensor is the output ``tensor`` of ``node``, or a tensor called ``input_name`` that ``node`` reads converted
    ("" for an output). With ``is_inside`` the magnitudes are those of a sum inside the node. A magnitude is NaN if a
    batch has a NaN. Then the magnitude ``without_nan`` is the largest one of the other values, None if it was not
    computed.
    """

    node: DataflowNode
    tensor: TensorRef
    input_name: str = ""
    batches: dict[FindingKind, list[int]] = field(default_factory=dict)  # indices of batches, in ascending order
    reference_magnitude: float = 0.0
    mixed_magnitude: float = 0.0
    reference_without_nan: float | None = None
    mixed_without_nan: float | None = None
    counts: dict[FindingKind, int] = field(default_factory=dict)  # values concerned in the worst batch, if counted
    is_first_offender: bool = False  # in at least one batch
    is_inside: bool = False

    def add_ranges(self, reference: ObservedRange, mixed: ObservedRange) -> None:
        """Add the ranges of one batch."""
        # NaN stays for good: it says that some batch has a NaN, and ``holds_nan`` asks for the other values then.
        self.reference_magnitude = _larger_or_nan(self.reference_magnitude, reference.reported_magnitude)
        self.mixed_magnitude = _larger_or_nan(self.mixed_magnitude, mixed.reported_magnitude)

    @property
    def holds_nan(self) -> bool:
        """Return True if a batch has a NaN in one of the models."""
        return math.isnan(self.reference_magnitude) or math.isnan(self.mixed_magnitude)

    def add_magnitudes_without_nan(self, reference: float | None, mixed: float | None) -> None:
        """Add the largest magnitudes of one batch with a NaN; None if the batch has no other value."""
        self.reference_without_nan = _larger_if_any(self.reference_without_nan, reference)
        self.mixed_without_nan = _larger_if_any(self.mixed_without_nan, mixed)

    def add_finding(self, kind: FindingKind, index: int) -> None:
        """Add a finding in one batch; a second finding of the same kind in the batch changes nothing."""
        # Batches come in ascending order, so only the last entry can be this batch.
        batches = self.batches.setdefault(kind, [])
        if batches[-1:] != [index]:
            batches.append(index)

    def add_count(self, kind: FindingKind, count: int) -> None:
        """Add the number of values that a finding concerns in one batch."""
        self.counts[kind] = max(count, self.counts.get(kind, 0))


@dataclass
class OperandRecord(FindingRecord):
    """The findings of one converted input of a node over the batches."""

    conversion: Conversion = field(kw_only=True)


def _larger_or_nan(a: float, b: float) -> float:
    """Return the larger magnitude, NaN if one is NaN."""
    return math.nan if math.isnan(a) or math.isnan(b) else max(a, b)


def _larger_if_any(a: float | None, b: float | None) -> float | None:
    """Return the larger magnitude, None if both are None."""
    return max((magnitude for magnitude in (a, b) if magnitude is not None), default=None)
