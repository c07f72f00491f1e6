"""The gray policy between: low precision only between white nodes.

Rule S4.22: a gray node that a black node reaches forward through gray nodes keeps its authored type; any other gray
node is low precision exactly if gray paths lead back to a white node and forward to a white node, which pass no node
that a black node reaches and none that cannot be low precision. Rule S4.30: the gray operators of connected sequences
are one gray node.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.support.reference_flow import Flow, Shared
from tests.support.reference_gray import seen_through_marked
from tests.support.reference_model import LISTED, Node, Scope, Value

Unit = Node | tuple[Shared, Scope]  # the second: the gray operators on connected sequences in one function
Edges = dict[Unit, set[Unit]]


class Between:
    """Finds the gray nodes of one model that are low precision.

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
        self.unit: dict[Node, Unit] = {node: node for node in nodes}
        self.members: dict[Unit, list[Node]] = {node: [node] for node in nodes}  # the operators of a unit
        self.colors: dict[Unit, str] = {node: color(node) for node in nodes}
        self.collecting: dict[Value, Unit] = {}  # the unit of each sequence that control flow collects
        for shared in flow.sequences:
            self._join(shared)
        self.before: Edges = {unit: set() for unit in self.members}
        for node in nodes:
            self.before[self.unit[node]] |= self._producers(node) - {self.unit[node]}
        for result, unit in self.collecting.items():
            for value in flow.handed[result]:
                self.before[unit] |= self._makers(value, set(), _function(result)) - {unit}
        after: Edges = {unit: set() for unit in self.members}
        for unit, producers in self.before.items():
            for producer in producers:
                after[producer].add(unit)
        grays = {unit for unit, found in self.colors.items() if found == "gray"}
        able = {unit for unit in grays if all(map(can_be_low, self.members[unit]))}
        able -= self._reach("black", self.before, grays)
        low = self._reach("white", self.before, able) & self._reach("white", after, able)
        clear = {unit for unit in able if self.members[unit] and all(map(is_clear, self.members[unit]))}
        self.low = low | self._clear(low, clear, after)

    def _join(self, shared: Shared) -> None:
        """Let units stand for the gray operators on connected sequences, and for what control flow collects there."""
        for node in shared.nodes:
            unit = (shared, node.scope.function())
            if self.colors[node] == "gray":
                self.members.setdefault(unit, []).append(node)
                self.unit[node], self.colors[node], self.colors[unit] = unit, "end", "gray"
        for result in shared.members:
            if not result.is_tensor and any(value.is_tensor for value in self.flow.handed.get(result, [])):
                unit = (shared, _function(result))
                self.members.setdefault(unit, [])
                self.collecting[result], self.colors[unit] = unit, "gray"

    def units(self, shared: Shared) -> list[Unit]:
        """The gray nodes that stand for connected sequences, one for each function."""
        return [unit for unit in self.members if isinstance(unit, tuple) and unit[0] is shared]

    def is_low(self, unit: Unit) -> bool:
        """Return whether a gray node, or the gray node of connected sequences, is low precision."""
        return unit in self.low

    def _clear(self, low: set[Unit], candidates: set[Unit], after: Edges) -> set[Unit]:
        """The nodes of the clear list that have a low precision neighbor."""
        found: set[Unit] = set()
        while True:
            bright = low | found
            near = {n for n in candidates if any(self._is_low(m, bright) for m in self.before[n] | after[n])}
            if near <= found:
                return found
            found |= near

    def _is_low(self, unit: Unit, low: set[Unit]) -> bool:
        return unit in low or self.colors[unit] == "white"

    def _reach(self, start: str, edges: Edges, through: set[Unit]) -> set[Unit]:
        """The nodes of ``through`` that a path of them connects to a node of the color."""
        found: set[Unit] = set()
        while True:
            near = {n for n in through if any(self.colors[m] == start or m in found for m in edges[n])}
            if near <= found:
                return found
            found |= near

    def _producers(self, node: Node) -> set[Unit]:
        """The nodes behind the float inputs of a node; those of other functions end a path."""
        found: set[Unit] = set()
        for value in node.inputs:
            if value is not None and value.elem in LISTED:
                found |= self._makers(value, set(), node.scope.function())
        return found

    def _makers(self, value: Value, seen: set[Value], function: Scope) -> set[Unit]:
        """The nodes of one function that compute a value, through the borders of bodies that take the low type."""
        if value in seen:
            return set()
        seen.add(value)
        value = seen_through_marked(value)
        sources = self.flow.sources.get(value, self.flow.handed.get(value))
        if sources is None:
            made = value.producer
            return {self.unit[made]} if made is not None and made.scope.function() is function else set()
        if value in self.flow.owner and not self.passes(self.flow.owner[value]):
            return set()
        if value in self.collecting:
            return {self.collecting[value]}
        return {unit for source in sources for unit in self._makers(source, seen, function)}


def _function(result: Value) -> Scope:
    """The function in which control flow yields a value."""
    assert result.producer is not None
    return result.producer.scope.function()
