"""Masks: large negative numbers that are added to scores so that a softmax makes zero of them.

In float16 a mask of -1e9, or one of -65504 and a score, is -infinity, of which the softmax makes zero just as well.
That is by design, but only where it can be proven from the graph: a constant, the constant branch of a Where or a
constant factor (``(1 - mask) * -1e9``), which Add, Sub, Max, Where and value movers carry to a softmax, and
nowhere else. A value that only reaches such a size, or that the other operands alone could make, is an overflow.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from mixlist.graph.dataflow import DataflowNode
from mixlist.graph.model import Graph, Node, Value, float_values
from mixlist.graph.naming import output_ref
from mixlist.graph.refs import TensorRef
from mixlist.graph.weights import is_external, read_pieces
from mixlist.ops.traits import Trait, operators
from mixlist.patterns.constants import find_origins

SENTINEL = 1e37  # no quantity reaches it; masks are written with float32's lowest value
SMALLEST_MASK = 1e4  # the smallest number that models write as a mask
# A Cast rounds, but a mask stays a mask.
_MOVERS = operators(Trait.MOVES_VALUES) - {"Where"} | {"Cast"}
_WITH_CONSTANTS = frozenset({"Add", "Sub", "Max", "Where"})
_CARRIERS = _MOVERS | _WITH_CONSTANTS  # the operators that Rule S8.12 names
_SOFTMAX = operators(Trait.SOFTMAX)


@dataclass(frozen=True)
class MaskLevels:
    """The magnitudes from which a value is a mask's, by its sign: ``SENTINEL`` on a side without a proven mask."""

    negative: float = SENTINEL
    positive: float = SENTINEL

    def of(self, value: float) -> float:
        """Return the level on the side of a value."""
        return self.positive if value > 0 else self.negative

    def cover(self, value: float) -> bool:
        """Return True if a value is large enough to be a mask's."""
        return abs(value) >= self.of(value)

    @property
    def least(self) -> float:
        """Return the lower of the two levels."""
        return min(self.negative, self.positive)

    @property
    def negated(self) -> MaskLevels:
        """Return the levels of the negated values."""
        return MaskLevels(self.positive, self.negative)

    def lowered(self, other: MaskLevels) -> MaskLevels:
        """Return the lower of both levels on each side."""
        return MaskLevels(min(self.negative, other.negative), min(self.positive, other.positive))


_NO_LEVELS = MaskLevels(math.inf, math.inf)


class Span(Protocol):
    """The range of a tensor in one batch; its ``magnitude`` is infinite where there is a NaN."""

    @property
    def minimum(self) -> float: ...
    @property
    def maximum(self) -> float: ...
    @property
    def magnitude(self) -> float: ...


@dataclass(frozen=True)
class Mask:
    """A tensor that carries a mask: ``levels`` are half of the constant, on the side that its sign gives it.

    ``joined``: the tensors that Add, Sub, Max, Where or Concat join to the mask; ``factors``: those that multiplied the
    constant, which must be from -1 to 1: a negative factor turns the side.
    """

    levels: MaskLevels
    joined: frozenset[TensorRef] = frozenset()
    factors: frozenset[TensorRef] = frozenset()

    def levels_in(self, ranges: Mapping[TensorRef, Span], bound: float) -> MaskLevels:
        """Return the levels in one batch; those of no proven mask where a large value may be another's (Rule S8.12).

        ``ranges`` are those of the reference; ``bound`` is the least magnitude that overflows.
        """
        if self.levels.least >= SENTINEL or not self._has_factors(ranges):
            return MaskLevels()
        if self.levels.least < bound:
            proven = self._stays_in_range(ranges, bound)
        else:  # an infinity of the data explains itself
            joined = (_finite_magnitude(ranges.get(tensor)) for tensor in self.joined)
            proven = sum(joined) < self.levels.least
        if not proven:
            return MaskLevels()
        turns = any(ranges[tensor].minimum < 0 for tensor in self.factors)
        return MaskLevels().lowered(self.levels.lowered(self.levels.negated) if turns else self.levels)

    def hides_nothing(self, ranges: Mapping[TensorRef, Span], bound: float) -> bool:
        """Return True if only the mask's values can overflow: the values that are joined to it are too small.

        A factor between 0 and 1 could make a value of any size, if the constant is not beyond all quantities.
        """
        whole = not self.factors or self.levels.least >= SENTINEL
        return whole and self._has_factors(ranges) and self._stays_in_range(ranges, bound)

    def _has_factors(self, ranges: Mapping[TensorRef, Span]) -> bool:
        """Return True if all that multiplied the constant is from -1 to 1."""
        return all(tensor in ranges and ranges[tensor].magnitude <= 1 for tensor in self.factors)

    def _stays_in_range(self, ranges: Mapping[TensorRef, Span], bound: float) -> bool:
        spans = (ranges.get(tensor) for tensor in self.joined)
        return sum(math.inf if span is None else span.magnitude for span in spans) < bound


