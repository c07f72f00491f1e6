"""Rule S8.23: the range that random integers of an input can have, as the graph shows it.

An input is followed through value movers, Casts, bodies and calls to the operators that use its integers. The strongest
kind of use that is found decides; the class ``_Use`` has their order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING

from mixlist.graph.control_flow import CONTROL_FLOW, links_of
from mixlist.graph.model import Graph, Node, Value
from mixlist.graph.naming import node_ref
from mixlist.graph.shape_propagation import (
    MAX_KNOWN_ELEMENTS,
    KnownShapes,
    Shape,
    propagate_shapes,
    propagate_shapes_in_function,
)
from mixlist.graph.traversal import reachable_graphs
from mixlist.graph.weights import embedded_array, is_external, stored_element_count
from mixlist.ops import types
from mixlist.ops.traits import Trait, operators
from mixlist.patterns.positions import find_positions, list_plans

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from onnx import ModelProto

MOST_POSITIONS = 4096  # sequences of thousands of tokens are common, and nothing in a graph says how long they are
_BYTES = {2: (0, 255), 3: (-128, 127)}  # the bounds of uint8 and int8
_MOVERS = operators(Trait.MOVES_VALUES)
# The input slots that a mover takes its elements from, where it is not slot 0 alone; None: all slots.
_MOVED_SLOTS: dict[str, frozenset[int] | None] = {
    "Concat": None,
    "OneHot": frozenset({2}),
    "Pad": frozenset({0, 2}),
    "SequenceConstruct": None,
    "SequenceInsert": frozenset({0, 1}),
    "Where": frozenset({1, 2}),
}
# Operators whose integers in a slot pick along an axis (attribute, default) of another input.
_PICKING = {
    ("", "Gather", 1): (0, "axis", 0),
    ("", "GatherElements", 1): (0, "axis", 0),
    ("", "ScatterElements", 1): (0, "axis", 0),
    ("", "NegativeLogLikelihoodLoss", 1): (0, "", 1),
    ("", "SoftmaxCrossEntropyLoss", 1): (0, "", 1),
    ("", "RotaryEmbedding", 3): (1, "", 0),
    ("com.microsoft", "RotaryEmbedding", 1): (2, "", 0),
    ("com.microsoft", "EmbedLayerNormalization", 0): (2, "", 0),
    ("com.microsoft", "EmbedLayerNormalization", 1): (4, "", 0),
    ("com.microsoft", "EmbedLayerNormalization", 8): (3, "", 0),
}
# Operators whose integers in a slot are lengths along an axis (attribute, default) of input 0.
_MEASURING = {
    ("", "GRU", 4): ("layout", 0),
    ("", "LSTM", 4): ("layout", 0),
    ("", "RNN", 4): ("layout", 0),
    ("", "ReverseSequence", 1): ("time_axis", 0),
}
# Comparisons by the slot of the input: whether equality falls on the side of the smaller integers, so that the outcome
# changes from the other operand to the number after it, and not from the number before it.
_COMPARING = {
    ("Equal", 0): False, ("Equal", 1): False,
    ("Less", 0): False, ("Less", 1): True,
    ("LessOrEqual", 0): True, ("LessOrEqual", 1): False,
    ("Greater", 0): True, ("Greater", 1): False,
    ("GreaterOrEqual", 0): False, ("GreaterOrEqual", 1): True,
}  # fmt: skip


class _Use(IntEnum):
    """Kinds of use, the strongest first."""

    PICKS = 0
    POSITION = 1
    COMPARED = 2
    FLAG = 3
    NUMBER = 4


@dataclass(frozen=True)
class IntegerRange:
    """The least and the largest integer, and the reason: what the graph does with the input."""

    low: int
    high: int
    reason: str


def find_integer_ranges(proto: ModelProto, shapes: Mapping[str, Shape]) -> dict[str, IntegerRange]:
    """Return the ranges of the integer inputs among ``shapes``, which has the shape of each input by name.

    An input of which the graph says nothing is left out. Raises ModelError for a graph that cannot be linked.
    """
    from mixlist.graph.build import build_graph

    uses = _Uses(build_graph(proto), shapes)
    found = {}
    for value in uses.main.root.inputs:
        if value.name in shapes and value.type in types.INTEGERS:
            uses_of_value = list(uses.of(value))
            if uses_of_value:
                found[value.name] = _combine(uses_of_value)
    return found


def _combine(uses: list[tuple[_Use, IntegerRange]]) -> IntegerRange:
    """Return the range of the strongest kind of use: what all tables hold, or all numbers that are compared."""
    strongest = min(use for use, _ in uses)
    ranges = [each for use, each in uses if use is strongest]
    if strongest is not _Use.COMPARED:
        return min(ranges, key=lambda each: each.high)
    widest = max(ranges, key=lambda each: each.high)
    return IntegerRange(min(each.low for each in ranges), widest.high, widest.reason)


class _Uses:
    """The readers of each value of a model, and the sizes of its tensors for given inputs."""

    def __init__(self, main: Graph, shapes: Mapping[str, Shape]) -> None:
        self.main, self.shapes = main, shapes
        self.readers: dict[Value, list[tuple[Graph, Node, int]]] = {}
        self.handed: dict[Value, list[Value]] = {}  # the values that control flow and calls make of a value
        self.calls: dict[Graph, tuple[Graph, Node]] = {}  # the first call of each function
        for graph in reachable_graphs(main):
            for node in graph.nodes:
                self._add_node(graph, node)
        self._sizes: dict[Graph, KnownShapes] = {}

    def _add_node(self, graph: Graph, node: Node) -> None:
        if node.function is not None:
            self.calls.setdefault(node.function, (graph, node))
            body = node.function.root
            for inner, outer in zip(body.inputs, node.inputs, strict=False):
                self._hand(outer, inner)
            for inner, result in zip(body.outputs, node.outputs, strict=False):
                self._hand(inner, result)
        elif node.bodies and node.op_type in CONTROL_FLOW and not node.domain:
            for link in links_of(node):
                for target in link.targets:
                    for read in link.sources:
                        self._hand(read.value, target)
        else:
            for slot, value in enumerate(node.inputs):
                if value is not None:
                    self.readers.setdefault(value, []).append((graph, node, slot))

    def _hand(self, source: Value | None, target: Value | None) -> None:
        if source is not None and target is not None:
            self.handed.setdefault(source, []).append(target)

    @cached_property
    def positions(self) -> dict[Node, str]:
        """The Casts whose integers reach Sin, Cos or GridSample, each with that reader."""
        plan = find_positions(self.main)
        plans = list_plans(plan) if plan is not None else []
        return {node: reader for each in reversed(plans) for node, reader in each.sources.items()}

    def of(self, start: Value) -> Iterator[tuple[_Use, IntegerRange]]:
        """Yield every use of an input that bounds its integers."""
        waiting = deque([(start, True)])
        seen = {start}
        while waiting:
            value, is_exact = waiting.popleft()
            targets = [(target, is_exact) for target in self.handed.get(value, ())]
            for graph, node, slot in self.readers.get(value, ()):
                found = self._use(graph, node, slot, start)
                # An offset moves the range of a table or a comparison, and a position stays a position.
                if found is not None and (is_exact or found[0] is _Use.POSITION):
                    yield found
                if _moves(node, slot) or _shifts(node):
                    exact = is_exact and not _shifts(node)
                    targets += [(output, exact) for output in node.outputs if output is not None]
            for target, exact in targets:
                if target not in seen:
                    seen.add(target)
                    waiting.append((target, exact))

    def _use(self, graph: Graph, node: Node, slot: int, start: Value) -> tuple[_Use, IntegerRange] | None:
        """Return what a node that reads an input's integers says of them."""
        reader, key = f"{node.op_type} {node_ref(graph, node)}", (node.domain, node.op_type, slot)
        if key in _PICKING:
            table, attribute, default = _PICKING[key]
            size = self._size(graph, node.inputs[table], _attribute(graph, node, attribute, default))
            return (_Use.PICKS, IntegerRange(0, size - 1, f"{reader} picks from {size}")) if size else None
        if key in _MEASURING:
            attribute, default = _MEASURING[key]
            size = self._size(graph, node.inputs[0], _attribute(graph, node, attribute, default))
            return (_Use.PICKS, IntegerRange(1, size, f"{reader} takes lengths up to {size}")) if size else None
        if node.domain:
            return None
        if key == ("", "OneHot", 0):
            depth = max(self._elements(graph, node.inputs[1]), default=0)
            return (_Use.PICKS, IntegerRange(0, depth - 1, f"{reader} has depth {depth}")) if depth > 0 else None
        if node in self.positions and slot == 0:
            most = max((MOST_POSITIONS, *self.shapes.get(start.name, ()))) - 1
            return _Use.POSITION, IntegerRange(0, most, f"they are positions, which reach {self.positions[node]}")
        if (node.op_type, slot) in _COMPARING:
            return self._compared(graph, node, slot, reader)
        if node.op_type == "Sub" and slot == 1 and self._elements(graph, node.inputs[0]) == {1}:
            return _Use.FLAG, IntegerRange(0, 1, f"{reader} subtracts them from 1")
        return _converted(graph, node, slot, reader)

    def _compared(self, graph: Graph, node: Node, slot: int, reader: str) -> tuple[_Use, IntegerRange] | None:
        """Return the integers around which the outcome changes; for counted numbers, those with a true comparison."""
        others = self._elements(graph, node.inputs[1 - slot])
        if not others:
            return None
        after = int(_COMPARING[node.op_type, slot])
        low, high = min(others), max(others)
        if low == high:
            most = max(1, high + after)
            return _Use.COMPARED, IntegerRange(most - 1, most, f"{reader} compares them with {high}")
        reason = f"{reader} compares them with {low} to {high}"
        return _Use.COMPARED, IntegerRange(max(0, low + after), max(0, high + after), reason)

    def _size(self, graph: Graph, value: Value | None, axis: int) -> int:
        """Return the size of a tensor along an axis; 0 where it is not known."""
        shape = _constant_shape(value)
        if shape is None:
            shape = self.sizes(graph).shape_of(value)
        return shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else 0

    def _elements(self, graph: Graph, value: Value | None) -> set[int]:
        """Return the whole numbers in a small tensor that is known before the run; none for any other tensor."""
        import numpy as np

        if value is None or not (value.is_constant or value.is_from_shape):
            return set()
        array = _small_constant(value)
        if array is None and value.producer is not None:
            array = self.sizes(graph).arrays.get(value)
        if array is None or array.dtype.kind not in "iuf":
            return set()
        return {int(number) for number in array.reshape(-1).tolist() if np.isfinite(number) and number == int(number)}

    def sizes(self, graph: Graph) -> KnownShapes:
        """Return the shapes and small values in a graph, for a function in its first call."""
        if graph not in self._sizes:
            if graph is self.main:
                self._sizes[graph] = propagate_shapes(graph, {}, self.shapes)
            else:
                caller, call = self.calls[graph]
                self._sizes[graph] = propagate_shapes_in_function(graph, call, self.sizes(caller))
        return self._sizes[graph]


