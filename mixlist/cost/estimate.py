"""A static account of a model from shapes: operations and bytes moved, in low and in high precision, on any machine.

Bytes are those of all inputs and outputs at their types, as if nothing stayed in a cache and nothing were fused:
a bound, the same for both models that are compared. A weight counts once, however many nodes read it; a node that reads
constants alone is computed at load time, so it costs nothing and what it makes is a weight. What only views its input
(Reshape) moves nothing; what picks from it (Gather, Slice) reads as much as it yields. A node whose shapes do not
follow from the model is counted and named, never guessed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING

from mixlist.cost.operation_counts import UnknownShapeError, flops, is_matrix
from mixlist.graph.build import bind, build_main
from mixlist.graph.io import Loaded, load
from mixlist.graph.model import Graph, Node, Scope, Value, floats_of
from mixlist.graph.naming import node_ref
from mixlist.graph.refs import NodeResult
from mixlist.graph.shape_propagation import Shape, Sizes, sizes_in_function, sizes_of
from mixlist.ops import types
from mixlist.ops.low_precision import LOW
from mixlist.ops.traits import Trait, operators

if TYPE_CHECKING:
    from mixlist.graph.protos import ModelSource
    from mixlist.resolver.decisions import GraphSolution

_VIEWS = operators(Trait.VIEWS)
_PICKS = operators(Trait.PICKS)
_YIELDS_SHAPE = operators(Trait.YIELDS_SHAPE)
_WORDS = ("Attention", "Conv", "GRU", "Gemm", "LSTM", "MatMul", "MoE", "RNN")  # of operators that may hold products
_BITS = {
    1: 32, 2: 8, 3: 8, 4: 16, 5: 16, 6: 32, 7: 64, 9: 8, 10: 16, 11: 64, 12: 32, 13: 64, 14: 64, 15: 128, 16: 16,
    17: 8, 18: 8, 19: 8, 20: 8, 21: 4, 22: 4, 23: 4, 24: 8, 25: 2, 26: 2,
}  # fmt: skip


@dataclass(frozen=True)
class NodeCost:
    """One node, for all the times that its graph runs it; ``unknown`` says why it could not be counted, or is ""."""

    flops: int = 0
    low_flops: int = 0  # those in float16 or bfloat16
    bytes: int = 0
    matrix: bool = False
    unknown: str = ""


@dataclass
class Costs:
    """The nodes of one graph by their id, the graphs of functions by the call's; ``once`` names control flow."""

    graph: Graph
    sizes: Sizes
    nodes: dict[int, NodeCost] = field(default_factory=dict)
    calls: dict[int, Costs] = field(default_factory=dict)
    once: list[str] = field(default_factory=list)

    def graphs(self) -> Iterator[Costs]:
        """Yield these costs and those of all calls below."""
        yield self
        for call in self.calls.values():
            yield from call.graphs()


@dataclass(frozen=True)
class OpWork:
    """The nodes of one op type: how many, their operations and, of these, those in low precision; bytes moved."""

    op_type: str
    domain: str
    nodes: int
    flops: int
    low_flops: int
    bytes: int


@dataclass(frozen=True)
class UnknownNode(NodeResult):
    """A node that is not in the account, and why."""

    reason: str


@dataclass(frozen=True)
class Work:
    """The account of one model. ``matrix_flops``: those of matrix products and convolutions.

    ``once``: control flow of which one iteration or the costlier branch is counted, since data decides.
    """

    model: str
    ops: tuple[OpWork, ...]
    flops: int
    low_flops: int
    matrix_flops: int
    low_matrix_flops: int
    bytes: int
    unknown: tuple[UnknownNode, ...]
    once: tuple[str, ...]

    @property
    def low_share(self) -> float | None:
        """Share of matrix and convolution operations in low precision; None where there are none."""
        return self.low_matrix_flops / self.matrix_flops if self.matrix_flops else None


def work(
    model: ModelSource | Loaded, dims: Mapping[str, int] | None = None, inputs: Mapping[str, Shape] | None = None
) -> Work:
    """The account of one model.

    ``dims`` gives symbolic dimensions their size, ``inputs`` whole input shapes by name. Raises what ``load`` raises.
    """
    loaded = load(model)
    return _sum(loaded.name, costs(build_main(loaded.proto, show_marked=True), dims, inputs))


def costs(graph: Graph, dims: Mapping[str, int] | None = None, inputs: Mapping[str, Shape] | None = None) -> Costs:
    """Return the cost of each node of a main graph; for a Plan, give ``plan.solution.graph``."""
    return _Walk().graph(graph, sizes_of(graph, dims or {}, inputs or {}), {}, 1)


