"""The identity of nodes and tensors in reports, analyses and rules: names, never objects of one loaded graph.

A reference stays valid while a model is copied, instrumented and rewritten, and it travels between processes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple


def qualified_name(scope: str, name: str) -> str:
    """Return the form that messages show and node rules accept: ``scope/name``, or the name in the main graph."""
    return f"{scope}/{name}" if scope else name


class NodeRef(NamedTuple):
    """A node by the path of its scope ("" for the main graph) and its display name (``naming.label``)."""

    scope: str
    name: str

    def __str__(self) -> str:
        return qualified_name(self.scope, self.name)


def accepted_names(ref: NodeRef) -> tuple[str, ...]:
    """Return the texts that name a node in node rules and ``--explain``: ``NAME`` in any scope, and one for its scope.

    ``scope/NAME`` is the latter in a body or function, ``./NAME`` in the main graph (Rule S6.5).
    """
    return ref.name, scoped_name(ref)


def scoped_name(ref: NodeRef) -> str:
    """Return the text that names a node in its scope only."""
    return qualified_name(ref.scope or ".", ref.name)


def unique_names(refs: Iterable[NodeRef]) -> dict[NodeRef, str]:
    """Return for each node the shortest text that names it and no other of the nodes; a node without one is left out.

    That is its name, or ``scope/NAME`` or ``./NAME`` (Rules S6.4 and S6.5). ``refs`` holds each node of a model once.
    """
    nodes = list(refs)
    uses = Counter(text for ref in nodes for text in accepted_names(ref))
    texts = ((ref, next((text for text in accepted_names(ref) if uses[text] == 1), "")) for ref in nodes)
    return {ref: text for ref, text in texts if text}


@dataclass(frozen=True)
class NodeResult:
    """A result about one node. This class identifies the node; its subclasses add the result."""

    scope: str
    name: str
    op_type: str

    @property
    def ref(self) -> NodeRef:
        """The node's identity."""
        return NodeRef(self.scope, self.name)


class TensorRef(NamedTuple):
    """Output ``slot`` of the node ``node`` in ``scope``; a graph input has ``node`` "" and its position as slot."""

    scope: str
    node: str
    slot: int

    @property
    def producer(self) -> NodeRef:
        """The node that makes the tensor."""
        return NodeRef(self.scope, self.node)
