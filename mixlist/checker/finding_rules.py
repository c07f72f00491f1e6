"""Decide which finding each tensor of a batch has, by its ranges in both models (Rules S8.4 to S8.12).

docs/semantics.md has the rules of each kind. The output of each node in the mixed model is compared with the reference.
A tensor is finite if it holds neither an infinity nor a NaN.

The input of a node can lose values, too (S8.4). An input of a low-precision node that is converted is called an
*operand*. The range of a tensor before its conversion shows nearly all losses: a finite value beyond the low range
becomes infinite, or is clamped.

A *mask* is a large constant, such as -1e9, that is added to scores so that a softmax makes zero of them. In float16 it
is infinite by design. Its *level* is the magnitude from which on a value belongs to the mask and not to the scores
(``intended_infinities.py``, Rule S8.12). In a tensor with a mask another value may overflow, which no range can show.
The values of a tensor that may hide an overflow in this way are counted (``hidden_overflow.py``), and a value that the
low type does not hold is an overflow.

The file has three parts: the ranges of one batch (``BatchRanges``), what all batches show of one tensor
(``FindingRecord``), and the rules, of node outputs and of converted inputs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mixlist.checker.conversions import Conversion
from mixlist.checker.intended_infinities import HarmlessValues, Mask, MaskLevels
from mixlist.checker.observer import ObservedRange
from mixlist.checker.result import FindingKind
from mixlist.model import dtypes
from mixlist.model.dataflow import DataflowNode, InputTensor
from mixlist.model.low_precision import FINITE_MAX, SMALLEST_NORMAL, overflow_bound, round_to_low_type
from mixlist.model.naming import NodeRef, TensorRef
from mixlist.model.weights import is_external, read_pieces

if TYPE_CHECKING:
    from mixlist.checker.observer import Ranges


# --- the ranges of one batch ---


@dataclass(frozen=True)
class BatchRanges:
    """The ranges of one batch in both models, and the facts about its values that ranges do not show.

    ``low_type_of``: the low type of each tensor that the mixed model holds in low precision. ``saturate``: values out
    of range become the largest finite value. ``conversion_ranges``: each conversion with the range of its tensor before
    it.

    ``HiddenOverflowFinder`` fills in the next fields. ``masks``: the tensors that carry a mask to a softmax.
    ``harmless``: the tensors with values that change no output (Rule S8.30).
    ``input_ranges``: the ranges of the graph inputs on which masks depend. ``hidden_overflows``: tensors with a
    finite value in the reference that overflows in the low type and belongs to no mask. ``lossy_conversions``:
    conversions that lose a finite value, although their range does not show the loss. ``overflowing_conversions``:
    the lossy conversions whose lost value belongs to no mask. Of the tensors that are not finite in the reference,
    ``fewer_finite`` have fewer finite values in the mixed model. ``unexplained_nonfinite`` have more NaN there, or
    lack more finite values than masks explain.
    """

    index: int
    reference: Ranges
    mixed: Ranges
    low_type_of: Mapping[TensorRef, int]
    saturate: bool
    conversion_ranges: Sequence[tuple[Conversion, ObservedRange]] = ()
    masks: Mapping[TensorRef, Mask] = field(default_factory=dict)
    harmless: Mapping[TensorRef, HarmlessValues] = field(default_factory=dict)
    input_ranges: Ranges = field(default_factory=dict)
    hidden_overflows: AbstractSet[TensorRef] = frozenset()
    lossy_conversions: AbstractSet[Conversion] = frozenset()
    overflowing_conversions: AbstractSet[Conversion] = frozenset()
    fewer_finite: AbstractSet[TensorRef] = frozenset()
    unexplained_nonfinite: AbstractSet[TensorRef] = frozenset()

    def mask_levels(self, tensor: TensorRef, low: int) -> MaskLevels:
        """Return the magnitudes from which on a value of a tensor belongs to a mask in this batch, by its sign."""
        mask = self.masks.get(tensor)
        return MaskLevels() if mask is None else mask.levels_in(self._ranges_for_levels(mask), overflow_bound(low))

    def only_mask_overflows(self, tensor: TensorRef, low: int) -> bool:
        """Return True if a tensor carries a mask, and nothing else in the tensor can overflow."""
        mask = self.masks.get(tensor)
        return mask is not None and mask.explains_every_overflow(self._ranges_for_levels(mask), overflow_bound(low))

    def _ranges_for_levels(self, mask: Mask) -> Ranges:
        """Return the ranges on which the levels of a mask depend: of the tensors that are joined to it, or multiply it.

        They are those of the reference.
        """
        tensors = mask.joined | mask.factors
        return {t: ranges[t] for ranges in (self.input_ranges, self.reference) for t in tensors if t in ranges}

    def has_more_nonfinite(self, tensor: TensorRef) -> bool:
        """Return True if more values of a tensor are infinite or NaN in the mixed model than in the reference."""
        reference, mixed = self.reference.get(tensor), self.mixed.get(tensor)
        if reference is None or mixed is None or mixed.finite:
            return False
        # If the reference has infinities too, only counts tell whether there are more of them.
        return reference.finite or tensor in self.fewer_finite

    def is_harmless(self, tensor: TensorRef, values: Iterable[float], has_nan: bool = False) -> bool:
        """Return True if infinities of the signs of these values in a tensor change no output, nor a NaN in it."""
        harmless = self.harmless.get(tensor)
        return harmless is not None and harmless.include(values) and (harmless.nan or not has_nan)

    def is_unused(self, node: DataflowNode) -> bool:
        """Return True if no output of the model depends on an output of a node."""
        slots = (slot for slot, value in enumerate(node.node.outputs) if value is not None)
        return all(self.is_harmless(TensorRef(*node.ref, slot), (), has_nan=True) for slot in slots)

    def low_tensors_at_limit(self) -> Iterable[tuple[TensorRef, int, ObservedRange]]:
        """Yield the low tensors with an infinity or NaN; with ``saturate``, also those at the largest finite value.

        Each comes with its low type and its range in the mixed model.
        """
        for tensor, low in self.low_type_of.items():
            mixed = self.mixed.get(tensor)
            if mixed is None or not mixed.ran:
                continue
            if not mixed.finite or (self.saturate and mixed.magnitude >= FINITE_MAX[low]):
                yield tensor, low, mixed

    def tensors_that_may_hide_overflow(self) -> dict[TensorRef, MaskLevels]:
        """Return the tensors whose infinities may hide an overflow, and the levels of their masks.

        Example: scores and a mask of -1e9 are [-1e9, -8e4, 3.0] in float32 and [-inf, -inf, 3.0] in float16. The score
        -8e4 overflows, but the range [-inf, 3.0] does not show this, because the mask alone makes the same range.
        """
        levels_of = {}
        for tensor, low, mixed in self.low_tensors_at_limit():
            reference = self.reference.get(tensor)
            if reference is None or self.only_mask_overflows(tensor, low):
                continue  # nothing to compare with, or nothing to hide
            levels = self.mask_levels(tensor, low)
            if not reference.finite:
                # An infinity of the reference hides every overflow with the same sign.
                levels_of[tensor] = levels
                continue
            # If a mask's level is above the overflow bound, a smaller value may overflow and not belong to the mask.
            limit = FINITE_MAX[low] if self.saturate else math.inf
            # Example: a mask of -1e9 has the level 5e8. A score between 65520 and 5e8 overflows, too.
            may_hide = any(
                levels.for_sign_of(end) > overflow_bound(low) for end in endpoints(reference) if levels.cover(end)
            )
            if may_hide and only_masks_reach(limit, reference, mixed, levels):
                levels_of[tensor] = levels
        return levels_of


def endpoints(observed_range: ObservedRange) -> tuple[float, float]:
    """Return the smallest and the largest value."""
    return observed_range.minimum, observed_range.maximum


def only_masks_reach(limit: float, reference: ObservedRange, mixed: ObservedRange, levels: MaskLevels) -> bool:
    """Return True if the ends that reach ``limit`` in the mixed model are values of a mask, on one side only."""
    # Rule S8.11: masks are on one side only. If both ends of the reference are as large as a mask, neither is one.
    signs = {end > 0 for end in endpoints(reference) if levels.cover(end)}
    ends = zip(endpoints(reference), endpoints(mixed), strict=True)
    return (
        not mixed.nan
        and len(signs) == 1
        and all(is_same_mask(before, after, levels) for before, after in ends if abs(after) >= limit)
    )


def is_same_mask(before: float, after: float, levels: MaskLevels) -> bool:
    """Return True if a value of the reference belongs to a mask, and has the same sign in the mixed model."""
    return levels.cover(before) and (before > 0) == (after > 0)


# --- what all batches show of one tensor ---


OperandKey = tuple[NodeRef, str]  # a node, and the name of a tensor that the node reads converted


@dataclass
class FindingRecord:
    """The findings of one tensor over the batches: the batches of each kind, and the largest magnitudes.

    The tensor is the output ``tensor`` of ``node``, or that of a ``conversion`` whose result ``node`` reads. With
    ``is_inside`` the magnitudes are those of a sum inside the node. A magnitude is NaN if a batch has a NaN.
    """

    node: DataflowNode
    tensor: TensorRef
    conversion: Conversion | None = None
    batches: dict[FindingKind, list[int]] = field(default_factory=dict)  # indices of batches, in ascending order
    reference_magnitude: float = 0.0
    mixed_magnitude: float = 0.0
    counts: dict[FindingKind, int] = field(default_factory=dict)  # values concerned in the first batch, if counted
    is_first_offender: bool = False  # in at least one batch
    is_inside: bool = False

    @property
    def input_name(self) -> str:
        """Return the name of the tensor that the node reads converted, "" for an output."""
        return self.conversion.name if self.conversion is not None else ""

    def add_ranges(self, reference: ObservedRange, mixed: ObservedRange) -> None:
        """Add the ranges of one batch."""
        # NaN stays for good: it says that some batch has a NaN.
        self.reference_magnitude = _larger_or_nan(self.reference_magnitude, reference.reported_magnitude)
        self.mixed_magnitude = _larger_or_nan(self.mixed_magnitude, mixed.reported_magnitude)

    def add_finding(self, kind: FindingKind, index: int) -> None:
        """Add a finding in one batch; a second finding of the same kind in the batch changes nothing."""
        # Batches come in ascending order, so only the last entry can be this batch.
        batches = self.batches.setdefault(kind, [])
        if batches[-1:] != [index]:
            batches.append(index)


def _larger_or_nan(a: float, b: float) -> float:
    """Return the larger magnitude, NaN if one is NaN."""
    return math.nan if math.isnan(a) or math.isnan(b) else max(a, b)


# --- the rules of node outputs ---


EXCEPTION_KINDS: tuple[FindingKind, ...] = ("overflow", "saturated")  # a batch with one is an exception (Rule S8.14)
NEAR_LIMIT_SHARE = 0.5  # of the largest finite value


def classify_outputs(
    batch: BatchRanges, nodes: Iterable[DataflowNode], records: dict[TensorRef, FindingRecord]
) -> bool:
    """Add the findings of one batch to the records; return True if the batch is an exception (Rule S8.14).

    ``nodes`` are those of the original in order of computation.
    """
    # First pass: the kind of each tensor by its own ranges and those of the inputs of its node.
    classifier = _Classifier(batch)
    kinds: dict[TensorRef, FindingKind] = {}
    for node in nodes:
        for slot in range(len(node.node.outputs)):
            tensor = TensorRef(*node.ref, slot)
            reference, mixed = batch.reference.get(tensor), batch.mixed.get(tensor)
            # No probe (an integer, a body of a custom operator), or a branch that did not run.
            if reference is None or mixed is None or not mixed.ran:
                continue
            kind = classifier.classify(node, tensor, reference, mixed)
            record = records.setdefault(tensor, FindingRecord(node, tensor))
            record.add_ranges(reference, mixed)
            if kind is not None:
                kinds[tensor] = kind
    # Loops hand tensors to nodes that come earlier in this order. So cycles of tensors, and the first offenders, are
    # found only now that every tensor has a kind.
    kinds |= classifier.overflows_in_cycles()
    first_offenders = classifier.first_offenders(kinds, records)
    # Second pass: add the findings to the records.
    is_exception = False
    for tensor, kind in kinds.items():
        record = records[tensor]
        record.add_finding(kind, batch.index)
        is_exception |= kind in EXCEPTION_KINDS
        record.is_first_offender |= tensor in first_offenders
        # Rule S8.6: a tensor may be infinite in the reference, and hold more infinities in the mixed model because of
        # an input.
        lost_more = kind == "preexisting" and tensor in batch.fewer_finite
        if lost_more and any(classifier.has_new_nonfinite(source.ref) for source in record.node.inputs):
            record.add_finding("propagated", batch.index)
    return is_exception


class _Classifier:
    """The classification of the tensors of one batch, in order of computation.

    A tensor is *newly* nonfinite if it holds an infinity or NaN that the reference does not have, and that is not
    infinite by design.
    """

    def __init__(self, batch: BatchRanges) -> None:
        self.batch = batch
        self.classified: set[TensorRef] = set()
        self.intended: set[TensorRef] = set()  # infinite by design
        self.newly_nonfinite: set[TensorRef] = set()
        self.explained_by: dict[TensorRef, list[TensorRef]] = {}  # newly nonfinite inputs, by the tensor they explain
        self.overflows: set[TensorRef] = set()  # newly nonfinite tensors that overflow unless an input explains them

    def classify(
        self, node: DataflowNode, tensor: TensorRef, reference: ObservedRange, mixed: ObservedRange
    ) -> FindingKind | None:
        """Return the kind of a tensor's finding, None for no finding."""
        if not mixed.finite:
            kind: FindingKind | None = self._classify_nonfinite(node, tensor, reference, mixed)
        elif reference.finite:
            kind = self._classify_finite(node, tensor, reference, mixed)
        elif tensor in self.batch.hidden_overflows:
            kind = "saturated"  # infinities of the reference hid the value, and clamping made the tensor finite
        else:
            kind = self._classify_infinite_in_reference(node, reference)
        self.classified.add(tensor)
        if kind == "intended":
            self.intended.add(tensor)
        return kind

    def overflows_in_cycles(self) -> dict[TensorRef, FindingKind]:
        """Return the overflows among tensors that explain only one another (Rule S8.6).

        An inner loop may start with a state of the outer loop that it computed itself. Then each tensor of the cycle
        seems to be explained by another one, because the iterations of two loops cannot be compared.
        """
        # The first tensor of a cycle is not in ``overflows`` if its infinities are by design.
        first_tensors = _first_of_cycles(self.explained_by)
        return {tensor: "overflow" for tensor in first_tensors if tensor in self.overflows}

    def first_offenders(
        self, kinds: Mapping[TensorRef, FindingKind], records: Mapping[TensorRef, FindingRecord]
    ) -> set[TensorRef]:
        """Return the tensors whose nodes are first offenders (Rules S8.5 and S8.7)."""
        overflows = {tensor for tensor, kind in kinds.items() if kind == "overflow"}
        saturated = [tensor for tensor, kind in kinds.items() if kind == "saturated"]
        saturated_by = {}
        for tensor in saturated:
            inputs = [s.ref for s in records[tensor].node.inputs if self._saturated_before(s, tensor, kinds)]
            if inputs:
                saturated_by[tensor] = inputs
        first_saturated = {tensor for tensor in saturated if tensor not in saturated_by}
        return overflows | first_saturated | _first_of_cycles(saturated_by)

    def _saturated_before(self, source: InputTensor, output: TensorRef, kinds: Mapping[TensorRef, FindingKind]) -> bool:
        """Return True if an input of a node was saturated when the node's output became so.

        In a loop the iterations of both are compared: the first ones that had the largest magnitude.
        """
        if kinds.get(source.ref) != "saturated":
            return False
        # "before" is any earlier time, so iterations need not be compared.
        if source.timing == "before":
            return True
        input_iteration, output_iteration = (self.batch.mixed[tensor].first_largest for tensor in (source.ref, output))
        # The node reads a loop state one iteration after it was computed.
        return input_iteration + (1 if source.timing == "next" else 0) <= output_iteration

    def has_new_nonfinite(self, tensor: TensorRef) -> bool:
        """Return True if a tensor has more infinities or NaN than in the reference, and not by design."""
        # A tensor that was classified and is not newly nonfinite has infinities by design, or those of the reference.
        by_design = tensor in self.classified and tensor not in self.newly_nonfinite
        return self.batch.has_more_nonfinite(tensor) and not by_design

    def _classify_nonfinite(
        self, node: DataflowNode, tensor: TensorRef, reference: ObservedRange, mixed: ObservedRange
    ) -> FindingKind:
        """Return the kind of a tensor that is not finite in the mixed model."""
        # The tensor overflows if its nonfinite values are new, and if no input explains them.
        batch = self.batch
        explaining_inputs = [source.ref for source in node.inputs if self._explains(source, mixed)]
        is_explained = bool(explaining_inputs)
        infinities = [end for end in endpoints(mixed) if math.isinf(end)]
        if reference.finite and not is_explained and batch.is_harmless(tensor, infinities, mixed.nan):
            return "intended"
        has_hidden_overflow = tensor in batch.hidden_overflows
        # With ``saturate`` a hidden value is clamped. It makes no infinity.
        is_new = has_hidden_overflow and not batch.saturate
        # A float32 node that reads a mask has the infinities of the mask too. Masks are proven for float16 alone
        # (Rule S8.12), so the levels of a float32 node are those of float16.
        levels = batch.mask_levels(tensor, batch.low_type_of.get(tensor, dtypes.FLOAT16))
        # Of a finite reference every infinity and NaN is new, except the infinities of a mask. Of another reference
        # only counts, and the signs at the ends of the ranges, show that there are more.
        if reference.finite:
            is_new |= not only_masks_reach(math.inf, reference, mixed, levels)
            kind: FindingKind = "propagated" if is_explained else "intended"
        else:
            is_new |= tensor in batch.unexplained_nonfinite or _has_new_nonfinite_end(reference, mixed, levels)
            saturates = has_hidden_overflow and batch.saturate
            kind = "saturated" if saturates else self._classify_infinite_in_reference(node, reference)
        # An explained tensor counts as new too, so that it explains its readers, which come later.
        if is_explained or is_new:
            self.newly_nonfinite.add(tensor)
        if is_explained:
            self.explained_by[tensor] = explaining_inputs
        # Rule S8.6: if only a cycle explains the tensor, it may be the one that overflows.
        if is_new:
            self.overflows.add(tensor)
        return "overflow" if is_new and not is_explained else kind

    def _classify_finite(
        self, node: DataflowNode, tensor: TensorRef, reference: ObservedRange, mixed: ObservedRange
    ) -> FindingKind | None:
        """Return the kind of a tensor that is finite in both models, None for no finding."""
        batch, low = self.batch, self.batch.low_type_of.get(tensor)
        if low is None:  # underflow, near-limit and saturated are about the range of a low type
            return None
        # A reference between the largest finite value and the overflow bound rounds down to the largest finite value,
        # also without saturation: that is no loss.
        largest_finite = FINITE_MAX[low]
        if batch.saturate and mixed.magnitude >= largest_finite and reference.magnitude >= overflow_bound(low):
            by_design = only_masks_reach(largest_finite, reference, mixed, batch.mask_levels(tensor, low))
            by_design = by_design and tensor not in batch.hidden_overflows
            saturated_ends = [end for end in endpoints(mixed) if abs(end) >= largest_finite]
            return "intended" if by_design or batch.is_harmless(tensor, saturated_ends) else "saturated"
        # A division by infinity gives zero. Then the node that makes the infinity has the finding, not this one.
        reads_infinity = any(not batch.mixed[s.ref].finite for s in node.inputs if s.ref in batch.mixed)
        if 0 < reference.magnitude < SMALLEST_NORMAL[low] or (mixed.magnitude == 0 and reference.magnitude > 0):
            return "propagated" if reads_infinity else "underflow"
        # More than half: a reduced mask reaches half of it (Rule S4.36).
        return "near-limit" if mixed.magnitude > NEAR_LIMIT_SHARE * largest_finite else None

    def _explains(self, source: InputTensor, output: ObservedRange) -> bool:
        """Return True if an input was newly nonfinite when the output of its node became nonfinite.

        A node of a loop body may read a state that a later node of the body computes. That tensor is not classified
        yet, and all of its infinities count as new.
        """
        source_range = self.batch.mixed.get(source.ref)
        if source_range is None or source_range.first_nonfinite is None:
            return False
        if not source.ref.node:  # a graph input is the same in both models
            return False
        if source.ref in self.classified and source.ref not in self.newly_nonfinite:
            return False  # infinite by design, or as in the reference
        if source.timing == "before":
            return True
        # Only a nonfinite output is explained, so it has a first nonfinite iteration.
        assert output.first_nonfinite is not None
        # The node reads a loop state one iteration after it was computed.
        return source_range.first_nonfinite + (1 if source.timing == "next" else 0) <= output.first_nonfinite

    def _classify_infinite_in_reference(self, node: DataflowNode, reference: ObservedRange) -> FindingKind:
        """Return ``intended`` for the infinities of a mask, which come from constants or other masks alone.

        Return ``preexisting`` for all other values that are not finite in the reference.
        """
        if reference.nan:
            return "preexisting"
        # Example: of Where -> Add -> Max, the Where reads an infinite constant. Add and Max read its infinity.
        ranges = self.batch.reference
        infinite_inputs = [s.ref for s in node.inputs if s.ref in ranges and not ranges[s.ref].finite]
        by_design = self.intended.issuperset(infinite_inputs) if infinite_inputs else _has_infinite_constant(node)
        return "intended" if by_design else "preexisting"


