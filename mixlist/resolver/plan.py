"""What resolve returns: one decision per node, with its reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from mixlist.diagnostics import Diagnostic
from mixlist.graph.refs import NodeRef
from mixlist.lists.policy import Policy


@dataclass(frozen=True, slots=True)
class Decision:
    """The precision of one node and why.

    ``follows`` is empty or the immediate producer and the node that decided. ``outputs`` maps each
    output's name to its decided type (``float16``, ``int64``, ``seq(float16)``, ``unknown``). ``callers``
    names the calls of this specialisation where a function has several.
    """

    scope: str
    name: str
    op_type: str
    domain: str
    list: str
    precision: str
    changed: bool
    rule: str
    follows: tuple[str, ...]
    outputs: Mapping[str, str]
    reason: str
    callers: tuple[str, ...] = ()

    @property
    def ref(self) -> NodeRef:
        """The node's identity; the scope of a specialized function has its number."""
        return NodeRef(self.scope, self.name)


@dataclass(frozen=True)
class Plan:
    """The decisions for a whole model, in topological order of each scope.

    ``nodes`` is built when first asked for: ``rewrite`` does not need it.
    """

    model: str
    policy: Policy
    warnings: tuple[Diagnostic, ...] = ()
    solution: Any = field(default=None, repr=False, compare=False)  # resolve's inner result, for rewrite

    @cached_property
    def nodes(self) -> tuple[Decision, ...]:
        """Every node of every scope."""
        from mixlist.graph.gc_pause import no_collection
        from mixlist.resolver.reasons import decisions

        with no_collection():
            return decisions(self.solution)

    @cached_property
    def counts(self) -> dict[str, int]:
        """Number of nodes by precision."""
        return dict(sorted(Counter(n.precision for n in self.nodes).items()))

    def explain(self, name: str) -> list[Decision]:
        """The chain from the named node up to the node that decided for it.

        ``name`` is a node's name or ``scope/name``; raises UsageError with the nearest names when
        no node has it, and lists the candidates when several scopes have it.
        """
        from mixlist.resolver.reasons import explain

        return explain(self, name)

    def to_json(self) -> dict[str, Any]:
        """Return the ``mixlist.resolve/1`` object of schemas/resolve.json."""
        return {
            "format": "mixlist.resolve/1",
            "model": self.model,
            "precision": self.policy.mode.low,
            "gray_policy": self.policy.gray_policy,
            "op_names": self.policy.space,
            "nodes": [node_json(node) for node in self.nodes],
            "counts": self.counts,
        }


def node_json(node: Decision) -> dict[str, Any]:
    """Return one element of ``nodes`` in the ``mixlist.resolve/1`` object."""
    fields = {name: getattr(node, name) for name in Decision.__slots__ if name != "callers"}
    fields |= {"follows": list(node.follows), "outputs": dict(node.outputs)}
    return fields | {"callers": list(node.callers)} if node.callers else fields
