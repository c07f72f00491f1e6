"""Estimate the work of a model from its shapes: operations and bytes moved, in low and in high precision.

No session runs. A node's bytes are the sizes of its inputs and outputs at their types, as if no cache kept a tensor and
no kernel fused two nodes. So the bytes are an upper bound, made the same way for two models that are compared.

- A weight counts once, however many nodes read it.
- A node that reads only constants costs nothing, because a runtime computes it when it loads the model. Its output
  counts as a weight.
- A node that only views its input (Reshape) moves no bytes. A node that picks elements (Gather, Slice) reads as many
  bytes as it writes.
- A node whose shapes do not follow from the model is listed as unknown. Its cost is never guessed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING

from mixlist.model import dtypes
from mixlist.model.build import build_graph
from mixlist.model.graph import Graph, Node, Scope, Value, float_values
from mixlist.model.load import LoadedModel, load_model
from mixlist.model.low_precision import LOW_TYPES
from mixlist.model.naming import node_ref
from mixlist.model.refs import NodeResult
from mixlist.model.shape_propagation import KnownShapes, Shape, propagate_shapes
from mixlist.model.traits import Trait, operators
from mixlist.targets.operation_counts import UnknownShapeError, count_flops, is_matrix_operator

if TYPE_CHECKING:
    from mixlist.decide.decisions import GraphSolution
    from mixlist.model.proto_types import ModelSource

_VIEWS = operators(Trait.VIEWS)
_PICKS = operators(Trait.PICKS)
_YIELDS_SHAPE = operators(Trait.YIELDS_SHAPE)
# An operator whose name holds one of these words may compute a matrix product inside.
_MATRIX_WORDS = ("Attention", "Conv", "GRU", "Gemm", "LSTM", "MatMul", "MoE", "RNN")
# The bits of one element, by TensorProto.DataType. A string (8) has no fixed size, so it is left out and counts 0.
_BITS = {
    1: 32, 2: 8, 3: 8, 4: 16, 5: 16, 6: 32, 7: 64, 9: 8, 10: 16, 11: 64, 12: 32, 13: 64, 14: 64, 15: 128, 16: 16,
    17: 8, 18: 8, 19: 8, 20: 8, 21: 4, 22: 4, 23: 4, 24: 8, 25: 2, 26: 2,
}  # fmt: skip


@dataclass(frozen=True)
class NodeCost:
    """The cost of one node, over all iterations in which its graph runs.

    ``low_flops``: the operations in float16 or bfloat16, part of ``flops``. ``is_matrix``: True for a matrix product or
    a convolution on floats. ``unknown``: the reason why the node could not be counted, "" if it was.
    """

    flops: int = 0
    low_flops: int = 0
    bytes: int = 0
    is_matrix: bool = False
    unknown: str = ""


@dataclass
class Costs:
    """The costs of a model.

    ``known_shapes``: the shapes from which the costs follow. ``nodes``: the cost of each node, by node id.
    ``assumptions``: the control-flow nodes whose iterations or branch depend on data, and which case is counted.
    """

    graph: Graph
    known_shapes: KnownShapes
    nodes: dict[int, NodeCost] = field(default_factory=dict)
    assumptions: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class OpWork:
    """The work of all nodes of one op type.

    ``nodes``: the number of these nodes. ``low_flops``: the part of ``flops`` in float16 or bfloat16.
    """

    op_type: str
    domain: str
    nodes: int
    flops: int
    low_flops: int
    bytes: int


@dataclass(frozen=True)
class UnknownNode(NodeResult):
    """A node that is not counted, and the reason."""

    reason: str


@dataclass(frozen=True)
class Work:
    """The estimated work of one model. ``matrix_flops``: the operations of matrix products and convolutions.

    ``once``: the control-flow nodes whose iterations or branch depend on data, and which case is counted: one
    iteration, or the costlier branch.
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
        """Return the share of matrix and convolution operations in low precision (0 to 1); None if there are none."""
        return self.low_matrix_flops / self.matrix_flops if self.matrix_flops else None


