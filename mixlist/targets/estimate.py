"""Estimate the work of a model from its shapes: operations and bytes moved, in low and in high precision.

No session runs. A node's bytes are the sizes of its inputs and outputs at their types, as if no cache kept a tensor and
no kernel fused two nodes. So the bytes are an upper bound, made the same way for two models that are compared.

- A weight counts once, however many nodes read it.
- A node that reads only constants costs nothing, because a runtime computes it when it loads the model. Its output
  counts as a weight.
- A node that only views its input (Reshape) moves no bytes. A node that picks elements (Gather, Slice) reads as many
  bytes as it writes.
- A node whose shapes do not follow from the model is listed as unknown. Its cost is never guessed.

A multiplication and an addition are two floating-point operations (FLOPs). The formulas follow the definitions of the
operators (ONNX operator documentation; ONNX Runtime's ContribOperators for ``com.microsoft``). Faster algorithms that a
kernel may use, such as Winograd convolution, are not considered.

- Matrix products and convolutions are counted exactly, with their bias.
- A reduction or a pooling counts one operation per element that it reads.
- An operator that only moves data counts none.
- Any other operator counts one operation per output element.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from mixlist.model import dtypes
from mixlist.model.build import build_graph
from mixlist.model.graph import Graph, Node, Scope, Value, float_values
from mixlist.model.load import LoadedModel, load_model
from mixlist.model.low_precision import LOW_TYPES
from mixlist.model.naming import NodeResult, node_ref
from mixlist.model.shape_propagation import KnownShapes, Shape, propagate_shapes
from mixlist.model.traits import Trait, operators

if TYPE_CHECKING:
    from onnx import AttributeProto

    from mixlist.decide.solution import Solution
    from mixlist.model.protos import ModelSource

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


class NodeCost(NamedTuple):
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
    model: ModelSource | LoadedModel, dims: Mapping[str, int] | None = None, shapes: Mapping[str, Shape] | None = None
) -> Work:
    """Return the estimated work of one model.

    ``dims`` gives the sizes of symbolic dimensions. ``shapes`` gives whole shapes by name, of inputs and of tensors
    whose shape a run has shown. Raises the errors of ``load_model``.
    """
    loaded = load_model(model)
    return _sum_up(loaded.name, estimate_costs(build_graph(loaded.proto, show_marked_casts=True), dims, shapes))


def estimate_costs(
    graph: Graph, dims: Mapping[str, int] | None = None, shapes: Mapping[str, Shape] | None = None
) -> Costs:
    """Return the cost of each node of a model. For the graph of a Plan, pass ``plan.solution.graph``."""
    costs = Costs(graph, propagate_shapes(graph, dims or {}, shapes or {}))
    _Estimator().add_scope(costs, graph.root, 1)
    return costs


def compute_low_share(solution: Solution, low_name: str, costs: Costs) -> float | None:
    """Return the share of matrix and convolution operations (0 to 1) in low precision under the decisions.

    ``low_name``: ``float16`` or ``bfloat16``. ``costs``: the result of ``estimate_costs(solution.graph, ...)``. The
    result is None if the model has no such operations.
    """
    from mixlist.decide.solution import find_precision

    flops = Counter[str]()
    for node in solution.graph.nodes:
        cost = costs.nodes.get(node.id)
        if cost is not None and cost.is_matrix:
            flops[find_precision(solution, node)] += cost.flops
    return flops[low_name] / flops.total() if flops.total() else None


def count_moved_bytes(solution: Solution, costs: Costs) -> int:
    """Return the bytes that the nodes move under the decisions, with weights and the Casts that these need.

    It is what ``estimate_work`` counts for the rewritten model, without rewriting it. A Cast in a body that runs
    several times counts once.
    """
    from mixlist.decide.value_uses import find_uses

    types, known_shapes, outputs = solution.decided_types, costs.known_shapes, solution.graph.root.outputs
    uses = [(use, use.wanted_type) for use in find_uses(solution) if use.wanted_type is not None]
    read_types = {(use.node, use.slot): elem for use, elem in uses if use.node is not None}
    decided = Costs(solution.graph, known_shapes)
    _Estimator(lambda value: types[value.id], read_types).add_scope(decided, solution.graph.root, 1)
    moved = sum(cost.bytes for cost in decided.nodes.values())
    wanted = [(use.value, elem) for use, elem in uses]
    for value, elem in dict.fromkeys([*wanted, *((output, dtypes.element(output.type)) for output in outputs)]):
        shape, made = known_shapes.shape_of(value), types[value.id]
        if shape is not None and not value.is_constant and made in dtypes.FLOATS and made != elem:
            moved += prod(shape) * (_BITS[made] + _BITS[elem]) // 8
    return moved


def count_uncounted(costs: Costs) -> int:
    """Return the number of nodes that have no cost, because their shapes or operators are not known."""
    return sum(bool(cost.unknown) for cost in costs.nodes.values())


def describe_uncounted(costs: Costs) -> str:
    """Return which work of matrix products and convolutions the share does not count; "" if it counts all of it."""
    parts = []
    if unknown := _unknown_matrix_nodes(costs):
        parts.append(f"does not count {_list_nodes(unknown)}, whose shapes or operators are not known")
    empty = [node for node in costs.graph.root.nodes if node.id in costs.nodes and _is_empty_product(costs, node)]
    if empty:
        parts.append(f"does not count {_list_nodes(empty)}, whose outputs are empty in the counted batch")
    in_bodies = [node for node in costs.graph.nodes if node.scope is not costs.graph.root and node.id in costs.nodes]
    if costs.assumptions and any(map(_may_hold_matrix_work, in_bodies)):
        more = f" and {len(costs.assumptions) - 2} more" if len(costs.assumptions) > 2 else ""
        parts.append(f"counts {', '.join(costs.assumptions[:2])}{more}")
    return "; it ".join(parts)


def _unknown_matrix_nodes(costs: Costs) -> list[Node]:
    """Return the nodes of unknown cost with matrix work; an operator without a formula may compute a matrix product."""
    nodes = [node for node in costs.graph.nodes if node.id in costs.nodes]
    return [node for node in nodes if costs.nodes[node.id].unknown and _may_hold_matrix_work(node)]


def _is_empty_product(costs: Costs, node: Node) -> bool:
    """Return True for a matrix product or convolution whose output has no elements in the shapes that count."""
    shape = costs.known_shapes.shape_of(node.outputs[0]) if node.outputs and node.outputs[0] is not None else None
    return costs.nodes[node.id].is_matrix and shape is not None and prod(shape) == 0


def _list_nodes(nodes: Sequence[Node]) -> str:
    more = f" and {len(nodes) - 3} more" if len(nodes) > 3 else ""
    return ", ".join(f"{node_ref(node)} ({node.op_type})" for node in nodes[:3]) + more


def _may_hold_matrix_work(node: Node) -> bool:
    """Return True if a node computes matrix products or convolutions of floats, or may do so."""
    return _computing_type(node) is not None and (
        is_matrix_operator(node.domain, node.op_type) or _may_hide_matrix_product(node)
    )


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

    ``type_of``: returns the element type of a value; ``read_types``: the types of slots that read another one.
    ``counted_weights``: the weights whose bytes are counted already, by the type that they have there.
    """

    def __init__(
        self,
        type_of: Callable[[Value], int] = lambda value: dtypes.element(value.type),
        read_types: Mapping[tuple[Node, int], int] = MappingProxyType({}),
    ) -> None:
        self.type_of, self.read_types = type_of, read_types
        self.counted_weights: set[tuple[Value, int]] = set()

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
        """Return the attribute of the branch of an If that runs; if data decides, that of the costlier branch.

        A branch with matrix work of unknown size counts as the costlier one, so that a report names this work.
        """
        # The condition is known if it follows from shapes and constants, as in: Shape -> Equal -> If.
        condition = costs.known_shapes.arrays.get(node.inputs[0]) if node.inputs[0] is not None else None
        if condition is not None and condition.size == 1:
            return "then_branch" if bool(condition.reshape(())) else "else_branch"
        branch_costs = {}
        for name, body in node.bodies.items():
            # An estimator of its own: weights read in a branch that is not counted must not count as read.
            estimate = Costs(costs.graph, costs.known_shapes)
            _Estimator(self.type_of, self.read_types).add_scope(estimate, body, 1)
            flops, _, moved_bytes = _totals([*estimate.nodes.values()])
            branch_costs[name] = (bool(_unknown_matrix_nodes(estimate)), flops, moved_bytes)
        # Sorted, so that branches with equal costs lead to the same choice every time.
        branch = max(sorted(branch_costs), key=lambda name: branch_costs[name])
        reason = "of unknown cost" if branch_costs[branch][0] else "the costlier one"
        costs.assumptions.append(f"{node_ref(node)} (If): {branch}, {reason}")
        return branch

    def _node_cost(self, costs: Costs, node: Node, runs: int) -> NodeCost:
        """Return the cost of a node without bodies over all its runs; ``unknown`` if it cannot be counted."""
        # A runtime computes a constant node when it loads the model. A node without outputs costs nothing either.
        if all(v.is_constant for v in node.outputs if v is not None):
            return NodeCost()
        elem = _computing_type(node)
        is_matrix = is_matrix_operator(node.domain, node.op_type)
        # One operation per output element would be far too few for a matrix product.
        if not is_matrix and _may_hide_matrix_product(node):
            return NodeCost(unknown="no formula for this operator")
        try:
            flops = _node_flops(costs, node) * runs if elem else 0
            moved_bytes = self._bytes(node, costs.known_shapes, runs)
        except _UnknownShapeError:
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
        outputs = [_byte_size(v, self.type_of(v), known_shapes) for v in node.outputs if v is not None]
        reads_nothing = standard and node.op_type in _YIELDS_SHAPE
        inputs = [(s, v) for s, v in enumerate(node.inputs) if v is not None and not reads_nothing]
        picked = 0
        if standard and node.op_type in _PICKS:
            # Gather(table, indices) reads the indices, and of the table only as many bytes as it writes.
            inputs, picked = inputs[1:], outputs[0]
        total = (picked + sum(outputs)) * runs
        # A weight counts once, also in a loop. Other tensors are new in each run.
        for slot, value in inputs:
            elem = self.read_types.get((node, slot)) or self.type_of(value)
            if not value.is_constant:
                total += _byte_size(value, elem, known_shapes) * runs
            elif (value, elem) not in self.counted_weights:
                total += _byte_size(value, elem, known_shapes)
                self.counted_weights.add((value, elem))
        return total