def _first_of_cycles(explained_by: Mapping[TensorRef, Sequence[TensorRef]]) -> set[TensorRef]:
    """Return the first tensor of each cycle of tensors that explain one another, and that nothing else explains.

    Example: with ``{a: [b], b: [a], c: [d]}`` the result is ``{a}``. ``c`` is in no cycle: ``d`` explains it, and
    nothing explains ``d``.
    """
    explains: dict[TensorRef, list[TensorRef]] = {}
    for tensor, explaining_tensors in explained_by.items():
        for explaining in explaining_tensors:
            explains.setdefault(explaining, []).append(tensor)
    # Follow the explanations from the tensors that nothing explains. A tensor that they do not reach is explained
    # by a cycle alone: take the first tensor of the cycle as its start, and follow the explanations from there.
    unexplained = (tensor for tensor in explains if tensor not in explained_by)
    reached: set[TensorRef] = set()
    first_of_cycles = set()
    for start in (*unexplained, *explained_by):
        if start in explained_by and start not in reached:
            first_of_cycles.add(start)
        pending = [start]
        while pending:
            newly_reached = [tensor for tensor in explains.get(pending.pop(), ()) if tensor not in reached]
            reached.update(newly_reached)
            pending += newly_reached
    return first_of_cycles


def _has_new_nonfinite_end(reference: ObservedRange, mixed: ObservedRange, levels: MaskLevels) -> bool:
    """Return True if the mixed model has a NaN, or an infinity of a sign, that the reference does not have."""
    # The ends of a range with a NaN may miss an infinity, because reductions drop values next to a NaN.
    if mixed.nan or reference.nan:
        return mixed.nan and not reference.nan
    ends = zip(endpoints(reference), endpoints(mixed), strict=True)
    return any(math.isinf(after) and not is_same_mask(before, after, levels) for before, after in ends)