def low_share(main: GraphSolution, low: str, of: Costs) -> float | None:
    """Share of matrix and convolution operations that a main graph's solution makes low; None where there are none.

    ``low``: the low type; ``of``: ``costs(main.graph, ...)``.
    """
    flops = _matrix_flops(main, of)
    return flops[low] / flops.total() if flops.total() else None


def _matrix_flops(solution: GraphSolution, of: Costs) -> Counter[str]:
    """Return the matrix and convolution operations by the precision that a solution gives them, with those of calls."""
    from mixlist.resolver.decisions import find_precision

    flops = Counter[str]()
    for node in solution.graph.order:
        cost = of.nodes.get(node.id)
        if cost is not None and cost.matrix:
            flops[find_precision(solution, node)] += cost.flops
        if node.id in of.calls:
            flops.update(_matrix_flops(solution.callees[node.id], of.calls[node.id]))
    return flops


def _sum(name: str, of: Costs) -> Work:
    costs_of: dict[tuple[str, str], list[NodeCost]] = {}
    unknown = []
    for part in of.graphs():
        for node in part.graph.order:
            cost = part.nodes.get(node.id)
            if cost is not None and cost.unknown:
                unknown.append(UnknownNode(*node_ref(part.graph, node), node.op_type, cost.unknown))
            elif cost is not None:
                costs_of.setdefault((node.op_type, node.domain), []).append(cost)
    rows = [OpWork(*key, len(nodes), *_totals(nodes)) for key, nodes in costs_of.items()]
    rows.sort(key=lambda row: (-row.flops, -row.bytes, row.op_type))
    flops, low_flops, moved = _totals(rows)
    matrix_flops, low_matrix_flops, _ = _totals([row for row in rows if is_matrix(row.domain, row.op_type)])
    once = tuple(text for part in of.graphs() for text in part.once)
    return Work(name, tuple(rows), flops, low_flops, matrix_flops, low_matrix_flops, moved, tuple(unknown), once)


def _totals(costs: Sequence[NodeCost | OpWork]) -> tuple[int, int, int]:
    """Return the sums of operations, of those in low precision, and of bytes."""
    return sum(c.flops for c in costs), sum(c.low_flops for c in costs), sum(c.bytes for c in costs)


Weights = dict[Value, Value]  # the weight behind each argument of a function that is one


class _Walk:
    """Costs of all graphs of one model; remembers which weights have been counted."""

    def __init__(self) -> None:
        self.counted: set[Value] = set()

    def graph(self, graph: Graph, sizes: Sizes, weights: Weights, times: int) -> Costs:
        """Return the costs of a main graph or of one call of a function; ``times``: how often it runs."""
        found = Costs(graph, sizes)
        self._scope(found, graph.root, weights, times)
        return found

    def _scope(self, found: Costs, scope: Scope, weights: Weights, times: int) -> None:
        for node in scope.nodes:
            if node.function is not None:
                given = _weight_arguments(node.function, node, weights)
                inner = sizes_in_function(node.function, node, found.sizes)
                found.calls[node.id] = self.graph(node.function, inner, given, times)
            elif node.bodies:
                for body, repeats in self._bodies(found, node, weights):
                    self._scope(found, body, weights, times * repeats)
            else:
                found.nodes[node.id] = self._node(found, node, weights, times)

    def _bodies(self, found: Costs, node: Node, weights: Weights) -> list[tuple[Scope, int]]:
        """Return the bodies that run, and how often; note in ``found.once`` what data decides."""
        if node.op_type == "If" and node.domain == "":
            return [(node.bodies[self._branch(found, node, weights)], 1)]
        count = {"Loop": _trips, "Scan": _scan_length}.get(node.op_type) if node.domain == "" else None
        repeats = count(node, found.sizes) if count else None
        if repeats is None:
            found.once.append(f"{node_ref(found.graph, node)} ({node.op_type}): one iteration")
        return [(body, 1 if repeats is None else repeats) for body in node.bodies.values()]

    def _branch(self, found: Costs, node: Node, weights: Weights) -> str:
        condition = found.sizes.known.get(node.inputs[0]) if node.inputs[0] is not None else None
        if condition is not None and condition.size == 1:
            return "then_branch" if bool(condition.reshape(())) else "else_branch"
        prices = {}
        for name, body in node.bodies.items():
            trial, probe = Costs(found.graph, found.sizes), _Walk()
            probe._scope(trial, body, weights, 1)
            flops, _, moved = _totals([cost for part in trial.graphs() for cost in part.nodes.values()])
            prices[name] = (flops, moved)
        branch = max(sorted(prices), key=lambda name: prices[name])
        found.once.append(f"{node_ref(found.graph, node)} (If): {branch}, the costlier one")
        return branch

    def _node(self, found: Costs, node: Node, weights: Weights, times: int) -> NodeCost:
        if all(v.constant for v in node.outputs if v is not None):
            return NodeCost()
        elem = _computed_in(node)
        known = is_matrix(node.domain, node.op_type)
        if not known and not _is_elementwise(node):
            return NodeCost(unknown="no formula for this operator")
        try:
            count = _flops(found, node) * times if elem else 0
            moved = self._bytes(node, found.sizes, weights, times)
        except UnknownShapeError:
            return NodeCost(unknown="its shapes are not known")
        except (LookupError, ValueError, TypeError, ZeroDivisionError):
            return NodeCost(unknown="its shapes and attributes do not fit its definition")
        return NodeCost(count, count if elem in LOW else 0, moved, matrix=known and elem is not None)

    def _bytes(self, node: Node, sizes: Sizes, weights: Weights, times: int) -> int:
        standard = node.domain == ""
        if standard and node.op_type in _VIEWS:
            return 0
        outputs = [_size(v, sizes) for v in node.outputs if v is not None]
        inputs = [] if standard and node.op_type in _YIELDS_SHAPE else [v for v in node.inputs if v is not None]
        picked = 0
        if standard and node.op_type in _PICKS:
            inputs, picked = inputs[1:], outputs[0]
        total = (picked + sum(outputs)) * times
        for value in inputs:
            weight = _weight_of(value, weights)
            if weight is None:
                total += _size(value, sizes) * times
            elif weight not in self.counted:
                total += _size(value, sizes)
                self.counted.add(weight)
        return total