def _computing_type(node: Node) -> int | None:
    """Return the element type in which a node computes; None if it has no float.

    It is the type of the first float input. Inputs that are not constant come first, because a constant such as a scale
    may have another type. A node without a float input has the type of its first float output.
    """
    variable_inputs = [value for value in node.inputs if value is not None and not value.is_constant]
    floats = float_values((*variable_inputs, *node.inputs, *node.outputs))
    return dtypes.element(floats[0].type) if floats else None


def _may_hide_matrix_product(node: Node) -> bool:
    """Return True if a node without a formula may hold a matrix product, as far as its name tells.

    The cost of such a node is unknown. Other nodes without a formula cost one operation per output element.
    """
    return node.domain not in ("", "com.microsoft") or any(word in node.op_type for word in _MATRIX_WORDS)


def _node_flops(costs: Costs, node: Node) -> int:
    """Return the operations of one run of a node. Raises _UnknownShapeError if the shape of a tensor is not known."""
    shapes = costs.known_shapes.shapes
    if any(value is not None and value not in shapes for value in (*node.inputs, *node.outputs)):
        raise _UnknownShapeError
    inputs, outputs = ([shapes[v] if v is not None else None for v in slots] for slots in (node.inputs, node.outputs))
    return _count_flops(node.domain, node.op_type, {a.name: a for a in node.proto.attribute}, inputs, outputs)


