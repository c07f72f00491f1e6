"""Control flow: join the types that pass into and out of the bodies of If, Loop, Scan and SequenceMap.

Rule S4.25: `If`, `Loop`, `Scan` and `SequenceMap` have precision `none`; each of their outputs has a type of its own,
and a follower reads the type of the output that it consumes.

Rule S4.26: An output of `If` is low precision only if every branch yields the low type for it; a constant in a branch
counts with its authored type.

Rule S4.27: The initial value, the body input, the body output and the result of a state of `Loop` or `Scan` have one
type; a constant initial value does not vote, but keeps the state in high precision if it is out of range.

A *link* (``graph.control_flow``) holds the values that have one type. ``solve`` repeats the links of a loop until
nothing changes (Rule S4.28).
"""

from __future__ import annotations

from mixlist.graph.control_flow import Link
from mixlist.graph.model import Graph, Value
from mixlist.ops import types
from mixlist.ops.schema import find_schema
from mixlist.resolver.constants_out_of_range import misfit
from mixlist.resolver.decisions import UNDECIDED, join
from mixlist.resolver.gray_policies import is_high_by_black, mark_high_by_black
from mixlist.resolver.solver_state import SolverState


def decide_link(link: Link, state: SolverState) -> list[Value]:
    """Join the types that a link's values vote for; return the values whose type, or mark as black, changed."""
    voted = _vote(link, state)
    targets = [t for t in link.targets if types.element(t.type) in types.MIXABLE and t not in state.groups]
    changed = state.raise_types(targets, [voted] * len(targets))
    by_black = voted == types.FLOAT and any(is_high_by_black(r.value, state.solution, state.low) for r in link.sources)
    return changed + mark_high_by_black(link.targets, [by_black] * len(link.targets), state)


def _vote(link: Link, state: SolverState) -> int:
    voted = UNDECIDED
    for read in link.sources:
        if read.votes and read.value.type == types.UNKNOWN and link.targets:
            voted = join(voted, types.element(link.targets[0].type))  # a custom operator makes the authored type
        elif read.votes:
            voted = join(voted, state.decided_types[read.value.id])
    if voted not in (UNDECIDED, types.FLOAT) and not takes_type(link, voted, state.graph):
        return types.FLOAT
    if voted == state.low and any(misfit(r.value, state) for r in link.sources):
        return types.FLOAT
    if voted not in (UNDECIDED, state.low, types.FLOAT) and link.targets:
        return types.element(link.targets[0].type)  # lists never make the other low type
    return voted


def takes_type(link: Link, elem: int, graph: Graph) -> bool:
    """Return whether the control-flow operator takes the type at the graph's opset (bfloat16 came late)."""
    schema = find_schema("", link.sources[0].node.op_type, graph.opsets.get("", 0))
    if schema is None:
        return False
    allowed: frozenset[types.Type] = frozenset().union(*schema.allowed.values())
    return all(types.with_element(v.type, elem) in allowed for v in (*link.targets, *(r.value for r in link.sources)))