def estimate_work(
    model: ModelSource | LoadedModel, dims: Mapping[str, int] | None = None, inputs: Mapping[str, Shape] | None = None
) -> Work:
    """Return the estimated work of one model.

    ``dims`` gives the sizes of symbolic dimensions, ``inputs`` whole input shapes by input name. Raises the errors of
    ``load_model``.
    """
    loaded = load_model(model)
    return _sum_up(loaded.name, estimate_costs(build_graph(loaded.proto, show_marked_casts=True), dims, inputs))


def estimate_costs(
    graph: Graph, dims: Mapping[str, int] | None = None, inputs: Mapping[str, Shape] | None = None
) -> Costs:
    """Return the cost of each node of a model. For the graph of a Plan, pass ``plan.solution.graph``."""
    costs = Costs(graph, propagate_shapes(graph, dims or {}, inputs or {}))
    _Estimator().add_scope(costs, graph.root, 1)
    return costs


def compute_low_share(solution: GraphSolution, low_type: str, costs: Costs) -> float | None:
    """Return the share of matrix and convolution operations (0 to 1) in low precision under the decisions.

    ``low_type``: ``float16`` or ``bfloat16``. ``costs``: the result of ``estimate_costs(solution.graph, ...)``. The
    result is None if the model has no such operations.
    """
    from mixlist.decide.decisions import find_precision

    flops = Counter[str]()
    for node in solution.graph.nodes:
        cost = costs.nodes.get(node.id)
        if cost is not None and cost.is_matrix:
            flops[find_precision(solution, node)] += cost.flops
    return flops[low_type] / flops.total() if flops.total() else None


def _sum_up(name: str, costs: Costs) -> Work:
    """Return the sums of a model's costs, by op type and in all."""
    costs_by_op: dict[tuple[str, str], list[NodeCost]] = {}
    unknown = []
    for node in costs.graph.nodes:
        cost = costs.nodes.get(node.id)
        if cost is not None and cost.unknown:
            unknown.append(UnknownNode(*node_ref(node), node.op_type, cost.unknown))
        elif cost is not None:
            costs_by_op.setdefault((node.op_type, node.domain), []).append(cost)
    # The keys are (op type, domain), in the order of the fields of OpWork.
    rows = [OpWork(*key, len(nodes), *_totals(nodes)) for key, nodes in costs_by_op.items()]
    rows.sort(key=lambda row: (-row.flops, -row.bytes, row.op_type))
    flops, low_flops, moved_bytes = _totals(rows)
    # Of these rows, products of integers have no operations, so they do not change the share in low precision.
    matrix_rows = [row for row in rows if is_matrix_operator(row.domain, row.op_type)]
    matrix_flops, low_matrix_flops, _ = _totals(matrix_rows)
    once = tuple(costs.assumptions)
    return Work(name, tuple(rows), flops, low_flops, matrix_flops, low_matrix_flops, moved_bytes, tuple(unknown), once)


def _totals(costs: Sequence[NodeCost | OpWork]) -> tuple[int, int, int]:
    """Return the sums of operations, of operations in low precision, and of bytes."""
    return sum(c.flops for c in costs), sum(c.low_flops for c in costs), sum(c.bytes for c in costs)


