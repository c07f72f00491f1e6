"""Group the sequences and optionals of a graph: all members of a group have one element type (Rule S4.29).

No Cast can convert a sequence, so a group is decided as a whole, by ``sequence_types``. The arguments and results of a
function call belong to a group of the caller and to a group of the body: each votes in the other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from mixlist.graph.control_flow import Link
from mixlist.graph.model import Graph, Node, Value
from mixlist.ops import types
from mixlist.resolver.decisions import UNDECIDED, join

Vote = tuple[int, Value | None]  # an element type, and the value that gives it: None for the border of the graph


@dataclass(frozen=True, eq=False)
class CallArgument:
    """A sequence or optional that is the argument of a function call, at input ``slot``."""

    call: Node
    slot: int
    value: Value


@dataclass(eq=False)
class SequenceGroup:
    """Sequences and optionals (``values``) that nodes and control flow connect.

    ``nodes`` touch them; ``tensors`` enter them through ``links`` or come from calls. ``fixed`` is the type that the
    border of the graph or an attribute imposes, else UNDECIDED. ``gray_vote`` is the vote of the gray operators as one
    node, under the gray policies other than ``ascend``; ``place`` is the id of that node, which no node of the graph
    has. ``source`` is the value that gave the group its type, as far as it is decided.
    """

    place: int

    values: list[Value] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    tensors: list[Value] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    arguments: list[CallArgument] = field(default_factory=list)
    fixed: int = UNDECIDED
    gray_vote: Vote = (UNDECIDED, None)
    source: Value | None = None


def is_container(value: Value | None) -> bool:
    """Return whether the value is a sequence or optional of a type that lists move."""
    return value is not None and isinstance(value.type, tuple) and types.element(value.type) in types.MIXABLE


def group_of(node: Node, groups: dict[Value, SequenceGroup]) -> SequenceGroup | None:
    """Return the group of the sequences or optionals that a node reads or makes; None if there are none."""
    return next((groups[v] for v in (*node.inputs, *node.outputs) if v is not None and v in groups), None)


def find_groups(graph: Graph, links: list[Link], border: Iterable[tuple[Value, int]]) -> dict[Value, SequenceGroup]:
    """Return the group of each sequence and optional.

    ``border``: the element types that the surroundings give to inputs and want of outputs. Function calls connect
    nothing.
    """
    if not any(isinstance(v.type, tuple) for v in graph.values):
        return {}
    parent = {v: v for v in graph.values if is_container(v)}
    for node in graph.nodes:
        if node.signature is not None and node.function is None:
            _unite(parent, [v for v in (*node.inputs, *node.outputs) if v is not None and is_container(v)])
    for link in links:
        _unite(parent, [v for v in (*link.targets, *(r.value for r in link.sources)) if is_container(v)])
    by_root: dict[Value, SequenceGroup] = {}
    for value in parent:
        root = _root(parent, value)
        if root not in by_root:
            by_root[root] = SequenceGroup(len(graph.nodes) + len(by_root))
        by_root[root].values.append(value)
    groups = {value: by_root[_root(parent, value)] for value in parent}
    for node in graph.nodes:
        _attach_node(node, groups)
    for link in links:
        group = next((groups[t] for t in link.targets if t in groups), None)
        if group is not None:
            group.tensors.extend(r.value for r in link.sources if not is_container(r.value))
            group.links.append(link)
    for value, elem in border:
        if value in groups:
            groups[value].fixed = join(groups[value].fixed, elem)
    return groups


def _root(parent: dict[Value, Value], value: Value) -> Value:
    while parent[value] is not value:
        parent[value] = parent[parent[value]]
        value = parent[value]
    return value


def _unite(parent: dict[Value, Value], values: list[Value]) -> None:
    for other in values[1:]:
        parent[_root(parent, other)] = _root(parent, values[0])


def _attach_node(node: Node, groups: dict[Value, SequenceGroup]) -> None:
    group, signature = group_of(node, groups), node.signature
    if group is None:
        return
    if node.function is not None:
        for value in node.outputs:
            if value is not None and value in groups:
                groups[value].tensors.append(value)
        for slot, value in enumerate(node.inputs):
            if value is not None and value in groups:
                groups[value].arguments.append(CallArgument(node, slot, value))
    elif signature is not None and (signature.has_fixed_output or signature.schema is None or not signature.groups):
        # A custom operator, or one such as SequenceEmpty that has no type to choose: its type binds the group.
        for value in (*node.inputs, *node.outputs):
            if value is not None and is_container(value):
                group.fixed = types.element(value.type)
    elif signature is not None:
        group.nodes.append(node)
