"""Trace which tensors each node reads: through branches, loop states, captured values and function calls."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from mixlist.graph.control_flow import CONTROL_FLOW, links_of
from mixlist.graph.model import Graph, Node, Scope, Value
from mixlist.graph.naming import node_ref, output_ref
from mixlist.graph.refs import NodeRef, TensorRef
from mixlist.graph.traversal import reachable_graphs

# The time at which a tensor was computed, seen from its reader: `same`: in the same run of the scope; `next`: it is a
# loop state that the reader sees in the next iteration; `before`: at any earlier time.
Timing = Literal["same", "next", "before"]


@dataclass(frozen=True)
class InputTensor:
    """A tensor that a node reads, and when it was computed."""

    ref: TensorRef
    timing: Timing


@dataclass(frozen=True)
class DataflowNode:
    """A node that computes; ``inputs`` are the tensors behind its inputs, as nodes or the graph's inputs make them."""

    ref: NodeRef
    node: Node
    graph: Graph
    inputs: tuple[InputTensor, ...]


def trace_dataflow(main: Graph) -> list[DataflowNode]:
    """Return every node of a model that is no control flow, call or Constant, in order of computation."""
    found: dict[NodeRef, DataflowNode] = {}
    _Tracer(main).trace(main, found, set())
    return list(found.values())


class _Tracer:
    def __init__(self, main: Graph) -> None:
        self.graphs = {graph.root: graph for graph in reachable_graphs(main)}
        self.feeds: dict[Value, list[tuple[Value, Timing]]] = {}
        for graph in self.graphs.values():
            for node in graph.nodes:
                if node.function is not None:
                    self._call(node, node.function)
                elif node.bodies and not node.domain and node.op_type in CONTROL_FLOW:
                    self._links(node)

    def _call(self, node: Node, body: Graph) -> None:
        outputs = zip(node.outputs, body.root.outputs, strict=False)
        for target, source in (*zip(body.root.inputs, node.inputs, strict=False), *outputs):
            if target is not None and source is not None:
                self.feeds.setdefault(target, []).append((source, "before"))

    def _links(self, node: Node) -> None:
        for link in links_of(node):
            for target in link.targets:
                inside = target.scope.owner is node
                for read in link.sources:
                    timing: Timing = "next" if inside and read.body is not None else "before"
                    if node.op_type == "If":
                        timing = "same"
                    self.feeds.setdefault(target, []).append((read.value, timing))

    def trace(self, graph: Graph, found: dict[NodeRef, DataflowNode], done: set[int]) -> None:
        """A function's nodes stand where it is first called, and read what any call passes."""
        done.add(id(graph))
        for node in graph.nodes:
            if node.function is not None and id(node.function) not in done:
                self.trace(node.function, found, done)
            if node.bodies or node.function is not None or node.op_type == "Constant":
                continue
            ref = node_ref(graph, node)
            inputs = [tensor for v in node.inputs if v is not None for tensor in self._tensors_behind(v, node)]
            before = found.get(ref, DataflowNode(ref, node, graph, ()))
            inputs = list(dict.fromkeys((*before.inputs, *inputs)))
            found[ref] = replace(before, inputs=tuple(inputs))

    def _tensors_behind(self, value: Value, node: Node) -> list[InputTensor]:
        """Return the tensors that a value stands for; iterative, each value once."""
        tensors: list[InputTensor] = []
        seen = {value}
        waiting: list[tuple[Value, Timing]] = [(value, "same" if _in_one_run(value.scope, node.scope) else "before")]
        while waiting:
            at, timing = waiting.pop()
            fed = self.feeds.get(at)
            if fed is not None:
                for source, other in fed:
                    if source not in seen:
                        seen.add(source)
                        waiting.append((source, _later(timing, other)))
            elif at.producer is not None and isinstance(at.type, tuple):  # a sequence: what was put into it
                for element in at.producer.inputs:
                    if element is not None and element not in seen:
                        seen.add(element)
                        waiting.append((element, timing))
            elif at.producer is not None:
                tensors.append(InputTensor(output_ref(self.graphs[_root(at)], at.producer, at.output_slot), timing))
            elif at.kind == "input":
                tensors.append(InputTensor(TensorRef("", "", at.scope.inputs.index(at)), "before"))
        return tensors


def _root(value: Value) -> Scope:
    scope = value.scope
    while scope.parent is not None:
        scope = scope.parent
    return scope


def _in_one_run(outer: Scope, inner: Scope) -> bool:
    """Return True if ``inner`` runs at most once in a run of ``outer``: it is the same scope, or a branch inside."""
    while inner is not outer:
        owner = inner.owner
        if owner is None or owner.op_type != "If" or owner.domain:
            return False
        inner = owner.scope
    return True


def _later(one: Timing, other: Timing) -> Timing:
    if "before" in (one, other):
        return "before"
    return "next" if "next" in (one, other) else "same"
