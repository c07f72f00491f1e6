"""Masks: prevent NaN in a fully masked row when the mask leaves the range of the low type.

Rule S4.34: `--protect masks` turns the rules on. Without it nothing changes, and a mask that breaks is a warning.

Rule S4.35: If every softmax that a mask reaches is high precision, a node that would become low precision stays as
authored with rule `mask` if it reads or makes a mask out of range.

Rule S4.36: If a softmax that the mask reaches is low precision, the finite constants of the mask are reduced, so that
the low type holds them. A mask without a constant to reduce keeps its readers, the softmaxes included, in high
precision. A node that computes a mask, or a factor of one, from constants that are no masks stays as authored if it
reads or makes a constant that does not fit, whatever `--constants` says.

Rules S4.35 and S4.36 depend on each other: a gray softmax may follow the nodes that the mask keeps. So the solver first
decides a graph as if all masks that can be reduced were reduced. Then it keeps each group of nodes whose softmaxes all
came out in high precision, and decides the graph again. Keeping a group only makes other nodes high precision, never
low. So no group has to be released, and the result does not depend on the order of the groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mixlist.decide.classification import Classification
from mixlist.decide.constant_ranges import ConstantRanges
from mixlist.decide.decisions import GraphSolution
from mixlist.decide.plan_masks import MaskGroup, SlotLimits, find_mask_groups
from mixlist.diagnostics import Diagnostic
from mixlist.lists.policy import Policy
from mixlist.model import dtypes
from mixlist.model.graph import Graph, Node
from mixlist.model.naming import node_ref

if TYPE_CHECKING:
    from mixlist.decide.classification import DecisionKind


@dataclass(frozen=True)
class MaskTreatment:
    """The treatment of the masks of one graph while the graph is decided.

    ``kept_groups`` and ``reduced_slots`` are ``kept_masks`` and ``reduced_slots`` of the GraphSolution. ``is_repeated``
    is whether the graph was decided before with fewer kept groups.
    """

    kept_groups: frozenset[MaskGroup]
    reduced_slots: Mapping[Node, SlotLimits]
    is_repeated: bool


MaskGroups = tuple[MaskGroup, ...]
KeptGroups = frozenset[MaskGroup]

# After this many rounds all groups are kept, and the graph is decided a last time. A graph with many groups could
# otherwise need one round per group. Keeping a group is always safe.
MAX_ROUNDS = 4
# A softmax of these kinds keeps its authored type, whatever is decided for the nodes around it. The list need not be
# complete: find_groups_kept_after() keeps the groups of other softmaxes that stay high, after the first round.
_NEVER_LOW: frozenset[DecisionKind] = frozenset({"none", "cast", "shape", "authored", "schema"})


def find_protected_masks(graph: Graph, ranges: ConstantRanges, policy: Policy) -> MaskGroups:
    """Return the masks that the low type cannot hold; () if the policy does not protect masks."""
    return find_masks_at_risk(graph, ranges, policy) if "masks" in policy.protect else ()


def find_masks_at_risk(graph: Graph, ranges: ConstantRanges, policy: Policy) -> MaskGroups:
    """Return the masks that the low type cannot hold; () if the policy's mode cannot make nodes low precision."""
    if policy.mode.action not in ("lists", "force"):
        return ()
    return find_mask_groups(graph, ranges, dtypes.ELEMENT_BY_NAME[policy.mode.low])


def find_groups_kept_at_first(groups: MaskGroups, classify: Callable[[Node], Classification]) -> KeptGroups:
    """Return the groups that are kept whatever the decisions are.

    These groups have no constant to reduce, or no softmax that can become low precision.
    """
    return frozenset(
        [
            group
            for group in groups
            if not group.reducible or all(classify(node).kind in _NEVER_LOW for node in group.softmaxes)
        ]
    )


