"""Find the range that random integers of an input may have, from the graph.

An input is followed through value movers, Casts and bodies to the operators that use its integers. Each use
gives a range: ``ids`` in ``Gather(W, ids)`` are from 0 to the number of rows of ``W`` less 1. If the uses differ, the
strongest kind of use decides. The class ``_UseKind`` has their order:

- An index of Gather, GatherElements, ScatterElements, OneHot, RotaryEmbedding, EmbedLayerNormalization or a loss picks
  from a size; a length of a recurrent layer or ReverseSequence is at least 1. The smallest size counts.
- Position arithmetic (Rule S4.38) reads positions from 0 to 4095, or to the largest size of the input less 1 if more.
- Integers that are compared with one number have the two values between which the outcome changes; compared with a
  Range, the values for which an outcome is true. The widest range counts.
- Integers of which Cast makes bools, or that are subtracted from 1, are 0 or 1.
- Integers of 8 bits of which Cast or DequantizeLinear makes floats have all values of their type.

An input without such a use is 0 or 1, which is in range wherever an integer is an index, a token or a flag.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from mixlist.decide.positions import find_positions
from mixlist.model import dtypes
from mixlist.model.control_flow import CONTROL_FLOW, type_links_of
from mixlist.model.graph import Graph, Node, Value
from mixlist.model.naming import node_ref
from mixlist.model.shape_propagation import MAX_KNOWN_ELEMENTS, KnownShapes, Shape, propagate_shapes
from mixlist.model.traits import Trait, operators
from mixlist.model.weights import embedded_array, is_external, stored_element_count

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from onnx import ModelProto

# Sequences of thousands of tokens are common, and nothing in a graph says how long they are.
MOST_POSITIONS = 4096
_BYTE_BOUNDS = {2: (0, 255), 3: (-128, 127)}  # of uint8 and int8
_MOVERS = operators(Trait.MOVES_VALUES)
# The input slots that a mover takes its elements from, if it is not slot 0 alone; None: all slots.
_MOVED_SLOTS: dict[str, frozenset[int] | None] = {
    "Concat": None,
    "OneHot": frozenset({2}),
    "Pad": frozenset({0, 2}),
    "SequenceConstruct": None,
    "SequenceInsert": frozenset({0, 1}),
    "Where": frozenset({1, 2}),
}
# Operators whose integers in a slot are indices along an axis of another input. The key is domain, op type and slot of
# the integers. The value is the slot of the other input, the attribute with the axis ("" if there is none), and the
# axis without this attribute.
_INDEX_SLOTS = {
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
# Operators whose integers in a slot are lengths along an axis of input 0, with the same key. The value is the attribute
# with the axis and its default. ``layout`` is 0 if time is axis 0, and 1 if time is axis 1.
_LENGTH_SLOTS = {
    ("", "GRU", 4): ("layout", 0),
    ("", "LSTM", 4): ("layout", 0),
    ("", "RNN", 4): ("layout", 0),
    ("", "ReverseSequence", 1): ("time_axis", 0),
}
# Inputs of an attention with a cache that hold the number of words in the cache and of new words together, and the
# number to add to it: ``seqlens_k`` has the position of the last word.
_WORD_COUNT_SLOTS = {
    ("com.microsoft", "GroupQueryAttention", 5): -1,
    ("com.microsoft", "GroupQueryAttention", 6): 0,
}
# While one operand of a comparison grows, the outcome changes at the other operand, which is a known number. The key is
# the comparison and the slot of the input. The value is False if the outcome changes just before the operand: ``x < 5``
# changes between 4 and 5, so ("Less", 0) is False. It is True if the outcome changes just after the operand: ``5 < x``
# changes between 5 and 6, so ("Less", 1) is True. The outcome of Equal changes on both sides of the operand; of these
# two places, the table has the one before.
_CHANGES_AFTER_OPERAND = {
    ("Equal", 0): False, ("Equal", 1): False,
    ("Less", 0): False, ("Less", 1): True,
    ("LessOrEqual", 0): True, ("LessOrEqual", 1): False,
    ("Greater", 0): True, ("Greater", 1): False,
    ("GreaterOrEqual", 0): False, ("GreaterOrEqual", 1): True,
}  # fmt: skip


class _UseKind(IntEnum):
    """The kinds of use, the strongest first."""

    # An index of a table, or a length: another value is an error of the operator.
    INDEX = 0
    POSITION = 1
    COMPARED = 2
    FLAG = 3  # converted to a bool, or subtracted from 1
    NUMBER = 4  # 8 bits that are converted to a float, such as a pixel


class IntegerRange(NamedTuple):
    """The smallest and the largest integer of an input, and the reason: what the graph does with the input."""

    smallest: int
    largest: int
    reason: str


_Use = tuple[_UseKind, IntegerRange]


def find_integer_ranges(proto: ModelProto, shapes: Mapping[str, Shape]) -> dict[str, IntegerRange]:
    """Return the ranges of the integer inputs among ``shapes``, which has the shape of each input by name.

    An input without a use that bounds its integers is left out. Raises ModelError for a graph that cannot be linked.
    """
    from mixlist.model.build import build_graph

    uses = _IntegerUses(build_graph(proto), shapes)
    ranges = {}
    for value in uses.graph.root.inputs:
        if value.name in shapes and value.type in dtypes.INTEGERS:
            uses_of_value = list(uses.find(value))
            if uses_of_value:
                ranges[value.name] = _combined_range(uses_of_value)
    return ranges


def _combined_range(uses: list[_Use]) -> IntegerRange:
    """Return the range of the strongest kind of use.

    If several uses have this kind, the smallest of their ranges is in range for all of them. For comparisons, the
    result contains all of their ranges instead.
    """
    # _UseKind is ordered from the strongest kind on.
    strongest = min(kind for kind, _ in uses)
    ranges = [use_range for kind, use_range in uses if kind is strongest]
    if strongest is not _UseKind.COMPARED:
        return min(ranges, key=lambda use_range: use_range.largest)
    widest = max(ranges, key=lambda use_range: use_range.largest)
    return IntegerRange(min(use_range.smallest for use_range in ranges), widest.largest, widest.reason)


class _IntegerUses:
    """The readers of each value of a model, and the sizes of its tensors for the given input shapes.

    ``passed_to``: by value, the values to which control flow passes it on, such as an input of a body.
    """

    def __init__(self, graph: Graph, shapes: Mapping[str, Shape]) -> None:
        self.graph, self.shapes = graph, shapes
        self.readers: dict[Value, list[tuple[Node, int]]] = {}
        self.passed_to: dict[Value, list[Value]] = {}
        for node in graph.nodes:
            self._add_node(node)

    def _add_node(self, node: Node) -> None:
        if node.bodies and node.op_type in CONTROL_FLOW and not node.domain:
            for link in type_links_of(node):
                for target in link.targets:
                    for source in link.sources:
                        self.passed_to.setdefault(source.value, []).append(target)
        else:
            # Control flow only passes its inputs on, so all other nodes are the readers.
            for slot, value in enumerate(node.inputs):
                if value is not None:
                    self.readers.setdefault(value, []).append((node, slot))

    @cached_property
    def _known_shapes(self) -> KnownShapes:
        """Return the shapes and small arrays of the model for the given input shapes."""
        return propagate_shapes(self.graph, {}, self.shapes)

    @cached_property
    def _position_casts(self) -> dict[Node, str]:
        """Return the Casts whose integers are positions, each with the Sin, Cos or GridSample that they reach."""
        return find_positions(self.graph).casts

    def find(self, model_input: Value) -> Iterator[_Use]:
        """Yield every use of an input that bounds its integers."""
        waiting = deque([(model_input, True)])
        visited = {model_input}
        while waiting:
            # Behind an offset (ids + 2), the indices and compared numbers are not those of the input: only the use as a
            # position still counts there, because a position with an offset is a position.
            value, has_no_offset = waiting.popleft()
            targets = [(target, has_no_offset) for target in self.passed_to.get(value, ())]
            for node, slot in self.readers.get(value, ()):
                use = self._use_in(node, slot, model_input)
                if use is not None and (has_no_offset or use[0] is _UseKind.POSITION):
                    yield use
                if _moves(node, slot) or _adds_offset(node):
                    target_has_no_offset = has_no_offset and not _adds_offset(node)
                    targets += [(output, target_has_no_offset) for output in node.outputs if output is not None]
            for target, target_has_no_offset in targets:
                # The first path to a value decides whether the value counts as one with an offset.
                if target not in visited:
                    visited.add(target)
                    waiting.append((target, target_has_no_offset))

    def _use_in(self, node: Node, slot: int, model_input: Value) -> _Use | None:
        """Return the use of the integers by a node that reads them in ``slot``; None if it does not bound them."""
        reader, key = f"{node.op_type} {node_ref(node)}", (node.domain, node.op_type, slot)
        if key in _INDEX_SLOTS:
            table_slot, attribute, default = _INDEX_SLOTS[key]
            size = self._size(node.inputs[table_slot], _int_attribute(node, attribute, default))
            return (_UseKind.INDEX, IntegerRange(0, size - 1, f"{reader} picks from {size}")) if size else None
        if key in _LENGTH_SLOTS:
            attribute, default = _LENGTH_SLOTS[key]
            size = self._size(node.inputs[0], _int_attribute(node, attribute, default))
            return (_UseKind.INDEX, IntegerRange(1, size, f"{reader} takes lengths up to {size}")) if size else None
        if key in _WORD_COUNT_SLOTS:
            return self._word_count_use(node, _WORD_COUNT_SLOTS[key], reader)
        # The tables above have operators of other domains too. All tests below are about standard operators.
        if node.domain:
            return None
        if key == ("", "OneHot", 0):
            depth = max(self._whole_numbers(node.inputs[1]), default=0)
            return (_UseKind.INDEX, IntegerRange(0, depth - 1, f"{reader} has depth {depth}")) if depth > 0 else None
        if node in self._position_casts and slot == 0:
            # The input may hold one position per token, so a longer sequence has larger positions.
            largest = max((MOST_POSITIONS, *self.shapes.get(model_input.name, ()))) - 1
            reason = f"they are positions, which reach {self._position_casts[node]}"
            return _UseKind.POSITION, IntegerRange(0, largest, reason)
        if (node.op_type, slot) in _CHANGES_AFTER_OPERAND:
            return self._comparison_use(node, slot, reader)
        # (1 - mask): the usual first step of an attention mask.
        if node.op_type == "Sub" and slot == 1 and self._whole_numbers(node.inputs[0]) == {1}:
            return _UseKind.FLAG, IntegerRange(0, 1, f"{reader} subtracts them from 1")
        return _conversion_use(node, slot, reader)

    def _comparison_use(self, node: Node, slot: int, reader: str) -> _Use | None:
        """Return the use in a comparison with numbers that are known before the run; None for other operands.

        For one number, the range is the two integers between which the outcome changes. For several numbers, such as
        those of a Range, the range contains the upper one of these two integers for each number.
        """
        operands = self._whole_numbers(node.inputs[1 - slot])
        if not operands:
            return None
        after = int(_CHANGES_AFTER_OPERAND[node.op_type, slot])
        smallest, largest = min(operands), max(operands)
        if smallest == largest:
            # Inputs have no negative integers, so the range is 0 to 1 or above.
            upper = max(1, largest + after)
            return _UseKind.COMPARED, IntegerRange(upper - 1, upper, f"{reader} compares them with {largest}")
        reason = f"{reader} compares them with {smallest} to {largest}"
        return _UseKind.COMPARED, IntegerRange(max(0, smallest + after), max(0, largest + after), reason)

    def _word_count_use(self, node: Node, offset: int, reader: str) -> _Use | None:
        """Return the use as the number of words in the cache and of new words; None if their shapes are unknown."""
        query, past_key = node.inputs[0], node.inputs[3]
        new, past = self._size(query, 1), self._size(past_key, 2)
        if not new:
            return None
        # A cache of window size does not show how long the text is. Another cache of the model may show it.
        is_window = _int_attribute(node, "sliding_window_cache", 0) != 0
        kind = _UseKind.POSITION if is_window else _UseKind.INDEX
        words = past + new
        reason = f"{reader} reads {past} words from its cache, and {new} new"
        return kind, IntegerRange(words + offset, words + offset, reason)

    def _size(self, value: Value | None, axis: int) -> int:
        """Return the size of a tensor along an axis; 0 if it is unknown."""
        # The file has the shape of an initializer, so the shapes of the model need not be computed.
        shape = _constant_shape(value)
        if shape is None:
            shape = self._known_shapes.shape_of(value)
        return shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else 0

    def _whole_numbers(self, value: Value | None) -> set[int]:
        """Return the whole numbers in a small tensor that is known before the run; an empty set for other tensors."""
        import numpy as np

        # Nothing else is known before the run. This test comes first, because the shapes of a graph take time.
        if value is None or not (value.is_constant or value.is_from_shape):
            return set()
        array = _small_constant(value)
        if array is None and value.producer is not None:
            array = self._known_shapes.arrays.get(value)
        if array is None or array.dtype.kind not in "iuf":  # integers and floats, but no bools and texts
            return set()
        return {int(number) for number in array.reshape(-1).tolist() if np.isfinite(number) and number == int(number)}


def _conversion_use(node: Node, slot: int, reader: str) -> _Use | None:
    """Return the use in a conversion: to bools, or of 8-bit integers to floats; None for every other node."""
    source = node.inputs[slot]
    to = _int_attribute(node, "to", 0) if node.op_type == "Cast" else 0
    if to == dtypes.BOOL:
        return _UseKind.FLAG, IntegerRange(0, 1, f"{reader} makes bools of them")
    becomes_float = to in dtypes.FLOATS or (node.op_type == "DequantizeLinear" and slot == 0)
    if source is None or source.type not in _BYTE_BOUNDS or not becomes_float:
        return None
    reason = f"{reader} makes floats of all that {dtypes.type_name(source.type)} holds"
    return _UseKind.NUMBER, IntegerRange(*_BYTE_BOUNDS[source.type], reason)


def _moves(node: Node, slot: int) -> bool:
    """Return whether the output of a node has the integers of an input slot, unchanged or cast to another type."""
    if node.domain:
        return False
    slots = _MOVED_SLOTS.get(node.op_type, frozenset({0}))
    return (node.op_type in _MOVERS and (slots is None or slot in slots)) or (node.op_type == "Cast" and slot == 0)


def _adds_offset(node: Node) -> bool:
    """Return whether a node adds something to integers."""
    output = node.outputs[0] if node.outputs else None
    return node.op_type in ("Add", "Sub") and not node.domain and output is not None and output.type in dtypes.INTEGERS


def _int_attribute(node: Node, name: str, default: int) -> int:
    """Return an integer attribute."""
    return next((int(attribute.i) for attribute in node.proto.attribute if attribute.name == name), default)


def _constant_shape(value: Value | None) -> Shape | None:
    """Return the shape of an initializer; None for every other value."""
    dims = getattr(value.constant_proto, "dims", None) if value is not None else None
    return tuple(dims) if dims is not None else None


def _small_constant(value: Value) -> NDArray[np.generic] | None:
    """Return the elements of a small TensorProto in the model file; None for every other value."""
    from onnx import TensorProto

    tensor = value.constant_proto
    if not isinstance(tensor, TensorProto) or is_external(tensor) or stored_element_count(tensor) > MAX_KNOWN_ELEMENTS:
        return None
    return embedded_array(tensor)
