"""Link the scopes of a Graph: define their values, connect nodes with values, and sort the nodes topologically."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from mixlist.errors import ModelError
from mixlist.lists.op_catalog import canonical_domain
from mixlist.model import control_flow, dtypes
from mixlist.model.graph import CAST_MARK, Graph, Node, Scope, Value, ValueKind

if TYPE_CHECKING:
    from onnx import NodeProto

    from mixlist.model.proto_types import ConstantProto

# The deepest nesting of bodies in bodies. Linking recurses, and this limit keeps it below Python's recursion limit. A
# file has at most 33 nested bodies, because protobuf reads 100 nested messages.
MAX_NESTING = 100


# --- define the values of a scope ---


def _add_value(graph: Graph, scope: Scope, name: str, kind: ValueKind) -> Value:
    """Define a value in a scope, and return it."""
    value = Value(len(graph.values), name, name, scope, kind)
    graph.values.append(value)
    scope.values[name] = value
    return value


def _define_values(graph: Graph, scope: Scope) -> None:
    """Create the nodes of a scope, and every value that the scope defines.

    All values are defined before any node is connected, because the nodes of a file may come in any order.
    """
    proto = scope.proto
    for info in proto.input:
        if info.name in scope.values:
            raise ModelError(f"graph input {info.name!r} is defined twice")
        value = _add_value(graph, scope, info.name, "input")
        value.type = dtypes.from_proto(info.type)
        scope.inputs.append(value)
    for tensor in proto.initializer:
        _define_initializer(graph, scope, tensor.name, tensor, tensor.data_type)
    for sparse in proto.sparse_initializer:
        _define_initializer(graph, scope, sparse.values.name, sparse, sparse.values.data_type)
    # Nodes and their outputs, without the marked Casts.
    if not graph.show_marked_casts:
        scope.marked_casts = _find_marked_casts(scope)
    for position, node_proto in enumerate(proto.node):
        if position in scope.marked_casts:
            continue
        node = _make_node(graph, scope, position, node_proto)
        scope.nodes.append(node)
        for slot, name in enumerate(node_proto.output):
            if not name:
                node.outputs.append(None)
                continue
            if name in scope.values:
                raise ModelError(
                    f"tensor {name!r} is defined twice in one graph, the second time by {describe_node(node)}"
                )
            value = _add_value(graph, scope, name, "node")
            value.producer, value.output_slot = node, slot
            node.outputs.append(value)
    # In the order of the file: a marked Cast can read the output of an earlier one.
    for position in sorted(scope.marked_casts):
        _hide_marked_cast(graph, scope, proto.node[position])


def _make_node(graph: Graph, scope: Scope, position: int, proto: NodeProto) -> Node:
    """Return the Node of a message, without its inputs and outputs; build.py gives it its id, in topological order."""
    is_call = bool(graph.functions) and (proto.domain, proto.op_type, proto.overload) in graph.functions
    # A function may have the name of a standard operator. Its call is no such operator, so its domain is never "".
    domain = (proto.domain or "ai.onnx") if is_call else canonical_domain(proto.domain)
    return Node(-1, scope, position, proto, proto.op_type, domain, is_call=is_call)


def _define_initializer(graph: Graph, scope: Scope, name: str, tensor: ConstantProto, elem: int) -> None:
    """Define the value of an initializer, or add the initializer to the graph input of the same name."""
    value = scope.values.get(name)
    if value is None:
        value = _add_value(graph, scope, name, "initializer")
        value.type = elem
    elif value.kind == "input":
        # Before IR version 4, every initializer had to be a graph input too.
        value.kind = "overridable"
        if value.type not in (elem, dtypes.UNKNOWN):
            declared, stored = dtypes.type_name(value.type), dtypes.type_name(elem)
            raise ModelError(f"input {name!r} is declared {declared}, but its initializer is {stored}")
    else:
        raise ModelError(f"initializer {name!r} is defined twice")
    value.constant_proto, value.is_constant = tensor, True


def _find_marked_casts(scope: Scope) -> set[int]:
    """Return the positions of the marked Casts that can be hidden.

    Hiding a Cast makes its input and its output one value, and one of the two names disappears. For a Cast that makes a
    graph output, the input's name disappears; for any other marked Cast, the output's name.

    A marked Cast cannot be hidden if another tool changed the model around the Cast. There are two signs of this. The
    Cast reads a tensor of an outer scope, for example because the tool inlined a function. Or the tool made a graph
    output of the tensor whose name would disappear. Such a Cast is a node like any other.
    """
    proto = scope.proto
    marks = {position: _read_cast_mark(node) for position, node in enumerate(proto.node) if node.op_type == "Cast"}
    # A Cast without an input or an output is an error, as any other node with too few.
    marks = {at: mark for at, mark in marks.items() if mark and proto.node[at].input and proto.node[at].output}
    if not marks:
        return set()
    # All names that this scope defines; the outputs of nodes are not in scope.values yet.
    defined = set(scope.values).union(*(node.output for node in proto.node))
    graph_outputs = set(scope.output_names()) if scope.parent is None else set()
    return {
        position
        for position, mark in marks.items()
        if proto.node[position].input[0] in defined
        # The name that would disappear must not be a graph output.
        and (proto.node[position].input if mark == "output" else proto.node[position].output)[0] not in graph_outputs
    }


def _read_cast_mark(proto: NodeProto) -> str:
    """Return the value of CAST_MARK in a node; "" if the node has none."""
    return next((p.value for p in proto.metadata_props if p.key == CAST_MARK), "")


def _hide_marked_cast(graph: Graph, scope: Scope, cast: NodeProto) -> None:
    """Let readers of a marked Cast's output read the Cast's input: x -> Cast -> Add becomes x -> Add."""
    source = scope.values.get(cast.input[0])
    if source is None:
        raise ModelError(
            f"the Cast {cast.name!r} that mixlist inserted reads the output of a later one",
            hint="the nodes of the model were moved: apply the lists to the original model",
        )
    if _read_cast_mark(cast) == "output":
        source.name = cast.output[0]  # the authored name, which the Cast's output has in the file
    scope.values[cast.output[0]] = source
    graph.marked_cast_types[cast.output[0]] = next((int(a.i) for a in cast.attribute if a.name == "to"), dtypes.UNKNOWN)


# --- connect the nodes ---


def link_scope(graph: Graph, scope: Scope, depth: int = 0) -> None:
    """Fill a scope and all bodies in it: values, nodes, the edges between them, and the topological order.

    ``depth``: the number of scopes around the scope. Raises ModelError if the graph is not valid.
    """
    _define_values(graph, scope)
    values = scope.values
    for node in scope.nodes:
        inputs = node.inputs
        for name in node.proto.input:
            if not name:
                inputs.append(None)
                continue
            value = values.get(name) or _capture(scope, name)
            if value is None:
                raise ModelError(
                    f"{describe_node(node)} reads {name!r}, which nothing defines",
                    hint="check the model with onnx.checker",
                )
            inputs.append(value)
            producer = value.producer
            # Some tools write a node before the producer of its input. A node that reads its own output is a cycle,
            # which _sort() reports.
            if producer is not None and producer.scope is scope and producer.position >= node.position:
                scope.is_sorted = False
        _link_bodies(graph, scope, node, depth)
    _link_outputs(scope)
    if not scope.is_sorted:
        _sort(scope)


def _capture(scope: Scope, name: str) -> Value | None:
    """Return the value of an enclosing scope that ``name`` means, None if there is none.

    The value becomes a capture of ``scope`` and of every scope in between.
    """
    if scope.parent is None:
        return None
    value = scope.parent.values.get(name) or _capture(scope.parent, name)
    if value is not None:
        scope.captures[value] = None
    return value


def _link_bodies(graph: Graph, scope: Scope, node: Node, depth: int) -> None:
    """Link the bodies of a node, and check that the bodies of a control-flow node fit the node."""
    for attribute in node.proto.attribute:
        if attribute.type == attribute.GRAPHS:
            graph.unlinked_bodies.extend(attribute.graphs)  # no standard operator has such an attribute
        if attribute.type != attribute.GRAPH:
            continue
        if depth > MAX_NESTING:
            raise ModelError(f"subgraphs nest deeper than {MAX_NESTING} at {describe_node(node)}")
        body = Scope(attribute.g, scope, node, attribute.name)
        node.bodies[attribute.name] = body
        link_scope(graph, body, depth + 1)
        for value in body.captures:  # the node reads the captures of its bodies
            producer = value.producer
            if producer is not None and value.scope is scope and producer.position >= node.position:
                scope.is_sorted = False
    if node.op_type in control_flow.CONTROL_FLOW and node.domain == "":
        # All later code relies on this: type_links_of() takes the values of both sides by index.
        mismatch = control_flow.find_mismatch(node)
        if mismatch:
            raise ModelError(f"{describe_node(node)} {mismatch}", hint="check the model with onnx.checker")


def _link_outputs(scope: Scope) -> None:
    """Find the values of the scope's outputs, and their declared types."""
    for name in scope.output_names():
        value = scope.values.get(name) or _capture(scope, name)
        if value is None:
            raise ModelError(f"nothing defines the graph output {name!r}", hint="check the model with onnx.checker")
        scope.outputs.append(value)
    scope.declared_output_types = [dtypes.from_proto(info.type) for info in scope.proto.output]


