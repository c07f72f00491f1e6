"""Rank the nodes of low precision by the error that each adds, if everything that it reads is exact (``--layerwise``).

The float32 reference gets a rounded copy of each such node: it reads the same exact inputs, rounded to the types that
the mixed model gives them, and its output is rounded too. The distance of the copy's output from the exact output is
the error that this node adds by itself. One run of one graph ranks all nodes; the sums are computed inside it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING

from mixlist.checker.model_pair import ModelPair
from mixlist.checker.result import NodeError
from mixlist.emulation.graph_statistics import Probe, Statistic
from mixlist.emulation.instrument import Instrumenter
from mixlist.emulation.packing import Result
from mixlist.graph.build import build_main
from mixlist.graph.constness import is_random
from mixlist.graph.messages import copied
from mixlist.graph.model import Graph, Node
from mixlist.graph.naming import label, node_ref
from mixlist.graph.refs import NodeRef, TensorRef
from mixlist.graph.traversal import reachable_graphs
from mixlist.ops import types
from mixlist.ops.low_precision import LOW

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

    from mixlist.runtime.feeds import Batches

_DIFFERENCE, _REFERENCE = "difference", "reference"


def _unused(*_: object) -> list[NodeProto]:
    raise AssertionError("built with the rounded copy")


_STATISTICS = tuple(Statistic(n, 0.0, "ReduceSum", _unused, types.FLOAT) for n in (_DIFFERENCE, _REFERENCE))


def rank_layers(pair: ModelPair, batches: Batches, steps: int | None, masks: set[TensorRef]) -> tuple[NodeError, ...]:
    """Return the nodes by the error that each adds over the first ``steps`` batches; ``masks`` are left out."""
    low_nodes = nodes_with_low_outputs(build_main(pair.mixed.loaded.proto))
    made = _LayerwiseInstrumenter(pair.config.raised(pair.reference.loaded), low_nodes, masks).run()
    observer = pair.observe_on_cpu(made)
    sums: dict[tuple[TensorRef, str], float] = {}
    for feed in islice(batches, steps):
        for which, values in observer.values(feed, (_DIFFERENCE, _REFERENCE)).items():
            sums[which] = sums.get(which, 0.0) + float(values.sum())
    observer.close()
    return _ranking(sums, {probe.ref: probe.op_type for probe in made.probes})


def nodes_with_low_outputs(mixed: Graph) -> dict[NodeRef, Node]:
    """Return the nodes of a mixed model that compute an output of a low type."""
    nodes: dict[NodeRef, Node] = {}
    for graph in reachable_graphs(mixed):
        for node in graph.order:
            if node.bodies or node.function is not None or is_random(node) or node.op_type in ("Cast", "Constant"):
                continue
            if any(v is not None and types.element(v.type) in LOW for v in node.outputs):
                nodes.setdefault(node_ref(graph, node), node)
    return nodes


class _LayerwiseInstrumenter(Instrumenter):
    """Adds a rounded copy of each of the ``low_nodes``, as the mixed model has them, to the reference."""

    def __init__(self, reference: ModelProto, low_nodes: Mapping[NodeRef, Node], masks: set[TensorRef]) -> None:
        super().__init__(reference, _STATISTICS, lambda probe: probe.ref not in masks)
        self.low_nodes = low_nodes
        self.copies: dict[int, list[str]] = {}  # outputs of the copies, by id of the node

    def observe(
        self, probe: Probe, node: Node | None = None, target: NodeProto | None = None
    ) -> tuple[list[Result], list[NodeProto]]:
        """Return the two sums of one output of a low node, and the nodes that compute them."""
        mixed, slot = self.low_nodes.get(probe.ref.producer), probe.ref.slot
        if node is None or target is None or mixed is None:
            return [], []
        if probe.elem != types.FLOAT or slot >= len(mixed.outputs):
            return [], []
        value = mixed.outputs[slot]
        if value is None or types.element(value.type) not in LOW:
            return [], []
        nodes: list[NodeProto] = []
        rounded = self._rounded(self._copy(node, target, mixed, nodes)[slot], types.element(value.type), nodes)
        difference = self._add("Sub", [rounded, probe.tensor], nodes)
        results = []
        for statistic, tensor in zip(_STATISTICS, (difference, probe.tensor), strict=True):
            square = self._add("Mul", [tensor, tensor], nodes)
            total = self._add("ReduceSum", [square], nodes, keepdims=0)
            results.append(Result(probe.ref, statistic, total, types.FLOAT))
        return results, nodes

    def _copy(self, node: Node, target: NodeProto, mixed: Node, nodes: list[NodeProto]) -> list[str]:
        """Return the outputs of the node's rounded copy, which is added once."""
        if id(node) in self.copies:
            return self.copies[id(node)]
        copy = copied(target)
        copy.name = self.new.make(f"{label(node)}_twin")
        for slot, name in enumerate(target.input):
            elem = mixed.types[slot] if slot < len(mixed.types) else types.UNKNOWN
            if name and isinstance(elem, int) and elem in LOW and node.types[slot] == types.FLOAT:
                copy.input[slot] = self._rounded(name, elem, nodes)
        for slot, name in enumerate(target.output):
            if name:
                copy.output[slot] = self.new.make(f"{name}_twin")
        nodes.append(copy)
        self.copies[id(node)] = list(copy.output)
        return self.copies[id(node)]

    def _rounded(self, tensor: str, elem: int, nodes: list[NodeProto]) -> str:
        return self._add("Cast", [self._add("Cast", [tensor], nodes, to=elem)], nodes, to=types.FLOAT)

    def _add(self, op_type: str, inputs: list[str], nodes: list[NodeProto], **attributes: int) -> str:
        out = self.new.make(f"{inputs[0]}_{op_type}")
        nodes.append(self.new.node(op_type, inputs, out, **attributes))
        return out


def _ranking(sums: Mapping[tuple[TensorRef, str], float], op_types: Mapping[TensorRef, str]) -> tuple[NodeError, ...]:
    """Return the nodes by the error that they add, largest first; of several outputs the worst counts."""
    worst: dict[NodeRef, NodeError] = {}
    for (tensor, name), difference in sums.items():
        if name != _DIFFERENCE:
            continue
        error = _normalized(difference, sums.get((tensor, _REFERENCE), 0.0))
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
