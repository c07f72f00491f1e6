"""The decisions for a node and for a model: the data that the other files of this folder make and read.

A GraphSolution holds the decisions for a model, as they are computed and as ``write/`` applies them. A Decision
describes the decision for one node to a user.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Literal

from mixlist.decide.classification import DECIDED_BY_LIST, Classification
from mixlist.decide.node_rules import NodeRules
from mixlist.lists.policy import LOWERING_ACTIONS, Policy
from mixlist.model import dtypes
from mixlist.model.control_flow import TypeLink
from mixlist.model.graph import Graph, Node, Value
from mixlist.model.load import LoadedModel
from mixlist.model.naming import NodeRef
from mixlist.model.signature import Assignment

# The element type of a value that no vote has decided yet (Rule S4.28).
UNDECIDED = 0

SlotLimits = dict[int, float]  # by input slot


@dataclass(frozen=True, slots=True)
class Decision:
    """The precision of one node and the reason for it.

    ``follows`` is empty, or holds the names of the immediate producer and of the node that decided. ``outputs`` maps
    the name of each output to its decided type (``float16``, ``int64``, ``seq(float16)``, ``unknown``).
    ``follows_refs`` are the identities of the two nodes in ``follows``: None for a graph input.

    Example::

        plan = mixlist.resolve("digits.onnx", mixlist.load_policy())
        for node in plan.nodes:
            print(node.name, node.precision, node.rule, node.reason)
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
    follows_refs: tuple[NodeRef | None, ...] = ()

    @property
    def ref(self) -> NodeRef:
        """Return the node's identity."""
        return NodeRef(self.scope, self.name)

    @property
    def producer(self) -> NodeRef | None:
        """Return the node that the node follows; None if it follows none."""
        return self.follows_refs[0] if self.follows_refs else None

    @property
    def decider(self) -> NodeRef | None:
        """Return the node at the end of the chain of followed nodes; None for a graph input."""
        return self.follows_refs[1] if self.follows_refs else None


@dataclass(frozen=True)
class PositionReason:
    """The reason why a node belongs to position arithmetic.

    ``source``: the name of the integers from which its result is computed; None if the node makes a fixed operand of
    the arithmetic. ``reader``: the operator and name of the node that reads the positions in the end. ``is_reader``:
    whether this node is the reader.
    """

    source: str | None
    reader: str
    is_reader: bool = False


@dataclass(eq=False)
class Positions:
    """The position arithmetic of a model.

    ``nodes``: by node id, the nodes of the arithmetic and the readers. ``casts``: the Casts of integers with which the
    arithmetic starts, each with its reader.
    """

    nodes: dict[int, PositionReason] = field(default_factory=dict)
    casts: dict[Node, str] = field(default_factory=dict)


@dataclass(eq=False)
class MaskGroup:
    """The nodes that masks connect; at least one of them reads or makes a mask that the low type cannot hold.

    ``softmaxes``: the softmaxes that the masks reach. ``exceeding_nodes``: the nodes that must not be low precision as
    long as the mask is not reduced, softmaxes included. ``limit``: the largest magnitude of a reduced constant.
    ``limits``: by node, the slots that read a constant to be reduced, each with ``limit``. ``fills``: each
    ConstantOfShape whose number is to be reduced, with ``limit``. ``reducible``: whether all masks come from such
    constants. ``magnitude``: the largest magnitude of the masks. ``source``: the first constant or
    node that makes a mask. ``destination``: the first softmax. ``misfit``: for a group of one node, which computes a
    mask from other constants: why this node must not be low precision; else empty.
    """

    softmaxes: list[Node] = field(default_factory=list)
    exceeding_nodes: list[Node] = field(default_factory=list)
    limits: dict[Node, SlotLimits] = field(default_factory=dict)
    fills: dict[Node, float] = field(default_factory=dict)
    reducible: bool = True
    source: str = ""
    destination: str = ""
    magnitude: float = 0.0
    limit: float = 0.0
    misfit: str = ""

    @property
    def magnitude_text(self) -> str:
        """Return the largest magnitude for messages."""
        return f"magnitude {self.magnitude:.6g}" if isfinite(self.magnitude) else "unknown magnitude"


@dataclass(frozen=True, eq=False)
class Unit:
    """One unit: its operator, and all its nodes in topological order.

    ``rule``: the name of the rule that keeps it in the reports. The operator of a normalization is its square. Of a
    quantized unit, ``nodes`` has each DequantizeLinear that the operator reads, the value movers behind these, the
    operator, the Relus, Clips and value movers behind it, and each QuantizeLinear at the end.
    """

    operator: Node
    nodes: tuple[Node, ...]
    rule: Literal["quantized", "norm"] = "quantized"

    @property
    def first(self) -> Node:
        """Return the first DequantizeLinear that does not make a constant (a weight)."""
        return next(
            node for node in self.nodes if not all(value is None or value.is_constant for value in node.outputs)
        )


UnitsByNode = dict[int, list[Unit]]  # by the id of a node, the units that it belongs to


