"""Walk the scopes of a model, their nodes, and the bodies of these nodes: over protobuf messages, and as linked.

A scope is the main graph, a function, or a body. A body is a graph in an attribute of type GRAPH or GRAPHS. No walk
recurses, each takes time linear in what it visits, and what it yields comes in the order of the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, overload

if TYPE_CHECKING:
    from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto
    from typing_extensions import TypeIs

    from mixlist.graph.model import Graph, Scope
    from mixlist.graph.proto_types import ScopeProto

_GRAPH, _GRAPHS = 5, 10  # AttributeProto.GRAPH and GRAPHS
_TENSOR, _TENSORS, _SPARSE, _SPARSES = 4, 9, 11, 12  # TENSOR, TENSORS, SPARSE_TENSOR and SPARSE_TENSORS
_WITH_TENSORS = frozenset({_TENSOR, _TENSORS, _SPARSE, _SPARSES})


def is_graph(scope: ScopeProto) -> TypeIs[GraphProto]:
    """Return whether a scope is a GraphProto, not a FunctionProto."""
    return scope.DESCRIPTOR.name == "GraphProto"


def _graphs(attribute: AttributeProto) -> Sequence[GraphProto]:
    """Return the bodies in an attribute."""
    if attribute.type == _GRAPH:
        return (attribute.g,)
    return attribute.graphs if attribute.type == _GRAPHS else ()


def bodies_of(node: NodeProto) -> list[GraphProto]:
    """Return the graphs in a node's attributes."""
    return [graph for attribute in node.attribute for graph in _graphs(attribute)]


def walk_messages(*roots: ScopeProto) -> Iterator[ScopeProto | NodeProto | AttributeProto]:
    """Yield the scopes, nodes and attributes in ``roots``, each right before what is in it."""
    from onnx import AttributeProto, NodeProto

    pending: list[Iterator[ScopeProto | NodeProto | AttributeProto]] = [iter(roots)]
    while pending:
        for message in pending[-1]:
            yield message
            inside: Sequence[GraphProto | NodeProto | AttributeProto]
            if isinstance(message, NodeProto):
                inside = message.attribute
            elif isinstance(message, AttributeProto):
                inside = _graphs(message)
            else:
                inside = message.node
            if inside:
                pending.append(iter(inside))
                break
        else:
            pending.pop()


@overload
def scopes_in(*roots: GraphProto) -> Iterator[GraphProto]: ...
@overload
def scopes_in(*roots: ScopeProto) -> Iterator[ScopeProto]: ...
def scopes_in(*roots: ScopeProto) -> Iterator[ScopeProto]:
    """Yield ``roots`` and all bodies in them, a scope before the bodies of its nodes."""
    from onnx import AttributeProto, NodeProto

    return (message for message in walk_messages(*roots) if not isinstance(message, (NodeProto, AttributeProto)))


def nodes_in(*roots: ScopeProto) -> Iterator[NodeProto]:
    """Yield the nodes of ``roots`` and of all bodies in them, a node right before those of its bodies."""
    from onnx import NodeProto

    return (message for message in walk_messages(*roots) if isinstance(message, NodeProto))


def tensors_in_model(model: ModelProto) -> Iterator[TensorProto]:
    """Yield every tensor that can lie in another file: initializers of all graphs, and attributes of nodes."""
    from onnx import AttributeProto, GraphProto

    training = [graph for info in model.training_info for graph in (info.initialization, info.algorithm)]
    for message in walk_messages(model.graph, *model.functions, *training):
        if isinstance(message, GraphProto):
            yield from message.initializer
            yield from _parts(message.sparse_initializer)
        elif isinstance(message, AttributeProto):
            yield from tensors_in_attribute(message)


def tensors_in_attribute(attribute: AttributeProto) -> Iterable[TensorProto]:
    """Return the tensors in an attribute, without those of its bodies; of a sparse one, its values and its indices."""
    kind = attribute.type
    if kind not in _WITH_TENSORS:  # nearly all
        return ()
    if kind == _TENSOR:
        return (attribute.t,)
    if kind == _TENSORS:
        return attribute.tensors
    return _parts((attribute.sparse_tensor,) if kind == _SPARSE else attribute.sparse_tensors)


def _parts(sparse_tensors: Iterable[SparseTensorProto]) -> Iterator[TensorProto]:
    for sparse in sparse_tensors:
        yield sparse.values
        yield sparse.indices


def scopes_in_model(model: ModelProto) -> Iterator[ScopeProto]:
    """Yield the main graph, the functions, and all bodies in them; not the graphs for training."""
    return scopes_in(model.graph, *model.functions)


def nodes_in_model(model: ModelProto) -> Iterator[NodeProto]:
    """Yield the nodes of the main graph, of the functions, and of all bodies in them."""
    return nodes_in(model.graph, *model.functions)


# --- over the linked graph ---


def linked_scopes(root: Scope) -> Iterator[Scope]:
    """Yield a scope of a Graph and all bodies in it, a scope before the bodies of its nodes."""
    pending = [root]
    while pending:
        scope = pending.pop()
        yield scope
        pending.extend(reversed([body for node in scope.nodes for body in node.bodies.values()]))


@overload
def protos_by_scope(root: Scope, message: GraphProto) -> dict[Scope, GraphProto]: ...
@overload
def protos_by_scope(root: Scope, message: ScopeProto) -> dict[Scope, ScopeProto]: ...
def protos_by_scope(root: Scope, message: ScopeProto) -> Mapping[Scope, ScopeProto]:
    """Return each scope below ``root`` with its message in ``message``, which is a copy of the root's message."""
    messages: dict[Scope, ScopeProto] = {root: message}
    for scope in linked_scopes(root):
        for node in scope.nodes:
            if node.bodies:
                attributes = messages[scope].node[node.position].attribute
                messages.update({node.bodies[a.name]: a.g for a in attributes if a.name in node.bodies})
    return messages


def reachable_graphs(graph: Graph) -> list[Graph]:
    """Return a Graph and those of all functions that it calls, directly or not, in order of first call."""
    found: dict[Graph, None] = {}
    pending = [graph]
    while pending:
        caller = pending.pop()
        if caller not in found:
            found[caller] = None
            pending.extend(reversed([node.function for node in caller.nodes if node.function is not None]))
    return list(found)
