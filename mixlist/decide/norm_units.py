"""Rule S4.47: a written-out normalization computes in float32 from its squares to its quotient.

Exporters write normalizations as several nodes:

    x -> Sub(mean) -> a -> Pow(2) -> ReduceMean -> Add(epsilon) -> Sqrt -> Div(a, .) -> Mul(scale) -> Add(bias)

In float16 the squares are infinite from ``a`` = 256 on, and zero below ``a`` = 1.7e-4. So Pow, ReduceMean, Add, Sqrt
and Div stay float32. They read one Cast of ``a``, and one Cast brings the quotient back: with these two Casts, ONNX
Runtime still finds its LayerNormalization and fuses it with the nodes around it. With a Cast at any other place it does
not.

``quantized_units`` keeps the units, and lets a node rule move each of them as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator

from mixlist.decide.constant_ranges import ConstantRanges
from mixlist.model import dtypes
from mixlist.model.graph import Graph, Node, Value, has_container
from mixlist.model.traits import Trait, operators

_MOVERS = operators(Trait.MOVES_VALUES)
_SUMS = frozenset({"ReduceMean", "ReduceSum"})
# The nodes that a unit goes through, between the square and the root.
_CARRIERS = _MOVERS | _SUMS | {"Add", "Sub", "Mul", "Div", "Max", "Min", "Clip"}
_MOST_NODES = 24  # between the square and the quotient: more are no normalization

Readers = dict[Value, list[Node]]


def find_norm_nodes(graph: Graph, ranges: ConstantRanges, readers: Readers) -> Iterator[tuple[Node, ...]]:
    """Yield the nodes of each written-out normalization, in topological order. The first one is the square."""
    for square in graph.nodes:
        squared = _find_squared(square, ranges)
        if squared is not None:
            nodes = _find_nodes_behind(square, squared, ranges, readers)
            if any(node.op_type in _SUMS for node in nodes):
                yield (square, *sorted(nodes, key=lambda node: node.id))


def _find_squared(node: Node, ranges: ConstantRanges) -> Value | None:
    """Return the float32 tensor that a node squares; None if it squares none."""
    if not node.is_plain or len(node.inputs) != 2:
        return None
    first, second = node.inputs
    is_square = node.op_type == "Mul" and first is second
    is_square |= node.op_type == "Pow" and _single_value(second, ranges) == 2
    # Not the type of the value: in a rewritten model, a hidden Cast may lie between (Rule S4.18).
    is_data = first is not None and not first.is_constant and node.input_types[0] == dtypes.FLOAT
    return first if is_square and is_data else None


def _single_value(value: Value | None, ranges: ConstantRanges) -> float | None:
    """Return the number of a constant whose elements are all equal; None for any other value."""
    constant_range = ranges.range_of(value) if value is not None else None
    return constant_range.single_value if constant_range is not None else None


def _find_nodes_behind(square: Node, squared: Value, ranges: ConstantRanges, readers: Readers) -> set[Node]:
    """Return the nodes from a square to each root, and the quotients with the squared tensor."""
    # First follow the squares forward. Of each node that is reached, note the nodes from which it was reached.
    came_from: dict[Node, list[Node]] = {square: []}
    waiting, ends = [square], list[Node]()
    while waiting and len(came_from) <= _MOST_NODES:
        node = waiting.pop()
        for reader in _readers_of(node, readers):
            if node in came_from.setdefault(reader, []):
                continue
            came_from[reader].append(node)
            if _is_root(reader, ranges):
                ends.append(reader)
            elif reader.op_type in _CARRIERS and reader.is_plain and not has_container(reader):
                waiting.append(reader)
    if len(came_from) > _MOST_NODES:
        return set()
    # Then go back from the roots: a node from which no root is reached is none of the unit.
    nodes = set[Node]()
    waiting = list(ends)
    while waiting:
        node = waiting.pop()
        if node is not square and node not in nodes:
            nodes.add(node)
            waiting += came_from[node]
    for end in ends:
        nodes |= _find_quotients(end, squared, readers)
    return nodes


def _is_root(node: Node, ranges: ConstantRanges) -> bool:
    """Return whether a node takes a root, a reciprocal or a logarithm."""
    if node.op_type == "Pow":
        exponent = _single_value(node.inputs[1], ranges) if len(node.inputs) > 1 else None
        return node.is_plain and exponent is not None and exponent < 1
    return node.op_type in ("Sqrt", "Reciprocal", "Log") and node.is_plain


def _find_quotients(root: Node, squared: Value, readers: Readers) -> set[Node]:
    """Return the nodes behind a root to the quotients of the squared tensor; empty without a quotient."""
    paths: dict[Node, tuple[Node, ...]] = {root: ()}
    waiting, nodes = [root], set[Node]()
    while waiting:
        node = waiting.pop()
        for reader in _readers_of(node, readers):
            if reader in paths or not reader.is_plain:
                continue
            paths[reader] = (*paths[node], reader)
            if reader.op_type in ("Div", "Mul") and any(_is_same(value, squared) for value in reader.inputs):
                nodes.update(paths[reader])
            elif _leads_to_quotient(reader) and len(paths[reader]) <= 4:
                waiting.append(reader)
    return nodes


def _leads_to_quotient(node: Node) -> bool:
    """Return whether a node behind a root may come before the quotient; 1 over the root is a reciprocal, too."""
    if node.op_type == "Div":
        return node.inputs[0] is not None and node.inputs[0].is_constant
    return node.op_type in _MOVERS or node.op_type in ("Reciprocal", "Clip", "Max", "Add")


def _is_same(value: Value | None, squared: Value) -> bool:
    """Return whether a value is the squared tensor, or another node computes it in the same way."""
    if value is squared or value is None:
        return value is squared
    node, twin = value.producer, squared.producer
    if node is None or twin is None or node.op_type != twin.op_type:
        return False
    return node.inputs == twin.inputs and value.output_slot == squared.output_slot


def _readers_of(node: Node, readers: Readers) -> Iterator[Node]:
    """Yield the nodes of the same scope that read an output of a node."""
    for value in node.outputs:
        for reader in readers.get(value, ()) if value is not None else ():
            if reader.scope is node.scope:
                yield reader
