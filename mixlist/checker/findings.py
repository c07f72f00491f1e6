"""Build the findings of a report, the worst first, each with the reason of its decision and with advice."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from mixlist.checker.advice import Advisor
from mixlist.checker.finding_records import FindingRecord
from mixlist.checker.finding_rules import EXCEPTION_KINDS
from mixlist.checker.result import FindingKind, NodeError, NodeFinding, TensorRange
from mixlist.checker.value_counts import FullStatistics
from mixlist.emulation.observed_range import ObservedRange
from mixlist.graph.dataflow import DataflowNode
from mixlist.graph.refs import TensorRef

KIND_ORDER: tuple[FindingKind, ...] = (  # the worst first
    "refused", "overflow", "saturated", "propagated", "underflow", "near-limit", "preexisting", "intended",
    "internal-risk",
)  # fmt: skip
FAILING_KINDS: tuple[FindingKind, ...] = ("refused", "overflow", "saturated")  # kinds that may fail a check
RangePairs = Mapping[TensorRef, tuple[ObservedRange, ObservedRange]]  # in the reference and in the mixed model


def node_findings(
    advisor: Advisor, nodes: Sequence[DataflowNode], records: Iterable[FindingRecord]
) -> tuple[NodeFinding, ...]:
    """Return one finding per tensor and kind: the worst kind first, and within a kind in order of computation.

    ``nodes`` are those of the original in order of computation. The converted inputs of a node come before its outputs.
    """
    position_of = {node.ref: position for position, node in enumerate(nodes)}

    def order(record: FindingRecord) -> tuple[int, bool, int]:
        tensor = record.tensor
        # Control-flow nodes and calls that read a conversion are not among ``nodes``: they come last.
        return position_of.get(tensor.producer, len(position_of)), not record.input_name, tensor.slot

    records = sorted(records, key=order)
    return tuple(_finding(record, kind, advisor) for kind in KIND_ORDER for record in records if kind in record.batches)


def _finding(record: FindingRecord, kind: FindingKind, advisor: Advisor) -> NodeFinding:
    """Return the finding of one kind."""
    node, ref = record.node.node, record.node.ref
    output, decision = node.outputs[record.tensor.slot] if node.outputs else None, advisor.decision(ref)
    is_failing, is_refused = kind in FAILING_KINDS, kind == "refused"
    # Advice is only for kinds that may fail the check. A node is refused because of an integer that it reads, so the
    # low node from whose values this integer comes is named.
    source = None
    if is_failing:
        source = advisor.integer_source(ref) if is_refused else advisor.low_source(ref)
    suggestion = source.suggestion if source is not None else advisor.suggestion(ref)
    return NodeFinding(
        scope=ref.scope,
        name=ref.name,
        op_type=node.op_type,
        tensor=record.input_name or (output.name if output is not None else ""),
        kind=kind,
        # The record of a first offender may have harmless kinds from other batches, such as near-limit.
        first=is_refused or (record.is_first_offender and kind in EXCEPTION_KINDS),
        count=record.counts.get(kind),
        batches=tuple(record.batches[kind]),
        max_abs_fp32=record.reference_magnitude,
        # A refused node computes nothing in the mixed model.
        max_abs_low=record.mixed_magnitude if not is_refused else math.nan,
        list=decision.list if decision is not None else "none",
        source=decision.reason if decision is not None else "",
        suggestion=suggestion if is_failing else "",
        low_source=source,
        input=record.input_name,
        inside=record.is_inside,
        max_number_fp32=_without_nan(record.reference_magnitude, record.reference_without_nan),
        max_number_low=_without_nan(record.mixed_magnitude, record.mixed_without_nan) if not is_refused else None,
    )


def _without_nan(magnitude: float, magnitude_without_nan: float | None) -> float | None:
    """Return the largest magnitude of the values that are not NaN; None if it is not known."""
    return magnitude_without_nan if math.isnan(magnitude) else magnitude


def with_advice(errors: Iterable[NodeError], advisor: Advisor) -> tuple[NodeError, ...]:
    """Return the errors of nodes, each with the reason why the node is low, and the change that keeps it high."""
    advised = []
    for error in errors:
        decision = advisor.decision(error.ref)
        source = decision.reason if decision is not None else ""
        advised.append(replace(error, source=source, suggestion=advisor.suggestion(error.ref)))
    return tuple(advised)


def tensor_ranges(
    nodes: Iterable[DataflowNode],
    range_pairs: RangePairs,
    low_type_of: Mapping[TensorRef, int],
    full_statistics: FullStatistics | None,
) -> tuple[TensorRange, ...]:
    """Return the range of every observed tensor over all batches, in order of computation.

    ``full_statistics``, if there are any, add the counts and the smallest magnitudes.
    """
    tensors = []
    for node in nodes:
        for slot, value in enumerate(node.node.outputs):
            tensor = TensorRef(*node.ref, slot)
            range_pair = range_pairs.get(tensor)
            if value is None or range_pair is None:
                continue
            reference, mixed = range_pair
            tensors.append(
                TensorRange(
                    scope=node.ref.scope,
                    tensor=value.name,
                    node=node.ref.name,
                    op_type=node.node.op_type,
                    low=tensor in low_type_of,
                    minimum=_end_or_nan(reference, reference.minimum),
                    maximum=_end_or_nan(reference, reference.maximum),
                    smallest=full_statistics.smallest.get(tensor) if full_statistics is not None else None,
                    low_minimum=_end_or_nan(mixed, mixed.minimum),
                    low_maximum=_end_or_nan(mixed, mixed.maximum),
                    counts=full_statistics.totals.get(tensor) if full_statistics is not None else None,
                    nan=reference.nan,
                    low_nan=mixed.nan,
                )
            )
    return tuple(tensors)


def _end_or_nan(observed_range: ObservedRange, end: float) -> float:
    """Return an end of a range for a report: NaN if a NaN hides all other values."""
    return math.nan if observed_range.hidden_by_nan else end
