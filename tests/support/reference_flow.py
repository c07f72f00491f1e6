"""Find the values that share one type across bodies.

Rule S4.26: an If output needs all branches. Rule S4.27: a loop state has one type.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.support.reference_model import Node, Scope, Value, borders


@dataclass(eq=False)
class Shared:
    """The values of a loop state, which have one type.

    ``initials`` are its first values, which do not vote if they are constants; ``yielded`` is what a body yields for
    the state; ``nodes`` are the loop.
    """

    members: list[Value] = field(default_factory=list)
    initials: list[Value] = field(default_factory=list)
    yielded: list[Value] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)

    @property
    def elem(self) -> int | None:
        """Return the authored type."""
        return next((v.elem for v in self.members if v.elem is not None), None)


class Flow:
    """The borders of all bodies of a model. Sequences and optionals keep their types (Rule S4.29)."""

    def __init__(self, main: Scope) -> None:
        self.sources: dict[Value, list[Value]] = {}  # what an output of control flow or a body input takes over
        self.owner: dict[Value, Node] = {}  # the control flow of each of these
        self.states: list[Shared] = []
        for node in main.walk():
            if node.is_standard and node.op == "SequenceMap":
                self._map(node)
            elif node.is_standard and node.bodies:
                for takers, sources, is_state in borders(node):
                    self._cross(node, takers, sources, is_state)

    def _map(self, node: Node) -> None:
        for inner, outer in zip(node.bodies["body"].inputs, node.inputs, strict=True):
            if outer is None or outer.is_tensor:
                self._cross(node, [inner], [outer], False)

    def _cross(self, node: Node, takers: list[Value], sources: list[Value | None], is_state: bool) -> None:
        """Record the values that cross one border."""
        if any(not v.is_tensor for v in takers):
            return
        present = [v for v in sources if v is not None]
        for taker in takers:
            self.sources[taker], self.owner[taker] = present, node
        if is_state:
            self.states.append(Shared(list(takers), present[:-1], present[-1:], nodes=[node]))


def all_scopes(main: Scope) -> Iterator[Scope]:
    """Yield every scope."""
    yield main
    for node in main.nodes:
        for inner in node.bodies.values():
            yield from all_scopes(inner)