class _Estimator:
    """Estimates the costs of a model.

    ``counted_weights``: the weights whose bytes are counted already.
    """

    def __init__(self) -> None:
        self.counted_weights: set[Value] = set()

    def add_scope(self, costs: Costs, scope: Scope, runs: int) -> None:
        """Add the costs of ``runs`` runs of a scope, with the bodies below it."""
        for node in scope.nodes:
            if node.bodies:
                for body, iterations in self._bodies_that_run(costs, node):
                    self.add_scope(costs, body, runs * iterations)
            else:
                costs.nodes[node.id] = self._node_cost(costs, node, runs)

    def _bodies_that_run(self, costs: Costs, node: Node) -> list[tuple[Scope, int]]:
        """Return the bodies that run and their iterations; add a text to ``costs.assumptions`` if data decides them."""
        if node.op_type == "If" and node.domain == "":
            return [(node.bodies[self._branch_name(costs, node)], 1)]
        # Loop and Scan may show their number of iterations. An operator with bodies of another domain shows nothing.
        count = {"Loop": _loop_iterations, "Scan": _scan_iterations}.get(node.op_type) if node.domain == "" else None
        iterations = count(node, costs.known_shapes) if count else None
        if iterations is None:
            costs.assumptions.append(f"{node_ref(node)} ({node.op_type}): one iteration")
        return [(body, 1 if iterations is None else iterations) for body in node.bodies.values()]

    def _branch_name(self, costs: Costs, node: Node) -> str:
        """Return the attribute of the branch of an If that runs; if data decides, that of the costlier branch."""
        # The condition is known if it follows from shapes and constants, as in: Shape -> Equal -> If.
        condition = costs.known_shapes.arrays.get(node.inputs[0]) if node.inputs[0] is not None else None
        if condition is not None and condition.size == 1:
            return "then_branch" if bool(condition.reshape(())) else "else_branch"
        branch_costs = {}
        for name, body in node.bodies.items():
            # An estimator of its own: weights read in a branch that is not counted must not count as read.
            estimate = Costs(costs.graph, costs.known_shapes)
            _Estimator().add_scope(estimate, body, 1)
            flops, _, moved_bytes = _totals([*estimate.nodes.values()])
            branch_costs[name] = (flops, moved_bytes)
        # Sorted, so that branches with equal costs lead to the same choice every time.
        branch = max(sorted(branch_costs), key=lambda name: branch_costs[name])
        costs.assumptions.append(f"{node_ref(node)} (If): {branch}, the costlier one")
        return branch

    def _node_cost(self, costs: Costs, node: Node, runs: int) -> NodeCost:
        """Return the cost of a node without bodies over all its runs; ``unknown`` if it cannot be counted."""
        # A runtime computes a constant node when it loads the model. This is also true of a node without outputs.
        if all(v.is_constant for v in node.outputs if v is not None):
            return NodeCost()
        elem = _computing_type(node)
        is_matrix = is_matrix_operator(node.domain, node.op_type)
        # One operation per output element would be far too few for a matrix product.
        if not is_matrix and not _has_no_matrix_product(node):
            return NodeCost(unknown="no formula for this operator")
        try:
            flops = _node_flops(costs, node) * runs if elem else 0
            moved_bytes = self._bytes(node, costs.known_shapes, runs)
        except UnknownShapeError:
            return NodeCost(unknown="its shapes are not known")
        except (LookupError, ValueError, TypeError, ZeroDivisionError):  # a formula met a node that is not valid
            return NodeCost(unknown="its shapes and attributes do not fit its definition")
        # A product of integers, as of MatMulInteger, has no float operations.
        return NodeCost(flops, flops if elem in LOW_TYPES else 0, moved_bytes, is_matrix=is_matrix and elem is not None)

    def _bytes(self, node: Node, known_shapes: KnownShapes, runs: int) -> int:
        """Return the bytes that a node reads and writes in all its runs; a weight counts for the first reader only."""
        standard = node.domain == ""
        if standard and node.op_type in _VIEWS:
            return 0
        outputs = [_byte_size(v, known_shapes) for v in node.outputs if v is not None]
        inputs = [] if standard and node.op_type in _YIELDS_SHAPE else [v for v in node.inputs if v is not None]
        picked = 0
        if standard and node.op_type in _PICKS:
            # Gather(table, indices) reads the indices, and of the table only as many bytes as it writes.
            inputs, picked = inputs[1:], outputs[0]
        total = (picked + sum(outputs)) * runs
        # A weight counts once, also in a loop. Other tensors are new in each run.
        for value in inputs:
            if not value.is_constant:
                total += _byte_size(value, known_shapes) * runs
            elif value not in self.counted_weights:
                total += _byte_size(value, known_shapes)
                self.counted_weights.add(value)
        return total