def _byte_size(value: Value, elem: int, known_shapes: KnownShapes) -> int:
    """Return the bytes of a tensor in an element type, rounded up.

    Raises _UnknownShapeError for sequences and unknown shapes.
    """
    shape = known_shapes.shape_of(value)
    if shape is None or isinstance(value.type, tuple):
        raise _UnknownShapeError
    return (prod(shape) * _BITS.get(elem, 0) + 7) // 8


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
    if trip_count is None or trip_count.size != 1 or not (keeps_condition and is_start_true):
        return None
    return max(int(trip_count.reshape(())), 0)


def _scan_iterations(node: Node, known_shapes: KnownShapes) -> int | None:
    """Return the length of the first sequence of a Scan of opset 9 or later; None if it is not known."""
    # Scan(state_1 ... state_n, sequence_1 ... sequence_m), where m is ``num_scan_inputs``.
    attributes = {a.name: a for a in node.proto.attribute}
    count = attributes["num_scan_inputs"].i
    shape = known_shapes.shape_of(node.inputs[len(node.inputs) - count])
    axes = list(attributes["scan_input_axes"].ints) if "scan_input_axes" in attributes else [0]
    return shape[axes[0]] if shape else None


# --- the operations of one node ---


_Shapes = Sequence[Shape | None]  # by slot; None if the shape is not known or the slot is left out
_Attributes: TypeAlias = "Mapping[str, AttributeProto]"  # by name
_NO_ARITHMETIC = operators(Trait.NO_ARITHMETIC)