@dataclass(eq=False)
class GraphSolution:
    """The decisions for a Graph.

    These lists have one item per node, by ``Node.id``:

    - ``classifications``: the list of the node and the way to find its precision.
    - ``assignments``: the types of the node's slots; None before it is decided, and for control flow.
    - ``followed_values``: the value that a gray node takes its type from.

    These dictionaries have an entry for some nodes only, by ``Node.id``:

    - ``reason_notes``: the reason why a mask or a constant keeps the node, or one of its slots, in high precision.
    - ``rule_overrides``: the rule that decided, if it is another one than that of the classification.

    About values: ``decided_types`` has the element type of each value by ``Value.id``.

    About protections: ``positions`` is the position arithmetic that the policy protects. ``guards`` has, by
    ``Node.id``, the reason why a node must stay as authored for the guard of a division (Rule S4.43). ``kept_masks``
    stay as authored (Rule S4.35). ``reduced_slots`` has, by node, the slots that read a constant of the other masks,
    with the largest magnitude that the constant may keep (Rule S4.36), and ``reduced_fills`` has each ConstantOfShape
    that makes one of these masks, with the same limit.

    ``unbound_values`` has the ids of the values that no gray node follows (Rule S4.46). ``units`` has, by ``Node.id``,
    the units of the policy's protections (Rules S4.41, S4.47). ``followed_instead`` has, by the id of the
    result of a normalization or scatter, the tensor that gray readers of the result follow (Rules S4.47, S5.8).
    """

    graph: Graph
    classifications: list[Classification]
    decided_types: list[int]
    assignments: list[Assignment | None]
    followed_values: list[Value | None]
    links: list[TypeLink] = field(default_factory=list)
    reason_notes: dict[int, str] = field(default_factory=dict)
    rule_overrides: dict[int, str] = field(default_factory=dict)
    positions: Positions = field(default_factory=Positions)
    guards: Mapping[int, str] = field(default_factory=dict)
    kept_masks: frozenset[MaskGroup] = frozenset()
    reduced_slots: Mapping[Node, SlotLimits] = field(default_factory=dict)
    reduced_fills: Mapping[Node, float] = field(default_factory=dict)
    unbound_values: Set[int] = frozenset()
    units: Mapping[int, list[Unit]] = field(default_factory=dict)
    followed_instead: dict[int, Value] = field(default_factory=dict)


@dataclass(frozen=True)
class Interface:
    """The types of the inputs and outputs of the main graph (Rule S7.3).

    ``is_free``: whether those that are not in ``kept`` take the type of ``policy``'s mode.
    """

    policy: Policy
    is_free: bool = False
    kept: frozenset[str] = frozenset()

    def find_type(self, name: str, declared: dtypes.Type) -> int:
        """Return the element type of an input or output that the model declares as ``declared``."""
        elem, action = dtypes.element(declared), self.policy.mode.action
        is_tensor = isinstance(declared, int)
        if not self.is_free or name in self.kept or not is_tensor or elem not in dtypes.MIXABLE or action == "origin":
            return elem
        target = dtypes.ELEMENT_BY_NAME[self.policy.mode.low] if action in LOWERING_ACTIONS else dtypes.FLOAT
        return target if dtypes.FLOAT in (elem, target) else elem  # float16 and bfloat16 do not become each other


@dataclass(frozen=True, eq=False)
class ModelSolution:
    """The decisions for a model with the policy that led to them, as ``write/`` applies them.

    ``low_type`` is the element type of the policy's low precision. ``cast_is_black`` and ``skips_idle_casts`` say which
    Casts of the user readers look through (Rules S4.17, S4.48).
    """

    loaded: LoadedModel
    policy: Policy
    interface: Interface
    low_type: int
    graph_solution: GraphSolution
    node_rules: NodeRules
    cast_is_black: bool
    skips_idle_casts: bool

    @property
    def graph(self) -> Graph:
        """The graph that was decided."""
        return self.graph_solution.graph


def keep_positions_and_guards(solution: GraphSolution) -> None:
    """Classify the nodes that are position arithmetic (Rule S4.38) or belong to a guard (S4.43) as authored.

    A node rule wins, and so do the rules that come before the lists.
    """
    for rule, kept in (("position", solution.positions.nodes), ("guard", solution.guards)):
        for node_id in kept:
            classification = solution.classifications[node_id]
            if classification.kind in DECIDED_BY_LIST:
                solution.classifications[node_id] = replace(classification, kind="authored", rule=rule)


def join_types(first: int, second: int) -> int:
    """Return the type of a value that gets its type from two sources.

    If one source is UNDECIDED, the other one counts. Two different types give float32.
    """
    if first == second or second == UNDECIDED:
        return first
    return second if first == UNDECIDED else dtypes.FLOAT


def find_precision(solution: GraphSolution, node: Node) -> str:
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


def is_changed(solution: GraphSolution, node: Node) -> bool:
    """Return whether some slot of the node has another type than the authored one."""
    assignment, signature = solution.assignments[node.id], node.signature
    if assignment is None or signature is None:
        return False
    if node.op_type in ("Cast", "ConstantOfShape"):  # without a group, their attribute may change (S4.44, S4.45)
        return assignment.outputs != signature.outputs
    return any(elem != g.authored for elem, g in zip(assignment.elements, signature.groups, strict=True))