def _finite_magnitude(span: Span | None) -> float:
    """Return the larger of the finite ends of a range; infinite for a tensor that is not observed."""
    if span is None:
        return math.inf
    return max((abs(end) for end in (span.minimum, span.maximum) if math.isfinite(end)), default=0.0)


def find_masks(nodes: Iterable[DataflowNode]) -> dict[TensorRef, Mask]:
    """Return the tensors of a model that carry a mask to a softmax, as far as it can be proven."""
    graphs = dict.fromkeys(each.graph for each in nodes)
    return {ref: mask for graph in graphs for ref, mask in _of_graph(graph).items()}


def _of_graph(graph: Graph) -> dict[TensorRef, Mask]:
    ending = _ending(graph)
    known: dict[Value, Mask] = {}
    found: dict[TensorRef, Mask] = {}
    for node in graph.nodes:
        if not node.is_plain:
            continue
        mask = _made_by(graph, node, known)
        if mask is None:
            continue
        for value in node.outputs:
            if value is not None and value in ending:
                known[value] = found[_key(graph, value)] = mask
    return found


def _ending(graph: Graph) -> set[Value]:
    """Return the values that reach a softmax and nothing else: no output of a graph, and no other operator."""
    readers: dict[Value, list[Node]] = {}
    bad: set[Value] = set(graph.root.outputs)
    for node in graph.nodes:
        for value in node.inputs:
            if value is not None:
                readers.setdefault(value, []).append(node)
        for body in node.bodies.values():
            bad.update(body.outputs)
    ending: set[Value] = set()
    for node in reversed(graph.nodes):
        for value in node.outputs:
            nodes = readers.get(value, ()) if value is not None and value not in bad else ()
            if value is not None and nodes and all(_ends(reader, ending) for reader in nodes):
                ending.add(value)
    return ending


def _ends(reader: Node, ending: set[Value]) -> bool:
    if not reader.is_plain:
        return False
    if reader.op_type in _SOFTMAX or reader.op_type == "Shape":
        return True
    passed = reader.op_type in _CARRIERS or reader.op_type == "Mul"
    return passed and all(v in ending for v in reader.outputs if v is not None)


def _made_by(graph: Graph, node: Node, known: Mapping[Value, Mask]) -> Mask | None:
    """Return the mask in a node's output: one that the node reads, or one that its constant makes."""
    read = float_values(node.inputs)
    if node.op_type == "Mul":
        levels = _NO_LEVELS
        for value in read:
            levels = levels.lowered(_constant_levels(value))
        factors = frozenset(ref for value in read for ref in _variables(graph, value))
        return Mask(levels, factors=factors) if levels != _NO_LEVELS else None
    if node.op_type not in _CARRIERS:
        return None
    masks = []
    for position, value in enumerate(read):
        mask = known.get(value) or Mask(_constant_levels(value) if node.op_type in _WITH_CONSTANTS else _NO_LEVELS)
        if mask.levels != _NO_LEVELS:
            is_negated = node.op_type == "Sub" and position == 1
            masks.append(replace(mask, levels=mask.levels.negated) if is_negated else mask)
    if not masks:
        return None
    levels = _NO_LEVELS
    joined = frozenset(ref for value in read if value not in known for ref in _variables(graph, value))
    for mask in masks:
        levels, joined = levels.lowered(mask.levels), joined | mask.joined
    return Mask(levels, joined, frozenset[TensorRef]().union(*(mask.factors for mask in masks)))


def _variables(graph: Graph, value: Value) -> list[TensorRef]:
    """Return the tensors that are moved into a value, without constants; the value itself if none is a constant."""
    moved = float_values(find_origins(value, _MOVERS))
    if not any(origin.is_constant for origin in moved):
        return [_key(graph, value)]
    return [_key(graph, origin) for origin in moved if not origin.is_constant]


def _constant_levels(value: Value) -> MaskLevels:
    """Return the levels of a constant that may be a mask; infinite ones for other values and external constants."""
    lowest = largest = 0.0
    for origin in float_values(find_origins(value, _MOVERS)):
        if origin.constant_proto is not None and not is_external(origin.constant_proto):
            for piece in read_pieces(origin.constant_proto, None):
                if piece.size:
                    lowest, largest = min(lowest, float(piece.min())), max(largest, float(piece.max()))
    size = max(-lowest, largest)
    if not size >= SMALLEST_MASK:
        return _NO_LEVELS
    level = min(size / 2, SENTINEL)  # also of an infinite mask
    return MaskLevels(level if -lowest >= level else math.inf, level if largest >= level else math.inf)


def _key(graph: Graph, value: Value) -> TensorRef:
    """Return the TensorRef of a value; one that no run observes for an input of a function or of a body."""
    if value.producer is not None:
        return output_ref(graph, value.producer, value.output_slot)
    main = not graph.path and value.scope is graph.root and value in graph.root.inputs
    return TensorRef("", "", graph.root.inputs.index(value) if main else -1)
