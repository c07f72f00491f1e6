"""Find the losses in converted inputs of low-precision nodes (Rule S8.4).

The range of a tensor before its conversion shows nearly all of them: a finite value beyond the low range becomes
infinite, or is clamped. If an infinity or a mask hides the other values of a tensor, they are counted, as in outputs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from mixlist.checker.finding_rules import EXCEPTION_KINDS, FLUSHED, BatchRanges, FindingRecord, ends
from mixlist.checker.result import FindingKind, ValueCounts
from mixlist.emulation.conversions import Conversion
from mixlist.emulation.observed_range import ObservedRange
from mixlist.graph.dataflow import DataflowNode
from mixlist.graph.refs import NodeRef, TensorRef
from mixlist.ops.low_precision import FINITE_MAX, SMALLEST_NORMAL, overflow_bound, round_to_low_type
from mixlist.patterns.masks import MaskLevels

OperandKey = tuple[NodeRef, str]  # a node, and the name of a tensor that it reads converted


@dataclass
class OperandRecord(FindingRecord):
    """The findings of one converted input of a node over the batches."""

    conversion: Conversion = field(kw_only=True)


@dataclass(frozen=True)
class ConvertedRange:
    """The range of one tensor in one batch before it is converted; from ``levels`` on values are a mask's.

    ``hides_nothing``: the graph proves that nothing but a mask's values can be lost.
    """

    conversion: Conversion
    before: ObservedRange
    levels: MaskLevels = field(default_factory=MaskLevels)
    hides_nothing: bool = False

    @property
    def bound(self) -> float:
        """The least magnitude that the low type does not hold."""
        return overflow_bound(self.conversion.elem)

    @property
    def beyond(self) -> list[float]:
        """The ends of the range that the low type does not hold."""
        return [end for end in dict.fromkeys(ends(self.before)) if abs(end) >= self.bound]

    @property
    def loses(self) -> bool:
        """Return True if the conversion loses a finite end that is no mask's; masks are on one side only."""
        finite = [end for end in ends(self.before) if math.isfinite(end)]
        no_mask = len({end > 0 for end in finite if self.levels.cover(end)}) == 2
        return any(abs(end) >= self.bound and (no_mask or not self.levels.cover(end)) for end in finite)

    @property
    def may_hide(self) -> bool:
        """Return True if an infinity or a mask may hide a value that is lost."""
        hides = any(math.isinf(end) or self.levels.of(end) > self.bound for end in self.beyond)
        return hides and not self.loses and not self.hides_nothing

    def after(self, saturate: bool) -> ObservedRange:
        """Return the range of the tensor when it is converted."""
        before, elem = self.before, self.conversion.elem
        least, most = round_to_low_type(before.minimum, elem), round_to_low_type(before.maximum, elem)
        if saturate:
            least, most = (max(-FINITE_MAX[elem], min(FINITE_MAX[elem], end)) for end in (least, most))
        infinite = before.nan or math.isinf(least) or math.isinf(most)
        return ObservedRange(least, most, before.nan, True, 0 if infinite else None)


def converted_ranges(batch: BatchRanges) -> list[ConvertedRange]:
    """Return the ranges of a batch's conversions, with the levels from which values are a mask's."""
    found = []
    for conversion, before in batch.conversion_ranges:
        source, elem = conversion.source, conversion.elem
        if source is not None and before.magnitude >= overflow_bound(elem):
            levels, hides_nothing = batch.mask_levels(source, elem), batch.hides_nothing(source, elem)
            found.append(ConvertedRange(conversion, before, levels, hides_nothing))
        else:
            found.append(ConvertedRange(conversion, before))
    return found


def classify_operands(
    batch: BatchRanges, nodes: Mapping[NodeRef, DataflowNode], records: dict[OperandKey, OperandRecord]
) -> bool:
    """Add the findings of one batch to the records of every reader; return whether it is an exception (Rule S8.14)."""
    exception = False
    for found in converted_ranges(batch):
        kind = _kind(found, batch)
        if kind is None:
            continue
        exception |= kind in EXCEPTION_KINDS
        conversion = found.conversion
        for reader in conversion.readers:
            node = nodes.get(reader)
            if node is None:
                continue
            tensor = TensorRef(*reader, 0)
            record = records.setdefault(
                (reader, conversion.name), OperandRecord(node, tensor, conversion.name, conversion=conversion)
            )
            record.first |= kind in EXCEPTION_KINDS
            record.see(found.before, found.after(batch.saturate))
            record.add_batch(kind, batch.index)
    return exception


def _kind(found: ConvertedRange, batch: BatchRanges) -> FindingKind | None:
    """Return the kind of a conversion's finding; None for none: values that are not finite before it are no finding."""
    if found.loses or found.conversion in batch.lost_operands:
        return "saturated" if batch.saturate else "overflow"
    if found.beyond:
        hides_mask = found.conversion in batch.masked_operands
        return "intended" if hides_mask or any(map(math.isfinite, found.beyond)) else None
    if not found.before.finite:
        return None
    if 0 < found.before.magnitude < SMALLEST_NORMAL[found.conversion.elem]:
        return "underflow"
    counts = batch.operand_counts.get(found.conversion)
    flushed = counts is not None and counts.flushed > 0 and counts.flushed >= FLUSHED * counts.nonzero
    return "underflow" if flushed else None


def operand_count(kind: FindingKind, counts: ValueCounts) -> int:
    """Return the number of values that a finding concerns; ``counts`` are those of the converted tensor."""
    if kind == "underflow":
        return counts.flushed or counts.subnormal
    return max(1, counts.nonfinite)