def _has_infinite_constant(node: DataflowNode) -> bool:
    """Return True if a float input of a node is a constant with an infinity. Weights in external files do not count."""
    for value in node.node.inputs:
        tensor = value.constant_proto if value is not None else None
        if tensor is None or value is None or is_external(tensor) or dtypes.element(value.type) not in dtypes.FLOATS:
            continue
        for piece in read_pieces(tensor, None):
            # Of a constant with a NaN, minimum and maximum are NaN: Rule S8.11 asks for an infinity without a NaN.
            if piece.size and (math.isinf(piece.min()) or math.isinf(piece.max())):
                return True
    return False


# --- the rules of converted inputs ---


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
    batch: BatchRanges, nodes: Mapping[NodeRef, DataflowNode], records: dict[OperandKey, FindingRecord]
) -> bool:
    """Add the findings of converted inputs in one batch to the records of every node that reads them.

    Return True if the batch is an exception (Rule S8.14). A reader that is not in ``nodes`` is left out.
    """
    is_exception = False
    for converted_range in converted_ranges(batch):
        kind = _classify_conversion(converted_range, batch)
        if kind is None:
            continue
        conversion = converted_range.conversion
        for reader in conversion.readers:
            node = nodes.get(reader)
            if node is None:
                continue
            # Rule S8.30: the loss changes no output, if none depends on the node that reads the tensor.
            reader_kind = "intended" if kind in EXCEPTION_KINDS and batch.is_unused(node) else kind
            is_exception |= reader_kind in EXCEPTION_KINDS
            # Slot 0 means nothing here: the finding is about an input. The TensorRef gives the record its node, by
            # which the findings of a report are sorted.
            new_record = FindingRecord(node, TensorRef(*reader, 0), conversion)
            record = records.setdefault((reader, conversion.name), new_record)
            # Every operand that loses a value is a first offender: the loss happens here, whatever the inputs are.
            record.is_first_offender |= reader_kind in EXCEPTION_KINDS
            record.add_ranges(_reported_range(converted_range, batch), converted_range.after(batch.saturate))
            record.add_finding(reader_kind, batch.index)
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
        source = conversion.reference_ref
        if source is not None and batch.is_harmless(  # Rule S8.30
            source, converted_range.ends_out_of_range, has_nan=before.nan
        ):
            return "intended"
        return "saturated" if batch.saturate else "overflow"
    ends_out_of_range = converted_range.ends_out_of_range
    if ends_out_of_range:
        # Only values of masks are lost. Such a value is an end of the range, or an infinity hides it.
        loses_mask = conversion in batch.lossy_conversions or any(map(math.isfinite, ends_out_of_range))
        return "intended" if loses_mask else None
    if not before.finite:
        return None
    # Rule S8.8, by the values before the conversion. A tensor of zeros has no underflow.
    return "underflow" if 0 < before.magnitude < SMALLEST_NORMAL[conversion.elem] else None
