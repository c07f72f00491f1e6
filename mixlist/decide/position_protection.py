"""Rule S4.38: position arithmetic stays as authored.

Integers that arithmetic carries to Sin, Cos or the grid of GridSample are positions: the low type holds only small
integers exactly, and a sine of a rounded angle is wrong. The nodes of this arithmetic and the readers stay as authored
under every list; a node rule wins (Rule S4.2), and nodes that keep their authored type for another reason keep that
reason.

Example: in ``Cast(n, to=float) -> Mul -> Sin -> Neg`` with integers ``n``, all nodes but Neg stay as authored.

``patterns.positions`` finds the nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from weakref import WeakKeyDictionary

from mixlist.decide.classification import DecisionKind
from mixlist.decide.decisions import GraphSolution, ModelSolution
from mixlist.decide.positions import Positions, find_positions
from mixlist.diagnostics import Diagnostic
from mixlist.lists.policy import Policy
from mixlist.model import dtypes
from mixlist.model.graph import Graph, Node
from mixlist.model.low_precision import MAX_EXACT_INTEGER
from mixlist.model.naming import node_ref

_DECIDED_BY_LIST: frozenset[DecisionKind] = frozenset({"low", "authored", "gray"})  # or by the mode
_LOWERING_ACTIONS = frozenset({"lists", "force", "cube"})  # the actions of modes that make nodes low precision
# Positions do not depend on the policy, so they are found once for all policies of a model.
_CACHED_POSITIONS: WeakKeyDictionary[Graph, Positions] = WeakKeyDictionary()


def find_protected_positions(graph: Graph, policy: Policy) -> Positions:
    """Return the position arithmetic of a model; none if the policy does not protect it."""
    is_protected = "positions" in policy.protect and policy.mode.action in _LOWERING_ACTIONS
    return _find_positions_once(graph) if is_protected else Positions()


def _find_positions_once(graph: Graph) -> Positions:
    if graph not in _CACHED_POSITIONS:
        _CACHED_POSITIONS[graph] = find_positions(graph)
    return _CACHED_POSITIONS[graph]


def keep_positions(solution: GraphSolution, nodes: Iterable[Node]) -> None:
    """Classify those of ``nodes`` that are position arithmetic as authored, unless a node rule names them."""
    if not solution.positions.nodes:
        return
    for node in nodes:
        classification = solution.classifications[node.id]
        if node.id in solution.positions.nodes and classification.kind in _DECIDED_BY_LIST:
            solution.classifications[node.id] = replace(classification, kind="authored", rule="position")


def find_position_warnings(model_solution: ModelSolution) -> Iterator[Diagnostic]:
    """Yield a warning if the policy does not protect positions and makes some low precision (Rule S4.38)."""
    policy = model_solution.policy
    if "positions" in policy.protect or policy.mode.action not in _LOWERING_ACTIONS:
        return
    lowered = next(_find_lowered_nodes(_find_positions_once(model_solution.graph), model_solution), None)
    if lowered is not None:
        node, reader = lowered
        low_name = dtypes.type_name(model_solution.low_type)
        yield Diagnostic(
            "ML507",
            "warning",
            f"the positions that {reader} reads are {low_name} at {node.op_type} {node_ref(node)}, and "
            f"{low_name} is exact only for integers up to {MAX_EXACT_INTEGER[model_solution.low_type]}",
            hint="--protect positions keeps position arithmetic in high precision",
        )


def _find_lowered_nodes(positions: Positions, model_solution: ModelSolution) -> Iterator[tuple[Node, str]]:
    """Yield the nodes of position arithmetic that became low precision, each with its reader's name."""
    low_type, solution = model_solution.low_type, model_solution.graph_solution
    for node in solution.graph.nodes:
        position, assignment = positions.nodes.get(node.id), solution.assignments[node.id]
        groups = node.signature.groups if node.signature is not None else ()
        elements = assignment.elements if assignment is not None else ()
        if position is not None and any(
            elem == low_type != group.authored for elem, group in zip(elements, groups, strict=False)
        ):
            yield node, position.reader