class _UnknownShapeError(Exception):
    """The error that a formula raises if it needs a shape that is not known."""


def is_matrix_operator(domain: str, op_type: str) -> bool:
    """Return True if the operator computes matrix products or convolutions, also as a part (LSTM, Attention)."""
    return (domain, op_type) in _MATRIX_FORMULAS


def _count_flops(domain: str, op_type: str, attributes: _Attributes, inputs: _Shapes, outputs: _Shapes) -> int:
    """Return the floating-point operations of one run of a node.

    ``attributes``: the node's attributes by name. ``inputs`` and ``outputs``: the shapes of its slots. Raises
    _UnknownShapeError if the formula needs a shape that is None.
    """
    formula = _MATRIX_FORMULAS.get((domain, op_type))
    if formula is not None:
        return formula(attributes, inputs, outputs)
    # The traits are of standard operators. An unknown operator of another domain may compute.
    if domain == "" and op_type in _NO_ARITHMETIC:
        return 0
    if op_type.startswith(("Reduce", "Arg", "GlobalAveragePool", "GlobalMaxPool")):
        return prod(_shape_at(inputs, 0))
    elements = prod(_shape_at(outputs, 0))
    if op_type in ("MaxPool", "AveragePool", "LpPool"):
        return elements * prod(attributes["kernel_shape"].ints)
    return elements


def _shape_at(shapes: _Shapes, slot: int) -> Shape:
    """Return the shape of a slot. Raises _UnknownShapeError if it is not known."""
    shape = shapes[slot] if slot < len(shapes) else None
    if shape is None:
        raise _UnknownShapeError
    return shape


def _is_present(shapes: _Shapes, slot: int) -> bool:
    """Return True if an optional slot is not left out."""
    return slot < len(shapes) and shapes[slot] is not None


# --- matrix products ---


def _matmul(attributes: _Attributes, inputs: _Shapes, outputs: _Shapes) -> int:
    """Count one multiplication and one addition per output element and element of the summed axis."""
    # The summed axis is the last one of the first matrix; with transA (Gemm, FusedMatMul) the one before it.
    first = _shape_at(inputs, 0)
    transposed = "transA" in attributes and attributes["transA"].i and len(first) > 1
    depth = first[-2] if transposed else first[-1]
    return 2 * prod(_shape_at(outputs, 0)) * depth


def _gemm(attributes: _Attributes, inputs: _Shapes, outputs: _Shapes) -> int:
    """Count the product, and one addition per output element if there is a bias."""
    return _matmul(attributes, inputs, outputs) + prod(_shape_at(outputs, 0)) * _is_present(inputs, 2)


def _packed_matmul(attributes: _Attributes, inputs: _Shapes, outputs: _Shapes) -> int:
    """Count a product whose second matrix is packed (MatMulNBits): the attribute ``K`` is the summed length."""
    return 2 * prod(_shape_at(outputs, 0)) * attributes["K"].i


