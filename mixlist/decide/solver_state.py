"""The policy and the decisions so far, which the rules of this folder read and change while a graph is decided.

This file imports neither the rules nor the solver, so that both can import it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from mixlist.decide.classification import Classification, Classifier
from mixlist.decide.constant_ranges import ConstantRanges
from mixlist.decide.decisions import UNDECIDED, GraphSolution, Interface
from mixlist.decide.node_rules import NodeRules
from mixlist.model import dtypes
from mixlist.model.graph import Graph, Node, Value


@dataclass
class AppliedPolicy:
    """One policy, applied to the nodes and constants of one model.

    ``interface``: the types of inputs and outputs; None if all keep theirs. ``unknown_constants`` collects the
    constants whose value is not known, by the reason.
    """

    graph: Graph
    classifier: Classifier
    node_rules: NodeRules
    constant_ranges: ConstantRanges
    interface: Interface | None = None
    unknown_constants: dict[str, dict[Value, None]] = field(default_factory=dict)

    def classify(self, node: Node) -> Classification:
        """Return a node's classification under the lists and node rules of the policy."""
        return self.node_rules.match().get(node.id) or self.classifier.classify(self.graph, node)

    def fits_low_type(self, value: Value) -> bool:
        """Return whether a constant may be converted to the low type under the policy."""
        return self.classifier.policy.constants != "keep" or self.constant_ranges.fits(value, self.classifier.low_type)

    def explain_kept_constant(self, value: Value) -> str | None:
        """Return why a value is a constant that must not become low precision; None if it may.

        None means: the value is no constant, the low type holds it, its value is not known, or `--constants` converts
        it in any case. A constant whose value is not known is added to ``unknown_constants``.
        """
        classifier = self.classifier
        if not value.is_constant or classifier.policy.constants != "keep":
            return None
        elem = dtypes.element(value.type)
        # Only float32 constants become low precision, and bfloat16 constants of a white node under Rule S3.8.
        if elem != dtypes.FLOAT and not (elem == dtypes.BFLOAT16 and classifier.lowers_bfloat16):
            return None
        value_range = self.constant_ranges.range_of(value)
        if value_range is None:
            return None
        reason = value_range.misfit_reason(classifier.low_type)
        if reason:
            return f"constant {value.name!r} {reason}"
        if value_range.unknown:
            self.unknown_constants.setdefault(value_range.unknown, {})[value] = None
        return None


@dataclass(eq=False)
class SolverState:
    """The decisions for a graph so far, and the facts about the graph that the rules need.

    - ``applied``: the policy, and the ranges of the constants.
    - ``low_gray_ids``: ids of the gray nodes that are low precision under the gray policy ``between``.
    - ``unvoted_ids``: ids of the values that no vote decided, so that they have their authored type (Rule S4.28).
    """

    applied: AppliedPolicy
    solution: GraphSolution
    low_gray_ids: set[int] = field(default_factory=set)
    unvoted_ids: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        # The rules read these for every node: one attribute is faster than a chain of three.
        self.graph = self.solution.graph
        self.decided_types = self.solution.decided_types
        self.policy = self.applied.classifier.policy
        self.low_type = self.applied.classifier.low_type

    def may_become(self, value: Value, elem: int) -> bool:
        """Return whether the decided type may become ``elem``.

        A type can only rise: undecided < low < any other type (Rule S4.28). So each value changes at most twice,
        and a loop ends. Types that lists never change, such as float64, are not in this order.
        """
        before = self.decided_types[value.id]
        return (
            before == UNDECIDED
            or (before == self.low_type and elem != UNDECIDED)
            or dtypes.element(value.type) not in dtypes.MIXABLE
        )

    def decide_types(self, values: Sequence[Value | None], elements: Sequence[int]) -> list[Value]:
        """Set the decided types of values to ``elements`` where ``may_become`` allows it; return the changed values."""
        changed = []
        for value, elem in zip(values, elements, strict=False):
            if value is not None and self.decided_types[value.id] != elem and self.may_become(value, elem):
                self.decided_types[value.id] = elem
                changed.append(value)
        return changed


def find_authored_type(node: Node) -> int:
    """Return the element type that the model gives the main slots of a node; the node must have such slots."""
    assert node.signature is not None and node.signature.primary_group is not None
    return node.signature.primary_group.authored
