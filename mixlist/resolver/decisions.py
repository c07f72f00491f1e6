"""The decisions for nodes, graphs and a whole model: values that the other modules of this room make and read.

A GraphSolution holds the decisions for one graph, in the form in which they are computed and applied. A Decision
describes the decision for one node to a user.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from mixlist.graph.control_flow import Link
from mixlist.graph.load import LoadedModel
from mixlist.graph.model import Graph, Node, Value
from mixlist.graph.refs import NodeRef
from mixlist.lists.policy import Policy
from mixlist.ops import types
from mixlist.ops.signature import Assignment
from mixlist.patterns.mask_plan import MaskGroup, MaskPlan, SlotLimits
from mixlist.patterns.positions import PositionPlan
from mixlist.resolver.classification import Classification
from mixlist.resolver.node_rules import NodeRules

UNDECIDED = 0


@dataclass(frozen=True, slots=True)
class Decision:
    """The precision of one node and the reason for it.

    ``follows`` is empty, or holds the immediate producer and the node that decided. ``outputs`` maps the name of each
    output to its decided type (``float16``, ``int64``, ``seq(float16)``, ``unknown``). ``callers``
    names the calls of this specialization if its function has several specializations. ``follows_refs`` are
    the nodes that ``follows`` names: None for a graph input or a function's argument.
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
    follows_refs: tuple[NodeRef | None, ...] = ()

    @property
    def ref(self) -> NodeRef:
        """Return the node's identity; the scope of a specialized function has its number."""
        return NodeRef(self.scope, self.name)

    @property
    def producer(self) -> NodeRef | None:
        """Return the node that the node follows; None if it follows none."""
        return self.follows_refs[0] if self.follows_refs else None

    @property
    def decider(self) -> NodeRef | None:
        """Return the node at the end of the chain of followed nodes; None for a graph input or an argument."""
        return self.follows_refs[1] if self.follows_refs else None


@dataclass(eq=False)
class GraphSolution:
    """The decisions for one Graph; lists are indexed by the id of a Value or Node.

    ``decided_types``: the element type of each value.
    ``reason_notes``: the constant that keeps a node or slot in high precision.
    ``callees``: the solution of each function call. ``positions``: the position arithmetic that the policy protects.
    ``masks``: the masks that it protects.
    ``kept_masks``: the masks that stay as authored (Rule S4.35).
    ``reduced_slots``: by node the slots that read a constant of any other mask, with its magnitude limit (Rule S4.36).

    In the body of a function the decisions depend on the constants of the call: ``constant_fits`` has, by the step that
    asked, the answers about them, and ``tried_callees`` by the call the GraphSolutions that it had, also in between.
    """

    graph: Graph
    classifications: list[Classification]
    decided_types: list[int]
    assignments: list[Assignment | None]
    followed_values: list[Value | None]
    links: list[Link] = field(default_factory=list)
    reason_notes: dict[int, str] = field(default_factory=dict)
    rule_overrides: dict[int, str] = field(
        default_factory=dict
    )  # by node id, if the outcome overrides the rule of the fact
    callees: dict[int, GraphSolution] = field(default_factory=dict)
    constant_fits: dict[Hashable, dict[Value, bool]] = field(default_factory=dict)
    tried_callees: dict[Node, dict[GraphSolution, None]] = field(default_factory=dict)
    high_by_black: set[int] = field(default_factory=set)  # values, under the policy black-wins (Rule S4.23)
    positions: PositionPlan | None = None
    masks: MaskPlan | None = None
    kept_masks: frozenset[MaskGroup] = frozenset()
    reduced_slots: Mapping[Node, SlotLimits] = field(default_factory=dict)
    number: str = ""  # "#k" where its function has several specializations, in order of first call


@dataclass(frozen=True, eq=False)
class ModelSolution:
    """The decisions for a whole model, as the rewriter applies them.

    ``solutions``: first that of the main graph, then one per specialization of a function, in order of first call.
    """

    loaded: LoadedModel
    graph: Graph
    policy: Policy
    low: int
    solutions: tuple[GraphSolution, ...]
    rules: NodeRules
    cast_is_black: bool


def reachable_solutions(main: GraphSolution) -> list[GraphSolution]:
    """Return a main graph's GraphSolution and those of all calls below it, each once, in order of first call."""
    found: dict[GraphSolution, None] = {main: None}
    waiting = deque([main])
    while waiting:
        for _, callee in sorted(waiting.popleft().callees.items()):
            if callee not in found:
                found[callee] = None
                waiting.append(callee)
    return list(found)


def join(one: int, other: int) -> int:
    """Return the type of a value that is one or the other: undecided gives way, two that differ are float32."""
    if one == other or other == UNDECIDED:
        return one
    return other if one == UNDECIDED else types.FLOAT


def find_precision(solution: GraphSolution, node: Node) -> str:
    """Return the type of the node's main float slots; ``none`` for a node with nothing to vary (Rule S4.1)."""
    assignment, signature = solution.assignments[node.id], node.signature
    if signature is None or assignment is None or solution.classifications[node.id].kind == "none":
        return "none"
    primary = signature.primary
    if primary is not None and not signature.has_fixed_output:
        return types.type_name(assignment.elements[signature.groups.index(primary)])
    slots = node.outputs if signature.has_fixed_output else node.inputs
    elem = next((types.element(v.type) for v in slots if v is not None), types.UNKNOWN)
    return types.type_name(elem) if elem in types.FLOATS and node.op_type != "Constant" else "none"