def _converted(graph: Graph, node: Node, slot: int, reader: str) -> tuple[_Use, IntegerRange] | None:
    """Return what a conversion says of its integers: bools are 0 or 1, and bytes that become floats are numbers."""
    source = node.inputs[slot]
    to = _attribute(graph, node, "to", 0) if node.op_type == "Cast" else 0
    if to == types.BOOL:
        return _Use.FLAG, IntegerRange(0, 1, f"{reader} makes bools of them")
    becomes_float = to in types.FLOATS or (node.op_type == "DequantizeLinear" and slot == 0)
    if source is None or source.type not in _BYTES or not becomes_float:
        return None
    reason = f"{reader} makes floats of all that {types.type_name(source.type)} holds"
    return _Use.NUMBER, IntegerRange(*_BYTES[source.type], reason)


def _moves(node: Node, slot: int) -> bool:
    """Return whether a node only hands on, or converts to another number, what it reads in a slot."""
    if node.domain:
        return False
    slots = _MOVED_SLOTS.get(node.op_type, frozenset({0}))
    return (node.op_type in _MOVERS and (slots is None or slot in slots)) or (node.op_type == "Cast" and slot == 0)


def _shifts(node: Node) -> bool:
    """Return whether a node adds an offset to integers."""
    output = node.outputs[0] if node.outputs else None
    return node.op_type in ("Add", "Sub") and not node.domain and output is not None and output.type in types.INTEGERS


def _attribute(graph: Graph, node: Node, name: str, default: int) -> int:
    """Return an attribute that is an integer; in a function's body it may be one of the call."""
    found = next((attribute for attribute in node.proto.attribute if attribute.name == name), None)
    if found is not None and found.ref_attr_name:
        found = graph.call_attributes.get(found.ref_attr_name)
    return int(found.i) if found is not None else default


def _constant_shape(value: Value | None) -> Shape | None:
    dims = getattr(value.constant_proto, "dims", None) if value is not None else None
    return tuple(dims) if dims is not None else None


def _small_constant(value: Value) -> NDArray[np.generic] | None:
    """Return the elements of a small TensorProto in the model file; None for every other value."""
    from onnx import TensorProto

    tensor = value.constant_proto
    if not isinstance(tensor, TensorProto) or is_external(tensor) or stored_element_count(tensor) > MAX_KNOWN_ELEMENTS:
        return None
    return embedded_array(tensor)
