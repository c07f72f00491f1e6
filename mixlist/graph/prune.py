"""Remove what a session need not load: unasked outputs, the nodes and weights that only they need, and Identities."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from mixlist.graph.proto_edits import MessageT, reorder_messages
from mixlist.graph.traversal import bodies_of, nodes_in, scopes_in

if TYPE_CHECKING:
    from google.protobuf.internal.containers import RepeatedCompositeFieldContainer
    from onnx import GraphProto, ModelProto, NodeProto


def prune_model(proto: ModelProto, outputs: Iterable[str]) -> None:
    """Reduce a model in place to what the ``outputs`` of its main graph need."""
    graph, asked = proto.graph, set(outputs)
    if not asked:
        return
    kept = [output for output in graph.output if output.name in asked]
    if len(kept) < len(graph.output):
        _keep(graph.output, kept)
    _skip_identities(graph)
    needed, nodes = set(asked), []
    for node in reversed(graph.node):
        if any(name in needed for name in node.output):
            needed.update(names_read_by(node))
            nodes.append(node)
    if len(nodes) < len(graph.node):
        _keep(graph.node, nodes[::-1])
        inputs = {info.name for info in graph.input}
        _keep(graph.initializer, [t for t in graph.initializer if t.name in needed or t.name in inputs])


def _skip_identities(graph: GraphProto) -> None:
    """Remove the Identities of the main graph, and let their readers read their inputs.

    An Identity stays if it makes an output of the graph, or if a body has a tensor of the same name.
    """
    outputs = {output.name for output in graph.output}
    inner = scopes_in(*(body for node in graph.node for body in bodies_of(node)))
    for body in inner:  # the names of its own tensors
        outputs.update(info.name for info in body.input)
        outputs.update(tensor.name for tensor in body.initializer)
        outputs.update(name for node in body.node for name in node.output)
    sources: dict[str, str] = {}
    nodes = []
    for node in graph.node:
        if node.op_type == "Identity" and not node.domain and node.output[0] not in outputs:
            sources[node.output[0]] = sources.get(node.input[0], node.input[0])
        else:
            nodes.append(node)
    if sources:
        for node in nodes:
            _rename(node, sources)
        _keep(graph.node, nodes)


def _rename(node: NodeProto, sources: dict[str, str]) -> None:
    """Let a node, and all in its bodies, read other tensors: ``sources`` by the name that is read now."""
    inner = bodies_of(node)
    for reader in (node, *nodes_in(*inner)):
        for slot, name in enumerate(reader.input):
            if name in sources:
                reader.input[slot] = sources[name]
    for body in scopes_in(*inner):
        for output in body.output:
            output.name = sources.get(output.name, output.name)


def names_read_by(node: NodeProto) -> Iterator[str]:
    """Yield the names that a node and its bodies read; those of a body's own tensors among them."""
    yield from node.input
    for body in scopes_in(*bodies_of(node)):
        yield from (output.name for output in body.output)
        for inside in body.node:
            yield from inside.input


def _keep(messages: RepeatedCompositeFieldContainer[MessageT], kept: Iterable[MessageT]) -> None:
    """Keep some of the messages of a repeated field, in their order."""
    stay = {id(message) for message in kept}
    reorder_messages(messages, [(0, 0, 0) if id(message) in stay else None for message in messages])
