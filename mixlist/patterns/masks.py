"""Masks: large negative numbers that are added to scores so that a softmax makes zero of them.

In float16 a mask of -1e9, or one of -65504 and a score, is -infinity, of which the softmax makes zero just as well.
That is by design, but only where it can be proven from the graph: a constant, the constant branch of a Where or a
constant factor (``(1 - mask) * -1e9``), which Add, Sub, Max, Where and what moves values carry to a softmax, and
nowhere else. A value that only reaches such a size is an overflow.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mixlist.graph.dataflow import DataflowNode
from mixlist.graph.model import Graph, Node, Value, floats_of
from mixlist.graph.naming import output_ref
from mixlist.graph.refs import TensorRef
from mixlist.graph.weights import is_external, pieces
from mixlist.ops import types
from mixlist.ops.low_precision import overflow_bound
from mixlist.ops.traits import Trait, operators
from mixlist.patterns.constants import origins

SENTINEL = 1e37  # no quantity reaches it; masks are written with float32's lowest value
LEAST = 1e4  # the smallest number that models write as a mask
_BOUND = overflow_bound(types.FLOAT16)
# A Cast rounds, but a mask stays a mask. What a Where puts beside the mask counts as added to it: it may overflow too.
_MOVERS = operators(Trait.MOVES_VALUES) - {"Where"} | {"Cast"}
_CARRIERS = _MOVERS | {"Add", "Sub", "Max", "Where"}  # the operators that Rule S8.12 names
_SOFTMAX = operators(Trait.SOFTMAX)


@dataclass(frozen=True)
class Mask:
    """A tensor that carries a mask: from ``level``, half the constant, on a magnitude is the mask's.

    ``beside``: what is added to the mask; ``factors``: what the constant was multiplied by, which must be 0 or 1.
    """

    level: float
    beside: frozenset[TensorRef] = frozenset()
    factors: frozenset[TensorRef] = frozenset()

    def holds(self, magnitudes: Mapping[TensorRef, float], bound: float) -> bool:
        """Return True if every value that overflows belongs to the mask or is smaller than ``level``.

        ``bound`` is the least magnitude that overflows; ``magnitudes`` are the largest of the batch in float32.
        """
        if any(magnitudes.get(tensor, math.inf) > 1 for tensor in self.factors):
            return False
        return self.level > bound or self._keeps(magnitudes, bound)

    def hides_nothing(self, magnitudes: Mapping[TensorRef, float], bound: float) -> bool:
        """Return True if only the mask's values can overflow: the values that are added to it are too small.

        A factor between 0 and 1 could make a value of any size, if the constant is not beyond all quantities.
        """
        whole = not self.factors or self.level >= SENTINEL
        return whole and self.holds(magnitudes, bound) and self._keeps(magnitudes, bound)

    def _keeps(self, magnitudes: Mapping[TensorRef, float], bound: float) -> bool:
        return sum(magnitudes.get(tensor, math.inf) for tensor in self.beside) < bound


def find_masks(nodes: Iterable[DataflowNode]) -> dict[TensorRef, Mask]:
    """The tensors of a model that carry a mask to a softmax, as far as it can be proven."""
    graphs = dict.fromkeys(each.graph for each in nodes)
    return {ref: mask for graph in graphs for ref, mask in _of_graph(graph).items()}


def _of_graph(graph: Graph) -> dict[TensorRef, Mask]:
    ending = _ending(graph)
    known: dict[Value, Mask] = {}
    found: dict[TensorRef, Mask] = {}
    for node in graph.order:
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
    """The values that reach a softmax and nothing else: not a graph output, no other operator."""
    readers: dict[Value, list[Node]] = {}
    bad: set[Value] = set(graph.root.outputs)
    for node in graph.order:
        for value in node.inputs:
            if value is not None:
                readers.setdefault(value, []).append(node)
        for body in node.bodies.values():
            bad.update(body.outputs)
    ending: set[Value] = set()
    for node in reversed(graph.order):
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
    """The mask in a node's output: one that it reads, or one that its constant makes."""
    read = floats_of(node.inputs)
    masks = [known[v] for v in read if v in known] if node.op_type in _CARRIERS else []
    others = frozenset(_key(graph, v) for v in read if v not in known and not v.constant)
    size = max(map(_size, read), default=0.0) if node.op_type in ("Add", "Sub", "Where", "Mul") else 0.0
    if node.op_type == "Mul":
        return Mask(size / 2, factors=others) if size >= LEAST and not _BOUND <= size < 2 * _BOUND else None
    if size >= LEAST:
        masks.append(Mask(size / 2))
    if not masks:
        return None
    beside = others if node.op_type not in _MOVERS else frozenset[TensorRef]()
    return Mask(
        min(mask.level for mask in masks),
        beside.union(*(mask.beside for mask in masks)),
        frozenset[TensorRef]().union(*(mask.factors for mask in masks)),
    )


def _size(value: Value) -> float:
    """The magnitude of the lowest or largest number of a constant; 0 for what is none or cannot be read here."""
    sizes = [0.0]
    for origin in floats_of(origins(value, _MOVERS)):
        if origin.tensor is not None and not is_external(origin.tensor):
            sizes += [float(abs(piece).max()) for piece in pieces(origin.tensor, None) if piece.size]
    return max(sizes)


def _key(graph: Graph, value: Value) -> TensorRef:
    """The TensorRef of a value; one that nobody observed for what a caller or a loop passes in."""
    if value.producer is not None:
        return output_ref(graph, value.producer, value.out)
    main = not graph.path and value.scope is graph.root and value in graph.root.inputs
    return TensorRef("", "", graph.root.inputs.index(value) if main else -1)
