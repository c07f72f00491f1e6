"""Remove the parts of a model that a session does not need.

These are the unwanted graph outputs, the nodes and initializers that compute only these outputs, and Identities.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from mixlist.model.protos import MessageT, bodies_of, names_read_by, nodes_in, reorder_messages, scopes_in

if TYPE_CHECKING:
    from google.protobuf.internal.containers import RepeatedCompositeFieldContainer
    from onnx import GraphProto, ModelProto, NodeProto


def prune_model(proto: ModelProto, outputs: Iterable[str]) -> None:
    """Reduce a model in place to the parts of its main graph that compute ``outputs``.

    All graph inputs stay, so that the same feeds fit. An empty ``outputs`` leaves the model as it is.
    """
    graph, wanted_outputs = proto.graph, set(outputs)
    if not wanted_outputs:
        return
    kept_outputs = [output for output in graph.output if output.name in wanted_outputs]
    if len(kept_outputs) < len(graph.output):
        _keep_only(graph.output, kept_outputs)
    _skip_identities(graph)
    # From the last node to the first: a node is needed if a later node reads one of its outputs.
    needed, nodes = set(wanted_outputs), []
    for node in reversed(graph.node):
        if any(name in needed for name in node.output):
            needed.update(names_read_by(node))
            nodes.append(node)
    if len(nodes) < len(graph.node):
        _keep_only(graph.node, nodes[::-1])
        inputs = {info.name for info in graph.input}
        # An initializer that is also a graph input stays with its input.
        _keep_only(graph.initializer, [t for t in graph.initializer if t.name in needed or t.name in inputs])


def _skip_identities(graph: GraphProto) -> None:
    """Remove the Identities of the main graph: x -> Identity -> Add becomes x -> Add.

    An Identity stays if its output is a graph output, or if a body defines a tensor of the same name.
    """
    fixed_names = {output.name for output in graph.output}  # names of tensors that must stay
    # Where a body defines a tensor ``y`` itself, ``y`` in the body is not the output of an outer Identity.
    inner = scopes_in(*(body for node in graph.node for body in bodies_of(node)))
    for body in inner:
        fixed_names.update(info.name for info in body.input)
        fixed_names.update(tensor.name for tensor in body.initializer)
        fixed_names.update(name for node in body.node for name in node.output)
    # By the output of each removed Identity: its input, through chains of Identities.
    sources: dict[str, str] = {}
    nodes = []
    for node in graph.node:
        if node.op_type == "Identity" and not node.domain and node.output[0] not in fixed_names:
            sources[node.output[0]] = sources.get(node.input[0], node.input[0])
        else:
            nodes.append(node)
    if sources:
        for node in nodes:
            _rename_inputs(node, sources)
        _keep_only(graph.node, nodes)


def _rename_inputs(node: NodeProto, new_names: dict[str, str]) -> None:
    """Rename the tensors that a node and its bodies read. ``new_names`` has the new name by the old one."""
    inner = bodies_of(node)
    for reader in (node, *nodes_in(*inner)) if inner else (node,):  # a walk takes time also where nothing is inside
        for slot, name in enumerate(reader.input):
            if name in new_names:
                reader.input[slot] = new_names[name]
    for body in scopes_in(*inner) if inner else ():
        for output in body.output:
            output.name = new_names.get(output.name, output.name)  # a body can return a tensor of an outer scope


def _keep_only(messages: RepeatedCompositeFieldContainer[MessageT], needed: Iterable[MessageT]) -> None:
    """Remove the messages of a repeated field that are not in ``needed``; the others keep their order."""
    # By identity, because two messages can have equal content.
    needed_ids = {id(message) for message in needed}
    # Equal keys: the sort is stable.
    reorder_messages(messages, [(0, 0, 0) if id(message) in needed_ids else None for message in messages])
