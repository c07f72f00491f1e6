"""Build the findings of a report: worst first, with the reason of each decision and what would keep the node high."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from mixlist.checker.counting_sessions import FullStatistics
from mixlist.checker.finding_rules import Tally
from mixlist.checker.result import Kind, NodeFinding, TensorRange
from mixlist.emulation.observed_range import ObservedRange
from mixlist.graph.dataflow import DataflowNode
from mixlist.graph.refs import NodeRef, TensorRef
from mixlist.resolver import Decision, Plan
from mixlist.resolver.classification import Facts, rank_of

ORDER: tuple[Kind, ...] = (
    "refused", "overflow", "saturated", "propagated", "underflow", "near-limit", "preexisting", "intended",
    "internal-risk",
)  # fmt: skip
RangePairs = Mapping[TensorRef, tuple[ObservedRange, ObservedRange]]  # in the reference and in the mixed model


def node_findings(plan: Plan | None, tallies: Mapping[TensorRef, Tally]) -> tuple[NodeFinding, ...]:
    """Return a finding per tensor and kind: the first offenders, then by kind, each in order of computation."""
    decisions = {_without_specialization(d.ref): d for d in plan.nodes} if plan is not None else {}
    facts = Facts(plan.policy) if plan is not None else None
    return tuple(
        _finding(tally, kind, decisions.get(tally.tensor.producer), facts)
        for kind in ORDER
        for tally in tallies.values()
        if kind in tally.batches
    )


def _without_specialization(node: NodeRef) -> NodeRef:
    """Return the node without the number of a function's specialization in its scope."""
    head, slash, rest = node.scope.partition("/")
    return NodeRef(f"{head.partition('#')[0]}{slash}{rest}", node.name) if head.startswith("function:") else node


def _finding(tally: Tally, kind: Kind, decision: Decision | None, facts: Facts | None) -> NodeFinding:
    node = tally.node.node
    value = node.outputs[tally.tensor.slot]
    return NodeFinding(
        scope=tally.tensor.scope,
        name=tally.tensor.node,
        op_type=node.op_type,
        tensor=value.name if value is not None else "",
        kind=kind,
        first=kind in ("refused", "overflow"),
        count=tally.counts.get(kind),
        batches=tuple(tally.batches[kind]),
        max_abs_fp32=tally.reference,
        max_abs_low=tally.mixed if kind != "refused" else math.nan,
        list=decision.list if decision is not None else "none",
        source=decision.reason if decision is not None else "",
        suggestion=_suggestion(tally.node, decision, facts) if kind in ("refused", "overflow", "saturated") else "",
    )


def _suggestion(node: DataflowNode, decision: Decision | None, facts: Facts | None) -> str:
    """Return the smallest change that keeps the node high (Rule S8.22).

    The operator is called by its name in the lists: Conv2D in an Ascend library.
    """
    if decision is None or facts is None:
        return ""
    entry = facts.by_list(decision.domain, decision.op_type, lambda: rank_of(node.graph, node.node)).listed
    if decision.list in ("white", "gray") and entry is not None:
        return f'add "{entry.op}" to black-list to-add, or the node "{decision.ref}" to a keep_dtype file'
    if decision.list != "black":
        return f'add the node "{decision.ref}" to a keep_dtype file'
    return f'the node is high; what it reads is cast to low: see "{decision.ref}" with mixlist resolve --explain'


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
                    minimum=reference.minimum,
                    maximum=reference.maximum,
                    smallest=counted.smallest.get(tensor) if counted is not None else None,
                    low_minimum=mixed.minimum,
                    low_maximum=mixed.maximum,
                    counts=counted.totals.get(tensor) if counted is not None else None,
                )
            )
    return tuple(found)
