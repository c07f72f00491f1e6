"""Find the losses in converted inputs of low-precision nodes (Rule S8.4).

Such an input is called an *operand*. The range of a tensor before its conversion shows nearly all losses: a finite
value beyond the low range becomes infinite, or is clamped. If an infinity or a mask hides the other values of a tensor,
these values are counted, as in outputs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from mixlist.checker.batch_ranges import BatchRanges, endpoints
from mixlist.checker.finding_records import OperandKey, OperandRecord
from mixlist.checker.finding_rules import EXCEPTION_KINDS, FLUSHED_SHARE
from mixlist.checker.result import FindingKind, ValueCounts
from mixlist.emulation.conversions import Conversion
from mixlist.emulation.observed_range import ObservedRange
from mixlist.graph.dataflow import DataflowNode
from mixlist.graph.refs import NodeRef, TensorRef
from mixlist.ops.low_precision import FINITE_MAX, SMALLEST_NORMAL, overflow_bound, round_to_low_type
from mixlist.patterns.proven_masks import MaskLevels


@dataclass(frozen=True)
class ConvertedRange:
    """The range of one tensor in one batch before a conversion.

    ``levels``: the magnitudes from which on a value belongs to a mask. ``only_mask_overflows``: the graph proves that
    only values of a mask can be lost.
    """

    conversion: Conversion
    before: ObservedRange
    levels: MaskLevels = field(default_factory=MaskLevels)
    only_mask_overflows: bool = False

    @property
    def bound(self) -> float:
        """Return the least magnitude that the low type does not hold."""
        return overflow_bound(self.conversion.elem)

    @property
    def ends_out_of_range(self) -> list[float]:
        """Return the ends of the range that the low type does not hold, infinities too."""
        # A tensor with one value has the same number at both ends.
        return [end for end in dict.fromkeys(endpoints(self.before)) if abs(end) >= self.bound]

    @property
    def loses_end(self) -> bool:
        """Return True if the conversion loses a finite end of the range that belongs to no mask (Rule S8.11)."""
        finite_ends = [end for end in endpoints(self.before) if math.isfinite(end)]
        # Masks are on one side only: if both ends are large enough, neither belongs to one.
        on_both_sides = len({end > 0 for end in finite_ends if self.levels.cover(end)}) == 2
        return any(abs(end) >= self.bound and (on_both_sides or not self.levels.cover(end)) for end in finite_ends)

    @property
    def may_hide_loss(self) -> bool:
        """Return True if an infinity or a mask at an end of the range may hide another value that is lost."""
        # An infinity at an end hides every finite value. A mask hides the values between the bound and its level.
        hides = any(math.isinf(end) or self.levels.for_sign_of(end) > self.bound for end in self.ends_out_of_range)
        return hides and not self.loses_end and not self.only_mask_overflows

    def after(self, saturate: bool) -> ObservedRange:
        """Return the range after the conversion; ``saturate``: values out of range become the largest finite value."""
        # A conversion keeps the order of values, so the ends of the range are converted to the ends of the new range.
        before, low = self.before, self.conversion.elem
        minimum, maximum = round_to_low_type(before.minimum, low), round_to_low_type(before.maximum, low)
        if saturate:
            largest_finite = FINITE_MAX[low]
            minimum, maximum = (max(-largest_finite, min(largest_finite, end)) for end in (minimum, maximum))
        is_nonfinite = before.nan or math.isinf(minimum) or math.isinf(maximum)
        return ObservedRange(minimum, maximum, before.nan, True, 0 if is_nonfinite else None)


def converted_ranges(batch: BatchRanges) -> list[ConvertedRange]:
    """Return the ranges of a batch's conversions, with the levels of the masks that their tensors carry."""
    ranges = []
    for conversion, before in batch.conversion_ranges:
        source, low = conversion.reference_ref, conversion.elem
        if source is not None and before.magnitude >= overflow_bound(low):
            levels = batch.mask_levels(source, low)
            ranges.append(ConvertedRange(conversion, before, levels, batch.only_mask_overflows(source, low)))
        else:  # nothing overflows, so masks make no difference
            ranges.append(ConvertedRange(conversion, before))
    return ranges


def classify_operands(
    batch: BatchRanges, nodes: Mapping[NodeRef, DataflowNode], records: dict[OperandKey, OperandRecord]
) -> bool:
    """Add the findings of converted inputs in one batch to the records of every node that reads them.

    Return True if the batch is an exception (Rule S8.14). A reader that is not in ``nodes`` is left out.
    """
    is_exception = False
    for converted_range in converted_ranges(batch):
        kind = _classify_conversion(converted_range, batch)
        if kind is None:
            continue
        is_exception |= kind in EXCEPTION_KINDS
        conversion = converted_range.conversion
        for reader in conversion.readers:
            node = nodes.get(reader)
            if node is None:
                continue
            # Slot 0 means nothing here: the finding is about an input. The TensorRef gives the record its node, by
            # which the findings of a report are sorted.
            new_record = OperandRecord(node, TensorRef(*reader, 0), conversion.name, conversion=conversion)
            record = records.setdefault((reader, conversion.name), new_record)
            # Every operand that loses a value is a first offender: the loss happens here, whatever the inputs are.
            record.is_first_offender |= kind in EXCEPTION_KINDS
            record.add_ranges(_reported_range(converted_range, batch), converted_range.after(batch.saturate))
            record.add_finding(kind, batch.index)
    return is_exception


def _reported_range(converted_range: ConvertedRange, batch: BatchRanges) -> ObservedRange:
    """Return the range that a report shows as the one before the conversion (Rule S8.4).

    This is the range in the mixed model. If an overflow upstream makes it infinite there, its end says nothing about
    the values that the conversion loses: then it is the range in the reference.
    """
    before, reference_ref = converted_range.before, converted_range.conversion.reference_ref
    if before.finite or reference_ref is None:
        return before
    reference = batch.reference.get(reference_ref)
    return reference if reference is not None and reference.ran and reference.finite else before


def _classify_conversion(converted_range: ConvertedRange, batch: BatchRanges) -> FindingKind | None:
    """Return the kind of a conversion's finding, None for no finding.

    Values that are not finite before the conversion are no finding: the conversion does not change them.
    """
    conversion, before = converted_range.conversion, converted_range.before
    # An overflow comes first: a tensor may lose values of a mask and others, and have flushed values too.
    if converted_range.loses_end or conversion in batch.overflowing_conversions:
        if conversion.reference_ref in batch.clipped:  # Rule S8.30
            return "intended"
        return "saturated" if batch.saturate else "overflow"
    ends_out_of_range = converted_range.ends_out_of_range
    if ends_out_of_range:
        # Only values of masks are lost. Such a value is an end of the range, or an infinity hides it.
        loses_mask = conversion in batch.lossy_conversions or any(map(math.isfinite, ends_out_of_range))
        return "intended" if loses_mask else None
    if not before.finite:
        return None
    # Rule S8.8, by the values before the conversion. A tensor of zeros has no underflow: its magnitude and its number
    # of flushed values are 0.
    if 0 < before.magnitude < SMALLEST_NORMAL[conversion.elem]:
        return "underflow"
    counts = batch.conversion_counts.get(conversion)
    flushed = counts is not None and counts.flushed > 0 and counts.flushed >= FLUSHED_SHARE * counts.nonzero
    return "underflow" if flushed else None


def operand_value_count(kind: FindingKind, counts: ValueCounts) -> int:
    """Return the number of values that a finding concerns; ``counts`` are those of the converted tensor."""
    if kind == "underflow":
        return counts.flushed or counts.subnormal
    return max(1, counts.nonfinite)
