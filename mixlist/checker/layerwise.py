"""Rank the low nodes by the error that each adds to exact inputs (``--layerwise``).

The float32 reference gets a rounded copy of each low node. The copy reads the same exact inputs, rounded to the types
that the mixed model gives them, and its output is rounded too. The distance of the copy's output from the exact output
is the error that this node alone adds. One run of one graph ranks all nodes. The sums are computed inside the graph in
float64, which holds the square of every float32 value. A value that is not finite in the reference does not count.

    a, b -> MatMul -> y                                                the reference, with exact values
    a, b -> Cast to float16, Cast back -> MatMul -> Cast, Cast -> z    the rounded copy; its error is z - y
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING

from mixlist.checker.instrument import Instrumenter, Probe, ScalarStatistic, Statistic
from mixlist.checker.model_pair import ModelPair
from mixlist.checker.result import NodeError
from mixlist.model import dtypes
from mixlist.model.graph import Node
from mixlist.model.low_precision import LOW_TYPES
from mixlist.model.naming import NodeRef, TensorRef, display_name
from mixlist.model.protos import copy_message, supports_where

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

    from mixlist.run.feeds import Batches

_DIFFERENCE, _REFERENCE, _COUNT = "difference", "reference", "count"
_STATISTIC_NAMES = _DIFFERENCE, _REFERENCE, _COUNT  # two sums of squares, and the number of values that are finite
_STATISTICS = tuple(Statistic(name, 0.0, "ReduceSum", None, dtypes.DOUBLE) for name in _STATISTIC_NAMES)


def rank_layers(
    pair: ModelPair,
    batches: Batches,
    batch_count: int,
    masks: set[TensorRef],
    finite: set[TensorRef],
    finite_in_mixed: set[TensorRef],
) -> tuple[NodeError, ...]:
    """Return the nodes by the error that each adds over the first batches, largest first.

    ``batch_count``: the number of these batches. The tensors in ``masks`` are left out: their infinities are by design.
    ``finite``: tensors that are finite in the reference; their sums take half as long. ``finite_in_mixed``: those of
    the mixed model. One that only the copy makes infinite, such as a mask whose constant is reduced (Rule S4.36), is
    left out.
    """
    low_nodes = pair.mixed_low_nodes()
    reference_graph = pair.sessions.reference_graph(pair.reference.loaded)
    instrumented = _LayerwiseInstrumenter(reference_graph, low_nodes, masks, finite).run()
    # The sums of squares of each tensor: of the difference that its node makes, and of the reference.
    sums: dict[TensorRef, tuple[float, float]] = {}
    with closing(pair.open_cpu_observer(instrumented)) as observer:
        for feed in islice(batches, batch_count):
            values = observer.read_statistics(feed)
            for tensor in {tensor for tensor, _ in values}:
                # Each statistic has one value for each iteration and call, which together are one batch.
                difference, reference, count = (float(values[tensor, name].sum()) for name in _STATISTIC_NAMES)
                # The count is 0 if the tensor was not computed, or if no value is finite.
                # Below opset 9 the graph cannot leave out a value that is not finite. Then the sum of the reference is
                # not finite, and the whole batch does not count.
                is_like_mixed = math.isfinite(difference) or tensor not in finite_in_mixed
                if count and math.isfinite(reference) and is_like_mixed:
                    differences, references = sums.get(tensor, (0.0, 0.0))
                    sums[tensor] = differences + difference, references + reference
    return _rank_errors(sums, {probe.ref: probe.op_type for probe in instrumented.probes})


class _LayerwiseInstrumenter(Instrumenter):
    """An instrumenter that adds a rounded copy of each low node, and sums of squares that compare it with the node.

    ``low_nodes`` are those of the mixed model, whose input and output types decide what is rounded.
    """

    def __init__(
        self, reference: ModelProto, low_nodes: Mapping[NodeRef, Node], masks: set[TensorRef], finite: set[TensorRef]
    ) -> None:
        super().__init__(reference, lambda probe: _STATISTICS if probe.ref not in masks else ())
        self.low_nodes, self.finite = low_nodes, finite
        # The outputs of the copies, by the id of the node. ``self.graph`` keeps the nodes alive, so ids stay unique.
        self.copy_outputs: dict[int, list[str]] = {}
        self.supports_where = supports_where(reference)

    def make_statistics(
        self, probe: Probe, node: Node | None = None, node_proto: NodeProto | None = None
    ) -> tuple[list[ScalarStatistic], list[NodeProto]]:
        """Return the sums of one output of a low node, and the nodes that compute them."""
        mixed_node, slot = self.low_nodes.get(probe.ref.producer), probe.ref.slot
        # No node computes a graph input, and a node that is high in the mixed model has no rounding to imitate.
        if node is None or node_proto is None or mixed_node is None:
            return [], []
        # A low node may have float32 outputs too, such as the mean of a LayerNormalization. They are not compared.
        if probe.elem != dtypes.FLOAT or slot >= len(mixed_node.outputs):
            return [], []
        mixed_output = mixed_node.outputs[slot]
        if mixed_output is None or dtypes.element(mixed_output.type) not in LOW_TYPES:
            return [], []
        # difference = round(copy's output) - exact output
        nodes: list[NodeProto] = []
        copy_output = self._add_copy(node, node_proto, mixed_node, nodes)[slot]
        rounded = self._add_rounding(copy_output, dtypes.element(mixed_output.type), nodes)
        difference, exact = self._add_node("Sub", [rounded, probe.tensor], nodes), probe.tensor
        if probe.ref in self.finite:
            return self._add_sums(probe, difference, exact, nodes), nodes
        is_finite = self._add_is_finite(exact, nodes)
        # A value that is not finite in the reference becomes zero in both sums. Where does this, and not a product with
        # ``is_finite``, because the product of zero and infinity is NaN.
        if self.supports_where:
            zero = self.new_names.make_name(f"{exact}_zero")
            nodes.append(self.new_names.make_constant(zero, dtypes.FLOAT, [], [0.0]))
            difference, exact = (
                self._add_node("Where", [is_finite, tensor, zero], nodes) for tensor in (difference, exact)
            )
        # sums of difference^2, exact^2 and 1, in float64
        difference, exact = (
            self._add_node("Cast", [tensor], nodes, to=dtypes.DOUBLE) for tensor in (difference, exact)
        )
        terms = [self._add_node("Mul", [tensor, tensor], nodes) for tensor in (difference, exact)]
        terms.append(self._add_node("Cast", [is_finite], nodes, to=dtypes.DOUBLE))
        results = []
        for statistic, term in zip(_STATISTICS, terms, strict=True):
            total = self._add_node("ReduceSum", [term], nodes, keepdims=0)
            results.append(ScalarStatistic(probe.ref, statistic, total, dtypes.DOUBLE))
        return results, nodes

    def _add_sums(self, probe: Probe, difference: str, exact: str, nodes: list[NodeProto]) -> list[ScalarStatistic]:
        """Add the sums of a tensor of which every value counts, and return them."""
        wide = [self._add_node("Cast", [tensor], nodes, to=dtypes.DOUBLE) for tensor in (difference, exact)]
        totals = [self._add_node("ReduceSumSquare", [tensor], nodes, keepdims=0) for tensor in wide]
        count = self._add_node("Cast", [self._add_node("Size", [exact], nodes)], nodes, to=dtypes.DOUBLE)
        return [
            ScalarStatistic(probe.ref, statistic, total, dtypes.DOUBLE)
            for statistic, total in zip(_STATISTICS, (*totals, count), strict=True)
        ]

    def _add_is_finite(self, tensor: str, nodes: list[NodeProto]) -> str:
        """Add nodes that compare each magnitude with infinity; return the bool tensor, which is false for NaN."""
        infinity = self.new_names.make_name(f"{tensor}_most")
        nodes.append(self.new_names.make_constant(infinity, dtypes.FLOAT, [], [math.inf]))
        return self._add_node("Less", [self._add_node("Abs", [tensor], nodes), infinity], nodes)

    def _add_copy(self, node: Node, node_proto: NodeProto, mixed_node: Node, nodes: list[NodeProto]) -> list[str]:
        """Add the rounded copy of a node, unless an earlier output of the node did; return the outputs of the copy."""
        if id(node) in self.copy_outputs:
            return self.copy_outputs[id(node)]
        copy = copy_message(node_proto)
        copy.name = self.new_names.make_name(f"{display_name(node)}_rounded_copy")
        # Round the inputs that the mixed model reads in a low type. A node rule may keep some slots in float32, and the
        # type of a sequence is no int.
        for slot, name in enumerate(node_proto.input):
            low = mixed_node.input_types[slot] if slot < len(mixed_node.input_types) else dtypes.UNKNOWN
            if name and isinstance(low, int) and low in LOW_TYPES and node.input_types[slot] == dtypes.FLOAT:
                copy.input[slot] = self._add_rounding(name, low, nodes)
        for slot, name in enumerate(node_proto.output):
            if name:
                copy.output[slot] = self.new_names.make_name(f"{name}_rounded_copy")
        nodes.append(copy)
        self.copy_outputs[id(node)] = list(copy.output)
        return self.copy_outputs[id(node)]

    def _add_rounding(self, tensor: str, low: int, nodes: list[NodeProto]) -> str:
        """Add a Cast to the low type and one back to float32; return the rounded tensor."""
        return self._add_node("Cast", [self._add_node("Cast", [tensor], nodes, to=low)], nodes, to=dtypes.FLOAT)

    def _add_node(self, op_type: str, inputs: list[str], nodes: list[NodeProto], **attributes: int) -> str:
        """Add a node; return its output."""
        out = self.new_names.make_name(f"{inputs[0]}_{op_type}")
        nodes.append(self.new_names.make_node(op_type, inputs, out, **attributes))
        return out


def _rank_errors(
    sums: Mapping[TensorRef, tuple[float, float]], op_types: Mapping[TensorRef, str]
) -> tuple[NodeError, ...]:
    """Return the nodes by the error that they add, largest first; of several outputs the worst counts."""
    worst: dict[NodeRef, NodeError] = {}
    for tensor, (difference, reference) in sums.items():
        error = _normalized_error(difference, reference)
        worst_so_far = worst.get(tensor.producer)
        if worst_so_far is None or error > worst_so_far.normalized_error:
            worst[tensor.producer] = NodeError(*tensor.producer, op_types.get(tensor, ""), error)
    # Equal errors are sorted by name, so that two runs give the same order.
    return tuple(sorted(worst.values(), key=lambda e: (-e.normalized_error, e.scope, e.name)))


def _normalized_error(difference: float, reference: float) -> float:
    """Return the L2 norm of the difference over that of the reference, both given as sums of squares.

    The error is infinite for a reference of zeros.
    """
    if not math.isfinite(difference):
        return math.inf
    if difference == 0:  # also for a reference of zeros
        return 0.0
    return math.sqrt(difference / reference) if reference > 0 else math.inf
