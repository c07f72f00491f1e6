"""Pair the nodes of a model with those of the model that another tool made from it (Rule S11.1).

Tools insert Casts, rename tensors, name nodes that had no name, remove nodes, and convert the opset. A node is paired
by the first of these that identifies one node of each model:

1. its name, if both nodes have the same operator;
2. the name of its first output: in the mixed model, the node that makes this tensor, possibly through Casts;
3. its place in the graph (``structure_matching``).

A node that none of them identifies stays without a partner. Bodies are paired if the nodes that own them are.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from mixlist.exchange.structure_matching import StructureMatcher, are_same_operator, find_source
from mixlist.model.graph import Graph, Node, Scope


@dataclass(frozen=True, eq=False)
class ModelMatch:
    """The pairs of nodes of two models. ``partners``: the node of the mixed model, by the node of the original."""

    original: Graph
    mixed: Graph
    partners: dict[Node, Node]


def match_models(original: Graph, mixed: Graph) -> ModelMatch:
    """Pair the nodes of two models, scope by scope from the outside."""
    partners: dict[Node, Node] = {}
    matcher = StructureMatcher(original, mixed, partners)
    waiting = [(original.root, mixed.root)]
    for scope, mixed_scope in waiting:  # the loop also reaches what it appends
        _match_by_name(scope, mixed_scope, partners)
        _match_by_output(scope, mixed_scope, partners)
        matcher.match_scopes(scope, mixed_scope)
        for node in scope.nodes:
            mixed_bodies = partners[node].bodies if node in partners else {}
            waiting.extend((body, mixed_bodies[name]) for name, body in node.bodies.items() if name in mixed_bodies)
    return ModelMatch(original, mixed, partners)


def _match_by_name(original: Scope, mixed: Scope, partners: dict[Node, Node]) -> None:
    """Pair the nodes of one name and one operator, if no other node of their scopes has this name."""
    mixed_nodes = _nodes_by_unique_name(mixed)
    for name, node in _nodes_by_unique_name(original).items():
        candidate = mixed_nodes.get(name)
        if candidate is not None and are_same_operator(node, candidate):
            partners[node] = candidate


def _nodes_by_unique_name(scope: Scope) -> dict[str, Node]:
    uses = Counter(node.proto.name for node in scope.nodes)
    return {node.proto.name: node for node in scope.nodes if node.proto.name and uses[node.proto.name] == 1}


def _match_by_output(original: Scope, mixed: Scope, partners: dict[Node, Node]) -> None:
    """Pair the nodes of one operator whose first outputs have one name.

    A tool may put a Cast between the node and the tensor. A converter of opsets replaces operators, such as Upsample by
    Resize: the nodes of such a pair need the same name too.
    """
    paired = set(partners.values())
    for node in original.nodes:
        output = next((value for value in node.outputs if value is not None), None)
        tensor = mixed.values.get(output.name) if output is not None and node not in partners else None
        if output is None or tensor is None:
            continue
        # The partner of a Cast or Identity of the user is the node that makes the tensor itself.
        source = tensor if node.op_type in ("Cast", "Identity") else find_source(tensor)
        candidate = source.producer
        if candidate is None or candidate in paired or source.output_slot != output.output_slot:
            continue
        has_same_name = node.proto.name != "" and node.proto.name == candidate.proto.name
        if are_same_operator(node, candidate) or has_same_name:
            partners[node] = candidate
            paired.add(candidate)
