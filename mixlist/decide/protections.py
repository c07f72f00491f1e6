"""The protections, in order: they keep nodes as authored that a list would make low precision.

Each protection has a file with the same three functions: ``keep_...`` classifies the nodes that it finds,
``explain_...`` says why a node of it stays, and ``find_..._warnings`` warns where the protection is off and nodes that
it would keep become low precision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mixlist.decide.guards import explain_guard, keep_guards
from mixlist.decide.plan_masks import MaskTreatment, find_mask_warnings, keep_masks
from mixlist.decide.positions import explain_position, find_position_warnings, keep_positions
from mixlist.decide.solution import Solution
from mixlist.decide.units import explain_unit, find_unit_warnings, keep_units
from mixlist.diagnostics import Diagnostic
from mixlist.model.graph import Node

# By the name of a rule in the reports: the reason of a node that it keeps, from the name of the node's precision.
# The reason of a mask begins with the list of the node, so it is in ``describe_decisions``.
EXPLANATIONS: dict[str, Callable[[Solution, Node, str], str]] = {
    "quantized": explain_unit,
    "norm": explain_unit,
    "position": explain_position,
    "guard": explain_guard,
}


def protect_nodes(solution: Solution, treatment: MaskTreatment) -> None:
    """Classify the nodes that protections keep; those of a node rule must be classified already, because it wins."""
    # Units come first, because a node of one may also be a position or a guard, which then gives the reason.
    keep_units(solution)
    keep_positions(solution)
    keep_guards(solution)
    # A mask keeps a node only if it would become low precision, so it changes no classification.
    keep_masks(solution, treatment)


def find_protection_warnings(solution: Solution) -> Iterator[Diagnostic]:
    """Yield the warnings of all protections."""
    yield from find_position_warnings(solution)
    yield from find_unit_warnings(solution)
    yield from find_mask_warnings(solution)
