"""Choose the types of parameters that receive constants, so that a constant is converted once and not in the body.

Rule S7.5: No Cast is inserted where a constant can be converted instead.
"""

from __future__ import annotations

from collections.abc import Callable, MutableSet

from mixlist.graph.control_flow import Link
from mixlist.graph.model import Value
from mixlist.ops import types
from mixlist.resolver.decisions import Solution
from mixlist.resolver.uses import uses


def settle_constant_arguments(solution: Solution, fits: Callable[[Value], bool], done: MutableSet[Solution]) -> None:
    """Give each parameter that receives a constant the type that all its readers want.

    Parameters are those of functions, and those of the bodies of Scan and SequenceMap. Callees are settled first;
    ``done`` holds the graphs that are settled. ``fits`` tells whether a constant may be converted to the low type;
    in a function each node has been asked that.
    """
    if solution in done:
        return
    done.add(solution)
    for callee in dict.fromkeys(solution.callees.values()):
        settle_constant_arguments(callee, fits, done)
    root = solution.graph.root
    settled = [v for v in root.inputs if solution.graph.path and v.constant and v not in root.outputs]
    settled += [link.targets[0] for link in solution.links if _hands_in_constant(link, fits)]
    if not settled:
        return
    wanted: dict[int, set[int | None]] = {}
    for use in uses(solution):
        wanted.setdefault(use.value.id, set()).add(use.want)
    for value in settled:
        wants = wanted.get(value.id, set())
        if types.element(value.type) in types.LISTED and len(wants) == 1:
            solution.decided[value.id] = wants.pop() or solution.decided[value.id]


def _hands_in_constant(link: Link, fits: Callable[[Value], bool]) -> bool:
    """Return whether a link only hands an initializer or a Constant to a body, as Scan and SequenceMap do."""
    if len(link.reads) != 1 or len(link.targets) != 1 or link.targets[0].kind != "input":
        return False
    value = link.reads[0].value
    return value.tensor is not None and value.kind != "overridable" and fits(value)
