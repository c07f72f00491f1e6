"""Masks: a fully masked row must not become NaN because the mask leaves the range of the low type.

Rule S4.34: `--protect masks` turns the rules on. Without it nothing changes, and a mask that breaks is a warning.

Rule S4.35: If every softmax that a mask reaches is high precision, a node that would become low precision stays as
authored with rule `mask` if it reads or makes a mask out of range.

Rule S4.36: If one of these softmaxes is low precision, the finite constants of the mask are reduced, and count as
fitting. A mask without a constant to reduce keeps its readers, the softmaxes included, in high precision.

Masks are followed into and out of functions, but are not reduced there: a function's body may serve other calls.

Rule S4.36: A node that computes a mask, or a factor of one, from constants that are no masks stays as authored if it
reads or makes a constant that does not fit, whatever `--constants` says.

A gray softmax may follow the nodes that the mask keeps. So a graph is decided first as if the constants were reduced. A
group of nodes whose softmaxes all came out high is *kept*, and the graph is decided again. A kept node only
makes other nodes high precision, so no group has to be released, and the result does not depend on any order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mixlist.diagnostics import Diagnostic
from mixlist.graph.model import Graph, Node
from mixlist.graph.naming import node_ref
from mixlist.lists.policy import Policy
from mixlist.ops import types
from mixlist.patterns.constants import ConstantRanges
from mixlist.patterns.mask_calls import find_mask_groups
from mixlist.patterns.mask_plan import MaskGroup, MaskPlan, SlotLimits
from mixlist.resolver.classification import Classification
from mixlist.resolver.decisions import UNDECIDED, GraphSolution

if TYPE_CHECKING:
    from mixlist.resolver.classification import Kind


@dataclass(frozen=True)
class Masks:
    """The treatment of the masks of one graph while it is decided.

    ``kept`` and ``reduced`` are those of a GraphSolution; ``is_repeated``: whether more groups are kept than at first.
    """

    kept: frozenset[MaskGroup]
    reduced: Mapping[Node, SlotLimits]
    is_repeated: bool


Groups = tuple[MaskGroup, ...]
KeptGroups = frozenset[MaskGroup]

ROUNDS = 4  # in which groups may turn out to be kept; then all of them are
_NEVER_LOW: frozenset[Kind] = frozenset({"none", "cast", "shape", "authored", "schema"})


def protected_masks(main: Graph, ranges: ConstantRanges, policy: Policy) -> MaskPlan | None:
    """Return the mask groups of a model; None if it has none, or if the policy does not protect them."""
    plan = masks_of(main, ranges, policy) if "masks" in policy.protect else None
    return None if plan is None or plan.is_empty else plan


def masks_of(main: Graph, ranges: ConstantRanges, policy: Policy) -> MaskPlan | None:
    """Return the mask groups of a model if the policy's mode can make their nodes low precision."""
    if policy.mode.action not in ("lists", "force"):
        return None
    return find_mask_groups(main, ranges, types.ELEMENT_BY_NAME[policy.mode.low])


def kept_at_first(groups: Groups, fact_of: Callable[[Node], Classification]) -> KeptGroups:
    """Return the groups that are kept under all decisions: no constant to reduce, or no softmax that can be low."""
    return frozenset([g for g in groups if not g.reducible or all(fact_of(n).kind in _NEVER_LOW for n in g.softmaxes)])


def kept_after(groups: Groups, kept: KeptGroups, solution: GraphSolution, low: int, rounds: int) -> KeptGroups:
    """Return the kept groups after a graph was decided: those before, and those whose softmaxes all came out high."""
    if len(kept) == len(groups):
        return kept
    high = {group for group in groups if group not in kept and not _has_low_softmax(group, solution, low)}
    if not high:
        return kept
    return kept | high if rounds < ROUNDS else frozenset(groups)


def _has_low_softmax(group: MaskGroup, solution: GraphSolution, low: int) -> bool:
    """Return whether some softmax is low precision, or may become so when a function's caller is decided."""
    outputs = [value for node in group.softmaxes for value in node.outputs if value is not None]
    return any(solution.decided_types[value.id] in (low, UNDECIDED) for value in outputs)


def mask_notes(kept: Iterable[MaskGroup]) -> Iterator[tuple[Node, str]]:
    """Yield the nodes of kept groups with their ``Classification.mask``."""
    for group in sorted(kept, key=lambda group: bool(group.misfit)):  # a node may be in one group with a misfit, too
        note = _note(group)
        yield from ((node, "") for node in group.limits.keys() - group.exceeding)
        yield from ((node, note) for node in group.exceeding)


def reduced_constants(groups: Groups, kept: AbstractSet[MaskGroup]) -> dict[Node, SlotLimits]:
    """Return the slots that read a reduced constant, by node, each with the largest magnitude that is left."""
    return {node: limits for group in groups if group not in kept for node, limits in group.limits.items()}


def _note(group: MaskGroup) -> str:
    return (
        group.misfit or f"a mask of {group.magnitude_text} ({group.source}) passes it on the way to {group.destination}"
    )


def mask_warnings(solution: GraphSolution, groups: Iterable[MaskGroup], low: int) -> Iterator[Diagnostic]:
    """Yield a warning for those of the groups of a graph, none reduced, that the low type breaks."""
    broken = [g for g in groups if any(_is_low(solution, node, low) for node in g.exceeding)]
    if broken:
        node = next(node for node in broken[0].exceeding if _is_low(solution, node, low))
        name, count = types.type_name(low), sum(len(group.softmaxes) for group in broken)
        softmaxes = f"{count} {'softmax' if count == 1 else 'softmaxes'}" if count else "a softmax"
        cause = (
            broken[0].misfit or f"a mask of {broken[0].magnitude_text} ({broken[0].source}) leaves the range of {name}"
        )
        yield Diagnostic(
            "ML508",
            "warning",
            f"{cause} at {node_ref(solution.graph, node)} ({node.op_type}): a row that is masked as a whole becomes "
            f"NaN in {softmaxes}",
            hint="--protect masks keeps such nodes in high precision, or reduces the constant",
        )


def _is_low(solution: GraphSolution, node: Node, low: int) -> bool:
    """Return whether the policy makes a node low precision that the author did not."""
    assignment, signature = solution.assignments[node.id], node.signature
    if assignment is None or signature is None:
        return False
    return any(e == low != g.authored for e, g in zip(assignment.elements, signature.groups, strict=True))
