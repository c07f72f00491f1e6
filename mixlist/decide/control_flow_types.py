"""Control flow: join the types that pass into and out of the bodies of If, Loop, Scan and SequenceMap.

docs/semantics.md has the rules: of outputs (S4.25), of branches (S4.26), and of the states of loops (S4.27).

A *link* (``model/control_flow.py``) holds values that must have one type: its ``sources`` vote for a type, and its
``targets`` take the type. ``solver`` repeats the links of a loop until no type changes (Rule S4.28).
"""

from __future__ import annotations

from collections.abc import Callable

from mixlist.decide.solution import UNDECIDED, Solution, join_types
from mixlist.decide.value_uses import find_uses
from mixlist.model import dtypes
from mixlist.model.control_flow import TypeLink
from mixlist.model.graph import Graph, Value
from mixlist.model.schema import find_schema


def decide_link(link: TypeLink, solution: Solution) -> list[Value]:
    """Give the targets of a link the type that its sources vote for; return the targets whose type changed."""
    voted = _count_votes(link, solution)
    # Sequences and optionals keep their types (Rule S4.29).
    is_open = [dtypes.element(t.type) in dtypes.MIXABLE and not dtypes.is_container(t.type) for t in link.targets]
    targets = [target for target, can_change in zip(link.targets, is_open, strict=True) if can_change]
    return solution.decide_types(targets, [voted] * len(targets))


def _count_votes(link: TypeLink, solution: Solution) -> int:
    """Return the type that the sources of a link vote for; UNDECIDED as long as no vote has come."""
    voted = UNDECIDED
    for source in link.sources:
        if source.votes and source.value.type == dtypes.UNKNOWN and link.targets:
            # A custom operator makes this value. Such operators keep their types, and so must the link.
            voted = join_types(voted, dtypes.element(link.targets[0].type))
        elif source.votes:
            voted = join_types(voted, solution.decided_types[source.value.id])
    # The schema of this opset may lack bfloat16. Then the values become float32, which every opset has.
    if voted not in (UNDECIDED, dtypes.FLOAT) and not takes_type(link, voted, solution.graph):
        return dtypes.FLOAT
    # A constant initial value does not vote, but a value that the low type cannot hold prevents it (Rule S4.27).
    if voted == solution.low_type and any(
        solution.applied.explain_kept_constant(source.value) for source in link.sources
    ):
        return dtypes.FLOAT
    if voted not in (UNDECIDED, solution.low_type, dtypes.FLOAT) and link.targets:
        return dtypes.element(link.targets[0].type)  # Rule S4.9: lists never make the other low type
    return voted


def takes_type(link: TypeLink, elem: int, graph: Graph) -> bool:
    """Return whether the control-flow operator of a link takes the element type at the graph's opset.

    The operators allow bfloat16 from different opsets on: Scan from 16.
    """
    schema = find_schema("", link.sources[0].node.op_type, graph.opsets.get("", 0))
    if schema is None:
        return False
    allowed: frozenset[dtypes.Type] = frozenset().union(*schema.allowed.values())
    values = (*link.targets, *(source.value for source in link.sources))
    return all(dtypes.with_element(value.type, elem) in allowed for value in values)


def settle_body_constants(solution: Solution, fits: Callable[[Value], bool]) -> None:
    """Give each input of a Scan's or SequenceMap's body that receives a constant the type that all its readers want.

    The constant can then be converted in the file, and needs no Cast (Rule S7.5). The operator must take the type at
    the graph's opset (Rule S4.11), and ``fits`` must return true for the constant: it may be converted to the low type.
    """
    link_of_input = {link.targets[0]: link for link in solution.links if _passes_constant(link, fits)}
    if not link_of_input:
        return
    wanted_types: dict[int, set[int | None]] = {}  # by the id of a value
    for use in find_uses(solution):
        wanted_types.setdefault(use.value.id, set()).add(use.wanted_type)
    for body_input, link in link_of_input.items():
        types_of_readers = wanted_types.get(body_input.id, set())
        # If readers want different types, or a reader takes every type, the input keeps its type.
        wanted_type = next(iter(types_of_readers)) if len(types_of_readers) == 1 else None
        if wanted_type is None or dtypes.element(body_input.type) not in dtypes.MIXABLE:
            continue
        if takes_type(link, wanted_type, solution.graph):
            solution.decided_types[body_input.id] = wanted_type


def _passes_constant(link: TypeLink, fits: Callable[[Value], bool]) -> bool:
    """Return whether a link only passes an initializer or a Constant into a body, as Scan and SequenceMap do."""
    if len(link.sources) != 1 or len(link.targets) != 1 or link.targets[0].kind != "input":
        return False
    value = link.sources[0].value
    return value.constant_proto is not None and value.kind != "overridable" and fits(value)