def _weight_of(value: Value, weights: Weights) -> Value | None:
    """Return the weight that a tensor is: itself, or what the caller of the function hands in."""
    return value if value.constant and value.kind != "input" else weights.get(value)


def _weight_arguments(function: Graph, call: Node, weights: Weights) -> Weights:
    arguments = zip(function.root.inputs, call.inputs, strict=False)
    return {inner: weight for inner, outer in arguments if outer and (weight := _weight_of(outer, weights))}


def _computed_in(node: Node) -> int | None:
    """The element type of the first float input, of a variable rather than a constant one; else of the first output."""
    variable = [value for value in node.inputs if value is not None and not value.constant]
    floats = floats_of((*variable, *node.inputs, *node.outputs))
    return types.element(floats[0].type) if floats else None


def _is_elementwise(node: Node) -> bool:
    """Return True if the name of a node without a formula shows that it holds no matrix product.

    Such a node costs what its output elements cost; the cost of other nodes is unknown.
    """
    return node.domain in ("", "com.microsoft") and not any(word in node.op_type for word in _WORDS)


def _flops(found: Costs, node: Node) -> int:
    """Return the operations of one run of a node; raises UnknownShapeError if a tensor has no known shape."""
    shapes = found.sizes.shapes
    if any(value is not None and value not in shapes for value in (*node.inputs, *node.outputs)):
        raise UnknownShapeError
    inputs, outputs = ([shapes[v] if v is not None else None for v in slots] for slots in (node.inputs, node.outputs))
    proto = bind(node.proto, found.graph.attributes) if found.graph.path else node.proto
    return flops(node.domain, node.op_type, {a.name: a for a in proto.attribute}, inputs, outputs)


def _size(value: Value, sizes: Sizes) -> int:
    shape = sizes.of(value)
    if shape is None or isinstance(value.type, tuple):
        raise UnknownShapeError
    return (prod(shape) * _BITS.get(value.type, 0) + 7) // 8


def _trips(node: Node, sizes: Sizes) -> int | None:
    """Return the number of iterations of a Loop; None if it is unknown, or if the condition may end the Loop before."""
    limit, start = (sizes.known.get(v) if v is not None else None for v in (*node.inputs, None, None)[:2])
    body = node.bodies["body"]
    end = body.outputs[0]
    while end.producer is not None and end.producer.op_type == "Identity" and end.producer.inputs[0] is not None:
        end = end.producer.inputs[0]
    ends = sizes.known.get(end)
    goes_on = end is body.inputs[1] or (ends is not None and bool(ends.all()))
    starts = len(node.inputs) < 2 or node.inputs[1] is None or (start is not None and bool(start.all()))
    return max(int(limit.reshape(())), 0) if limit is not None and goes_on and starts else None


def _scan_length(node: Node, sizes: Sizes) -> int | None:
    """The length of a Scan's sequences (opset 9 and later: the axis of the first one)."""
    attributes = {a.name: a for a in node.proto.attribute}
    count = attributes["num_scan_inputs"].i
    shape = sizes.of(node.inputs[len(node.inputs) - count]) if count else None
    axes = list(attributes["scan_input_axes"].ints) if "scan_input_axes" in attributes else [0]
    return shape[axes[0]] if shape else None
