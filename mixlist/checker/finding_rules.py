"""Decide which finding each tensor of a batch has: here an overflow becomes a finding.

Rules S8.5 to S8.12. Per batch the output of a node in the mixed model is compared with the reference, by their ranges:

- ``overflow`` (S8.5): not finite, but finite in the reference and in all that its node reads: a first offender;
- ``propagated`` (S8.6): the same, or zero, because something that its node reads was not finite at that time;
- ``saturated`` (S8.7): at the largest finite value, where the accelerator saturates and the reference is beyond it;
- ``underflow`` (S8.8): all zero where the reference is not, or nothing above the smallest normal number; where values
  are counted (full statistics), also if at least 1 % of those that are not zero in the reference became zero;
- ``near-limit`` (S8.9): within a factor of two of the largest finite value;
- ``preexisting`` (S8.10): not finite in the reference already, and no mask explains it;
- ``intended`` (S8.11): infinities that come out of constants, or of a mask's numbers. These are beyond 1e37 on one side
  only, or those that ``masks`` proves (S8.12). In the tensor of a mask another value may overflow, which no range can
  tell: the values of such an *ambiguous* tensor are counted, and one that the low type does not hold is an overflow.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mixlist.checker.result import FindingKind, ValueCounts
from mixlist.emulation.conversions import Conversion
from mixlist.emulation.observed_range import ObservedRange
from mixlist.graph.dataflow import DataflowNode, InputTensor
from mixlist.graph.refs import TensorRef
from mixlist.graph.weights import is_external, read_pieces
from mixlist.ops import types
from mixlist.ops.low_precision import FINITE_MAX, SMALLEST_NORMAL, overflow_bound
from mixlist.patterns.masks import SENTINEL as SENTINEL
from mixlist.patterns.masks import Mask, MaskLevels

if TYPE_CHECKING:
    from mixlist.emulation.observer import Ranges

EXCEPTION_KINDS: tuple[FindingKind, ...] = ("overflow", "saturated")
NEAR = 0.5  # of the largest finite value
FLUSHED = 0.01  # of the values that are not zero in the reference: fewer are lost in rounding's own noise


@dataclass
class FindingRecord:
    """The findings of one tensor over the batches: the batches of each kind, and the largest magnitudes.

    ``input``: the name of a tensor that the node reads converted, "" for its own output ``tensor``. A magnitude is NaN
    if a batch has a NaN. Then the ``number`` is the largest magnitude of the other values, None if it was not computed.
    """

    node: DataflowNode
    tensor: TensorRef
    input: str = ""
    batches: dict[FindingKind, list[int]] = field(default_factory=dict)
    reference: float = 0.0
    mixed: float = 0.0
    reference_number: float | None = None
    mixed_number: float | None = None
    counts: dict[FindingKind, int] = field(
        default_factory=dict
    )  # values concerned in the worst batch, where they are counted
    first: bool = False  # in a batch the node is a first offender

    def see(self, reference: ObservedRange, mixed: ObservedRange) -> None:
        """Add the ranges of one batch."""
        self.reference = largest(self.reference, reference.largest)
        self.mixed = largest(self.mixed, mixed.largest)

    @property
    def holds_nan(self) -> bool:
        """Return True if a batch has a NaN in one of the models."""
        return math.isnan(self.reference) or math.isnan(self.mixed)

    def see_numbers(self, reference: float | None, mixed: float | None) -> None:
        """Add the largest magnitudes of one batch without its NaN; None if it has no other values."""
        self.reference_number = max((n for n in (self.reference_number, reference) if n is not None), default=None)
        self.mixed_number = max((n for n in (self.mixed_number, mixed) if n is not None), default=None)

    def add_batch(self, kind: FindingKind, index: int) -> None:
        """Add a finding in one batch; a second one of that kind changes nothing."""
        batches = self.batches.setdefault(kind, [])
        if batches[-1:] != [index]:
            batches.append(index)

    def add_count(self, kind: FindingKind, count: int) -> None:
        """Add how many values a finding concerns in one batch."""
        self.counts[kind] = max(count, self.counts.get(kind, 0))


@dataclass(frozen=True)
class BatchRanges:
    """The ranges of one batch in both models, and what else is known of its values.

    ``low`` gives the low element type of the tensors that the mixed model holds in low precision. ``masks`` carry a
    mask to a softmax; ``inputs``: the ranges of graph inputs that masks depend on. ``lost``: tensors with a value that
    the reference holds, the low type does not, and no mask explains. ``counts``: of the values of every low tensor;
    empty if they were not counted. ``converted``: the conversions, each with the range of its tensor before it.
    ``masked_operands``: conversions whose range hides a finite value that is lost; ``lost_operands``: those of them
    that lose a value which is no mask's. ``operand_counts``: of the converted values. Of the tensors that
    are not finite in the reference, ``more_infinite`` have fewer finite values in the mixed model, and ``changed`` have
    more NaN there, or fewer finite values than the masks explain.
    """

    index: int
    reference: Ranges
    mixed: Ranges
    low_type_of: Mapping[TensorRef, int]
    saturate: bool
    masks: Mapping[TensorRef, Mask] = field(default_factory=dict)
    inputs: Ranges = field(default_factory=dict)
    lost: AbstractSet[TensorRef] = frozenset()
    counts: Mapping[TensorRef, ValueCounts] = field(default_factory=dict)
    conversion_ranges: Sequence[tuple[Conversion, ObservedRange]] = ()
    lost_operands: AbstractSet[Conversion] = frozenset()
    masked_operands: AbstractSet[Conversion] = frozenset()
    operand_counts: Mapping[Conversion, ValueCounts] = field(default_factory=dict)
    more_infinite: AbstractSet[TensorRef] = frozenset()
    changed: AbstractSet[TensorRef] = frozenset()

    def mask_levels(self, tensor: TensorRef, low: int) -> MaskLevels:
        """Return the magnitudes from which a value is a mask's, by its sign."""
        mask = self.masks.get(tensor)
        return MaskLevels() if mask is None else mask.levels_in(self._around(mask), overflow_bound(low))

    def hides_nothing(self, tensor: TensorRef, low: int) -> bool:
        """Return whether a tensor carries a mask, and nothing else in it can overflow."""
        mask = self.masks.get(tensor)
        return mask is not None and mask.hides_nothing(self._around(mask), overflow_bound(low))

    def _around(self, mask: Mask) -> Ranges:
        tensors = mask.joined | mask.factors
        return {t: ranges[t] for ranges in (self.inputs, self.reference) for t in tensors if t in ranges}

    def is_spoiled(self, tensor: TensorRef) -> bool:
        """Return whether a tensor has more values that are not finite than in the reference."""
        reference, mixed = self.reference.get(tensor), self.mixed.get(tensor)
        if reference is None or mixed is None or mixed.finite:
            return False
        return reference.finite or tensor in self.more_infinite

    def at_limit(self) -> Iterable[tuple[TensorRef, int, ObservedRange]]:
        """Yield the low tensors that are not finite, or at the limit where the accelerator saturates."""
        for tensor, low in self.low_type_of.items():
            mixed = self.mixed.get(tensor)
            if mixed is None or not mixed.ran:
                continue
            if not mixed.finite or (self.saturate and mixed.magnitude >= FINITE_MAX[low]):
                yield tensor, low, mixed

    def ambiguous(self) -> dict[TensorRef, MaskLevels]:
        """Return the tensors whose infinities may hide an overflow, and the levels from which a value is a mask's."""
        levels = {}
        for tensor, low, mixed in self.at_limit():
            reference = self.reference.get(tensor)
            if reference is None or self.hides_nothing(tensor, low):
                continue
            if not reference.finite:
                levels[tensor] = self.mask_levels(tensor, low)
                continue
            of_mask, limit = self.mask_levels(tensor, low), FINITE_MAX[low] if self.saturate else math.inf
            hides = any(of_mask.of(end) > overflow_bound(low) for end in ends(reference) if of_mask.cover(end))
            if hides and _is_sentinel(reference, mixed, of_mask, limit):
                levels[tensor] = of_mask
        return levels


