"""What to change when a training overflows: the nodes where it starts, and the lists that would keep them high."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mixlist.checker.result import NodeFinding
from mixlist.checker.run import check
from mixlist.lists.policy import Policy
from mixlist.resolver import Resolver
from mixlist.training.stepgraph import StepGraph
from mixlist.tuner.candidates import Choice, ListEdit, list_units
from mixlist.tuner.written import mixlist_text


def find_offenders(graph: StepGraph, policy: Policy, feed: Mapping[str, Any], provider: str) -> tuple[NodeFinding, ...]:
    """The first nodes that overflow on one feed of a step, by ``check``."""
    report = check(graph.loaded, policy, [feed], provider=provider)
    return tuple(node for node in report.nodes if node.first)


def suggest(graph: StepGraph, policy: Policy, offenders: Sequence[NodeFinding]) -> str:
    """A modify_mixlist that keeps the offenders' op types high; "" where no list makes them low."""
    nodes = {(node.scope, node.name) for node in offenders if node.list in ("white", "gray")}
    if not nodes:
        return ""
    units = list_units(Resolver(graph.loaded).plan(policy), policy, "black", nodes)
    choice: Choice = frozenset(unit.edit for unit in units if isinstance(unit.edit, ListEdit))
    return mixlist_text(policy, choice) if choice else ""
