"""Judge outputs behind TopK and NonMaxSuppression in the order that the reference chose (Rule S8.38).

Nearly equal values may change places in low precision. Every element behind them then is at another place, which no
error of an output can tell from a wrong element. So the mixed model runs once more with the order of the reference:

    scores -> TopK -> values, indices      scores -> TopK -> own order
                                           scores, indices of the reference -> GatherElements -> values

An output that keeps its limits in this run is right except for the order, if

- the node orders as many elements in both models;
- the values of TopK that changed places differ in the reference by at most 2 % of the range of the values that it
  ordered together, which is the largest minus the smallest one;
- the boxes and scores of NonMaxSuppression keep the limits of outputs.

This holds for nodes of the main graph from opset 11 on that do not order a graph input, and not in trials.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from mixlist.checker.accuracy import Doubles, OutputAccuracy
from mixlist.checker.limits import Limits
from mixlist.checker.model_pair import ModelPair
from mixlist.checker.result import OrderChange
from mixlist.model import dtypes
from mixlist.model.graph import Graph, Node, Value
from mixlist.model.naming import node_ref
from mixlist.run.feeds import Batches, holds_only_nan

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from onnx import ModelProto

    from mixlist.checker.observer import Observer
    from mixlist.run.session import Array

Indices: TypeAlias = "NDArray[np.int64]"
# Of the range of the values that are ordered together: each of two values may have an error of 1 % of it.
NEARLY_EQUAL = 0.02
_INDICES = {"TopK": 1, "NonMaxSuppression": 0}  # the output slot of the indices
_GATHER_OPSET = 11  # from this opset on there is GatherElements


@dataclass
class _OrderingNode:
    """A node that orders values, and what the batches showed of it.

    ``indices`` and ``data``: the names of its indices and of the tensors that it orders. ``outputs``: the names of the
    model's outputs that depend on the order. ``places``: the places of the order with another element in the mixed
    model, out of ``total``. ``gap``: the largest difference of two values that changed places, in the reference.
    """

    node: Node
    indices: str
    data: tuple[str, ...]
    outputs: frozenset[str]
    batches: list[int] = field(default_factory=list)
    places: int = 0
    total: int = 0
    gap: float = 0.0
    relative_gap: float = 0.0

    def add(
        self, batch: int, reference: Indices, mixed: Indices, data: Sequence[Array], mixed_data: Sequence[Array]
    ) -> None:
        """Add the orders of one batch; ``data``: the tensors that the node orders, in the reference."""
        is_top = self.node.op_type == "TopK"
        self.total += reference.size if is_top else len(reference)
        # Where NonZero or a computed k depends on low values, the models order other elements, or another number.
        same_elements = [a.shape for a in data] == [b.shape for b in mixed_data]
        if not same_elements or (is_top and reference.shape != mixed.shape):
            self.batches.append(batch)
            self.gap = self.relative_gap = np.inf
            return
        if np.array_equal(reference, mixed):
            return
        self.batches.append(batch)
        if is_top:
            axis = next((a.i for a in self.node.proto.attribute if a.name == "axis"), -1)
            values = data[0].astype(np.float64)
            chosen, own = (np.take_along_axis(values, indices, axis) for indices in (reference, mixed))
            self.places += int((reference != mixed).sum())
            spread = _finite_range(values, axis)
        else:
            values = data[1].astype(np.float64)
            chosen, own, places = _exchanged_scores(reference, mixed, values)
            self.places += places
            spread = _finite_range(values, None)
        with np.errstate(invalid="ignore", divide="ignore"):  # between infinities: NaN, which is not nearly equal
            gaps = np.abs(chosen - own)
            relative_gaps = np.where(gaps == 0, 0, gaps / spread)
        self.gap = float(np.maximum(self.gap, gaps.max(initial=0)))
        self.relative_gap = float(np.maximum(self.relative_gap, relative_gaps.max(initial=0)))

    def swaps_nearly_equal(self, keeps_limits: Callable[[str], bool]) -> bool:
        """Return True if the values that changed places are nearly equal.

        ``keeps_limits``: whether a tensor that the node orders keeps the limits of outputs. That decides about
        NonMaxSuppression, where overlaps of boxes count as well as scores.
        """
        if self.node.op_type == "NonMaxSuppression":
            return all(map(keeps_limits, self.data))
        return self.relative_gap <= NEARLY_EQUAL


def _finite_range(values: Doubles, axis: int | None) -> Doubles:
    """Return the largest minus the smallest finite value along an axis, or of all values; -inf without such values."""
    is_finite = np.isfinite(values)
    kept = axis is not None  # so that the result fits to the values along the axis
    largest = np.max(values, axis, initial=-np.inf, where=is_finite, keepdims=kept)
    return np.asarray(largest - np.min(values, axis, initial=np.inf, where=is_finite, keepdims=kept))


def _exchanged_scores(reference: Indices, mixed: Indices, scores: Doubles) -> tuple[Doubles, Doubles, int]:
    """Return the scores of the boxes that only one model chose, largest first, and the number of changed places.

    If both chose the same boxes, return those at changed places. Boxes are rows of (batch, class, box).
    """
    rows, own_rows = ([tuple(row) for row in indices.tolist()] for indices in (reference, mixed))
    places = sum(a != b for a, b in zip(rows, own_rows, strict=False)) + abs(len(rows) - len(own_rows))
    pairs = [(a, b) for a, b in zip(rows, own_rows, strict=False) if a != b]
    if set(rows) != set(own_rows):
        only = [sorted(set(x) - set(y), key=lambda row: -scores[row]) for x, y in ((rows, own_rows), (own_rows, rows))]
        pairs = list(zip(*only, strict=False))
    chosen, own = (np.array([scores[pair[side]] for pair in pairs], np.float64) for side in (0, 1))
    return chosen, own, places


def judge_in_reference_order(
    pair: ModelPair,
    batches: Batches,
    batch_count: int,
    failing: Mapping[str, OutputAccuracy],
    limits: Limits,
) -> tuple[dict[str, OutputAccuracy], tuple[OrderChange, ...]]:
    """Return the measures of the outputs that fail only because of another order, and the nodes that chose it.

    ``failing``: an object without batches for each output that fails. Nothing is returned where the order cannot be
    given: in bodies and functions, below opset 11, and if a graph input is ordered.
    """
    nodes = [node for node in _find_ordering_nodes(pair.graph) if not node.outputs.isdisjoint(failing)]
    outputs = [name for name in failing if any(name in node.outputs for node in nodes)]
    if not nodes or pair.graph.opsets.get("", 0) < _GATHER_OPSET:
        return {}, ()
    replay = _ReferenceOrder(nodes)
    with ExitStack() as stack:
        observers = replay.open(pair, outputs)
        if observers is None:
            return {}, ()
        for observer in observers:
            stack.enter_context(closing(observer))
        measured = {name: failing[name] for name in outputs}
        low = next(iter(pair.low_types), dtypes.FLOAT16)
        data = {name: OutputAccuracy(name, low=low) for node in nodes for name in node.data}
        for index, feed in enumerate(islice(batches, batch_count)):
            if holds_only_nan(feed):
                continue
            reference, mixed = replay.run(observers, dict(feed))
            for name, accuracy in measured.items():
                accuracy.add(reference[name], mixed[name])
            for name, accuracy in data.items():
                accuracy.add(reference[name], mixed[replay.mixed_names[name]])
            for node in nodes:
                orders = reference[node.indices], mixed[own_order(node.indices)]
                order, own = (x.astype(np.int64, copy=False) for x in orders)
                data_pairs = [(reference[name], mixed[replay.mixed_names[name]]) for name in node.data]
                node.add(index, order, own, *(list(side) for side in zip(*data_pairs, strict=True)))
    right = {}
    for name, accuracy in measured.items():
        changed = [node for node in nodes if name in node.outputs and node.batches]
        is_near = all(node.swaps_nearly_equal(lambda tensor: data[tensor].finding(limits).passed) for node in changed)
        if is_near and accuracy.finding(limits).passed:
            right[name] = accuracy
    return right, tuple(_order_change(n, right) for n in nodes if n.batches and not n.outputs.isdisjoint(right))


def _order_change(node: _OrderingNode, right: Mapping[str, OutputAccuracy]) -> OrderChange:
    return OrderChange(
        *node_ref(node.node),
        node.node.op_type,
        batches=tuple(node.batches),
        places=node.places,
        total=node.total,
        gap=node.gap,
        relative_gap=node.relative_gap,
        outputs=tuple(name for name in right if name in node.outputs),
    )


def _find_ordering_nodes(graph: Graph) -> list[_OrderingNode]:
    """Return the nodes of the main graph whose indices are used, with the outputs of the model behind each."""
    found = []
    for node in graph.root.nodes:
        slot = _INDICES.get(node.op_type) if node.is_plain else None
        indices = node.outputs[slot] if slot is not None else None
        data = [value.name_in_file for value in node.inputs[: 1 if slot else 2] if value is not None]
        if indices is not None:
            outputs = _outputs_behind(graph, node)
            found.append(_OrderingNode(node, indices.name_in_file, tuple(data), outputs))
    return found


def _outputs_behind(graph: Graph, node: Node) -> frozenset[str]:
    """Return the names of the outputs of the model that depend on a node of the main graph."""
    reached: set[Value] = {value for value in node.outputs if value is not None}
    for reader in graph.root.nodes:  # in topological order
        captures = (value for body in reader.bodies.values() for value in body.captures)
        if any(value in reached for value in (*reader.inputs, *captures)):
            reached.update(value for value in reader.outputs if value is not None)
    outputs = zip(graph.root.output_names(), graph.root.outputs, strict=True)
    return frozenset(name for name, value in outputs if value in reached)


class _ReferenceOrder:
    """Runs the mixed model with the order of the reference.

    ``mixed_names``: by their names in the reference, the tensors of the mixed model that the nodes order.
    """

    def __init__(self, nodes: Sequence[_OrderingNode]) -> None:
        self.nodes = nodes
        self.mixed_names: dict[str, str] = {}

    def open(self, pair: ModelPair, outputs: Sequence[str]) -> tuple[Observer, Observer] | None:
        """Load both models; return None if one of them lacks a tensor that is needed."""
        if not self._find_names(pair.mixed_observer.proto):
            return None
        open_tensors = pair.sessions.open_tensors
        data = dict.fromkeys(name for node in self.nodes for name in node.data)
        orders = [node.indices for node in self.nodes]
        reference = open_tensors(pair.reference_observer, pair.reference.loaded, [*outputs, *data, *orders])
        if reference is None:
            return None
        mixed_data = (self.mixed_names[name] for name in data)
        names = [*outputs, *mixed_data, *map(own_order, orders)]
        mixed = open_tensors(pair.mixed_observer, pair.mixed.loaded, names, self._give_order)
        if mixed is None:
            reference.close()
            return None
        return reference, mixed

    def run(self, observers: tuple[Observer, Observer], feed: dict[str, Array]) -> tuple[dict[str, Array], ...]:
        """Return the outputs, indices and ordered tensors of one batch in both models."""
        reference = observers[0].run(feed)[0]
        orders = {_order_input(node.indices): reference[node.indices] for node in self.nodes}
        return reference, observers[1].run(feed | orders)[0]

    def _find_names(self, proto: ModelProto) -> bool:
        """Find the tensors of each node in the mixed model. Return False if it lacks a node."""
        by_output = {name: node for node in proto.graph.node for name in node.output}
        for ordering in self.nodes:
            node = by_output.get(ordering.indices)
            if node is None or node.op_type != ordering.node.op_type:
                return False
            self.mixed_names |= dict(zip(ordering.data, node.input, strict=False))
        return True

    def _give_order(self, proto: ModelProto) -> None:
        """Let each node compute its own indices under a new name, and its readers read the indices of the reference."""
        from onnx import TensorProto, helper

        graph = proto.graph
        for ordering in self.nodes:
            position = next(i for i, node in enumerate(graph.node) if ordering.indices in node.output)
            node, order = graph.node[position], _order_input(ordering.indices)
            slot, is_top = _INDICES[node.op_type], node.op_type == "TopK"
            graph.input.append(helper.make_tensor_value_info(order, TensorProto.INT64, None))
            given = [helper.make_node("Identity", [order], [ordering.indices])]
            if is_top:
                axis = next((a.i for a in node.attribute if a.name == "axis"), -1)
                given.append(helper.make_node("GatherElements", [node.input[0], order], [node.output[0]], axis=axis))
                node.output[0] = own_order(node.output[0])
            node.output[slot] = own_order(ordering.indices)
            for new in reversed(given):
                graph.node.insert(position + 1, new)


def own_order(name: str) -> str:
    """Return the name of a tensor of an ordering node that the mixed model computes in its own order."""
    return f"{name}_own_order"


def _order_input(indices: str) -> str:
    """Return the name of the new graph input for the indices of a node."""
    return f"{indices}_reference_order"
