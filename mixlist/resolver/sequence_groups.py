"""Group the sequences and optionals of a graph: all members of a group have one element type (Rule S4.29).

No Cast can convert a sequence, so a group is decided as a whole, by ``sequence_types``. The arguments and results of a
function call belong to a group of the caller and to a group of the body: each group votes in the other.

Example: ``SequenceConstruct -> Identity -> SequenceAt`` is one group; its values are the two sequences, and its nodes
all three.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from mixlist.graph.control_flow import TypeLink
from mixlist.graph.model import Graph, Node, Value
from mixlist.ops import dtypes
from mixlist.ops.signature import Signature
from mixlist.resolver.decisions import UNDECIDED, join_types

# The element type that a vote asks for, and the value that has this type. The value is None if the type comes from
# outside the graph, or from several values.
Vote = tuple[int, Value | None]


@dataclass(frozen=True, eq=False)
class SequenceArgument:
    """A sequence or optional that is the argument of a function call, at input ``slot``."""

    call: Node
    slot: int
    value: Value


@dataclass(eq=False)
class SequenceGroup:
    """Sequences and optionals that nodes and control flow connect.

    - ``stand_in_id``: the id of the one node that stands for the gray operators of the group, under the gray policies
      other than ``ascend`` (Rule S4.30). No node of the graph has this id.
    - ``values``: the sequences and optionals. ``nodes``: the operators that read or make them.
    - ``voting_values``: the tensors that control flow puts into the sequences, and the sequences that calls return.
    - ``links``: the links of control flow that pass the sequences. ``arguments``: the arguments of calls among them.
    - ``fixed_type``: the element type that the group must have because of an input or output of the graph, a custom
      operator or an attribute; float32 if these differ; UNDECIDED if there are none.
    - ``gray_vote``: the vote of the stand-in. ``source``: the value that gave the group its type so far.
    """

    stand_in_id: int

    values: list[Value] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    voting_values: list[Value] = field(default_factory=list)
    links: list[TypeLink] = field(default_factory=list)
    arguments: list[SequenceArgument] = field(default_factory=list)
    fixed_type: int = UNDECIDED
    gray_vote: Vote = (UNDECIDED, None)
    source: Value | None = None


def is_container(value: Value | None) -> bool:
    """Return whether the value is a sequence or optional with elements of a type that lists can change."""
    return value is not None and isinstance(value.type, tuple) and dtypes.element(value.type) in dtypes.MIXABLE


def find_sequence_group(node: Node, groups: dict[Value, SequenceGroup]) -> SequenceGroup | None:
    """Return the group of the sequences or optionals that a node reads or makes; None if there are none."""
    return next((groups[v] for v in (*node.inputs, *node.outputs) if v is not None and v in groups), None)


def find_sequence_groups(
    graph: Graph, links: list[TypeLink], interface_types: Iterable[tuple[Value, int]]
) -> dict[Value, SequenceGroup]:
    """Return the group of each sequence and optional.

    ``interface_types``: inputs and outputs of the graph and of the bodies of custom operators, each with the element
    type that it must have. Function calls connect nothing.
    """
    if not any(isinstance(value.type, tuple) for value in graph.values):
        return {}
    # Phase 1: unite the values that nodes and links connect, with a union-find over `parents`.
    parents = {value: value for value in graph.values if is_container(value)}
    for node in graph.nodes:
        # A call and an operator with fixed types connect nothing: their slots can have different types.
        if node.signature is not None and node.function is None and not has_fixed_types(node.signature):
            _unite(parents, [v for v in (*node.inputs, *node.outputs) if v is not None and is_container(v)])
    for link in links:
        _unite(parents, [v for v in (*link.targets, *(source.value for source in link.sources)) if is_container(v)])
    # Phase 2: make a group per set. Ids of nodes end at len(graph.nodes), so stand-ins have larger ones.
    group_of_root: dict[Value, SequenceGroup] = {}
    for value in parents:
        root = _find_root(parents, value)
        if root not in group_of_root:
            group_of_root[root] = SequenceGroup(len(graph.nodes) + len(group_of_root))
        group_of_root[root].values.append(value)
    groups = {value: group_of_root[_find_root(parents, value)] for value in parents}
    # Phase 3: add to each group everything that votes on its type.
    for node in graph.nodes:
        _add_votes_of_node(node, groups)
    for link in links:
        group = next((groups[target] for target in link.targets if target in groups), None)
        if group is not None:
            group.voting_values.extend(source.value for source in link.sources if not is_container(source.value))
            group.links.append(link)
    for value, elem in interface_types:
        if value in groups:
            groups[value].fixed_type = join_types(groups[value].fixed_type, elem)
    return groups


def _find_root(parents: dict[Value, Value], value: Value) -> Value:
    """Return the representative of a value's set; shorten the path to it."""
    while parents[value] is not value:
        parents[value] = parents[parents[value]]
        value = parents[value]
    return value


def _unite(parents: dict[Value, Value], values: list[Value]) -> None:
    """Put the sets of all values into one."""
    for value in values[1:]:
        parents[_find_root(parents, value)] = _find_root(parents, values[0])


def _add_votes_of_node(node: Node, groups: dict[Value, SequenceGroup]) -> None:
    """Add the votes of a node to the group of its sequences: as a node, a call, or a type that no list changes."""
    group, signature = find_sequence_group(node, groups), node.signature
    if group is None:
        return
    if node.function is not None:
        for value in node.outputs:
            if value is not None and value in groups:
                groups[value].voting_values.append(value)
        for slot, value in enumerate(node.inputs):
            if value is not None and value in groups:
                groups[value].arguments.append(SequenceArgument(node, slot, value))
    elif signature is not None and has_fixed_types(signature):
        # Each of its values can be in another group, and that group must have the value's authored type.
        for value in (*node.inputs, *node.outputs):
            if value is not None and value in groups:
                groups[value].fixed_type = join_types(groups[value].fixed_type, dtypes.element(value.type))
    elif signature is not None:
        group.nodes.append(node)


def has_fixed_types(signature: Signature) -> bool:
    """Return whether no list moves the node's types: a custom operator, or SequenceEmpty, whose attribute decides."""
    return signature.has_fixed_output or signature.schema is None or not signature.groups