def _einsum(attributes: _Attributes, inputs: _Shapes, outputs: _Shapes) -> int:
    """Count an Einsum by its combinations of index values.

    Each combination has its multiplications, and one addition if an index is summed.

    ``bij,bjk->bik`` has b * i * j * k combinations, each with one multiplication and one addition.
    """
    equation = attributes["equation"].s.decode().replace(" ", "")
    # 1. The size of each index: "bij,bjk->bik" gives the sizes of b, i, j and k.
    terms, _, result = equation.partition("->")
    sizes: dict[str, int] = {}
    for position, term in enumerate(terms.split(",")):
        _add_index_sizes(term, _shape_at(inputs, position), sizes)
    if "->" not in equation:
        # Without "->" the result has the ellipsis, and the letters that occur once.
        letters = terms.replace(",", "").replace(".", "")
        result = "." * ("." in terms) + "".join(c for c in letters if letters.count(c) == 1)
    # 2. The indices that the result does not have are summed. A sum over one element needs no addition.
    result_indices = {index for index in sizes if (index.isdigit() and "." in result) or index in result}
    is_summed = any(sizes[index] != 1 for index in sizes.keys() - result_indices)
    # 3. n operands need n - 1 multiplications for each combination of index values.
    return prod(sizes.values()) * (len(inputs) - 1 + is_summed)


def _add_index_sizes(term: str, shape: Shape, sizes: dict[str, int]) -> None:
    """Add the size of each index of one operand to ``sizes``.

    The axes of an ellipsis have no letters. They are numbered from the right, since operands are broadcast that way:
    ``a...b`` of a tensor with four axes has the indices a, 2, 1, b.
    """
    before, dots, after = term.partition("...")
    ellipsis_axes = len(shape) - len(before) - len(after)
    names = [*before, *(str(ellipsis_axes - k) for k in range(ellipsis_axes if dots else 0)), *after]
    for name, size in zip(names, shape, strict=True):
        sizes[name] = max(sizes.get(name, 1), size)  # a size of 1 is broadcast


# --- convolutions ---


def _conv(attributes: _Attributes, inputs: _Shapes, outputs: _Shapes, weight: int = 1, bias: int = 2) -> int:
    """Count a convolution. ``weight`` and ``bias`` are the slots of these inputs.

    The weight has the shape (output channels, input channels per group, kernel ...). Each output element multiplies
    and adds the weights of its output channel.
    """
    return prod(_shape_at(outputs, 0)) * (2 * prod(_shape_at(inputs, weight)[1:]) + _is_present(inputs, bias))


def _conv_transpose(attributes: _Attributes, inputs: _Shapes, outputs: _Shapes) -> int:
    """Count a transposed convolution.

    The weight has the shape (input channels, output channels per group, kernel ...). Each input element is
    multiplied by the whole kernel, once for every output channel of its group.
    """
    weight, output_size = _shape_at(inputs, 1), prod(_shape_at(outputs, 0))
    return 2 * prod(_shape_at(inputs, 0)) * prod(weight[1:]) + (output_size if _is_present(inputs, 2) else 0)


# --- recurrent layers: the products of input and hidden state with the weights of all gates ---


def _recurrent(attributes: _Attributes, inputs: _Shapes, outputs: _Shapes) -> int:
    """Count the products with W (directions, gates x hidden, input) and R (directions, gates x hidden, hidden).

    Each step of the sequence is multiplied by W, and the hidden state by R. The elementwise operations of the gates are
    not counted.
    """
    steps_and_batch, weight, recurrence = _shape_at(inputs, 0)[:2], _shape_at(inputs, 1), _shape_at(inputs, 2)
    return 2 * prod(steps_and_batch) * (prod(weight) + prod(recurrence))


# --- attention: the products of queries and keys, and of attention weights and values ---


def _attention(attributes: _Attributes, inputs: _Shapes, outputs: _Shapes) -> int:
    """Count ai.onnx Attention: Q, K, V are (batch, heads, length, size), or (batch, length, heads x size)."""
    query, key, value = (_shape_at(inputs, slot) for slot in range(3))
    if len(query) == 3:
        heads, kv_heads = attributes["q_num_heads"].i, attributes["kv_num_heads"].i
        batch, length, size = query[0], query[1], query[2] // heads
        key_count, value_size = key[1], value[2] // kv_heads
    else:
        (batch, heads, length, size), key_count, value_size = query, key[2], value[3]
    # Each query is multiplied by all keys, those of the past included, and the result by all values.
    past = _shape_at(inputs, 4)[2] if _is_present(inputs, 4) else 0
    return 2 * batch * heads * length * (key_count + past) * (size + value_size)


