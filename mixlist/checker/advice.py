"""Say what made a node low and which change keeps it high: for findings, and for the nodes that add most error.

Rule S8.22: A finding names the list entry or rule that made the node low precision and the smallest change that keeps
it in high precision, in the names of the library. Rule S8.26: Where the node is high, both are those of the nearest low
node upstream.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property

from mixlist.checker.result import LowSource
from mixlist.graph.dataflow import DataflowNode
from mixlist.graph.model import Node, float_values
from mixlist.graph.refs import NodeRef, unique_names
from mixlist.ops import types
from mixlist.ops.low_precision import LOW_TYPES
from mixlist.ops.traits import Trait, operators
from mixlist.resolver import Decision, Plan
from mixlist.resolver.classification import Classifier, find_rank

_YIELDS_SHAPE = operators(Trait.YIELDS_SHAPE)
_VALUE_PRESERVING = operators(Trait.VALUE_PRESERVING)
_INTEGERS = frozenset({6, types.INT64, types.BOOL})  # 6: int32


class Advisor:
    """Advice for the nodes of one plan; without a plan (``--against``) there is none.

    ``nodes`` are those of the original in order of computation; of the low nodes upstream, those in ``suspects`` come
    first.
    """

    def __init__(self, plan: Plan | None, nodes: Sequence[DataflowNode], suspects: Collection[NodeRef] = ()) -> None:
        self._decisions = {_without_specialization(d.ref): d for d in plan.nodes} if plan is not None else {}
        self._classifier = Classifier(plan.policy) if plan is not None else None
        self._has_lists = plan is not None and plan.policy.mode.action == "lists"
        self._nodes = {node.ref: node for node in nodes}
        self._suspects = frozenset(suspects)

    def decision(self, node: NodeRef) -> Decision | None:
        """Return the decision for a node; of a function's specializations that of the last."""
        return self._decisions.get(node)

    def suggestion(self, node: NodeRef) -> str:
        """Return the smallest change that keeps a low node high, "" for any other.

        The operator is called by its name in the lists: Conv2D in an Ascend library.
        """
        decision, dataflow = self._decisions.get(node), self._nodes.get(node)
        if decision is None or dataflow is None or self._classifier is None or not _is_low(decision):
            return ""
        if not decision.changed:
            search = "; mixlist tune --node-rules FILE searches such rules" if self._has_lists else ""
            return (
                f"the model has the node in {decision.precision}, which no list raises; a rule in a customize_dtypes"
                f" file does{search}"
            )
        graph, proto = dataflow.graph, dataflow.node
        entry = self._classifier.classify_operator(
            decision.domain, decision.op_type, lambda: find_rank(graph, proto)
        ).list_match
        name = self._names.get(node, str(node))
        if decision.list in ("white", "gray") and entry is not None:
            return f'add "{entry.op}" to black-list to-add, or the node "{name}" to a keep_dtype file'
        return f'add the node "{name}" to a keep_dtype file'

    @cached_property
    def _names(self) -> dict[NodeRef, str]:
        """Return the names of the main graph's nodes for node rules: ``./NAME`` if a body or function has NAME too."""
        shortest = unique_names(self._decisions)
        return {ref: name for ref, name in shortest.items() if not ref.scope}

    def low_source(self, node: NodeRef) -> LowSource | None:
        """Return the nearest low node upstream of a high node; None for a low node, and where there is none."""
        decision = self._decisions.get(node)
        if decision is None or _is_low(decision):
            return None
        nearest = self._nearest.get(node)
        return self._source(nearest[2]) if nearest is not None else None

    def integer_source(self, node: NodeRef) -> LowSource | None:
        """Return the low node of whose values an integer is made that a node depends on, such as a length or an index.

        A run is refused because of such an integer. Without one, this is ``low_source``.
        """
        found = self._integers.get(node)
        return self._source(found) if found is not None else self.low_source(node)

    def _source(self, node: NodeRef) -> LowSource:
        decision = self._decisions[node]
        return LowSource(*node, decision.op_type, decision.reason, self.suggestion(node))

    @cached_property
    def _integers(self) -> dict[NodeRef, NodeRef]:
        """Return for each node the low node whose values became integers upstream, in one pass over all nodes."""
        found: dict[NodeRef, NodeRef] = {}
        for ref, node in self._nodes.items():
            producers = [tensor.ref.producer for tensor in node.inputs]
            sources = [found[producer] for producer in producers if producer in found]
            if _makes_integers(node.node) and ref in self._nearest:
                sources = [self._nearest[ref][2]]
            if sources:
                found[ref] = sources[0]
        return found

    @cached_property
    def _nearest(self) -> dict[NodeRef, tuple[bool, int, NodeRef]]:
        """Return for each node the nearest low node upstream, suspects first: (no suspect, distance, low node).

        A gray node that rounds nothing itself is low because of its inputs, and is passed over. A state that a loop
        passes to its next iteration is not followed.
        """
        nearest: dict[NodeRef, tuple[bool, int, NodeRef]] = {}
        for ref, node in self._nodes.items():
            found = []
            for tensor in node.inputs:
                producer = tensor.ref.producer
                decision = self._decisions.get(producer)
                if decision is not None and _is_low(decision) and not (producer in nearest and _only_follows(decision)):
                    found.append((producer not in self._suspects, 0, producer))
                elif producer in nearest:
                    clean, distance, source = nearest[producer]
                    found.append((clean, distance + 1, source))
            if found:
                nearest[ref] = min(found, key=lambda each: each[:2])
        return nearest


def _only_follows(decision: Decision) -> bool:
    """Return True if a node follows its inputs (gray) and its operator is exact: it rounds nothing itself."""
    return decision.list == "gray" and not decision.domain and decision.op_type in _VALUE_PRESERVING


def _makes_integers(node: Node) -> bool:
    """Return True if a node computes lengths, indices or conditions from float values.

    A shape does not depend on the values. Integers of 8 bits do not count: they are quantized values.
    """
    if node.op_type in _YIELDS_SHAPE or not float_values(node.inputs):
        return False
    return any(value is not None and types.element(value.type) in _INTEGERS for value in node.outputs)


def _is_low(decision: Decision) -> bool:
    return types.ELEMENT_BY_NAME.get(decision.precision) in LOW_TYPES


def _without_specialization(node: NodeRef) -> NodeRef:
    """Return the node without the number of a function's specialization in its scope."""
    head, slash, rest = node.scope.partition("/")
    return NodeRef(f"{head.partition('#')[0]}{slash}{rest}", node.name) if head.startswith("function:") else node
