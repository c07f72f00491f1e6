"""What a session need not load: outputs that nobody asks for, what only they need, and nodes that change nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any


def trim(proto: Any, outputs: Iterable[str]) -> None:
    """Reduce a model in place to what the ``outputs`` of its main graph need."""
    graph, asked = proto.graph, set(outputs)
    if not asked:
        return
    kept = [output for output in graph.output if output.name in asked]
    if len(kept) < len(graph.output):
        _replace(graph.output, kept)
    _skip_identities(graph)
    needed, nodes = set(asked), []
    for node in reversed(graph.node):
        if any(name in needed for name in node.output):
            needed.update(reads(node))
            nodes.append(node)
    if len(nodes) < len(graph.node):
        _replace(graph.node, nodes[::-1])
        inputs = {each.name for each in graph.input}
        _replace(graph.initializer, [t for t in graph.initializer if t.name in needed or t.name in inputs])


def _skip_identities(graph: Any) -> None:
    """What reads an Identity of the main graph reads its input, unless a body has something of the same name."""
    outputs = {output.name for output in graph.output}
    outputs.update(name for node in graph.node for body in bodies(node) for name in _defined(body))
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
        _replace(graph.node, nodes)


def _rename(node: Any, sources: dict[str, str]) -> None:
    for slot, name in enumerate(node.input):
        if name in sources:
            node.input[slot] = sources[name]
    for body in bodies(node):
        for inside in body.node:
            _rename(inside, sources)
        for output in body.output:
            output.name = sources.get(output.name, output.name)


def reads(node: Any) -> Iterator[str]:
    """The names that a node and its bodies read; those of a body's own tensors among them."""
    yield from node.input
    for body in bodies(node):
        yield from (output.name for output in body.output)
        for inside in body.node:
            yield from reads(inside)


def _defined(body: Any) -> Iterator[str]:
    """The names of a body's own tensors, and of those in its nodes' bodies."""
    yield from (each.name for each in (*body.input, *body.initializer))
    for node in body.node:
        yield from node.output
        for inside in bodies(node):
            yield from _defined(inside)


def bodies(node: Any) -> Iterator[Any]:
    """The graphs in a node's attributes."""
    for attribute in node.attribute:
        if attribute.type == attribute.GRAPH:
            yield attribute.g
        elif attribute.type == attribute.GRAPHS:
            yield from attribute.graphs


def _replace(messages: Any, kept: list[Any]) -> None:
    """Keep some of a repeated field's messages, in their order."""
    stay = {id(message) for message in kept}
    gone = [id(message) not in stay for message in messages]
    each = iter(gone)
    messages.sort(key=lambda _: next(each))  # moves pointers: no message is copied
    del messages[len(messages) - sum(gone) :]