def _computing_type(node: Node) -> int | None:
    """Return the element type in which a node computes; None if it has no float.

    It is the type of the first float input. Inputs that are not constant come first, because a constant such as a scale
    may have another type. A node without a float input has the type of its first float output.
    """
    variable_inputs = [value for value in node.inputs if value is not None and not value.is_constant]
    floats = float_values((*variable_inputs, *node.inputs, *node.outputs))
    return dtypes.element(floats[0].type) if floats else None


def _has_no_matrix_product(node: Node) -> bool:
    """Return True if the name of a node without a formula shows that it holds no matrix product.

    Such a node costs one operation per output element. The cost of other nodes without a formula is unknown.
    """
    return node.domain in ("", "com.microsoft") and not any(word in node.op_type for word in _MATRIX_WORDS)


def _node_flops(costs: Costs, node: Node) -> int:
    """Return the operations of one run of a node. Raises UnknownShapeError if the shape of a tensor is not known."""
    shapes = costs.known_shapes.shapes
    if any(value is not None and value not in shapes for value in (*node.inputs, *node.outputs)):
        raise UnknownShapeError
    inputs, outputs = ([shapes[v] if v is not None else None for v in slots] for slots in (node.inputs, node.outputs))
    return count_flops(node.domain, node.op_type, {a.name: a for a in node.proto.attribute}, inputs, outputs)


def _byte_size(value: Value, known_shapes: KnownShapes) -> int:
    """Return the bytes of a tensor, rounded up. Raises UnknownShapeError for sequences and unknown shapes."""
    shape = known_shapes.shape_of(value)
    if shape is None or isinstance(value.type, tuple):
        raise UnknownShapeError
    return (prod(shape) * _BITS.get(value.type, 0) + 7) // 8


def _loop_iterations(node: Node, known_shapes: KnownShapes) -> int | None:
    """Return the number of iterations of a Loop; None if it is not known, or if the condition may end the Loop early.

    The number is known if the trip count is a constant, the start condition is true or left out, and the body
    returns a condition that is always true or is the condition that it got.
    """
    # A Loop may leave out its trip count and its start condition.
    trip_count, start = (known_shapes.arrays.get(v) if v is not None else None for v in (*node.inputs, None, None)[:2])
    body = node.bodies["body"]
    condition = body.outputs[0]
    # Exporters often write cond_out = Identity(cond_in).
    while (
        condition.producer is not None
        and condition.producer.op_type == "Identity"
        and condition.producer.inputs[0] is not None
    ):
        condition = condition.producer.inputs[0]
    constant_condition = known_shapes.arrays.get(condition)
    keeps_condition = condition is body.inputs[1] or (constant_condition is not None and bool(constant_condition.all()))
    is_start_true = len(node.inputs) < 2 or node.inputs[1] is None or (start is not None and bool(start.all()))
    return max(int(trip_count.reshape(())), 0) if trip_count is not None and keeps_condition and is_start_true else None


def _scan_iterations(node: Node, known_shapes: KnownShapes) -> int | None:
    """Return the length of the first sequence of a Scan of opset 9 or later; None if it is not known."""
    # Scan(state_1 ... state_n, sequence_1 ... sequence_m), where m is ``num_scan_inputs``.
    attributes = {a.name: a for a in node.proto.attribute}
    count = attributes["num_scan_inputs"].i
    shape = known_shapes.shape_of(node.inputs[len(node.inputs) - count]) if count else None
    axes = list(attributes["scan_input_axes"].ints) if "scan_input_axes" in attributes else [0]
    return shape[axes[0]] if shape else None
