"""All decisions for a model: what the rules of this folder read and change while it is decided, and ``write/`` applies.

This file imports neither the rules nor the solver, so that both can import it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from mixlist.decide.classification import DECIDED_BY_LIST, Classification, Classifier
from mixlist.decide.constant_ranges import ConstantRanges
from mixlist.decide.decisions import MaskGroup, Positions, SlotLimits, Unit
from mixlist.decide.node_rules import NodeRules
from mixlist.lists.policy import InterfaceTypes, Policy
from mixlist.model import dtypes
from mixlist.model.control_flow import TypeLink
from mixlist.model.graph import Graph, Node, Value
from mixlist.model.load import LoadedModel
from mixlist.model.signature import Assignment

# The element type of a value that no vote has decided yet (Rule S4.28).
UNDECIDED = 0


class Interface(NamedTuple):
    """The types of the inputs and outputs of the main graph (Rule S7.3).

    ``io``: the type of those that are not in ``kept``; "low" is the low type of ``policy``'s mode.
    """

    policy: Policy
    io: InterfaceTypes = "keep"
    kept: frozenset[str] = frozenset()

    def find_type(self, name: str, declared: dtypes.Type) -> int:
        """Return the element type of an input or output that the model declares as ``declared``."""
        elem, mode = dtypes.element(declared), self.policy.mode
        is_tensor = isinstance(declared, int)
        if self.io == "keep" or name in self.kept or not is_tensor or elem not in dtypes.MIXABLE:
            return elem
        if self.io == "float32":
            return dtypes.FLOAT
        # Only the mode fp16 makes one low type the other (Rule S3.4).
        return dtypes.ELEMENT_BY_NAME[mode.low] if elem == dtypes.FLOAT or mode.action == "force" else elem


@dataclass
class AppliedPolicy:
    """One policy, applied to the nodes and constants of one model.

    ``interface``: the types of inputs and outputs. ``unknown_constants`` collects the
    constants whose value is not known, by the reason.
    """

    loaded: LoadedModel
    graph: Graph
    classifier: Classifier
    node_rules: NodeRules
    constant_ranges: ConstantRanges
    interface: Interface
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
class Solution:
    """The decisions for a model under one policy.

    ``applied``: the policy, and what it needs to know of the model.

    These lists have one item per node, by ``Node.id``:

    - ``classifications``: the list of the node and the way to find its precision.
    - ``assignments``: the types of the node's slots; None before it is decided, and for control flow.
    - ``followed_values``: the value that a gray node takes its type from.

    These dictionaries have an entry for some nodes only, by ``Node.id``:

    - ``reason_notes``: the reason why a mask or a constant keeps the node, or one of its slots, in high precision.
    - ``rule_overrides``: the rule that decided, if it is another one than that of the classification.
    - ``positions``: the position arithmetic that the policy protects (Rule S4.38).
    - ``guards``: why a node must stay as authored for the guard of a division (Rule S4.43).
    - ``mask_notes``: why a kept mask prevents low precision for the node (Rule S4.35).
    - ``units``: the units of the policy's protections to which the node belongs (Rules S4.41, S4.47).

    ``decided_types`` has the element type of each value, by ``Value.id``. ``unvoted_ids``: the values that no vote
    decided, so that they have their authored type (Rule S4.28). ``unbound_values``: those that no gray node follows
    (Rule S4.46). ``followed_instead``: by the id of the result of a normalization or scatter, the tensor that gray
    readers of the result follow (Rules S4.47, S5.8).

    ``low_gray_ids``: the gray nodes that are low precision under the gray policy ``between``. ``kept_masks`` stay as
    authored (Rule S4.35). ``changed_slots`` has, by node, the slots that read a constant of the other masks, with the
    largest magnitude that the constant may keep (Rule S4.36), and those that read the constant of a guard, with the
    number to which it is raised (Rule S4.43). ``reduced_fills`` has each ConstantOfShape that makes one of these masks,
    with the same limit.
    """

    applied: AppliedPolicy
    classifications: list[Classification]
    decided_types: list[int]
    assignments: list[Assignment | None]
    followed_values: list[Value | None]
    links: list[TypeLink] = field(default_factory=list)
    reason_notes: dict[int, str] = field(default_factory=dict)
    rule_overrides: dict[int, str] = field(default_factory=dict)
    positions: Positions = field(default_factory=Positions)
    guards: Mapping[int, str] = field(default_factory=dict)
    mask_notes: Mapping[int, str] = field(default_factory=dict)
    units: Mapping[int, list[Unit]] = field(default_factory=dict)
    kept_masks: frozenset[MaskGroup] = frozenset()
    changed_slots: Mapping[Node, SlotLimits] = field(default_factory=dict)
    reduced_fills: Mapping[Node, float] = field(default_factory=dict)
    unbound_values: Set[int] = frozenset()
    followed_instead: dict[int, Value] = field(default_factory=dict)
    low_gray_ids: set[int] = field(default_factory=set)
    unvoted_ids: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        # The rules read these for every node: one attribute is faster than a chain of three.
        self.loaded, self.graph = self.applied.loaded, self.applied.graph
        self.classifier, self.node_rules = self.applied.classifier, self.applied.node_rules
        self.policy, self.low_type = self.classifier.policy, self.classifier.low_type
        self.interface, self.constant_ranges = self.applied.interface, self.applied.constant_ranges

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


def keep_as_authored(solution: Solution, node_ids: Iterable[int], rule: str) -> None:
    """Classify nodes as authored by the named rule, except those that another rule than a list decides."""
    for node_id in node_ids:
        classification = solution.classifications[node_id]
        if classification.kind in DECIDED_BY_LIST:
            solution.classifications[node_id] = classification._replace(kind="authored", rule=rule)


def join_types(first: int, second: int) -> int:
    """Return the type of a value that gets its type from two sources.

    If one source is UNDECIDED, the other one counts. Two different types give float32.
    """
    if first == second or second == UNDECIDED:
        return first
    return second if first == UNDECIDED else dtypes.FLOAT


def find_precision(solution: Solution, node: Node) -> str:
    """Return the type of the node's main float slots; ``none`` for a node with nothing to vary (Rule S4.1)."""
    assignment, signature = solution.assignments[node.id], node.signature
    if signature is None or assignment is None or solution.classifications[node.id].kind == "none":
        return "none"
    primary = signature.primary_group
    if primary is not None and not signature.has_fixed_output:
        return dtypes.type_name(assignment.elements[signature.groups.index(primary)])
    # No slot may change, so no group gives the precision: a Cast shows the type that it makes, an operator without a
    # schema the type that it reads.
    slots = node.outputs if signature.has_fixed_output else node.inputs
    value = next((value for value in slots if value is not None), None)
    # Of the operators with a fixed output type, these two may get another one (Rules S4.44, S4.45).
    is_retyped = value is not None and node.op_type in ("Cast", "ConstantOfShape")
    elem = dtypes.UNKNOWN if value is None else dtypes.element(value.type)
    elem = solution.decided_types[value.id] if value is not None and is_retyped else elem
    return dtypes.type_name(elem) if elem in dtypes.FLOATS and node.op_type != "Constant" else "none"


