"""Rule S4.38: position arithmetic stays as authored.

Integers that arithmetic carries to Sin, Cos or the grid of GridSample are positions: the low type holds only small
integers exactly, and a sine of a rounded angle is wrong. The nodes of this arithmetic and the readers stay as authored
under every list; a node rule wins (Rule S4.2), and nodes that keep their authored type for another reason keep that
reason.

``patterns.positions`` finds the nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from weakref import WeakKeyDictionary

from mixlist.diagnostics import Diagnostic
from mixlist.graph.model import Graph, Node
from mixlist.graph.naming import node_ref
from mixlist.lists.policy import Policy
from mixlist.ops import types
from mixlist.ops.low_precision import MAX_EXACT_INTEGER
from mixlist.patterns.positions import PositionPlan, find_positions
from mixlist.resolver.classification import Kind
from mixlist.resolver.decisions import GraphSolution, ModelSolution

_BY_LIST: frozenset[Kind] = frozenset({"low", "authored", "gray"})  # the kinds that a list or a mode decides
_LOWERING = frozenset({"lists", "force", "cube"})  # the actions of modes that make nodes low precision
_PLANS: WeakKeyDictionary[Graph, PositionPlan | None] = WeakKeyDictionary()  # computed once for all policies of a model


def protected_positions(main: Graph, policy: Policy) -> PositionPlan | None:
    """Return the position arithmetic of a model; None if it has none, or if the policy does not protect it."""
    return _positions(main) if "positions" in policy.protect and policy.mode.action in _LOWERING else None


def _positions(main: Graph) -> PositionPlan | None:
    if main not in _PLANS:
        _PLANS[main] = find_positions(main)
    return _PLANS[main]


def keep_positions(solution: GraphSolution, nodes: Iterable[Node]) -> None:
    """Let those of ``nodes`` that are position arithmetic keep their authored type, unless a node rule names them."""
    if solution.positions is None:
        return
    for node in nodes:
        fact = solution.classifications[node.id]
        if node.id in solution.positions.nodes and fact.kind in _BY_LIST:
            solution.classifications[node.id] = replace(fact, kind="authored", rule="position")


def position_warnings(resolved: ModelSolution) -> Iterator[Diagnostic]:
    """Yield a warning if the policy does not protect positions and makes some low precision (Rule S4.34)."""
    policy = resolved.policy
    if "positions" in policy.protect or policy.mode.action not in _LOWERING:
        return
    plan = _positions(resolved.graph)
    lowered = list(_lowered(plan, resolved)) if plan is not None else []
    if lowered:
        graph, node, reader = lowered[0]
        low = types.type_name(resolved.low)
        yield Diagnostic(
            "ML507",
            "warning",
            f"positions on their way to {reader} are {low} at {node.op_type} {node_ref(graph, node)}, and {low} holds "
            f"all integers up to {MAX_EXACT_INTEGER[resolved.low]} only",
            hint="--protect positions keeps position arithmetic in high precision",
        )


def _lowered(plan: PositionPlan, resolved: ModelSolution) -> Iterator[tuple[Graph, Node, str]]:
    """Yield the nodes of position arithmetic that became low precision, with the reader, in order of the calls."""
    waiting = [(plan, resolved.solutions[0])]
    seen = set(waiting)
    for of_graph, solution in waiting:
        for node in solution.graph.nodes:
            position, assignment = of_graph.nodes.get(node.id), solution.assignments[node.id]
            groups = node.signature.groups if node.signature is not None else ()
            elements = assignment.elements if assignment is not None else ()
            if position is not None and any(
                e == resolved.low != g.authored for e, g in zip(elements, groups, strict=False)
            ):
                yield solution.graph, node, position.reader
            called = of_graph.of_call(node) if node.function is not None else None
            callee = solution.callees.get(node.id)
            if called is not None and callee is not None and (called, callee) not in seen:
                seen.add((called, callee))
                waiting.append((called, callee))