def classify_outputs(
    batch: BatchRanges, nodes: Iterable[DataflowNode], records: dict[TensorRef, FindingRecord]
) -> bool:
    """Add the findings of one batch to the records; return whether it is an exception (Rule S8.14)."""
    exception = False
    classifier = _Classifier(batch)
    found: dict[TensorRef, FindingKind] = {}
    for node in nodes:
        for slot in range(len(node.node.outputs)):
            tensor = TensorRef(*node.ref, slot)
            reference, mixed = batch.reference.get(tensor), batch.mixed.get(tensor)
            if reference is None or mixed is None or not mixed.ran:
                continue
            kind = classifier.kind(node, tensor, reference, mixed)
            record = records.setdefault(tensor, FindingRecord(node, tensor))
            record.see(reference, mixed)
            if kind is not None:
                found[tensor] = kind
    # Now that every tensor is classified, also those that loops and calls hand to nodes before their own.
    found |= classifier.origins_of_circles()
    first = classifier.first_offenders(found, records)
    for tensor, kind in found.items():
        record = records[tensor]
        record.add_batch(kind, batch.index)
        exception |= kind in EXCEPTION_KINDS
        record.first |= tensor in first
        more = kind == "preexisting" and tensor in batch.more_infinite
        if more and any(classifier.is_spoiled(source.ref) for source in record.node.inputs):
            record.add_batch("propagated", batch.index)
    return exception


