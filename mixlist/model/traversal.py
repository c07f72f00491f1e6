"""Walk the scopes, nodes and tensors of a model, as protobuf messages or as a linked Graph.

A scope is the main graph or a body. A body is a graph in an attribute of type GRAPH or GRAPHS. The walks of messages
follow the order of the file, and can start at a function too. The walks of a linked Graph follow its topological order.
All walks take linear time. They use a stack of their own instead of recursion, so that a deeply nested model cannot
exceed Python's recursion limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto

    from mixlist.model.graph import Scope
    from mixlist.model.proto_types import RootProto

# AttributeProto.GRAPH, GRAPHS, TENSOR, TENSORS, SPARSE_TENSOR and SPARSE_TENSORS. These are numbers, so that importing
# this module does not import onnx.
_GRAPH, _GRAPHS = 5, 10
_TENSOR, _TENSORS, _SPARSE, _SPARSES = 4, 9, 11, 12
_WITH_GRAPHS = frozenset({_GRAPH, _GRAPHS})
_WITH_TENSORS = frozenset({_TENSOR, _TENSORS, _SPARSE, _SPARSES})


def _bodies_in_attribute(attribute: AttributeProto) -> Sequence[GraphProto]:
    """Return the graphs that an attribute holds."""
    if attribute.type == _GRAPH:
        return (attribute.g,)
    return attribute.graphs if attribute.type == _GRAPHS else ()


def bodies_of(node: NodeProto) -> list[GraphProto]:
    """Return the graphs in the attributes of a node, without the graphs in those graphs."""
    # Few attributes hold graphs, so their type is tested before a call.
    attributes = [attribute for attribute in node.attribute if attribute.type in _WITH_GRAPHS]
    return [graph for attribute in attributes for graph in _bodies_in_attribute(attribute)]


def walk_messages(*roots: RootProto) -> Iterator[RootProto | NodeProto | AttributeProto]:
    """Yield the graphs, functions, nodes and attributes in ``roots``, each message right before the messages in it."""
    from onnx import AttributeProto, NodeProto

    # One iterator for each open level: the innermost one is last. A message with content opens a level.
    pending: list[Iterator[RootProto | NodeProto | AttributeProto]] = [iter(roots)]
    while pending:
        for message in pending[-1]:
            yield message
            children: Sequence[GraphProto | NodeProto | AttributeProto]
            if isinstance(message, NodeProto):
                children = message.attribute
            elif isinstance(message, AttributeProto):
                children = _bodies_in_attribute(message) if message.type in _WITH_GRAPHS else ()
            else:  # a GraphProto or a FunctionProto
                children = message.node
            if children:
                # Go on with the new innermost iterator. The others keep their position until it is exhausted.
                pending.append(iter(children))
                break
        else:
            pending.pop()


def scopes_in(*roots: GraphProto) -> Iterator[GraphProto]:
    """Yield ``roots`` and all bodies in them, each scope before the bodies in it."""
    from onnx import GraphProto

    return (message for message in walk_messages(*roots) if isinstance(message, GraphProto))


def nodes_in(*roots: RootProto) -> Iterator[NodeProto]:
    """Yield the nodes of ``roots`` and of all bodies in them, each node right before the nodes of its bodies."""
    from onnx import NodeProto

    return (message for message in walk_messages(*roots) if isinstance(message, NodeProto))


def tensors_in_model(model: ModelProto) -> Iterator[TensorProto]:
    """Yield every tensor whose bytes can be external data: initializers of all graphs, and tensors in attributes."""
    from onnx import AttributeProto, GraphProto

    training = [graph for info in model.training_info for graph in (info.initialization, info.algorithm)]
    for message in walk_messages(model.graph, *model.functions, *training):
        if isinstance(message, GraphProto):
            yield from message.initializer
            yield from _dense_tensors(message.sparse_initializer)
        elif isinstance(message, AttributeProto):
            yield from tensors_in_attribute(message)


def tensors_in_attribute(attribute: AttributeProto) -> Iterable[TensorProto]:
    """Return the tensors in an attribute, without the tensors in its bodies.

    A sparse tensor counts as two tensors: its values and its indices.
    """
    kind = attribute.type
    if kind not in _WITH_TENSORS:  # most attributes hold no tensor, so this test comes first
        return ()
    if kind == _TENSOR:
        return (attribute.t,)
    if kind == _TENSORS:
        return attribute.tensors
    return _dense_tensors((attribute.sparse_tensor,) if kind == _SPARSE else attribute.sparse_tensors)


def _dense_tensors(sparse_tensors: Iterable[SparseTensorProto]) -> Iterator[TensorProto]:
    """Yield the values and the indices of each sparse tensor."""
    for sparse in sparse_tensors:
        yield sparse.values
        yield sparse.indices


# --- walks of a linked Graph ---


def linked_scopes(root: Scope) -> Iterator[Scope]:
    """Yield ``root`` and all bodies in it, each scope before the bodies in it."""
    pending = [root]
    while pending:
        scope = pending.pop()
        yield scope
        # Reversed, because the last element of the stack comes next: the first body of the first node.
        pending.extend(reversed([body for node in scope.nodes for body in node.bodies.values()]))


def protos_by_scope(root: Scope, message: GraphProto) -> dict[Scope, GraphProto]:
    """Return the message that each scope below ``root`` has in ``message``, a copy of ``root.proto``.

    The result of ``root`` is ``message`` itself, the result of a body is the graph in the same attribute of the copy.
    The copy may differ, for example by inferred shapes, but its nodes must have the same positions.
    """
    messages = {root: message}
    for scope in linked_scopes(root):
        for node in scope.nodes:
            if node.bodies:
                attributes = messages[scope].node[node.position].attribute
                messages.update({node.bodies[a.name]: a.g for a in attributes if a.name in node.bodies})
    return messages