def values_read_by(node: Node) -> list[Value]:
    """Return the values that a node reads: its inputs, and the captures of its bodies."""
    captured = [v for body in node.bodies.values() for v in body.captures]
    return [v for v in node.inputs if v is not None] + captured


def _sort(scope: Scope) -> None:
    """Sort the nodes topologically. Among the nodes that are ready, the first one of the file comes first."""
    # Values of outer scopes exist before this scope runs, so they order nothing here.
    producers = {n: {v.producer for v in values_read_by(n) if v.producer and v.scope is scope} for n in scope.nodes}
    sorter = TopologicalSorter(producers)
    try:
        sorter.prepare()
    except CycleError as error:
        cycle = sorted(set(error.args[1]), key=lambda node: node.position)
        raise ModelError(f"the graph has a cycle through {', '.join(map(describe_node, cycle[:5]))}") from None
    ready: list[tuple[int, Node]] = []  # a heap; positions differ, so the heap never compares two Nodes
    scope.nodes = []
    # TopologicalSorter alone does not keep the order of the file: it returns all ready nodes in any order.
    while sorter.is_active():
        for node in sorter.get_ready():
            heappush(ready, (node.position, node))
        node = heappop(ready)[1]
        scope.nodes.append(node)
        sorter.done(node)


def describe_node(node: Node) -> str:
    """Return the text by which error messages name a node."""
    return f"node {node.proto.name!r} ({node.op_type})" if node.proto.name else f"an unnamed {node.op_type} node"
