"""Move the Casts to the low type before the nodes that only move values (Rule S4.49).

    past_key (float32) -> Concat -> Transpose -> Cast -> MatMul (low)

A Cast before a value mover gives the same numbers as one behind it. So the value movers between float32 values and
low-precision readers become low precision if the model then has fewer Casts, or as many and no more bytes:

    past_key (float32) -> Concat -> Cast -> Transpose -> MatMul (low)

The Concat stays float32 here, if it is also an output of the model: its other readers would read rounded numbers.
"""

from __future__ import annotations

from collections.abc import Container

from mixlist.decide.gray_policies import can_be_followed, find_cast_source
from mixlist.decide.solution import Solution
from mixlist.decide.types_from_readers import find_moving_nodes, find_output_uses, lower_node
from mixlist.decide.value_uses import Use, find_uses
from mixlist.model import dtypes
from mixlist.model.graph import Node, Value, has_container
from mixlist.model.traits import Trait, operators

_MOVERS = operators(Trait.MOVES_VALUES)
_PICKS = operators(Trait.PICKS)


def move_casts_before_movers(solution: Solution) -> None:
    """Make value movers low precision where that moves Casts forward at no cost. Call it when all nodes are decided."""
    if not solution.classifier.adapts_to_readers:
        return
    movers = [node for node in solution.graph.nodes if _can_be_lowered(node, solution)]
    if not movers:
        return
    uses: dict[Value, list[Use]] = {}
    for use in (*find_uses(solution), *find_output_uses(solution)):
        uses.setdefault(use.value, []).append(use)
    for group in _find_groups(movers, uses, solution.low_type):
        if _costs_no_more(group, uses, solution):
            for node in group:
                lower_node(node, solution)


def _can_be_lowered(node: Node, solution: Solution) -> bool:
    """Return whether a node is a gray value mover that makes float32 of values that are no constants."""
    if not node.is_plain or node.op_type not in _MOVERS or has_container(node):
        return False
    output = node.outputs[0]
    # In a model that was rewritten before, such a node makes the low type already.
    if (
        output is None
        or output.type not in (dtypes.FLOAT, solution.low_type)
        or node in find_moving_nodes(solution.graph)
    ):
        return False
    is_free = solution.classifications[node.id].kind == "gray" and node.id not in solution.reason_notes
    return is_free and solution.decided_types[output.id] == dtypes.FLOAT


def _find_groups(movers: list[Node], uses: dict[Value, list[Use]], low_type: int) -> list[list[Node]]:
    """Return the connected groups of movers of which everything behind them wants the low type."""
    accepted: dict[Node | None, list[Node]] = {}  # each node with its group
    for node in reversed(movers):
        of_node = [use for value in node.outputs if value is not None for use in uses.get(value, ())]
        if not all(_wants(use, low_type) or _is_in(use, accepted) for use in of_node):
            continue
        group = [node]
        for use in of_node:
            joined = accepted.get(use.node)
            if joined is not None and joined is not group:
                group += joined
                accepted.update(dict.fromkeys(joined, group))
        accepted.update(dict.fromkeys(group, group))
    return list({id(group): group for group in accepted.values()}.values())


def _is_in(use: Use, nodes: Container[Node | None]) -> bool:
    """Return whether the reader is one of some nodes, in the scope of the value."""
    return use.node in nodes and use.scope is use.value.scope


def _wants(use: Use, low_type: int) -> bool:
    """Return whether a reader reads the low type, or only the shape of the value."""
    if use.node is None:
        return use.scope.owner is None and use.wanted_type == low_type  # an output of the model
    if use.node.bodies or use.scope is not use.value.scope:
        return False
    # A Cast of the author reads the numbers as they are, so rounded ones would change its result.
    return use.wanted_type == low_type or (use.wanted_type is None and use.node.op_type != "Cast")


def _costs_no_more(group: list[Node], uses: dict[Value, list[Use]], solution: Solution) -> bool:
    """Return whether a group of movers in the low type needs no more Casts than in float32, and no more bytes."""
    nodes = set(group)
    entries = {v for n in group for v in n.inputs if v is not None and v.producer not in nodes and can_be_followed(v)}
    made = [value for node in group for value in node.outputs if value is not None]
    saved = sum(
        any(use.wanted_type == solution.low_type and use.node not in nodes for use in uses[v])
        for v in made
        if v in uses
    )
    if not saved:  # nothing reads what the group makes
        return False
    added, decided_types, classifier = 0, solution.decided_types, solution.classifier
    for value in entries:
        other_uses = [use for use in uses[value] if use.node not in nodes]
        if decided_types[value.id] == solution.low_type:
            saved += all(use.wanted_type != dtypes.FLOAT for use in other_uses)
        elif not any(use.wanted_type == solution.low_type for use in other_uses):  # these have a Cast already
            added += find_cast_source(value, decided_types, solution.low_type, classifier.cast_is_black) is None
    # A node that picks elements reads more of them than it writes: then the Cast before it would convert more.
    return added < saved or (added == saved and not any(node.op_type in _PICKS for node in group))