def _packed_attention(attributes: _Attributes, inputs: _Shapes, outputs: _Shapes) -> int:
    """Count com.microsoft Attention, with the products that make Q, K and V.

    The input is (batch, length, width), the weights are (width, q + k + v), the past is (2, batch, heads, past, size).
    """
    (batch, length, width), weights = _shape_at(inputs, 0), _shape_at(inputs, 1)
    # ``sizes``: the widths of Q, K and V. Without the attribute all three are equal.
    sizes = attributes["qkv_hidden_sizes"].ints if "qkv_hidden_sizes" in attributes else [weights[1] // 3] * 3
    past = _shape_at(inputs, 4)[3] if _is_present(inputs, 4) else 0
    bias = batch * length * weights[1] * _is_present(inputs, 2)
    projections = 2 * batch * length * width * weights[1] + bias
    return projections + 2 * batch * length * (length + past) * (sizes[1] + sizes[2])


def _multi_head_attention(attributes: _Attributes, inputs: _Shapes, outputs: _Shapes) -> int:
    """Count com.microsoft MultiHeadAttention, whose inputs come in three forms.

    - Q, K and V apart: (batch, length, width); K and V may be (batch, heads, length, size).
    - All three packed in the query: (batch, length, heads, 3, size).
    - K and V packed in the key: (batch, length, heads, 2, size).
    """
    query = _shape_at(inputs, 0)
    if len(query) == 5:
        batch, length, heads, _, size = query
        key_count, width, value_width = length, heads * size, heads * size
    else:
        batch, length, width = query
        key = _shape_at(inputs, 1)
        key_count = key[2] if len(key) == 4 else key[1]
        value = _shape_at(inputs, 2) if len(key) < 5 else (batch, key_count, width)
        value_width = value[1] * value[3] if len(value) == 4 else value[2]
    past = _shape_at(inputs, 6)[2] if _is_present(inputs, 6) else 0
    return 2 * batch * length * (key_count + past) * (width + value_width)


def _grouped_attention(attributes: _Attributes, inputs: _Shapes, outputs: _Shapes) -> int:
    """Count com.microsoft GroupQueryAttention; its output 1 is (batch, kv heads, past + new length, size)."""
    query, heads, kv_heads = _shape_at(inputs, 0), attributes["num_heads"].i, attributes["kv_num_heads"].i
    batch, length, width = query
    # Without a key input the query holds Q, K and V of each token.
    size = width // heads if _is_present(inputs, 1) else width // (heads + 2 * kv_heads)
    # 4 = two products of 2 operations each: queries with keys, and attention weights with values of the same size.
    key_count = _shape_at(outputs, 1)[2] if _is_present(outputs, 1) else length
    return 4 * batch * heads * length * key_count * size


_Formula = Callable[[_Attributes, _Shapes, _Shapes], int]
# Each formula with its operators: those of the ONNX domain, then those of com.microsoft.
_FORMULAS: tuple[tuple[_Formula, str, str], ...] = (
    (_matmul, "MatMul MatMulInteger QLinearMatMul", "DynamicQuantizeMatMul FusedMatMul FusedMatMulActivation"),
    (_matmul, "", "GemmFastGelu MatMulInteger16 MatMulIntegerToFloat TransposeMatMul"),
    (_gemm, "Gemm", "FusedGemm"),
    (_packed_matmul, "", "MatMulNBits"),
    (_einsum, "Einsum", ""),
    (_conv, "Conv", "FusedConv"),
    (partial(_conv, bias=4), "ConvInteger", ""),  # ConvInteger has 4 inputs and no bias: slot 4 is always absent
    (partial(_conv, bias=3), "DeformConv", ""),
    (partial(_conv, weight=3, bias=8), "QLinearConv", ""),
    (_conv_transpose, "ConvTranspose", ""),
    (_recurrent, "GRU LSTM RNN", "DynamicQuantizeLSTM"),
    (_attention, "Attention", ""),
    (_packed_attention, "", "Attention"),
    (_multi_head_attention, "", "MultiHeadAttention"),
    (_grouped_attention, "", "GroupQueryAttention"),
)
_MATRIX_FORMULAS = {
    (domain, op_type): formula
    for formula, *op_types_by_domain in _FORMULAS
    for domain, op_types in zip(("", "com.microsoft"), op_types_by_domain, strict=True)
    for op_type in op_types.split()
}
