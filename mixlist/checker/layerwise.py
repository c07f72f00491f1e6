"""Where error is born: each low node's own error, when everything it reads is exact.

In the float32 reference each low node gets a twin that reads the same exact inputs rounded to the types that the mixed
model gives them, and whose output is rounded too. The twin's distance from the exact output is the error that this node
adds by itself. One run of one graph ranks them all; the sums are computed inside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from mixlist.checker.result import NodeError
from mixlist.emulation.instrument import Instrumenter, Probe, Result, Statistic
from mixlist.graph.constness import is_random
from mixlist.graph.model import Graph, Node
from mixlist.graph.naming import label, node_ref
from mixlist.graph.refs import NodeRef, TensorRef
from mixlist.ops import types
from mixlist.ops.low_precision import LOW

DIFFERENCE, REFERENCE = "difference", "reference"


def _unused(*_: Any) -> list[Any]:
    raise AssertionError("built by the twin")


_STATISTICS = tuple(Statistic(n, 0.0, "ReduceSum", _unused, types.FLOAT) for n in (DIFFERENCE, REFERENCE))


def nodes_with_low_outputs(mixed: Graph) -> dict[NodeRef, Node]:
    """Return the nodes of a mixed model that compute an output of a low type."""
    nodes: dict[NodeRef, Node] = {}
    graphs, seen = [mixed], {id(mixed)}
    while graphs:
        graph = graphs.pop()
        for node in graph.order:
            if node.function is not None and id(node.function) not in seen:
                seen.add(id(node.function))
                graphs.append(node.function)
            if node.bodies or node.function is not None or is_random(node) or node.op_type in ("Cast", "Constant"):
                continue
            if any(v is not None and types.element(v.type) in LOW for v in node.outputs):
                nodes.setdefault(node_ref(graph, node), node)
    return nodes


class Twins(Instrumenter):
    """The reference with a twin per low node; ``low`` are the mixed model's low nodes."""

    def __init__(self, reference: Any, low: Mapping[NodeRef, Node], wanted: Callable[[Probe], bool]) -> None:
        super().__init__(reference, _STATISTICS, wanted)
        self.low = low
        self.made_twins: dict[int, list[str]] = {}

    def observe(self, probe: Probe, node: Node | None = None, target: Any = None) -> tuple[list[Result], list[Any]]:
        """The two sums of one output of a low node."""
        mixed = self.low.get(probe.key.producer)
        if node is None or mixed is None or probe.elem != types.FLOAT or probe.key.slot >= len(mixed.outputs):
            return [], []
        value = mixed.outputs[probe.key.slot]
        if value is None or types.element(value.type) not in LOW:
            return [], []
        nodes: list[Any] = []
        twin = self._twin(node, target, mixed, nodes)[probe.key.slot]
        rounded = self._rounded(twin, types.element(value.type), nodes)
        apart = self._add("Sub", [rounded, probe.tensor], nodes)
        results = []
        for statistic, tensor in zip(_STATISTICS, (apart, probe.tensor), strict=True):
            square = self._add("Mul", [tensor, tensor], nodes)
            total = self._add("ReduceSum", [square], nodes, keepdims=0)
            results.append(Result(probe.key, statistic, total, types.FLOAT))
        return results, nodes

    def _twin(self, node: Node, target: Any, mixed: Node, nodes: list[Any]) -> list[str]:
        """The outputs of the node's twin, made once."""
        if id(node) in self.made_twins:
            return self.made_twins[id(node)]
        twin = type(target)()
        twin.CopyFrom(target)
        twin.name = self.new.make(f"{label(node)}_twin")
        for slot, name in enumerate(target.input):
            wanted = mixed.types[slot] if slot < len(mixed.types) else types.UNKNOWN
            if name and wanted in LOW and node.types[slot] == types.FLOAT:
                assert isinstance(wanted, int)
                twin.input[slot] = self._rounded(name, wanted, nodes)
        for slot, name in enumerate(target.output):
            if name:
                twin.output[slot] = self.new.make(f"{name}_twin")
        nodes.append(twin)
        self.made_twins[id(node)] = list(twin.output)
        return self.made_twins[id(node)]

    def _rounded(self, tensor: str, elem: int, nodes: list[Any]) -> str:
        return self._add("Cast", [self._add("Cast", [tensor], nodes, to=elem)], nodes, to=types.FLOAT)

    def _add(self, op_type: str, inputs: list[str], nodes: list[Any], **attributes: Any) -> str:
        from onnx import helper

        out = self.new.make(f"{inputs[0]}_{op_type}")
        nodes.append(helper.make_node(op_type, inputs, [out], name=self.new.make(f"{op_type}_{out}"), **attributes))
        return out


def ranking(sums: Mapping[tuple[TensorRef, str], float], op_types: Mapping[TensorRef, str]) -> tuple[NodeError, ...]:
    """The nodes by the error that they add, largest first; of several outputs the worst counts."""
    worst: dict[NodeRef, NodeError] = {}
    for (key, name), difference in sums.items():
        if name != DIFFERENCE:
            continue
        reference = sums.get((key, REFERENCE), 0.0)
        error = _normalised(difference, reference)
        found = NodeError(key.scope, key.node, op_types.get(key, ""), error)
        before = worst.get(key.producer)
        if before is None or error > before.normalized_error:
            worst[key.producer] = found
    return tuple(sorted(worst.values(), key=lambda e: (-e.normalized_error, e.scope, e.name)))


def _normalised(difference: float, reference: float) -> float:
    if not math.isfinite(difference):
        return math.inf
    if difference == 0:
        return 0.0
    return math.sqrt(difference / reference) if reference > 0 else math.inf
