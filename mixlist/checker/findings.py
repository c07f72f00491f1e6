"""Build the findings of a report: worst first, with the reason of each decision and what would keep the node high."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from mixlist.checker.advice import Advisor
from mixlist.checker.counting_sessions import FullStatistics
from mixlist.checker.finding_rules import EXCEPTION_KINDS, FindingRecord
from mixlist.checker.result import FindingKind, NodeError, NodeFinding, TensorRange
from mixlist.emulation.observed_range import ObservedRange
from mixlist.graph.dataflow import DataflowNode
from mixlist.graph.refs import TensorRef

ORDER: tuple[FindingKind, ...] = (
    "refused", "overflow", "saturated", "propagated", "underflow", "near-limit", "preexisting", "intended",
    "internal-risk",
)  # fmt: skip
FAILING_KINDS: tuple[FindingKind, ...] = ("refused", "overflow", "saturated")  # kinds that fail a check
RangePairs = Mapping[TensorRef, tuple[ObservedRange, ObservedRange]]  # in the reference and in the mixed model


def node_findings(
    advisor: Advisor, nodes: Sequence[DataflowNode], records: Iterable[FindingRecord]
) -> tuple[NodeFinding, ...]:
    """Return a finding per tensor and kind: by kind, the worst first, each in order of computation.

    ``nodes`` are those of the original in that order. The converted inputs of a node come before its outputs.
    """
    order = {node.ref: at for at, node in enumerate(nodes)}
    records = sorted(records, key=lambda t: (order.get(t.tensor.producer, len(order)), not t.input, t.tensor.slot))
    return tuple(_finding(record, kind, advisor) for kind in ORDER for record in records if kind in record.batches)


def _finding(record: FindingRecord, kind: FindingKind, advisor: Advisor) -> NodeFinding:
    node, ref = record.node.node, record.node.ref
    value, decision = node.outputs[record.tensor.slot] if node.outputs else None, advisor.decision(ref)
    is_failing = kind in FAILING_KINDS
    source = None
    if is_failing:
        source = advisor.integer_source(ref) if kind == "refused" else advisor.low_source(ref)
    suggestion = source.suggestion if source is not None else advisor.suggestion(ref)
    return NodeFinding(
        scope=ref.scope,
        name=ref.name,
        op_type=node.op_type,
        tensor=record.input or (value.name if value is not None else ""),
        kind=kind,
        first=kind == "refused" or (record.first and kind in EXCEPTION_KINDS),
        count=record.counts.get(kind),
        batches=tuple(record.batches[kind]),
        max_abs_fp32=record.reference,
        max_abs_low=record.mixed if kind != "refused" else math.nan,
        list=decision.list if decision is not None else "none",
        source=decision.reason if decision is not None else "",
        suggestion=suggestion if is_failing else "",
        low_source=source,
        input=record.input,
        max_number_fp32=_number(record.reference, record.reference_number),
        max_number_low=_number(record.mixed, record.mixed_number) if kind != "refused" else None,
    )


def _number(magnitude: float, number: float | None) -> float | None:
    """Return the largest magnitude of the values that are not NaN."""
    return number if math.isnan(magnitude) else magnitude


def with_advice(errors: Iterable[NodeError], advisor: Advisor) -> tuple[NodeError, ...]:
    """Return the errors of nodes with what made each node low, and what keeps it high."""
    advised = []
    for error in errors:
        decision = advisor.decision(error.ref)
        source = decision.reason if decision is not None else ""
        advised.append(replace(error, source=source, suggestion=advisor.suggestion(error.ref)))
    return tuple(advised)


def tensor_ranges(
    nodes: Iterable[DataflowNode], ranges: RangePairs, low: Mapping[TensorRef, int], counted: FullStatistics | None
) -> tuple[TensorRange, ...]:
    """Return the range of every observed tensor over all batches, in order of computation, and its counts."""
    found = []
    for node in nodes:
        for slot, value in enumerate(node.node.outputs):
            tensor = TensorRef(*node.ref, slot)
            pair = ranges.get(tensor)
            if value is None or pair is None:
                continue
            reference, mixed = pair
            found.append(
                TensorRange(
                    scope=node.ref.scope,
                    tensor=value.name,
                    node=node.ref.name,
                    op_type=node.node.op_type,
                    low=tensor in low,
                    minimum=_end(reference, reference.minimum),
                    maximum=_end(reference, reference.maximum),
                    smallest=counted.smallest.get(tensor) if counted is not None else None,
                    low_minimum=_end(mixed, mixed.minimum),
                    low_maximum=_end(mixed, mixed.maximum),
                    counts=counted.totals.get(tensor) if counted is not None else None,
                    nan=reference.nan,
                    low_nan=mixed.nan,
                )
            )
    return tuple(found)


def _end(span: ObservedRange, end: float) -> float:
    """Return an end of a range for a report: NaN where a NaN hides it."""
    return math.nan if span.hidden_by_nan else end
