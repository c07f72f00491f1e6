"""Rule S4.41: a quantized unit stays as authored.

`--protect quantized` turns the rule on. A runtime fuses the nodes of a unit into an integer kernel only if no Cast lies
between them and their scales have the authored type. So all nodes of a unit stay as authored, whatever their lists say.
Nodes that another rule keeps (S4.3, S4.38) keep that reason.

A node rule (Rule S4.2) moves the whole unit: if it gives a node of the unit another type, the other nodes get this type
too, where their schemas allow it. A node of several units moves only if all of these units move.

Example: in ``DequantizeLinear -> Conv -> Relu -> QuantizeLinear`` all four nodes stay float32 although Conv is white.

``patterns.quantized_units`` finds the units.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

from mixlist.decide.classification import DecisionKind
from mixlist.decide.decisions import GraphSolution, ModelSolution
from mixlist.decide.node_rules import NodeRules
from mixlist.decide.quantized_units import QuantizedUnit, UnitsByNode, find_quantized_units
from mixlist.decide.solver_state import SolverState
from mixlist.diagnostics import Diagnostic
from mixlist.lists.policy import LOWERING_ACTIONS, NodeRule, Policy
from mixlist.model import dtypes
from mixlist.model.graph import Graph, Node
from mixlist.model.naming import node_ref
from mixlist.model.signature import Assignment

_DECIDED_BY_LIST: frozenset[DecisionKind] = frozenset({"low", "authored", "gray", "raise"})  # or by the mode
# Units do not depend on the policy, so they are found once for all policies of a model.
_CACHED_UNITS: WeakKeyDictionary[Graph, UnitsByNode] = WeakKeyDictionary()


def find_protected_units(graph: Graph, policy: Policy) -> UnitsByNode:
    """Return the units of a graph; {} if the policy does not protect them."""
    is_protected = "quantized" in policy.protect and policy.mode.action in LOWERING_ACTIONS
    return _find_units_once(graph) if is_protected else {}


def _find_units_once(graph: Graph) -> UnitsByNode:
    if graph not in _CACHED_UNITS:
        _CACHED_UNITS[graph] = find_quantized_units(graph)
    return _CACHED_UNITS[graph]


def add_unit_nodes(graph: Graph, nodes: set[Node], policy: Policy) -> set[Node]:
    """Return ``nodes`` and the nodes of their units: a node rule on one of them moves them all."""
    units_by_node = find_protected_units(graph, policy)
    return nodes.union(*[unit.nodes for node in nodes for unit in units_by_node.get(node.id, ())])


def keep_quantized_units(state: SolverState, nodes: Iterable[Node]) -> None:
    """Classify those of ``nodes`` that belong to a unit: as authored, or as a node rule moves their units.

    The nodes that a node rule names must have their classification already.
    """
    solution, rules = state.solution, state.applied.node_rules
    units_by_node = find_protected_units(state.graph, state.policy)
    # Only the units of ``nodes`` are examined, because a caller may ask for one node of a large graph.
    kinds: dict[QuantizedUnit, DecisionKind] = {}
    for node in nodes:
        units, classification = units_by_node.get(node.id, ()), solution.classifications[node.id]
        if not units or classification.kind not in _DECIDED_BY_LIST:
            continue
        for unit in units:
            if unit not in kinds:
                move = _find_move(unit, solution, rules, state.low_type)
                kinds[unit] = move.kind if move is not None else "authored"
        kinds_of_units = {kinds[unit] for unit in units}
        kind = kinds_of_units.pop() if len(kinds_of_units) == 1 else "authored"
        solution.classifications[node.id] = replace(classification, kind=kind, rule="quantized")


@dataclass(frozen=True)
class _UnitMove:
    """The move of a unit: a node rule moves its node ``node``, and the nodes that no rule names get ``kind``."""

    node: Node
    kind: DecisionKind


def _find_move(unit: QuantizedUnit, solution: GraphSolution, rules: NodeRules, low_type: int) -> _UnitMove | None:
    """Return the move of a unit by the first node rule that gives a node another type; None without such a rule."""
    for node in unit.nodes:
        if solution.classifications[node.id].kind == "rule":
            kind = _find_kind(node, rules.find_assignment(node), low_type)
            if kind is not None:
                return _UnitMove(node, kind)
    return None


def _find_kind(node: Node, assignment: Assignment, low_type: int) -> DecisionKind | None:
    """Return the kind to which ``assignment`` moves a node of a unit; None if it leaves the node as authored."""
    assert node.signature is not None
    changed = [e for e, g in zip(assignment.elements, node.signature.groups, strict=True) if e != g.authored]
    if low_type in changed:
        return "low"
    return "raise" if dtypes.FLOAT in changed else None


def find_unit_and_rule(
    solution: GraphSolution, node: Node, policy: Policy, rules: NodeRules
) -> tuple[QuantizedUnit, NodeRule | None]:
    """Return the first unit of a node with rule `quantized`, and the node rule that moves this unit, if any."""
    unit = find_protected_units(solution.graph, policy)[node.id][0]
    if solution.classifications[node.id].kind == "authored":  # also if only another unit of the node moves
        return unit, None
    move = _find_move(unit, solution, rules, dtypes.ELEMENT_BY_NAME[policy.mode.low])
    return unit, rules.find_rule(move.node) if move is not None else None


def find_unit_warnings(model_solution: ModelSolution) -> Iterator[Diagnostic]:
    """Yield a warning if the policy does not protect units, and some of their nodes become low precision."""
    policy = model_solution.policy
    if "quantized" in policy.protect or policy.mode.action not in LOWERING_ACTIONS:
        return
    solution, lowered = model_solution.graph_solution, []
    for node_id, units in _find_units_once(solution.graph).items():
        node, assignment = solution.graph.nodes[node_id], solution.assignments[node_id]
        # A DequantizeLinear alone does not count: a Cast of a low-precision scale would serve other readers too.
        if assignment is not None and _find_kind(node, assignment, model_solution.low_type) == "low":
            lowered += [unit for unit in units if unit.operator is node]
    if lowered:
        unit = lowered[0]
        low_name = dtypes.type_name(model_solution.low_type)
        is_one = len(lowered) == 1
        effect = f"is {low_name}" if is_one else f"and {len(lowered) - 1} more are {low_name}"
        yield Diagnostic(
            "ML510",
            "warning",
            f"{unit.operator.op_type} {node_ref(unit.operator)} {effect} between DequantizeLinear and "
            f"QuantizeLinear: no integer kernel computes {'it' if is_one else 'them'}",
            hint="--protect quantized keeps quantized units as authored",
        )