def count_low_nodes(solution: Solution, low_name: str) -> int:
    """Return the number of nodes in the low type, as ``RewriteResult.low`` counts them."""
    return sum(find_precision(solution, node) == low_name for node in solution.graph.nodes)


def is_changed(solution: Solution, node: Node) -> bool:
    """Return whether some slot of the node has another type than the authored one."""
    assignment, signature = solution.assignments[node.id], node.signature
    if assignment is None or signature is None:
        return False
    if node.op_type in ("Cast", "ConstantOfShape"):  # without a group, their attribute may change (S4.44, S4.45)
        return assignment.outputs != signature.outputs
    is_moved = any(elem != g.authored for elem, g in zip(assignment.elements, signature.groups, strict=True))
    return is_moved or bool(find_widened_slots(solution, node))


def find_widened_slots(solution: Solution, node: Node) -> tuple[int, ...]:
    """Return the input slots whose values become low, and then float32 again, before a matrix operator (Rule S6.10)."""
    assignment, signature = solution.assignments[node.id], node.signature
    if assignment is None or signature is None or solution.classifications[node.id].kind != "rule":
        return ()
    return tuple(
        slot
        for group, elem in zip(signature.groups, assignment.elements, strict=True)
        for slot in group.inputs
        if slot < len(assignment.inputs) and assignment.inputs[slot] not in (None, elem)
    )
