"""Which observed tensors a node reads: through branches, loop states, captured values and function calls."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from mixlist.graph.control_flow import CONTROL_FLOW, links
from mixlist.graph.model import Graph, Node, Scope, Value
from mixlist.graph.naming import label, scope_path
from mixlist.graph.refs import TensorRef

# `same`: in the same run of the scope; `next`: what a loop's state becomes in the next iteration; `before`: any time
When = Literal["same", "next", "before"]


@dataclass(frozen=True)
class Source:
    """An observed tensor that a node reads, and when it was made."""

    key: TensorRef
    when: When


@dataclass(frozen=True)
class DataflowNode:
    """A node as the classification sees it; ``inputs`` are the observed tensors behind its inputs."""

    node: Node
    graph: Graph
    path: str
    label: str
    inputs: tuple[Source, ...]


def wire(main: Graph) -> list[DataflowNode]:
    """Every node of a model that is no control flow, call or Constant, in order of computation."""
    return _Wirer(main).run(main)


class _Wirer:
    def __init__(self, main: Graph) -> None:
        self.graphs: dict[int, Graph] = {}
        self.arguments: dict[Value, list[Value]] = {}  # what the calls pass to a function's parameter
        self.feeds: dict[Value, list[tuple[Value, When]]] = {}
        self._collect(main)

    def _collect(self, graph: Graph) -> None:
        if id(graph) in self.graphs:
            return
        self.graphs[id(graph)] = graph
        for node in graph.order:
            if node.function is not None:
                self._call(node)
                self._collect(node.function)
            elif node.bodies and not node.domain and node.op_type in CONTROL_FLOW:
                self._links(node)

    def _call(self, node: Node) -> None:
        body: Graph = node.function
        for parameter, given in zip(body.root.inputs, node.inputs, strict=False):
            if given is not None:
                self.feeds.setdefault(parameter, []).append((given, "before"))
        for out, made in zip(node.outputs, body.root.outputs, strict=False):
            if out is not None:
                self.feeds.setdefault(out, []).append((made, "before"))

    def _links(self, node: Node) -> None:
        for link in links(node):
            for target in link.targets:
                inside = target.scope.owner is node
                for read in link.reads:
                    when: When = "next" if inside and read.body is not None else "before"
                    if node.op_type == "If":
                        when = "same"
                    self.feeds.setdefault(target, []).append((read.value, when))

    def run(self, main: Graph) -> list[DataflowNode]:
        found: dict[tuple[str, str], DataflowNode] = {}
        self._wire(main, found, set())
        return list(found.values())

    def _wire(self, graph: Graph, found: dict[tuple[str, str], DataflowNode], done: set[int]) -> None:
        """A function's nodes stand where it is first called, and read what any call passes."""
        done.add(id(graph))
        for node in graph.order:
            if node.function is not None and id(node.function) not in done:
                self._wire(node.function, found, done)
            if node.bodies or node.function is not None or node.op_type == "Constant":
                continue
            path = scope_path(graph, node.scope)
            inputs = [s for v in node.inputs if v is not None for s in self._sources(v, node)]
            before = found.get((path, label(node)), DataflowNode(node, graph, path, label(node), ()))
            inputs = list(dict.fromkeys((*before.inputs, *inputs)))
            found[path, label(node)] = replace(before, inputs=tuple(inputs))

    def _sources(self, value: Value, node: Node) -> list[Source]:
        """The observed tensors behind a value; iterative, each value once."""
        sources: list[Source] = []
        seen = {value}
        waiting: list[tuple[Value, When]] = [(value, "same" if _in_one_run(value.scope, node.scope) else "before")]
        while waiting:
            at, when = waiting.pop()
            fed = self.feeds.get(at)
            if fed is not None:
                for source, how in fed:
                    if source not in seen:
                        seen.add(source)
                        waiting.append((source, _later(when, how)))
            elif at.producer is not None and isinstance(at.type, tuple):  # a sequence: what was put into it
                for given in at.producer.inputs:
                    if given is not None and given not in seen:
                        seen.add(given)
                        waiting.append((given, when))
            elif at.producer is not None:
                key = TensorRef(self._path(at), label(at.producer), at.out)
                sources.append(Source(key, when))
            elif at.kind == "input":
                sources.append(Source(TensorRef("", "", at.scope.inputs.index(at)), "before"))
        return sources

    def _path(self, value: Value) -> str:
        graph = next(g for g in self.graphs.values() if _root(value) is g.root)
        return scope_path(graph, value.scope)


def _root(value: Value) -> object:
    scope = value.scope
    while scope.parent is not None:
        scope = scope.parent
    return scope


def _in_one_run(outer: Scope, inner: Scope) -> bool:
    """Whether ``inner`` runs at most once in a run of ``outer``: it is the same, or a branch in it."""
    while inner is not outer:
        owner = inner.owner
        if owner is None or owner.op_type != "If" or owner.domain:
            return False
        inner = owner.scope
    return True


def _later(one: When, other: When) -> When:
    if "before" in (one, other):
        return "before"
    return "next" if "next" in (one, other) else "same"
