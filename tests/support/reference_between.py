"""The gray policy between: low precision only between white nodes.

Rule S4.22: a gray node that a black node reaches forward through gray nodes keeps its authored type; any other gray
node is low precision exactly if gray paths lead back to a white node and forward to a white node. Rule S4.30: the gray
operators of connected sequences are one gray node.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.support.reference_flow import Flow, Shared
from tests.support.reference_gray import seen_through_marked
from tests.support.reference_model import LISTED, Node, Value

Edges = dict[Node, set[Node]]


class Between:
    """Finds the gray nodes of one model that are low precision.

    ``color`` is white, black, gray, or another word for a node that ends paths; ``is_clear`` tells whether the
    operator is on the clear list; ``passes`` tells whether control flow can hand on the low type.
    """

    def __init__(
        self,
        nodes: list[Node],
        flow: Flow,
        color: Callable[[Node], str],
        is_clear: Callable[[Node], bool],
        passes: Callable[[Node], bool],
    ) -> None:
        self.flow, self.passes = flow, passes
        self.colors = {node: color(node) for node in nodes}
        self.unit = {node: node for node in nodes}  # the node that stands for all gray operators of its sequences
        self.group: dict[Value, Shared] = {v: shared for shared in flow.sequences for v in shared.members}
        for shared in flow.sequences:
            gray = [node for node in shared.nodes if self.colors[node] == "gray"]
            if not gray and shared.collected:  # control flow alone puts tensors there
                gray = shared.nodes[:1]
                self.colors[gray[0]] = "gray"
            self.unit |= dict.fromkeys(gray, gray[0]) if gray else {}
        self.before: Edges = {node: set() for node in nodes}
        for shared in flow.sequences:
            unit = self._stands_for(shared)
            for value in shared.collected if unit is not None else []:
                self.before[self.unit[unit]] |= {self.unit[n] for n in self._makers(value, set())} - {self.unit[unit]}
        for node in nodes:
            self.before[self.unit[node]] |= self._producers(node) - {self.unit[node]}
        after: Edges = {node: set() for node in nodes}
        for node, producers in self.before.items():
            for producer in producers:
                after[producer].add(node)
        black = self._reach("black", self.before)
        low = (self._reach("white", self.before) & self._reach("white", after)) - black
        self.low = low | self._clear(low, black, is_clear, after)

    def _stands_for(self, shared: Shared) -> Node | None:
        """The gray node of connected sequences."""
        return next((node for node in shared.nodes if self.colors[node] == "gray"), None)

    def is_low(self, node: Node) -> bool:
        """Whether a gray node is low precision."""
        return self.unit[node] in self.low

    def _clear(self, low: set[Node], black: set[Node], is_clear: Callable[[Node], bool], after: Edges) -> set[Node]:
        """The nodes of the clear list that have a low precision neighbor."""
        candidates = {n for n, c in self.colors.items() if c == "gray" and is_clear(n) and n not in black}
        found: set[Node] = set()
        while True:
            bright = low | found
            near = {n for n in candidates if any(self._is_low(m, bright) for m in self.before[n] | after[n])}
            if near <= found:
                return found
            found |= near

    def _is_low(self, node: Node, low: set[Node]) -> bool:
        return node in low or self.colors[node] == "white"

    def _reach(self, start: str, edges: Edges) -> set[Node]:
        """The gray nodes that a gray path connects to a node of the color."""
        found: set[Node] = set()
        while True:
            near = {n for n in edges if any(self.colors[m] == start or m in found for m in edges[n])}
            near = {n for n in near if self.colors[n] == "gray"}
            if near <= found:
                return found
            found |= near

    def _producers(self, node: Node) -> set[Node]:
        """The nodes behind the float inputs of a node; those of other functions end a path."""
        found: set[Node] = set()
        for value in node.inputs:
            if value is not None and value.elem in LISTED:
                found |= self._makers(value, set())
        return {self.unit[n] for n in found if n.scope.function() is node.scope.function()}

    def _makers(self, value: Value, seen: set[Value]) -> set[Node]:
        """The nodes that compute a value, through the borders of bodies that can hand on the low type."""
        if value in seen:
            return set()
        seen.add(value)
        value = seen_through_marked(value)
        if value in self.flow.sources:
            if not self.passes(self.flow.owner[value]):
                return set()
            return {node for source in self.flow.sources[value] for node in self._makers(source, seen)}
        if value in self.flow.handed:
            found = {node for source in self.flow.handed[value] for node in self._makers(source, seen)}
            unit = self._stands_for(self.group[value]) if value in self.group else None
            return found | {unit} if unit is not None else found
        return {value.producer} if value.producer is not None else set()
