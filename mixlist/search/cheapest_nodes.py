"""Find the cheapest nodes to compute in low precision, if some nodes must stay in float32.

The cost of a choice is a number of bytes: what the nodes read and write, weights and Casts included, 4096 bytes for
each Cast itself, and one byte for 100 operations of a matrix product or convolution in float32, half as much in the low
type. Views such as Reshape move nothing, and sizes that the first batch does not show count as one element. Each node
is low or high. A node costs more if it is high, and a tensor between a low and a high node costs a Cast. So the
cheapest choice is a minimum cut of a graph in which every node of the model is a vertex, and every Cast that may be
needed is an edge:

    source ---(cost if high)---> node ---(cost if low)---> sink
    producer ---(Cast to float32)---> reader               cut if the producer is low and the reader is high

A tensor has one Cast for all its readers. Therefore a vertex of its own stands for the Cast where several nodes read
the tensor: an edge of infinite cost leads from it to each reader.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from math import prod
from typing import NamedTuple

from mixlist.model import dtypes
from mixlist.model.graph import Graph, Node, Value, linked_scopes
from mixlist.model.traits import Trait, operators
from mixlist.targets.estimate import Costs

# The float32 operations that take as long as moving one byte: half of the operations per byte of float16 matrix units.
# Ascend 910 has 256 TFLOP/s and 1.2 TB/s (Huawei, 2019), 213 operations per byte; NVIDIA A100 has 312 TFLOP/s and
# 1.6 TB/s (data sheet), 200 operations per byte.
FLOPS_PER_BYTE = 100.0
# A Cast is a kernel of its own, also for a scalar: it costs this much besides the bytes that it moves.
CAST_BYTES = 4096
_HIGH_BYTES, _LOW_BYTES = 4, 2
_VIEWS = operators(Trait.VIEWS)
_PICKS = operators(Trait.PICKS)
_ENDLESS = 1 << 60  # the capacity of an edge that must not be cut


class LowSlots(NamedTuple):
    """The slots of a node that have the low type if the node is low. ``group``: the group that the node belongs to."""

    group: int
    inputs: frozenset[int]
    outputs: frozenset[int]


class _Conversion(NamedTuple):
    """A tensor that some nodes make or read in the low type, and others in float32.

    ``producer``: the group that makes it, None if it is float32 in every choice. ``readers``: the groups that read it.
    ``has_high_reader``: True if something reads it in float32 in every choice.
    """

    bytes: int
    producer: int | None
    readers: tuple[int, ...]
    has_high_reader: bool


class ChoiceCosts:
    """The costs of the choices of low nodes for one model.

    The nodes form groups, numbered from 0, which are low or high together. ``low_slots``: the group and the slots of
    each node that can be low. ``costs``: the costs of the graph.
    """

    def __init__(self, graph: Graph, costs: Costs, low_slots: Mapping[Node, LowSlots], group_count: int) -> None:
        self.group_count = group_count
        self._costs, self._low_slots = costs, low_slots
        self._low_cost, self._high_cost = [0] * group_count, [0] * group_count
        self._fixed_cost = 0
        self._conversions = self._collect(graph)

    def cost(self, low: AbstractSet[int]) -> int:
        """Return the cost in bytes if these groups are low and all others are high."""
        total = self._fixed_cost
        for group in range(self.group_count):
            total += self._low_cost[group] if group in low else self._high_cost[group]
        for conversion in self._conversions:
            read_low = any(reader in low for reader in conversion.readers)
            read_high = conversion.has_high_reader or any(reader not in low for reader in conversion.readers)
            is_low = conversion.producer is not None and conversion.producer in low
            if read_high if is_low else read_low:
                total += conversion.bytes
        return total

    def find_cheapest(self, high: Iterable[int], penalties: Sequence[float] = ()) -> frozenset[int]:
        """Return the low groups of the cheapest choice in which the groups ``high`` are high.

        ``penalties``: what each group costs more in bytes if it is low; () for nothing. Of equal choices it is the one
        with the most low groups.
        """
        source, sink = self.group_count, self.group_count + 1
        network = _FlowNetwork(self.group_count + 2)
        groups = zip(self._low_cost, self._high_cost, penalties or [0] * self.group_count, strict=True)
        for group, (low_cost, high_cost, penalty) in enumerate(groups):
            low_cost += int(min(penalty, _ENDLESS))
            network.add_edge(source, group, max(high_cost - low_cost, 0))
            network.add_edge(group, sink, max(low_cost - high_cost, 0))
        for group in high:
            network.add_edge(group, sink, _ENDLESS)
        for conversion in self._conversions:
            _add_conversion(network, conversion, sink)
        network.saturate(source, sink)
        high_side = network.find_vertices_before(sink)
        return frozenset(group for group in range(self.group_count) if group not in high_side)

    # --- the terms of the cost ---

    def _collect(self, graph: Graph) -> list[_Conversion]:
        """Add up the costs of each group, and return the tensors that may need a Cast."""
        readers: dict[Value, list[tuple[Node, int]]] = {}
        for node in graph.nodes:
            self._add_node(node)
            for slot, value in enumerate(node.inputs):
                if value is not None:
                    readers.setdefault(value, []).append((node, slot))
        outputs = {value for scope in linked_scopes(graph.root) for value in scope.outputs}
        conversions = []
        for value, slots in readers.items():
            # A constant is converted in the file. The types of other values than float32 do not change.
            if value.type == dtypes.FLOAT and not value.is_constant:
                conversion = self._make_conversion(value, slots, value in outputs)
                if conversion is not None:
                    conversions.append(conversion)
        for value in outputs - readers.keys():
            conversion = self._make_conversion(value, [], True) if value.type == dtypes.FLOAT else None
            if conversion is not None:
                conversions.append(conversion)
        return conversions

    def _make_conversion(self, value: Value, slots: Sequence[tuple[Node, int]], is_output: bool) -> _Conversion | None:
        """Return the conversion of a value; None if no choice converts it."""
        producer = self._group_of_output(value)
        readers = [self._group_of_input(node, slot) for node, slot in slots if _reads_one_type(node)]
        groups = tuple(dict.fromkeys(group for group in readers if group is not None and group != producer))
        has_high_reader = is_output or None in readers
        if not groups and (producer is None or not has_high_reader):
            return None
        moved = self._elements(value) * (_HIGH_BYTES + _LOW_BYTES) + CAST_BYTES
        return _Conversion(moved, producer, groups, has_high_reader)

    def _add_node(self, node: Node) -> None:
        """Add the bytes and the matrix work of a node to its group, or to the cost that every choice has."""
        place, node_cost = self._low_slots.get(node), self._costs.nodes.get(node.id)
        is_view = node.domain == "" and node.op_type in _VIEWS
        is_pick = node.domain == "" and node.op_type in _PICKS  # it reads as many bytes as it writes
        if not is_view:
            for slots, values in (("inputs", node.inputs), ("outputs", node.outputs)):
                low = getattr(place, slots) if place is not None else ()
                for slot, value in enumerate(values):
                    if value is not None and value.type == dtypes.FLOAT:
                        size = self._elements(node.outputs[0] if is_pick and slot == 0 else value)
                        self._add(place if slot in low else None, size * _HIGH_BYTES)
        if node_cost is not None and node_cost.is_matrix:
            self._add(place, int(node_cost.flops / FLOPS_PER_BYTE))

    def _add(self, place: LowSlots | None, high_cost: int) -> None:
        """Add a cost that is half as large if its group is low."""
        if place is None:
            self._fixed_cost += high_cost
        else:
            self._high_cost[place.group] += high_cost
            self._low_cost[place.group] += high_cost // 2

    def _elements(self, value: Value | None) -> int:
        """Return the number of elements of a value; 1 if its shape is not known."""
        shape = self._costs.known_shapes.shape_of(value)
        return prod(shape) if shape is not None else 1

    def _group_of_output(self, value: Value) -> int | None:
        place = self._low_slots.get(value.producer) if value.producer is not None else None
        return place.group if place is not None and value.output_slot in place.outputs else None

    def _group_of_input(self, node: Node, slot: int) -> int | None:
        place = self._low_slots.get(node)
        return place.group if place is not None and slot in place.inputs else None


def _reads_one_type(node: Node) -> bool:
    """Return False for a node that takes every type, such as a Cast or Shape."""
    return node.signature is None or not node.signature.reads_any_type


# --- minimum cut ---


def _add_conversion(network: _FlowNetwork, conversion: _Conversion, sink: int) -> None:
    """Add the edges that are cut if a tensor needs a Cast: to float32, and to the low type."""
    producer, readers, moved = conversion.producer, conversion.readers, conversion.bytes
    if producer is not None:
        if conversion.has_high_reader:
            network.add_edge(producer, sink, moved)
        elif len(readers) == 1:
            network.add_edge(producer, readers[0], moved)
        else:
            shared = network.add_vertex()
            network.add_edge(producer, shared, moved)
            for reader in readers:
                network.add_edge(shared, reader, _ENDLESS)
    end = sink if producer is None else producer
    if len(readers) == 1:
        network.add_edge(readers[0], end, moved)
    elif readers:
        shared = network.add_vertex()
        network.add_edge(shared, end, moved)
        for reader in readers:
            network.add_edge(reader, shared, _ENDLESS)


class _FlowNetwork:
    """A directed graph with capacities, and a maximum flow by the algorithm of Dinic (1970)."""

    def __init__(self, vertices: int) -> None:
        self._edges_of: list[list[int]] = [[] for _ in range(vertices)]
        # Edge e and its reverse e ^ 1 are stored side by side.
        self._ends: list[int] = []
        self._capacities: list[int] = []

    def add_vertex(self) -> int:
        """Add a vertex, and return its number."""
        self._edges_of.append([])
        return len(self._edges_of) - 1

    def add_edge(self, start: int, end: int, capacity: int) -> None:
        """Add an edge, unless it has no capacity."""
        if capacity:
            self._edges_of[start].append(len(self._ends))
            self._edges_of[end].append(len(self._ends) + 1)
            self._ends += [end, start]
            self._capacities += [capacity, 0]

    def saturate(self, source: int, sink: int) -> None:
        """Send as much as possible from the source to the sink; the capacities are then what is left."""
        while (levels := self._find_levels(source))[sink] >= 0:
            next_edge = [0] * len(self._edges_of)
            while self._augment(source, sink, levels, next_edge):
                pass

    def find_vertices_before(self, sink: int) -> set[int]:
        """Return the vertices from which something can still be sent to the sink."""
        reached, waiting = {sink}, [sink]
        while waiting:
            for edge in self._edges_of[waiting.pop()]:
                start = self._ends[edge]
                if self._capacities[edge ^ 1] and start not in reached:
                    reached.add(start)
                    waiting.append(start)
        return reached

    def _find_levels(self, source: int) -> list[int]:
        """Return the distance of each vertex from the source over edges with capacity; -1 if there is no way."""
        levels = [-1] * len(self._edges_of)
        levels[source] = 0
        waiting = deque([source])
        while waiting:
            vertex = waiting.popleft()
            for edge in self._edges_of[vertex]:
                if self._capacities[edge] and levels[self._ends[edge]] < 0:
                    levels[self._ends[edge]] = levels[vertex] + 1
                    waiting.append(self._ends[edge])
        return levels

    def _augment(self, source: int, sink: int, levels: list[int], next_edge: list[int]) -> bool:
        """Send flow along one shortest path; return False if there is none left."""
        path: list[int] = []
        vertex = source
        while vertex != sink:
            edges, index = self._edges_of[vertex], next_edge[vertex]
            while index < len(edges) and not (
                self._capacities[edges[index]] and levels[self._ends[edges[index]]] == levels[vertex] + 1
            ):
                index += 1
            next_edge[vertex] = index
            if index < len(edges):
                path.append(edges[index])
                vertex = self._ends[edges[index]]
            elif path:
                # A dead end: go back, and do not take this edge again.
                vertex = self._ends[path.pop() ^ 1]
                next_edge[vertex] += 1
            else:
                return False
        flow = min(self._capacities[edge] for edge in path)
        for edge in path:
            self._capacities[edge] -= flow
            self._capacities[edge ^ 1] += flow
        return True
