"""From tallies to findings: worst first, with the list entry that made a node low and what would keep it high."""

from __future__ import annotations

from collections.abc import Mapping

from mixlist.checker.counting_sessions import FullStatistics
from mixlist.checker.overflow import Tally
from mixlist.checker.result import Kind, NodeFinding, TensorRange
from mixlist.emulation.observed_range import ObservedRange
from mixlist.graph.dataflow import DataflowNode
from mixlist.graph.refs import TensorRef
from mixlist.resolver import Decision, Plan
from mixlist.resolver.classification import Facts, rank_of

ORDER: tuple[Kind, ...] = (
    "overflow", "saturated", "propagated", "underflow", "near-limit", "preexisting", "intended", "internal-risk",
)  # fmt: skip


def node_findings(
    plan: Plan | None, tallies: Mapping[TensorRef, Tally], low: Mapping[TensorRef, int]
) -> tuple[NodeFinding, ...]:
    """A finding per tensor and kind: the first offenders, then by kind, each in order of computation."""
    decisions = {d.ref._replace(scope=_plain(d.scope)): d for d in plan.nodes} if plan is not None else {}
    facts = Facts(plan.policy) if plan is not None else None
    found = []
    for position, tally in enumerate(tallies.values()):
        for kind, batches in tally.batches.items():
            decision = decisions.get(tally.key.producer)
            found.append((ORDER.index(kind), position, _finding(tally, kind, batches, decision, facts)))
    return tuple(finding for _, _, finding in sorted(found, key=lambda f: f[:2]))


def _plain(scope: str) -> str:
    head, slash, rest = scope.partition("/")
    return f"{head.partition('#')[0] if head.startswith('function:') else head}{slash}{rest}"


def _finding(
    tally: Tally, kind: Kind, batches: list[int], decision: Decision | None, facts: Facts | None
) -> NodeFinding:
    value = tally.wired.node.outputs[tally.key.slot]
    return NodeFinding(
        scope=tally.key.scope,
        name=tally.key.node,
        op_type=tally.wired.node.op_type,
        tensor=value.name if value is not None else "",
        kind=kind,
        first=kind == "overflow",
        count=tally.counts.get(kind),
        batches=tuple(batches),
        max_abs_fp32=tally.reference,
        max_abs_low=tally.mixed,
        list=decision.list if decision is not None else "none",
        source=decision.reason if decision is not None else "",
        suggestion=_suggestion(tally.wired, decision, facts) if kind in ("overflow", "saturated") else "",
    )


def _suggestion(wired: DataflowNode, decision: Decision | None, facts: Facts | None) -> str:
    """The smallest change that keeps the node high; the operator by its name in the lists (Conv2D in an Ascend one)."""
    if decision is None or facts is None:
        return ""
    op = facts.listed(decision.domain, decision.op_type, lambda: rank_of(wired.graph, wired.node)).op
    if decision.list in ("white", "gray") and op:
        return f'add "{op}" to black-list to-add, or the node "{decision.ref}" to a keep_dtype file'
    if decision.list != "black":
        return f'add the node "{decision.ref}" to a keep_dtype file'
    return f'the node is high; what it reads is cast to low: see "{decision.ref}" with mixlist resolve --explain'


def tensor_ranges(
    wired: list[DataflowNode],
    spans: Mapping[TensorRef, tuple[ObservedRange, ObservedRange]],
    low: Mapping[TensorRef, int],
    census: FullStatistics | None,
) -> tuple[TensorRange, ...]:
    """The range of every observed tensor over all batches, in order of computation, and what was counted in it."""
    found = []
    for node in wired:
        for slot, value in enumerate(node.node.outputs):
            key = TensorRef(*node.ref, slot)
            span = spans.get(key)
            if value is None or span is None:
                continue
            exact, ours = span
            found.append(
                TensorRange(
                    scope=node.ref.scope,
                    tensor=value.name,
                    node=node.ref.name,
                    op_type=node.node.op_type,
                    low=key in low,
                    minimum=exact.minimum,
                    maximum=exact.maximum,
                    smallest=census.smallest.get(key) if census is not None else None,
                    low_minimum=ours.minimum,
                    low_maximum=ours.maximum,
                    counts=census.totals.get(key) if census is not None else None,
                )
            )
    return tuple(found)
