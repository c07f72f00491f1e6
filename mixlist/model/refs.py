"""References to nodes and tensors by name, for reports, analyses and node rules.

A reference holds no object of a loaded graph. Therefore a reference stays valid while the model is copied, instrumented
and rewritten, and processes can exchange references.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple


def qualified_name(scope: str, name: str) -> str:
    """Return ``scope/name``, or ``name`` in the main graph: the form of messages and node rules."""
    return f"{scope}/{name}" if scope else name


class NodeRef(NamedTuple):
    """The identity of a node: the path of its scope ("" for the main graph) and its display name.

    ``naming.scope_path`` and ``naming.display_name`` compute the two.
    """

    scope: str
    name: str

    def __str__(self) -> str:
        return qualified_name(self.scope, self.name)


def accepted_names(ref: NodeRef) -> tuple[str, ...]:
    """Return the two names that node rules and ``--explain`` accept for a node (Rule S6.5).

    The first is ``NAME``, which means every node of that name in any scope. The second means this node only: see
    ``scoped_name``.
    """
    return ref.name, scoped_name(ref)


def scoped_name(ref: NodeRef) -> str:
    """Return ``scope/NAME`` for a node in a body, ``./NAME`` for a node in the main graph (Rule S6.5)."""
    return qualified_name(ref.scope or ".", ref.name)


def unique_names(refs: Iterable[NodeRef]) -> dict[NodeRef, str]:
    """Return for each node the shortest accepted name that is unique among ``refs`` (Rules S6.4 and S6.5).

    ``refs`` holds each node of a model once. A node is left out if other nodes have all of its accepted names.
    """
    nodes = list(refs)
    # A name can mean several nodes: two scopes can have a node of the same name, and a name may look like a path.
    uses = Counter(name for ref in nodes for name in accepted_names(ref))
    names = ((ref, next((name for name in accepted_names(ref) if uses[name] == 1), "")) for ref in nodes)
    return {ref: name for ref, name in names if name}


@dataclass(frozen=True)
class NodeResult:
    """The base class of results about one node. It identifies the node. Subclasses add the result."""

    scope: str
    name: str
    op_type: str

    @property
    def ref(self) -> NodeRef:
        """The node's identity."""
        return NodeRef(self.scope, self.name)


class TensorRef(NamedTuple):
    """The identity of a tensor: output ``slot`` of the node ``node`` in ``scope``.

    An input of a scope has ``node`` "", and ``slot`` is its position among the inputs of the scope. If ``slot`` is -1,
    the tensor belongs to an outer scope and is observed where ``scope`` reads it; then ``node`` is the name of the
    tensor.
    """

    scope: str
    node: str
    slot: int

    @property
    def producer(self) -> NodeRef:
        """The node that computes the tensor."""
        return NodeRef(self.scope, self.node)
