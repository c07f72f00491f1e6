"""Group the nodes of a model by the scopes in their names, so that the page opens folded.

``/model/layers.0/attn/MatMul`` is in the group ``attn`` of the group ``layers.0`` of the group ``model``. A name
without slashes is divided at its dots: ``layer.0.attn.MatMul`` is in ``attn`` of ``layer.0``. A group with a single
member is no group of its own. A group with more than MAX_MEMBERS members is divided into runs of neighbors.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal, NamedTuple

# A layout of this many boxes takes the browser a third of a second. That is the longest wait for an unfolded group.
MAX_MEMBERS = 150
RUN_LENGTH = 100
_MAX_LOOSE_TERMINALS = 8  # more inputs, or more outputs, than this are one group
_MAX_DEPTH = 20  # a name with more scopes keeps the others in its last part
_SLASH_SCOPES = re.compile(r"/*[^/]+/+")

# scope: a part of the names; body: a subgraph; run: neighbors in topological order; terminals: the inputs or the
# outputs of the model.
GroupKind = Literal["scope", "body", "run", "terminals"]


class GroupStep(NamedTuple):
    """One group on the path from the top of the tree to a node.

    ``offset``: the number of characters of the node's name up to the end of this step; 0 if the name does not mention
    the group. The rest of the name is enough to identify the node within the group.
    """

    kind: GroupKind
    label: str
    offset: int = 0


@dataclass
class Group:
    """A group of nodes. ``members`` holds groups and the numbers of nodes, in topological order of their first node.

    ``offset``: see GroupStep.
    """

    kind: GroupKind
    label: str
    offset: int = 0
    members: list[Group | int] = field(default_factory=list)


def split_scopes(name: str) -> list[str]:
    """Return the parts of a node's name that mean scopes, with their separators: ``["/model/", "attn/"]``.

    The name starts with these parts. The rest, which is never empty, is the name of the node within its scope.
    """
    parts = _SLASH_SCOPES.findall(name) if "/" in name else _split_at_dots(name)
    if sum(map(len, parts)) >= len(name):  # the name ends with a separator
        parts = parts[:-1]
    return parts[:_MAX_DEPTH]


def _split_at_dots(name: str) -> list[str]:
    """Return the scopes of a name without slashes; a number belongs to the part before it, as in ``layer.0``."""
    parts: list[str] = []
    for part in re.findall(r"[^.]*\.+|[^.]+", name):
        is_number = part.rstrip(".").isdigit()
        if parts and (is_number or not part.strip(".")):
            parts[-1] += part
        else:
            parts.append(part)
    return parts[:-1]


def name_steps(name: str) -> list[GroupStep]:
    """Return the groups that a node's name mentions, from the outermost to the innermost."""
    parts = split_scopes(name)
    ends = accumulate(map(len, parts))
    return [GroupStep("scope", part.strip("/").rstrip(".") or part, end) for part, end in zip(parts, ends, strict=True)]


def build_tree(paths: Iterable[list[GroupStep]]) -> Group:
    """Return the top of the tree of groups. ``paths`` holds the path of each node, in topological order."""
    top = Group("scope", "")
    groups: dict[tuple[int, GroupKind, str], Group] = {}
    for node, path in enumerate(paths):
        group = top
        for step in path:
            key = id(group), step.kind, step.label
            if key not in groups:
                groups[key] = Group(step.kind, step.label, step.offset)
                group.members.append(groups[key])
            group = groups[key]
        group.members.append(node)
    _simplify(top)
    return top


def _simplify(group: Group) -> None:
    """Join each scope with a single member with this member, and divide groups with too many members."""
    for index, member in enumerate(group.members):
        if isinstance(member, Group):
            _simplify(member)
            group.members[index] = _join_single_member(member)
    # The inputs and outputs of the model stay outside of runs.
    terminals = [member for member in group.members if isinstance(member, Group) and member.kind == "terminals"]
    group.members = [member for member in group.members if member not in terminals]
    _divide_into_runs(group)
    for terminal_group in terminals:
        is_small = len(terminal_group.members) <= _MAX_LOOSE_TERMINALS
        group.members += terminal_group.members if is_small else [terminal_group]


def _join_single_member(group: Group) -> Group | int:
    """Return the only member of a scope instead of the scope; a group gets a label with both names."""
    if group.kind != "scope" or len(group.members) != 1:
        return group
    member = group.members[0]
    if isinstance(member, Group) and member.kind == "scope":
        member.label = f"{group.label}/{member.label}"
        return member
    return group if isinstance(member, Group) else member


def _divide_into_runs(group: Group) -> None:
    """Replace the members of a large group by runs of RUN_LENGTH members; divide again if there are many runs."""
    noun = "parts" if any(isinstance(member, Group) for member in group.members) else "nodes"
    span = 1  # the number of members that each run holds, counted in members before any division
    total = len(group.members)
    while len(group.members) > MAX_MEMBERS:
        span *= RUN_LENGTH
        runs: list[Group | int] = []
        for start in range(0, len(group.members), RUN_LENGTH):
            first = len(runs) * span + 1
            label = f"{noun} {first} to {min(first + span - 1, total)}"
            runs.append(Group("run", label, group.offset, group.members[start : start + RUN_LENGTH]))
        group.members = runs
