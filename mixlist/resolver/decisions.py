"""What was decided for one graph, and how two decided types join."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from mixlist.graph.control_flow import Link
from mixlist.graph.model import Graph, Value
from mixlist.ops import types
from mixlist.ops.signature import Assignment
from mixlist.resolver.classification import Fact

UNDECIDED = 0


@dataclass(eq=False)
class Solution:
    """What was decided for one Graph; lists are indexed by the id of a Value or Node.

    ``decided``: element type per value. ``links``: the final element type per link. ``notes``: what
    kept a node or slot from low. ``callees``: the Solution of each function call.
    """

    graph: Graph
    facts: list[Fact]
    decided: list[int]
    assignments: list[Assignment | None]
    followed: list[Value | None]
    links: list[Link] = field(default_factory=list)
    notes: dict[int, str] = field(default_factory=dict)
    rules: dict[int, str] = field(default_factory=dict)  # where the outcome overrides the fact's rule
    callees: dict[int, Solution] = field(default_factory=dict)
    high_by_black: set[int] = field(default_factory=set)  # values, under the black-wins policy
    number: str = ""  # "#k" where its function has several specialisations, in order of first call


def reached(main: Solution) -> list[Solution]:
    """A main graph's Solution and those of all calls below it, each once, in order of first call."""
    found: dict[Solution, None] = {main: None}
    waiting = deque([main])
    while waiting:
        for _, callee in sorted(waiting.popleft().callees.items()):
            if callee not in found:
                found[callee] = None
                waiting.append(callee)
    return list(found)


def join(one: int, other: int) -> int:
    """The type of what is one or the other: undecided gives way, two that differ are float32."""
    if one == other or other == UNDECIDED:
        return one
    return other if one == UNDECIDED else types.FLOAT