class _Classifier:
    """Classifies the tensors of one batch, in order of computation."""

    def __init__(self, batch: BatchRanges) -> None:
        self.batch = batch
        self.classified: set[TensorRef] = set()
        self.intended: set[TensorRef] = set()  # infinite by design
        self.spoiled: set[TensorRef] = set()  # with infinities that the reference does not have
        self.spoiled_by: dict[TensorRef, list[TensorRef]] = {}  # the inputs that explain a spoiled tensor
        self.overflows: set[TensorRef] = set()  # spoiled tensors that are overflows if no input explains them

    def kind(
        self, node: DataflowNode, tensor: TensorRef, reference: ObservedRange, mixed: ObservedRange
    ) -> FindingKind | None:
        """Return the finding of a tensor, None for none."""
        if not mixed.finite:
            kind: FindingKind | None = self._not_finite(node, tensor, reference, mixed)
        elif reference.finite:
            kind = self._finite(node, tensor, reference, mixed)
        elif tensor in self.batch.lost:
            kind = "saturated"
        else:
            kind = self._infinite_in_reference(node, reference)
        self.classified.add(tensor)
        if kind == "intended":
            self.intended.add(tensor)
        return kind

    def origins_of_circles(self) -> dict[TensorRef, FindingKind]:
        """Return the overflows of tensors that only explain one another (Rule S8.6).

        The results of a function's call may be the arguments of its next call, and no range tells the calls apart.
        """
        origins = _first_of_circles(self.spoiled_by)
        return {tensor: "overflow" for tensor in origins if tensor in self.overflows}

    def first_offenders(
        self, found: Mapping[TensorRef, FindingKind], records: Mapping[TensorRef, FindingRecord]
    ) -> set[TensorRef]:
        """Return the tensors whose nodes are first offenders (Rules S8.5 and S8.7)."""
        first = {tensor for tensor, kind in found.items() if kind == "overflow"}
        saturated = [tensor for tensor, kind in found.items() if kind == "saturated"]
        saturated_by = {}
        for tensor in saturated:
            sources = [s.ref for s in records[tensor].node.inputs if self._saturates(s, tensor, found)]
            if sources:
                saturated_by[tensor] = sources
        first.update(tensor for tensor in saturated if tensor not in saturated_by)
        return first | _first_of_circles(saturated_by)

    def _saturates(self, source: InputTensor, output: TensorRef, found: Mapping[TensorRef, FindingKind]) -> bool:
        """Return whether an input was saturated when the output became so."""
        if found.get(source.ref) != "saturated":
            return False
        if source.timing == "before":
            return True
        before, after = (self.batch.mixed[tensor].first_largest for tensor in (source.ref, output))
        return before + (1 if source.timing == "next" else 0) <= after

    def is_spoiled(self, tensor: TensorRef) -> bool:
        """Return whether a tensor has more values that are not finite than in the reference, and not by design."""
        return self.batch.is_spoiled(tensor) and (tensor in self.spoiled or tensor not in self.classified)

    def _not_finite(
        self, node: DataflowNode, tensor: TensorRef, reference: ObservedRange, mixed: ObservedRange
    ) -> FindingKind:
        """Decide what made a tensor of the mixed model infinite or NaN."""
        batch = self.batch
        sources = [source.ref for source in node.inputs if self._spoils(source, mixed)]
        explained = bool(sources)
        lost = tensor in batch.lost
        new = lost and not batch.saturate
        # A mask that is infinite by design is infinite in the float32 nodes that it reaches, too.
        levels = batch.mask_levels(tensor, batch.low_type_of.get(tensor, types.FLOAT16))
        if reference.finite:
            new |= not _is_sentinel(reference, mixed, levels)
            kind: FindingKind = "propagated" if explained else "intended"
        else:
            new |= tensor in batch.changed or _is_new(reference, mixed, levels)
            kind = "saturated" if lost and batch.saturate else self._infinite_in_reference(node, reference)
        if explained or new:
            self.spoiled.add(tensor)
        if explained:
            self.spoiled_by[tensor] = sources
        if new:
            self.overflows.add(tensor)
        return "overflow" if new and not explained else kind

    def _finite(
        self, node: DataflowNode, tensor: TensorRef, reference: ObservedRange, mixed: ObservedRange
    ) -> FindingKind | None:
        """Decide what a tensor without infinities suffers."""
        batch, low = self.batch, self.batch.low_type_of.get(tensor)
        if low is None:
            return None
        limit = FINITE_MAX[low]
        if batch.saturate and mixed.magnitude >= limit and reference.magnitude >= overflow_bound(low):
            by_design = _is_sentinel(reference, mixed, batch.mask_levels(tensor, low), limit)
            return "intended" if by_design and tensor not in batch.lost else "saturated"
        # A division by infinity gives zero. The node that makes the infinity has the finding, not this one.
        reads_infinity = any(not batch.mixed[s.ref].finite for s in node.inputs if s.ref in batch.mixed)
        if 0 < reference.magnitude < SMALLEST_NORMAL[low] or (mixed.magnitude == 0 and reference.magnitude > 0):
            return "propagated" if reads_infinity else "underflow"
        if mixed.magnitude >= NEAR * limit:
            return "near-limit"
        counts = batch.counts.get(tensor)
        flushed = counts is not None and counts.flushed > 0 and counts.flushed >= FLUSHED * counts.nonzero
        return "underflow" if flushed and not reads_infinity else None

    def _spoils(self, source: InputTensor, output: ObservedRange) -> bool:
        """Return whether an input had an infinity that the reference does not have when the output became infinite.

        What a loop computes later in its body is not classified yet: its infinities count.
        """
        found = self.batch.mixed.get(source.ref)
        if found is None or found.first_nonfinite is None:
            return False
        if not source.ref.node:  # a graph input is the same in both models
            return False
        if source.ref in self.classified and source.ref not in self.spoiled:
            return False
        if source.timing == "before":
            return True
        assert output.first_nonfinite is not None
        return found.first_nonfinite + (1 if source.timing == "next" else 0) <= output.first_nonfinite

    def _infinite_in_reference(self, node: DataflowNode, reference: ObservedRange) -> FindingKind:
        """Tell a mask, which is infinite out of constants or of other masks, from other infinities."""
        if reference.nan:
            return "preexisting"
        ranges = self.batch.reference
        infinite = [s.ref for s in node.inputs if s.ref in ranges and not ranges[s.ref].finite]
        by_design = self.intended.issuperset(infinite) if infinite else _has_infinite_constant(node)
        return "intended" if by_design else "preexisting"


