"""Walk, read, copy and edit the protobuf messages of a model.

A scope is the main graph or a body. A body is a graph in an attribute of type GRAPH or GRAPHS. The walks follow the
order of the file, and can start at a function too. They take linear time. They use a stack of their own instead of
recursion, so that a deeply nested model cannot exceed Python's recursion limit.

Importing this module does not import onnx, because ``import mixlist`` must not. So the type aliases ``RootProto``,
``ConstantProto`` and ``ModelSource`` exist for type checkers only: import them under TYPE_CHECKING.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from mixlist.lists.op_catalog import is_standard_domain

if TYPE_CHECKING:
    import os
    from typing import TypeAlias

    import onnx_ir
    from google.protobuf.internal.containers import RepeatedCompositeFieldContainer
    from google.protobuf.message import Message
    from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto

    RootProto: TypeAlias = GraphProto | FunctionProto  # a graph, or a function: where a walk of messages can start
    ConstantProto: TypeAlias = TensorProto | SparseTensorProto | AttributeProto  # a message that holds constant numbers
    ModelSource: TypeAlias = str | os.PathLike[str] | ModelProto | onnx_ir.Model  # a model as users pass it

FunctionKey = tuple[str, str, str]  # domain, name and overload of a model-local function
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
    pending = [*reversed(roots)]
    while pending:
        graph = pending.pop()
        yield graph
        # As in ``bodies_of``, without a call for each of thousands of nodes.
        attributes = [a for node in graph.node for a in node.attribute if a.type in _WITH_GRAPHS]
        pending += reversed([body for attribute in attributes for body in _bodies_in_attribute(attribute)])


def nodes_in(*roots: RootProto) -> Iterator[NodeProto]:
    """Yield the nodes of ``roots`` and of all bodies in them, each node right before the nodes of its bodies."""
    # One iterator for each open level, as in ``walk_messages``.
    pending = [iter(root.node) for root in reversed(roots)]
    while pending:
        for node in pending[-1]:
            yield node
            bodies = bodies_of(node)
            if bodies:
                pending += [iter(body.node) for body in reversed(bodies)]
                break
        else:
            pending.pop()


def names_read_by(node: NodeProto) -> Iterator[str]:
    """Yield the names that a node and its bodies read, among them names that the bodies define themselves."""
    yield from node.input
    inner = bodies_of(node)
    for body in scopes_in(*inner) if inner else ():
        yield from (output.name for output in body.output)
        for inner_node in body.node:
            yield from inner_node.input


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


def function_key(function: FunctionProto) -> FunctionKey:
    """Return the domain, name and overload by which nodes call a function."""
    return function.domain, function.name, function.overload


# --- versions of the standard domain ---


OLDEST_OPSET = 7  # the oldest opset of the standard domain that mixlist handles (Rule S7.15)


def standard_opset(model: ModelProto) -> int:
    """Return the version of ONNX's standard domain that a model imports; 13 if the model imports none."""
    return next((entry.version for entry in model.opset_import if is_standard_domain(entry.domain)), 13)


def supports_where(model: ModelProto) -> bool:
    """Return True if the nodes of a model can use Where and IsNaN, which exist since opset 9."""
    return min((entry.version for entry in model.opset_import if is_standard_domain(entry.domain)), default=0) >= 9


# --- copies and edits ---


MessageT = TypeVar("MessageT", bound="Message")
# A key starts with a position in the node list. Keys are compared from left to right.
SortKey = tuple[int, int, int]


def copy_message(message: MessageT) -> MessageT:
    """Return a copy that shares nothing with ``message``."""
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


def copy_fields(source: Message, target: Message, *skipped: str) -> None:
    """Copy all fields of ``source`` except the ``skipped`` ones to ``target``, an empty message of the same type."""
    for field, value in source.ListFields():
        if field.name in skipped:
            continue
        if hasattr(value, "MergeFrom"):  # a message or a repeated field
            getattr(target, field.name).MergeFrom(value)
        else:
            setattr(target, field.name, value)


def reorder_messages(messages: RepeatedCompositeFieldContainer[MessageT], keys: Sequence[SortKey | None]) -> None:
    """Sort a repeated field in place, and remove messages. ``keys`` has the key of each message, None to remove it."""
    last = (len(keys) + 1, 0, 0)  # greater than the key of any message that stays
    next_keys = iter([last if key is None else key for key in keys])
    # sort() calls the function once for each message, from first to last. It moves pointers and copies no message.
    messages.sort(key=lambda _: next(next_keys))
    removed = sum(key is None for key in keys)
    if removed:
        del messages[len(messages) - removed :]
