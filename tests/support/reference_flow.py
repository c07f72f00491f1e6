"""Find the values that share one type across bodies, sequences and optionals.

Rule S4.26: an If output needs all branches. Rule S4.27: a loop state has one type. Rule S4.29: all elements of a
sequence, and an optional and its content, share one type. A group here is such a state, or such a set of connected
sequences and optionals.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.support.reference_model import LISTED, Node, Scope, Value, borders
from tests.support.reference_signature import has_fixed_output


@dataclass(eq=False)
class Shared:
    """Values that have one type.

    ``initials`` are a state's first values, which do not vote if they are constants; ``yielded`` is what a body yields
    for the state; ``inserted`` are the tensors that operators put into sequences, ``collected`` those that control flow
    puts there; ``nodes`` are the loop, or the operators on sequences.
    """

    members: list[Value] = field(default_factory=list)
    initials: list[Value] = field(default_factory=list)
    yielded: list[Value] = field(default_factory=list)
    inserted: list[Value] = field(default_factory=list)
    collected: list[Value] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    is_fixed: bool = False

    @property
    def elem(self) -> int | None:
        """Return the authored type."""
        return next((v.elem for v in self.members if v.elem is not None), None)


class Flow:
    """The borders of all bodies of a model."""

    def __init__(self, main: Scope) -> None:
        self.sources: dict[Value, list[Value]] = {}  # what an output of control flow or a body input takes over
        self.owner: dict[Value, Node] = {}  # the control flow of each of these
        # The same for sequences, and for the elements of sequences that a body gets.
        self.sequence_sources: dict[Value, list[Value]] = {}
        self.states: list[Shared] = []
        self._links: list[tuple[Value, Value]] = []  # pairs of sequences that are connected
        self._elements: list[tuple[Value, Value]] = []  # a sequence, and the input of a body that gets its elements
        self._collected: list[tuple[Value, Value]] = []  # a sequence, and the output of a body that becomes its element
        self.main = main
        for node in main.walk():
            if node.is_standard and node.op == "SequenceMap":
                self._map(node)
            elif node.is_standard and node.bodies:
                for takers, sources, is_state in borders(node):
                    self._cross(node, takers, sources, is_state)
            elif node.is_standard:
                self._operator(node)
        self.sequences = list(self._sequences())

    # -- control flow ---------------------------------------------------------------------------------
    def _map(self, node: Node) -> None:
        body = node.bodies["body"]
        for inner, outer in zip(body.inputs, node.inputs, strict=True):
            if outer is not None and not outer.is_tensor:
                self._elements.append((outer, inner))
                self.sequence_sources[inner] = [outer]
            else:
                self._cross(node, [inner], [outer], False)
        for collected, result in zip(body.outputs, node.outputs, strict=True):
            if result is not None:
                self._collected.append((result, collected))
                self.sequence_sources[result] = [collected]

    def _cross(self, node: Node, takers: list[Value], sources: list[Value | None], is_state: bool) -> None:
        """Record the values that cross one border."""
        present = [v for v in sources if v is not None]
        if any(not v.is_tensor for v in takers):
            self._links += [(taker, v) for taker in takers for v in [*takers, *present]]
            self.sequence_sources |= dict.fromkeys(takers, present)
            return
        for taker in takers:
            self.sources[taker], self.owner[taker] = present, node
        if is_state:
            self.states.append(Shared(list(takers), present[:-1], present[-1:], nodes=[node]))

    # -- sequences ------------------------------------------------------------------------------------
    def _operator(self, node: Node) -> None:
        """Connect the sequences and optionals that one operator reads and makes."""
        values = [v for v in (*node.inputs, *node.outputs) if v is not None and not v.is_tensor]
        self._links += [(values[0], v) for v in values[1:]]

    def _sequences(self) -> Iterator[Shared]:
        connected = {v: [v] for scope in all_scopes(self.main) for v in _values(scope) if not v.is_tensor}
        for a, b in self._links:
            if connected[a] is not connected[b]:
                connected[a].extend(connected[b])
                for value in connected[b]:
                    connected[value] = connected[a]
        for members in {id(m): m for m in connected.values()}.values():
            if members[0].elem in LISTED:
                yield self._sequence(members)

    def _sequence(self, members: list[Value]) -> Shared:
        inside = set(members)
        shared = Shared(list(members))
        for node in self.main.walk():
            if node.call is not None or not inside & {*node.inputs, *node.outputs}:
                continue
            shared.nodes.append(node)
            if node.is_control_flow:
                continue
            floats = [v for v in node.inputs if v is not None and v.is_tensor and v.elem in LISTED]
            shared.inserted += floats
            shared.members += [v for v in node.outputs if v is not None and v.is_tensor and v.elem in LISTED]
            shared.is_fixed = (
                shared.is_fixed or has_fixed_output(node) or node.schema() is None or _has_type_attribute(node)
            )
        shared.members += [element for sequence, element in self._elements if sequence in inside]
        shared.collected += [element for sequence, element in self._collected if sequence in inside]
        borders = {*self.main.outputs, *self.main.inputs}
        shared.is_fixed = shared.is_fixed or bool(inside & borders)
        return shared


def _has_type_attribute(node: Node) -> bool:
    """Return whether an Optional without content gives its type."""
    return node.op == "Optional" and node.attribute("type") is not None


def all_scopes(main: Scope) -> Iterator[Scope]:
    """Yield every scope instance."""
    yield main
    for node in main.nodes:
        for inner in (*node.bodies.values(), *([node.call] if node.call else [])):
            yield from all_scopes(inner)


def _values(scope: Scope) -> Iterator[Value]:
    yield from scope.values.values()
