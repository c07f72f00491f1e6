"""Pair the nodes of a model with those of the model that another tool made from it (Rule S11.1).

Tools insert Casts, rename tensors, name nodes that had no name, remove nodes, and convert the opset. A node is paired
by the first of these that identifies one node of each model:

1. its name, if both nodes have the same operator;
2. the name of its first output: in the mixed model, the node that makes this tensor, possibly through Casts;
3. its place in the graph (``_StructureMatcher``).

A node that none of them identifies stays without a partner. Bodies are paired if the nodes that own them are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mixlist.model import dtypes
from mixlist.model.graph import Graph, Node, Scope, Value

if TYPE_CHECKING:
    from onnx import AttributeProto

_PLACE = ("Constant", "Cast", "Identity")  # operators that tools insert and remove, so that they have no fixed place
_WITHOUT_KEY = frozenset({4, 5, 9, 10})  # AttributeProto.TENSOR, GRAPH, TENSORS, GRAPHS: the tools convert these
_MAX_ROUNDS = 4  # each round pairs forward and backward as far as possible

Tensor = Hashable  # the identity of a tensor that a node reads: by its producer, or a kind of constant
NodeKey = tuple[Hashable, ...]


@dataclass(frozen=True, eq=False)
class ModelMatch:
    """The pairs of nodes of two models. ``partners``: the node of the mixed model, by the node of the original."""

    original: Graph
    mixed: Graph
    partners: dict[Node, Node]


def match_models(original: Graph, mixed: Graph) -> ModelMatch:
    """Pair the nodes of two models, scope by scope from the outside."""
    partners: dict[Node, Node] = {}
    matcher = _StructureMatcher(original, mixed, partners)
    waiting = [(original.root, mixed.root)]
    for scope, mixed_scope in waiting:  # the loop also reaches what it appends
        _match_by_name(scope, mixed_scope, partners)
        _match_by_output(scope, mixed_scope, partners)
        matcher.match_scopes(scope, mixed_scope)
        for node in scope.nodes:
            mixed_bodies = partners[node].bodies if node in partners else {}
            waiting.extend((body, mixed_bodies[name]) for name, body in node.bodies.items() if name in mixed_bodies)
    return ModelMatch(original, mixed, partners)


# --- pair by name ---


def _match_by_name(original: Scope, mixed: Scope, partners: dict[Node, Node]) -> None:
    """Pair the nodes of one name and one operator, if no other node of their scopes has this name."""
    mixed_nodes = _nodes_by_unique_name(mixed)
    for name, node in _nodes_by_unique_name(original).items():
        candidate = mixed_nodes.get(name)
        if candidate is not None and _are_same_operator(node, candidate):
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
        source = tensor if node.op_type in ("Cast", "Identity") else _find_source(tensor)
        candidate = source.producer
        if candidate is None or candidate in paired or source.output_slot != output.output_slot:
            continue
        has_same_name = node.proto.name != "" and node.proto.name == candidate.proto.name
        if _are_same_operator(node, candidate) or has_same_name:
            partners[node] = candidate
            paired.add(candidate)


# --- pair by place ---


def _find_source(value: Value) -> Value:
    """Return the tensor that Casts between float types and Identities bring to a value, or the value itself."""
    while value.producer is not None and _passes_value(value.producer):
        source = value.producer.inputs[0]
        if source is None:
            break
        value = source
    return value


def _passes_value(node: Node) -> bool:
    if node.domain or node.op_type not in ("Cast", "Identity"):
        return False
    ends = (*node.inputs[:1], *node.outputs[:1])
    return node.op_type == "Identity" or all(v is not None and dtypes.element(v.type) in dtypes.MIXABLE for v in ends)


def _are_same_operator(node: Node, partner: Node) -> bool:
    """Return whether two nodes have the same operator."""
    return (node.domain, node.op_type) == (partner.domain, partner.op_type)


class _StructureMatcher:
    """Pairs the nodes of two Graphs by their place. ``partners`` has the pairs so far, and gets the new ones.

    Two nodes are paired *forward* if they have the same operator and attributes and read corresponding tensors, and no
    other node of their scopes does. Two nodes are paired *backward* if paired nodes, or the outputs of their scopes,
    read them. Casts between float types and Identities are passed over: other tools insert and remove them.

    A backward pair is kept only if the two nodes read corresponding tensors too. So a node that a tool has removed
    between two of the same operator leaves no wrong pair.
    """

    def __init__(self, original: Graph, mixed: Graph, partners: dict[Node, Node]) -> None:
        self.partners, self.paired = partners, set(partners.values())
        self._input_partners: dict[Value, Value] = {}
        self._constant_names = _names_of_constants(original) & _names_of_constants(mixed)
        # A converter of opsets changes attributes, for example axes to an input.
        self._compares_attributes = original.opsets.get("") == mixed.opsets.get("")

    def match_scopes(self, original: Scope, mixed: Scope) -> None:
        """Pair nodes of a scope; those of the scopes around it are paired already."""
        if len(original.inputs) == len(mixed.inputs):
            self._input_partners.update(zip(original.inputs, mixed.inputs, strict=True))
        self.paired = set(self.partners.values())
        nodes = [node for node in original.nodes if node not in self.partners and _has_place(node)]
        mixed_nodes = [node for node in mixed.nodes if node not in self.paired and _has_place(node)]
        if not nodes or not mixed_nodes:
            return
        named_pairs = len(self.partners)
        for _ in range(_MAX_ROUNDS):
            before = len(self.partners)
            self._match_forward(nodes, mixed_nodes)
            self._match_backward(original, mixed)
            if len(self.partners) == before:
                break
        if len(self.partners) > named_pairs:
            self._drop_inconsistent_pairs(nodes)

    def _match_forward(self, nodes: list[Node], mixed_nodes: list[Node]) -> None:
        """Pair the nodes that alone read the corresponding tensors with their operator, from inputs to outputs."""
        by_key: dict[NodeKey, list[Node]] = {}
        for partner in mixed_nodes:
            if partner not in self.paired:
                by_key.setdefault(self._key(partner), []).append(partner)
        waiting = [node for node in nodes if node not in self.partners]
        uses = Counter(self._key(node) for node in waiting)
        for node in waiting:  # in topological order, so that a new pair serves the nodes that read it
            candidates = by_key.get(self._translated_key(node) or (), [])
            if len(candidates) == 1 and uses[self._key(node)] == 1:
                self._pair(node, candidates[0])

    def _match_backward(self, original: Scope, mixed: Scope) -> None:
        """Pair the producers of tensors that paired nodes read, from outputs to inputs."""
        proposals: dict[Node, dict[Node, None]] = {}
        if len(original.outputs) == len(mixed.outputs):
            _propose_producers(zip(original.outputs, mixed.outputs, strict=True), proposals)
        for node in reversed(original.nodes):  # all readers of a node come before it
            if node not in self.partners and len(proposals.get(node, ())) == 1:
                (proposed,) = proposals[node]
                if proposed not in self.paired and _are_same_operator(node, proposed) and _has_place(node):
                    self._pair(node, proposed)
            partner = self.partners.get(node)
            if partner is not None and len(node.inputs) == len(partner.inputs):
                _propose_producers(zip(node.inputs, partner.inputs, strict=True), proposals)

    def _drop_inconsistent_pairs(self, nodes: list[Node]) -> None:
        """Take back the pairs of ``nodes`` that read tensors which do not correspond."""
        for node in nodes:  # in topological order, so that the readers of a dropped pair see it
            partner = self.partners.get(node)
            if partner is not None and self._translated_key(node) != self._key(partner):
                del self.partners[node]
                self.paired.discard(partner)

    def _pair(self, node: Node, partner: Node) -> None:
        self.partners[node] = partner
        self.paired.add(partner)

    # --- keys: what a node computes, and from which tensors ---

    def _key(self, node: Node) -> NodeKey:
        """Return the key of a node of either model, with tensors of its own model."""
        return (*self._operator_key(node), *(self._identify(value) for value in node.inputs))

    def _translated_key(self, node: Node) -> NodeKey | None:
        """Return the key of a node of the original with the corresponding tensors; None if one has no partner."""
        tensors = [self._translate(value) for value in node.inputs]
        return None if None in tensors else (*self._operator_key(node), *tensors)

    def _operator_key(self, node: Node) -> NodeKey:
        attributes: tuple[Hashable, ...] = ()
        if self._compares_attributes:
            attributes = tuple(
                sorted((a.name, a.SerializeToString(deterministic=True)) for a in _comparable_attributes(node))
            )
        return node.domain, node.op_type, attributes

    def _identify(self, value: Value | None) -> Tensor:
        """Return the identity of a tensor in its own model."""
        if value is None:
            return "omitted"
        source = _find_source(value)
        if source.is_constant:
            return "constant", source.name if source.name in self._constant_names else ""
        return (source.producer or source), source.output_slot

    def _translate(self, value: Value | None) -> Tensor | None:
        """Return the identity of the corresponding tensor in the mixed model; None if it is not known."""
        if value is None:
            return "omitted"
        source = _find_source(value)
        if source.is_constant:
            return self._identify(source)
        partner = self._input_partners.get(source) if source.producer is None else self.partners.get(source.producer)
        return None if partner is None else (partner, source.output_slot)


def _has_place(node: Node) -> bool:
    return bool(node.domain) or node.op_type not in _PLACE


def _names_of_constants(graph: Graph) -> set[str]:
    return {value.name for value in graph.values if value.is_constant}


def _comparable_attributes(node: Node) -> Iterator[AttributeProto]:
    return (a for a in node.proto.attribute if a.type not in _WITHOUT_KEY)


def _propose_producers(
    pairs: Iterable[tuple[Value | None, Value | None]], proposals: dict[Node, dict[Node, None]]
) -> None:
    """Propose to pair the producers of two tensors that correspond."""
    for value, partner in pairs:
        if value is None or partner is None:
            continue
        source, mixed_source = _find_source(value), _find_source(partner)
        if source.producer is None or mixed_source.producer is None:
            continue
        if source.output_slot == mixed_source.output_slot:
            proposals.setdefault(source.producer, {})[mixed_source.producer] = None
