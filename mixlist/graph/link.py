"""Linking: register the values of every scope, connect the nodes, put them into topological order."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from mixlist.errors import ModelError
from mixlist.graph import control_flow
from mixlist.graph.model import CAST_MARK, Graph, Node, Scope, Value, ValueKind
from mixlist.graph.traversal import is_graph
from mixlist.ops import types

if TYPE_CHECKING:
    from onnx import NodeProto

    from mixlist.graph.proto_types import ConstantProto

MAX_NESTING = 100  # scopes in scopes and functions in functions; protobuf itself stops at 100 nested messages


# --- register -----------------------------------------------------------------------------------


def add_value(graph: Graph, scope: Scope, name: str, kind: ValueKind) -> Value:
    """Define a value in a scope."""
    value = Value(len(graph.values), name, name, scope, kind)
    graph.values.append(value)
    scope.values[name] = value
    return value


def _register(graph: Graph, scope: Scope) -> None:
    """Every value that the scope defines, before any node looks for one."""
    proto = scope.proto
    if is_graph(proto):
        for info in proto.input:
            if info.name in scope.values:
                raise ModelError(f"graph input {info.name!r} is defined twice")
            value = add_value(graph, scope, info.name, "input")
            value.type = types.from_proto(info.type)
            scope.inputs.append(value)
        for tensor in proto.initializer:
            _initializer(graph, scope, tensor.name, tensor, tensor.data_type)
        for sparse in proto.sparse_initializer:
            _initializer(graph, scope, sparse.values.name, sparse, sparse.values.data_type)
    if not graph.show_marked_casts:
        scope.marked_casts = _marked_casts(scope)
    for position, node_proto in enumerate(proto.node):
        if position in scope.marked_casts:
            continue
        node = Node(-1, scope, position, node_proto, node_proto.op_type, canonical_domain(node_proto.domain))
        scope.nodes.append(node)
        for slot, name in enumerate(node_proto.output):
            if not name:
                node.outputs.append(None)
                continue
            if name in scope.values:
                raise ModelError(
                    f"tensor {name!r} is defined twice in one graph, the second time by {describe_node(node)}"
                )
            value = add_value(graph, scope, name, "node")
            value.producer, value.output_slot = node, slot
            node.outputs.append(value)
    for position in sorted(scope.marked_casts):
        _alias(graph, scope, proto.node[position])


def _initializer(graph: Graph, scope: Scope, name: str, tensor: ConstantProto, elem: int) -> None:
    value = scope.values.get(name)
    if value is None:
        value = add_value(graph, scope, name, "initializer")
        value.type = elem
    elif value.kind == "input":
        value.kind = "overridable"
        if value.type not in (elem, types.UNKNOWN):
            declared, held = types.type_name(value.type), types.type_name(elem)
            raise ModelError(f"input {name!r} is declared {declared}, its initializer is {held}")
    else:
        raise ModelError(f"initializer {name!r} is defined twice")
    value.constant_proto, value.is_constant = tensor, True


def _marked_casts(scope: Scope) -> set[int]:
    """Return the positions of the Casts that mixlist made, if they still are what mixlist made.

    One that reads an outer tensor now, or stands at an output of the model that it was not made for, since somebody
    inlined a function or exposed a tensor, is a node like any other.
    """
    proto = scope.proto
    marks = {position: _mark(node) for position, node in enumerate(proto.node) if node.op_type == "Cast"}
    marks = {position: mark for position, mark in marks.items() if mark}
    if not marks:
        return set()
    defined = set(scope.values).union(*(node.output for node in proto.node))
    exposed = set(scope.output_names()) if scope.parent is None else set()
    return {
        position
        for position, mark in marks.items()
        if proto.node[position].input[0] in defined
        and (proto.node[position].input if mark == "output" else proto.node[position].output)[0] not in exposed
    }


def _mark(proto: NodeProto) -> str:
    return next((p.value for p in proto.metadata_props if p.key == CAST_MARK), "")


def _alias(graph: Graph, scope: Scope, cast: NodeProto) -> None:
    """A Cast that mixlist made is not there for resolution: its output is the tensor that it serves."""
    served = scope.values.get(cast.input[0])
    if served is None:
        raise ModelError(f"the Cast {cast.name!r} that mixlist made reads one that comes later")
    if _mark(cast) == "output":
        served.name = cast.output[0]  # the Cast had taken over the name of a graph output
    scope.values[cast.output[0]] = served
    graph.marked_cast_types[cast.output[0]] = next((int(a.i) for a in cast.attribute if a.name == "to"), types.UNKNOWN)


# --- link ---------------------------------------------------------------------------------------


def link_scope(graph: Graph, scope: Scope, depth: int) -> None:
    """Fill a scope and everything below: values, nodes and their edges, sorted."""
    _register(graph, scope)
    values = scope.values
    for node in scope.nodes:
        inputs = node.inputs
        for name in node.proto.input:
            if not name:
                inputs.append(None)
                continue
            value = values.get(name) or _outer(scope, name)
            if value is None:
                raise ModelError(
                    f"{describe_node(node)} reads {name!r}, which nothing defines",
                    hint="check the model with onnx.checker",
                )
            inputs.append(value if value.kind != "absent" else None)
            made = value.producer
            if made is not None and made.scope is scope and made.position >= node.position:
                scope.is_sorted = False
        _link_bodies(graph, scope, node, depth)
    _link_outputs(scope)
    if not scope.is_sorted:
        _sort(scope)


def _outer(scope: Scope, name: str) -> Value | None:
    """A value of an enclosing scope; it becomes a capture of every scope in between."""
    if scope.parent is None:
        return None
    found = scope.parent.values.get(name) or _outer(scope.parent, name)
    if found is not None:
        scope.captures[found] = None
    return found


def _link_bodies(graph: Graph, scope: Scope, node: Node, depth: int) -> None:
    for attribute in node.proto.attribute:
        if attribute.type == attribute.GRAPHS:
            graph.unlinked_bodies.extend(attribute.graphs)
        if attribute.type != attribute.GRAPH:
            continue
        if depth > MAX_NESTING:
            raise ModelError(f"subgraphs nest deeper than {MAX_NESTING} at {describe_node(node)}")
        body = Scope(attribute.g, scope, node, attribute.name)
        node.bodies[attribute.name] = body
        link_scope(graph, body, depth + 1)
        for value in body.captures:
            made = value.producer
            if made is not None and value.scope is scope and made.position >= node.position:
                scope.is_sorted = False
    if node.op_type in control_flow.CONTROL_FLOW and node.domain == "":
        wrong = control_flow.find_mismatch(node)
        if wrong:
            raise ModelError(f"{describe_node(node)} {wrong}", hint="check the model with onnx.checker")


def _link_outputs(scope: Scope) -> None:
    for name in scope.output_names():
        value = scope.values.get(name) or _outer(scope, name)
        if value is None:
            raise ModelError(f"the graph output {name!r} is defined by nothing")
        scope.outputs.append(value)
    proto = scope.proto
    declared = [types.from_proto(info.type) for info in proto.output] if is_graph(proto) else None
    scope.declared_output_types = declared or [types.UNKNOWN] * len(scope.outputs)


def values_read_by(node: Node) -> list[Value]:
    """All that a node reads: its inputs, and what its bodies capture."""
    captured = [v for body in node.bodies.values() for v in body.captures]
    return [v for v in node.inputs if v is not None] + captured


def _sort(scope: Scope) -> None:
    """Stable topological order: among the nodes that are ready the first of the file goes first."""
    makers = {n: {v.producer for v in values_read_by(n) if v.producer and v.scope is scope} for n in scope.nodes}
    sorter = TopologicalSorter(makers)
    try:
        sorter.prepare()
    except CycleError as error:
        cycle = sorted(set(error.args[1]), key=lambda node: node.position)
        raise ModelError(f"the graph has a cycle through {', '.join(map(describe_node, cycle[:5]))}") from None
    ready: list[tuple[int, Node]] = []  # no two nodes have one position
    scope.nodes = []
    while sorter.is_active():
        for node in sorter.get_ready():
            heappush(ready, (node.position, node))
        node = heappop(ready)[1]
        scope.nodes.append(node)
        sorter.done(node)


def canonical_domain(name: str) -> str:
    """A domain's canonical spelling: "" for ``ai.onnx``."""
    return "" if name == "ai.onnx" else name


def describe_node(node: Node) -> str:
    """A node as error messages name it."""
    return f"node {node.proto.name!r} ({node.op_type})" if node.proto.name else f"an unnamed {node.op_type} node"
