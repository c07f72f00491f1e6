"""Rank the nodes of low precision by the error that each adds, if everything that it reads is exact (``--layerwise``).

The float32 reference gets a rounded copy of each such node: it reads the same exact inputs, rounded to the types that
the mixed model gives them, and its output is rounded too. The distance of the copy's output from the exact output is
the error that this node adds by itself. One run of one graph ranks all nodes; the sums are computed inside it, in
float64, which holds the square of every float32 value. A value that is not finite in the reference does not count
(Rule S8.27).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from mixlist.checker.model_pair import ModelPair
from mixlist.checker.result import NodeError
from mixlist.emulation.graph_statistics import Probe, Statistic, has_where
from mixlist.emulation.instrument import Instrumenter
from mixlist.emulation.packing import ScalarStatistic
from mixlist.graph.build import build_graph
from mixlist.graph.constants_and_shapes import is_random
from mixlist.graph.model import Graph, Node
from mixlist.graph.naming import display_name, node_ref
from mixlist.graph.proto_edits import copy_message
from mixlist.graph.refs import NodeRef, TensorRef
from mixlist.graph.traversal import reachable_graphs
from mixlist.ops import types
from mixlist.ops.low_precision import LOW_TYPES

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

    from mixlist.runtime.feeds import Batches

_DIFFERENCE, _REFERENCE, _COUNT = "difference", "reference", "count"
_NAMES = _DIFFERENCE, _REFERENCE, _COUNT  # sums of squares, and the number of values that are finite


def _unused(*_: object) -> list[NodeProto]:
    raise AssertionError("built with the rounded copy")


_STATISTICS = tuple(Statistic(name, 0.0, "ReduceSum", _unused, types.DOUBLE) for name in _NAMES)


def rank_layers(pair: ModelPair, batches: Batches, steps: int | None, masks: set[TensorRef]) -> tuple[NodeError, ...]:
    """Return the nodes by the error that each adds over the first ``steps`` batches; ``masks`` are left out."""
    low_nodes = nodes_with_low_outputs(build_graph(pair.mixed.loaded.proto))
    made = _LayerwiseInstrumenter(pair.config.raised(pair.reference.loaded), low_nodes, masks).run()
    observer = pair.observe_on_cpu(made)
    sums: dict[TensorRef, _Sums] = {}
    for feed in islice(batches, steps):
        values = observer.read_statistics(feed, _NAMES)
        for tensor in {tensor for tensor, _ in values}:
            difference, reference, count = (float(values[tensor, name].sum()) for name in _NAMES)
            # Below opset 9 no value can be left out, so a batch with a value that is not finite is.
            if count and math.isfinite(reference):
                sums.setdefault(tensor, _Sums()).add(difference, reference)
    observer.close()
    return _ranking(sums, {probe.ref: probe.op_type for probe in made.probes})


@dataclass
class _Sums:
    """The sums of squares of one tensor: of the difference that its node makes, and of the reference."""

    difference: float = 0.0
    reference: float = 0.0

    def add(self, difference: float, reference: float) -> None:
        self.difference += difference
        self.reference += reference


def nodes_with_low_outputs(mixed: Graph) -> dict[NodeRef, Node]:
    """Return the nodes of a mixed model that compute an output of a low type."""
    nodes: dict[NodeRef, Node] = {}
    for graph in reachable_graphs(mixed):
        for node in graph.nodes:
            if node.bodies or node.function is not None or is_random(node) or node.op_type in ("Cast", "Constant"):
                continue
            if any(v is not None and types.element(v.type) in LOW_TYPES for v in node.outputs):
                nodes.setdefault(node_ref(graph, node), node)
    return nodes


class _LayerwiseInstrumenter(Instrumenter):
    """Adds a rounded copy of each of the ``low_nodes``, as the mixed model has them, to the reference."""

    def __init__(self, reference: ModelProto, low_nodes: Mapping[NodeRef, Node], masks: set[TensorRef]) -> None:
        super().__init__(reference, _STATISTICS, lambda probe: probe.ref not in masks)
        self.low_nodes = low_nodes
        self.copies: dict[int, list[str]] = {}  # outputs of the copies, by id of the node
        self.has_where = has_where(reference)

    def observe(
        self, probe: Probe, node: Node | None = None, target: NodeProto | None = None
    ) -> tuple[list[ScalarStatistic], list[NodeProto]]:
        """Return the sums of one output of a low node, and the nodes that compute them."""
        mixed, slot = self.low_nodes.get(probe.ref.producer), probe.ref.slot
        if node is None or target is None or mixed is None:
            return [], []
        if probe.elem != types.FLOAT or slot >= len(mixed.outputs):
            return [], []
        value = mixed.outputs[slot]
        if value is None or types.element(value.type) not in LOW_TYPES:
            return [], []
        nodes: list[NodeProto] = []
        rounded = self._rounded(self._copy(node, target, mixed, nodes)[slot], types.element(value.type), nodes)
        difference, tensor = self._add("Sub", [rounded, probe.tensor], nodes), probe.tensor
        finite = self._finite(tensor, nodes)
        if self.has_where:
            zero = self.new_names.make_name(f"{tensor}_zero")
            nodes.append(self.new_names.make_constant(zero, types.FLOAT, [], [0.0]))
            difference, tensor = (self._add("Where", [finite, each, zero], nodes) for each in (difference, tensor))
        difference, tensor = (self._add("Cast", [each], nodes, to=types.DOUBLE) for each in (difference, tensor))
        terms = [self._add("Mul", [each, each], nodes) for each in (difference, tensor)]
        terms.append(self._add("Cast", [finite], nodes, to=types.DOUBLE))
        results = []
        for statistic, term in zip(_STATISTICS, terms, strict=True):
            total = self._add("ReduceSum", [term], nodes, keepdims=0)
            results.append(ScalarStatistic(probe.ref, statistic, total, types.DOUBLE))
        return results, nodes

    def _finite(self, tensor: str, nodes: list[NodeProto]) -> str:
        """Return a bool tensor that is true where a value is finite; a comparison with NaN is false."""
        most = self.new_names.make_name(f"{tensor}_most")
        nodes.append(self.new_names.make_constant(most, types.FLOAT, [], [math.inf]))
        return self._add("Less", [self._add("Abs", [tensor], nodes), most], nodes)

    def _copy(self, node: Node, target: NodeProto, mixed: Node, nodes: list[NodeProto]) -> list[str]:
        """Return the outputs of the node's rounded copy, which is added once."""
        if id(node) in self.copies:
            return self.copies[id(node)]
        copy = copy_message(target)
        copy.name = self.new_names.make_name(f"{display_name(node)}_twin")
        for slot, name in enumerate(target.input):
            elem = mixed.input_types[slot] if slot < len(mixed.input_types) else types.UNKNOWN
            if name and isinstance(elem, int) and elem in LOW_TYPES and node.input_types[slot] == types.FLOAT:
                copy.input[slot] = self._rounded(name, elem, nodes)
        for slot, name in enumerate(target.output):
            if name:
                copy.output[slot] = self.new_names.make_name(f"{name}_twin")
        nodes.append(copy)
        self.copies[id(node)] = list(copy.output)
        return self.copies[id(node)]

    def _rounded(self, tensor: str, elem: int, nodes: list[NodeProto]) -> str:
        return self._add("Cast", [self._add("Cast", [tensor], nodes, to=elem)], nodes, to=types.FLOAT)

    def _add(self, op_type: str, inputs: list[str], nodes: list[NodeProto], **attributes: int) -> str:
        out = self.new_names.make_name(f"{inputs[0]}_{op_type}")
        nodes.append(self.new_names.make_node(op_type, inputs, out, **attributes))
        return out


def _ranking(sums: Mapping[TensorRef, _Sums], op_types: Mapping[TensorRef, str]) -> tuple[NodeError, ...]:
    """Return the nodes by the error that they add, largest first; of several outputs the worst counts."""
    worst: dict[NodeRef, NodeError] = {}
    for tensor, squares in sums.items():
        error = _normalized(squares.difference, squares.reference)
        before = worst.get(tensor.producer)
        if before is None or error > before.normalized_error:
            worst[tensor.producer] = NodeError(*tensor.producer, op_types.get(tensor, ""), error)
    return tuple(sorted(worst.values(), key=lambda e: (-e.normalized_error, e.scope, e.name)))


def _normalized(difference: float, reference: float) -> float:
    if not math.isfinite(difference):
        return math.inf
    if difference == 0:
        return 0.0
    return math.sqrt(difference / reference) if reference > 0 else math.inf
