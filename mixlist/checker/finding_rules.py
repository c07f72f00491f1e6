"""Decide which finding each tensor of a batch has, by its ranges in both models (Rules S8.5 to S8.12).

The output of each node in the mixed model is compared with the reference. A tensor is finite if it holds neither an
infinity nor a NaN.

- ``overflow`` (S8.5): the tensor is finite in the reference and not in the mixed model, although all inputs of its node
  are finite there, or infinite by design. The node is a first offender.
- ``propagated`` (S8.6): the tensor is finite in the reference, and in the mixed model not finite or all zero, because
  an input of the node was not finite at that time.
- ``saturated`` (S8.7): the tensor reaches the largest finite value, where the accelerator saturates, and the reference
  is beyond it.
- ``underflow`` (S8.8): the tensor is all zero in the mixed model and not in the reference, or no value of the reference
  reaches the smallest normal number.
  With full statistics also: at least 1 % of the values that are not zero in the reference became zero.
- ``near-limit`` (S8.9): the tensor reaches at least half of the largest finite value.
- ``preexisting`` (S8.10): the tensor is not finite in the reference either, and no mask explains the infinity.
- ``intended`` (S8.11): the infinities come from constants, or from a mask. A value belongs to a mask if its magnitude
  is at least 1e37 and such values are on one side only, or if the graph proves the mask (S8.12). Infinities that only
  Clips read are intended, too (S8.30).

In a tensor with a mask another value may overflow, which no range can show. The values of such an *ambiguous* tensor
are counted (``hidden_overflow.py``), and a value that the low type does not hold is an overflow.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from mixlist.checker.batch_ranges import BatchRanges, endpoints, is_same_mask, only_masks_reach
from mixlist.checker.finding_records import FindingRecord
from mixlist.checker.result import FindingKind
from mixlist.emulation.observed_range import ObservedRange
from mixlist.graph.dataflow import DataflowNode, InputTensor
from mixlist.graph.refs import TensorRef
from mixlist.graph.weights import is_external, read_pieces
from mixlist.ops import dtypes
from mixlist.ops.low_precision import FINITE_MAX, SMALLEST_NORMAL, overflow_bound
from mixlist.patterns.proven_masks import MaskLevels

EXCEPTION_KINDS: tuple[FindingKind, ...] = ("overflow", "saturated")  # a batch with one is an exception (Rule S8.14)
NEAR_LIMIT_SHARE = 0.5  # of the largest finite value
FLUSHED_SHARE = 0.01  # of the values that are not zero in the reference; a smaller share may be rounding alone


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
    # Loops and repeated calls hand tensors to nodes that come earlier in this order. So cycles of tensors, and the
    # first offenders, are found only now that every tensor has a kind.
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

        A function may be called with its own results. Then each tensor of the cycle seems to be explained by another
        one, because a range is the same for all calls.
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
        if tensor in batch.clipped and reference.finite and not mixed.nan and not is_explained:
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
            by_design = (by_design and tensor not in batch.hidden_overflows) or tensor in batch.clipped
            return "intended" if by_design else "saturated"
        # A division by infinity gives zero. Then the node that makes the infinity has the finding, not this one.
        reads_infinity = any(not batch.mixed[s.ref].finite for s in node.inputs if s.ref in batch.mixed)
        if 0 < reference.magnitude < SMALLEST_NORMAL[low] or (mixed.magnitude == 0 and reference.magnitude > 0):
            return "propagated" if reads_infinity else "underflow"
        if mixed.magnitude >= NEAR_LIMIT_SHARE * largest_finite:
            return "near-limit"
        # ``flushed > 0``, because a tensor of zeros has neither flushed nor nonzero values, and 0 reaches 1 % of 0.
        counts = batch.counts.get(tensor)
        flushed = counts is not None and counts.flushed > 0 and counts.flushed >= FLUSHED_SHARE * counts.nonzero
        return "underflow" if flushed and not reads_infinity else None

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
