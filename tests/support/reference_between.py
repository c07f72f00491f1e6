"""The gray policy between: low precision only between white nodes.

Rule S4.22: a gray node that a black node reaches forward through gray nodes keeps its authored type; any other gray
node is low precision exactly if gray paths lead back to a white node and forward to a white node, which pass no node
that a black node reaches and none that cannot be low precision. Rule S4.30: the gray operators of connected sequences
are one gray node.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.support.reference_flow import Flow, Shared
from tests.support.reference_gray import source_of_marked_casts
from tests.support.reference_model import LISTED, Node, Scope, Value

Unit = Node | tuple[Shared, Scope]  # the second: the gray operators on connected sequences in one function
Edges = dict[Unit, set[Unit]]


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
            for value in flow.sequence_sources[result]:
                self.before[unit] |= self._makers(value, set(), _function(result)) - {unit}
        after: Edges = {unit: set() for unit in self.members}
        for unit, producers in self.before.items():
            for producer in producers:
                after[producer].add(unit)
        grays = {unit for unit, unit_color in self.colors.items() if unit_color == "gray"}
        can_be_lowered = {unit for unit in grays if all(map(can_be_low, self.members[unit]))}
        can_be_lowered -= self._reach("black", self.before, grays)
        low = self._reach("white", self.before, can_be_lowered) & self._reach("white", after, can_be_lowered)
        clear = {unit for unit in can_be_lowered if self.members[unit] and all(map(is_clear, self.members[unit]))}
        self.low = low | self._clear(low, clear, after)

    def _join(self, shared: Shared) -> None:
        """Add units for the gray operators on connected sequences, and for the values that control flow collects."""
        for node in shared.nodes:
            unit = (shared, node.scope.function())
            if self.colors[node] == "gray":
                self.members.setdefault(unit, []).append(node)
                self.unit[node], self.colors[node], self.colors[unit] = unit, "end", "gray"
        for result in shared.members:
            if not result.is_tensor and any(value.is_tensor for value in self.flow.sequence_sources.get(result, [])):
                unit = (shared, _function(result))
                self.members.setdefault(unit, [])
                self.collecting[result], self.colors[unit] = unit, "gray"

    def units(self, shared: Shared) -> list[Unit]:
        """Return the gray nodes that represent connected sequences, one for each function."""
        return [unit for unit in self.members if isinstance(unit, tuple) and unit[0] is shared]

    def is_low(self, unit: Unit) -> bool:
        """Return whether a gray node, or the gray node of connected sequences, is low precision."""
        return unit in self.low

    def _clear(self, low: set[Unit], candidates: set[Unit], after: Edges) -> set[Unit]:
        """Return the nodes of the clear list that have a low precision neighbor."""
        clear_low: set[Unit] = set()
        while True:
            low_units = low | clear_low
            neighbors = {n for n in candidates if any(self._is_low(m, low_units) for m in self.before[n] | after[n])}
            if neighbors <= clear_low:
                return clear_low
            clear_low |= neighbors

    def _is_low(self, unit: Unit, low: set[Unit]) -> bool:
        return unit in low or self.colors[unit] == "white"

    def _reach(self, start: str, edges: Edges, through: set[Unit]) -> set[Unit]:
        """Return the nodes of ``through`` that a path of them connects to a node of the color."""
        reached: set[Unit] = set()
        while True:
            next_reached = {n for n in through if any(self.colors[m] == start or m in reached for m in edges[n])}
            if next_reached <= reached:
                return reached
            reached |= next_reached

    def _producers(self, node: Node) -> set[Unit]:
        """Return the nodes behind the float inputs of a node; those of other functions end a path."""
        units: set[Unit] = set()
        for value in node.inputs:
            if value is not None and value.elem in LISTED:
                units |= self._makers(value, set(), node.scope.function())
        return units

    def _makers(self, value: Value, seen: set[Value], function: Scope) -> set[Unit]:
        """Return the nodes of a function that compute a value, also in bodies whose control flow takes the low type."""
        if value in seen:
            return set()
        seen.add(value)
        value = source_of_marked_casts(value)
        sources = self.flow.sources.get(value, self.flow.sequence_sources.get(value))
        if sources is None:
            producer = value.producer
            return {self.unit[producer]} if producer is not None and producer.scope.function() is function else set()
        if value in self.flow.owner and not self.passes(self.flow.owner[value]):
            return set()
        if value in self.collecting:
            return {self.collecting[value]}
        return {unit for source in sources for unit in self._makers(source, seen, function)}


def _function(result: Value) -> Scope:
    """Return the function in which control flow yields a value."""
    assert result.producer is not None
    return result.producer.scope.function()
