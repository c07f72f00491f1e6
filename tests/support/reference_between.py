"""The gray policy between: low precision only between white nodes.

Rule S4.22: a gray node that a black node reaches forward through gray nodes keeps its authored type; any other gray
node is low precision exactly if gray paths lead back to a white node and forward to a white node, which pass no node
that a black node reaches and none that cannot be low precision.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.support.reference_flow import Flow
from tests.support.reference_gray import source_of_marked_casts
from tests.support.reference_model import LISTED, Node, Value

Edges = dict[Node, set[Node]]


class Between:
    """Find the gray nodes of one model that are low precision.

    ``color`` is white, black, gray, or another word for a node that ends paths; ``is_clear`` tells whether the
    operator is on the clear list; ``can_be_low`` tells whether a gray node can be low precision; ``passes`` tells
    whether control flow can take the low type.
    """

    def __init__(
        self,
        nodes: list[Node],
        flow: Flow,
        color: Callable[[Node], str],
        is_clear: Callable[[Node], bool],
        can_be_low: Callable[[Node], bool],
        passes: Callable[[Node], bool],
    ) -> None:
        self.flow, self.passes = flow, passes
        self.colors = {node: color(node) for node in nodes}
        self.before: Edges = {node: self._producers(node) - {node} for node in nodes}
        after: Edges = {node: set() for node in nodes}
        for node, producers in self.before.items():
            for producer in producers:
                after[producer].add(node)
        grays = {node for node in nodes if self.colors[node] == "gray"}
        can_be_lowered = {node for node in grays if can_be_low(node)}
        can_be_lowered -= self._reach("black", self.before, grays)
        low = self._reach("white", self.before, can_be_lowered) & self._reach("white", after, can_be_lowered)
        clear = {node for node in can_be_lowered if is_clear(node)}
        self.low = low | self._clear(low, clear, after)

    def is_low(self, node: Node) -> bool:
        """Return whether a gray node is low precision."""
        return node in self.low

    def _clear(self, low: set[Node], candidates: set[Node], after: Edges) -> set[Node]:
        """Return the nodes of the clear list that have a low precision neighbor."""
        clear_low: set[Node] = set()
        while True:
            low_nodes = low | clear_low
            neighbors = {n for n in candidates if any(self._is_low(m, low_nodes) for m in self.before[n] | after[n])}
            if neighbors <= clear_low:
                return clear_low
            clear_low |= neighbors

    def _is_low(self, node: Node, low: set[Node]) -> bool:
        return node in low or self.colors[node] == "white"

    def _reach(self, start: str, edges: Edges, through: set[Node]) -> set[Node]:
        """Return the nodes of ``through`` that a path of them connects to a node of the color."""
        reached: set[Node] = set()
        while True:
            next_reached = {n for n in through if any(self.colors[m] == start or m in reached for m in edges[n])}
            if next_reached <= reached:
                return reached
            reached |= next_reached

    def _producers(self, node: Node) -> set[Node]:
        """Return the nodes behind the float inputs of a node."""
        makers: set[Node] = set()
        for value in node.inputs:
            if value is not None and value.elem in LISTED:
                makers |= self._makers(value, set())
        return makers

    def _makers(self, value: Value, seen: set[Value]) -> set[Node]:
        """Return the nodes that compute a value, also in bodies whose control flow takes the low type."""
        if value in seen:
            return set()
        seen.add(value)
        value = source_of_marked_casts(value)
        sources = self.flow.sources.get(value)
        if sources is None:
            return {value.producer} if value.producer is not None else set()
        if value in self.flow.owner and not self.passes(self.flow.owner[value]):
            return set()
        return {maker for source in sources for maker in self._makers(source, seen)}