def find_groups_kept_after(
    groups: MaskGroups, kept_groups: KeptGroups, solution: GraphSolution, low_type: int, rounds: int
) -> KeptGroups:
    """Return the kept groups after a graph was decided ``rounds`` times.

    These are ``kept_groups`` and the groups whose softmaxes all came out in high precision.
    """
    if len(kept_groups) == len(groups):  # no group is left to keep
        return kept_groups
    newly_kept = {
        group for group in groups if group not in kept_groups and not _has_low_softmax(group, solution, low_type)
    }
    if not newly_kept:
        return kept_groups
    return kept_groups | newly_kept if rounds < MAX_ROUNDS else frozenset(groups)


def _has_low_softmax(group: MaskGroup, solution: GraphSolution, low_type: int) -> bool:
    """Return whether some softmax is low precision."""
    outputs = [value for node in group.softmaxes for value in node.outputs if value is not None]
    return any(solution.decided_types[value.id] == low_type for value in outputs)


def find_mask_notes(kept_groups: Iterable[MaskGroup]) -> Iterator[tuple[Node, str]]:
    """Yield the nodes of kept groups, each with its ``Classification.mask_note``.

    A node can come more than once; the last note counts. A node that only reads a constant of the mask gets an empty
    note. That note does not keep the node, but it makes the classification differ, so that an IncrementalSolver decides
    the node again: the constant is not reduced any more.
    """
    # Groups with a misfit come last, because their note says more for a node that is in two groups.
    for group in sorted(kept_groups, key=lambda group: bool(group.misfit)):
        note = _explain_kept_group(group)
        yield from ((node, "") for node in group.limits.keys() - group.exceeding_nodes)
        yield from ((node, note) for node in group.exceeding_nodes)


def find_reduced_slots(groups: MaskGroups, kept_groups: AbstractSet[MaskGroup]) -> dict[Node, SlotLimits]:
    """Return, by node, the slots that read a reduced constant, each with the largest magnitude that it may keep."""
    return {node: limits for group in groups if group not in kept_groups for node, limits in group.limits.items()}


def _explain_kept_group(group: MaskGroup) -> str:
    """Return the part of a reason that says why the nodes of a group stay as authored."""
    mask = f"a mask of {group.magnitude_text} ({group.source})"
    others = f" and {len(group.softmaxes) - 1} more" if len(group.softmaxes) > 1 else ""
    return group.misfit or f"{mask} passes through it on the way to {group.destination}{others}"


def find_mask_warnings(solution: GraphSolution, groups: Iterable[MaskGroup], low_type: int) -> Iterator[Diagnostic]:
    """Yield a warning if the low type breaks some of a graph's mask groups; none of ``groups`` may be reduced."""
    broken = [group for group in groups if any(_is_lowered(solution, node, low_type) for node in group.exceeding_nodes)]
    if broken:
        node = next(node for node in broken[0].exceeding_nodes if _is_lowered(solution, node, low_type))
        low_name, count = dtypes.type_name(low_type), sum(len(group.softmaxes) for group in broken)
        softmaxes = f"{count} {'softmax' if count == 1 else 'softmaxes'}" if count else "a softmax"
        cause = (
            broken[0].misfit
            or f"a mask of {broken[0].magnitude_text} ({broken[0].source}) leaves the range of {low_name}"
        )
        yield Diagnostic(
            "ML508",
            "warning",
            f"{cause} at {node_ref(node)} ({node.op_type}): a row that is fully masked becomes NaN in {softmaxes}",
            hint="--protect masks keeps such nodes in high precision, or reduces the constant",
        )


def _is_lowered(solution: GraphSolution, node: Node, low_type: int) -> bool:
    """Return whether the policy gives the low type to a slot of the node that the author gave another type."""
    assignment, signature = solution.assignments[node.id], node.signature
    if assignment is None or signature is None:
        return False
    return any(e == low_type != g.authored for e, g in zip(assignment.elements, signature.groups, strict=True))