def _first_of_circles(explained_by: Mapping[TensorRef, Sequence[TensorRef]]) -> set[TensorRef]:
    """Return the first tensor of each group of tensors that explain one another, and that nothing else explains."""
    readers: dict[TensorRef, list[TensorRef]] = {}
    for tensor, sources in explained_by.items():
        for source in sources:
            readers.setdefault(source, []).append(tensor)
    explained: set[TensorRef] = set()
    first = set()
    for start in (*(source for source in readers if source not in explained_by), *explained_by):
        if start in explained_by and start not in explained:
            first.add(start)
        waiting = [start]
        while waiting:
            new = [tensor for tensor in readers.get(waiting.pop(), ()) if tensor not in explained]
            explained.update(new)
            waiting += new
    return first


def largest(one: float, other: float) -> float:
    """Return the larger magnitude, NaN if one is NaN."""
    return math.nan if math.isnan(one) or math.isnan(other) else max(one, other)


def ends(span: ObservedRange) -> tuple[float, float]:
    """Return the smallest and the largest value."""
    return span.minimum, span.maximum


def _is_new(reference: ObservedRange, mixed: ObservedRange, levels: MaskLevels) -> bool:
    """Return whether the mixed model has a NaN, or an infinity of a sign, that the reference does not have."""
    if mixed.nan or reference.nan:
        return mixed.nan and not reference.nan
    pairs = zip(ends(reference), ends(mixed), strict=True)
    return any(math.isinf(b) and not _explains(a, b, levels) for a, b in pairs)


def _is_sentinel(reference: ObservedRange, mixed: ObservedRange, levels: MaskLevels, limit: float = math.inf) -> bool:
    """Return whether values of a mask, on one side, are all that reaches ``limit`` in the mixed model."""
    beyond = {a > 0 for a in ends(reference) if levels.cover(a)}
    pairs = zip(ends(reference), ends(mixed), strict=True)
    return not mixed.nan and len(beyond) == 1 and all(_explains(a, b, levels) for a, b in pairs if abs(b) >= limit)


def _explains(before: float, after: float, levels: MaskLevels) -> bool:
    """Return True if a value of the reference is a mask's, and has the same sign in the mixed model."""
    return levels.cover(before) and (before > 0) == (after > 0)


def _has_infinite_constant(node: DataflowNode) -> bool:
    for value in node.node.inputs:
        tensor = value.constant_proto if value is not None else None
        if tensor is None or value is None or is_external(tensor) or types.element(value.type) not in types.FLOATS:
            continue
        if any(
            math.isinf(number) for part in read_pieces(tensor, None) if part.size for number in (part.min(), part.max())
        ):
            return True
    return False
