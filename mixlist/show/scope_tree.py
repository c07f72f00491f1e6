"""Group the nodes of a model, so that its page opens with at most 30 boxes and each group unfolds to at most 24.

``/model/layers.0/attn/MatMul`` is in the group ``attn`` of the group ``layers.0`` of the group ``model``. A name
without slashes is divided at its dots: ``layer.0.attn.MatMul`` is in ``attn`` of ``layer.0``. A group with a single
member is no group of its own. A group with more than MAX_MEMBERS members is divided into repeated blocks and segments
along the way from the inputs to the outputs (node_sequence.py), which are called after their operators.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal, NamedTuple

from mixlist.model.traits import Trait, operators
from mixlist.show.node_sequence import Part, divide

MAX_MEMBERS = 24
# More inputs, or more outputs, than this are one group. So the page opens with at most MAX_MEMBERS + 6 boxes.
_MAX_LOOSE_TERMINALS = 3
_MAX_DEPTH = 20  # a name with more scopes keeps the others in its last part
_SLASH_SCOPES = re.compile(r"/*[^/]+/+")
# A group that no other one equals, and that has this share of the nodes of a divided group, stays a member of it.
_LARGE_GROUP_SHARE, _MAX_LARGE_GROUPS = 0.05, 4
_NAMED_OPERATORS = 3  # the number of operators in the label of a part
_CUBE, _NO_ARITHMETIC = operators(Trait.CUBE), operators(Trait.NO_ARITHMETIC) | operators(Trait.READS_ONLY_SHAPE)

# scope: a part of the names; body: a subgraph; part: repeated blocks, one block of them, or a segment of a larger
# group; terminals: the inputs or the outputs of the model.
GroupKind = Literal["scope", "body", "part", "terminals"]


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
    """A group of nodes. ``members`` holds groups and the numbers of nodes, in the order of ``order_nodes``.

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


# --- the order of nodes ---


def order_nodes(producers: Sequence[Sequence[int]], inputs: Iterable[int] = ()) -> list[int]:
    """Return the numbers of all nodes along the way from the inputs to the outputs.

    ``producers``: for each node, the nodes whose outputs it reads. ``inputs``: the inputs of the model. A node that
    depends on no input comes directly before its first reader, and the nodes of a body before the node that runs the
    body. The other nodes keep their order.
    """
    depends = find_dependent(producers, inputs)
    roots = [node for node in range(len(producers)) if depends[node]]
    order: list[int] = []
    visited = [False] * len(producers)
    for root in [*roots, *range(len(producers))]:  # at the end, the nodes that no other one needs
        pending = [(root, iter(producers[root]))] if not visited[root] else []
        visited[root] = True
        while pending:  # place the producers of a node before the node
            node, rest = pending[-1]
            producer = next((producer for producer in rest if not visited[producer]), None)
            if producer is None:
                order.append(node)
                pending.pop()
            else:
                visited[producer] = True  # now, because a Loop is a producer of the nodes of its body
                pending.append((producer, iter(producers[producer])))
    return order


def find_dependent(producers: Sequence[Sequence[int]], inputs: Iterable[int]) -> list[bool]:
    """Return, for each node, whether it depends on an input of the model."""
    readers: list[list[int]] = [[] for _ in producers]
    for node, node_producers in enumerate(producers):
        for producer in node_producers:
            readers[producer].append(node)
    depends = [False] * len(producers)
    pending = list(inputs)
    while pending:
        node = pending.pop()
        if not depends[node]:
            depends[node] = True
            pending += readers[node]
    return depends


# --- the tree ---


def build_tree(
    paths: Sequence[list[GroupStep]],
    op_types: Sequence[str] = (),
    producers: Sequence[Sequence[int]] = (),
    inputs: Iterable[int] = (),
) -> Group:
    """Return the top of the tree of groups.

    For each node, ``paths`` holds the groups around it, ``op_types`` its operator, and ``producers`` the nodes whose
    outputs it reads. ``inputs``: the numbers of the inputs of the model.
    """
    inputs = list(inputs)
    op_types = op_types or [""] * len(paths)
    producers = producers or [()] * len(paths)
    top = Group("scope", "")
    groups: dict[tuple[int, GroupKind, str], Group] = {}
    for node in order_nodes(producers, inputs):
        group = top
        for step in paths[node]:
            key = id(group), step.kind, step.label
            if key not in groups:
                groups[key] = Group(step.kind, step.label, step.offset)
                group.members.append(groups[key])
            group = groups[key]
        group.members.append(node)
    _Divider(op_types, producers, find_dependent(producers, inputs)).simplify(top)
    return top


def _join_single_member(group: Group) -> Group | int:
    """Return the only member of a scope instead of the scope; a group gets a label with both names."""
    if group.kind != "scope" or len(group.members) != 1:
        return group
    member = group.members[0]
    if isinstance(member, Group) and member.kind == "scope":
        member.label = f"{group.label}/{member.label}"
        return member
    return group if isinstance(member, Group) else member


class _Divider:
    """Divides groups with more than MAX_MEMBERS members.

    A *unit* is a number of members that stay together: a member that depends on an input of the model, and before it
    those that compute constants for it. So a block is found although the constants of its first copy are shared.
    """

    def __init__(self, op_types: Sequence[str], producers: Sequence[Sequence[int]], depends: Sequence[bool]) -> None:
        self.op_types, self.producers, self.depends = op_types, producers, depends
        self.is_drawn = [op_type != "Constant" for op_type in op_types]

    def simplify(self, group: Group) -> None:
        """Join each scope with a single member with this member, and divide groups with too many members."""
        for index, member in enumerate(group.members):
            if isinstance(member, Group):
                self.simplify(member)
                group.members[index] = _join_single_member(member)
        # The inputs and outputs of the model stay outside of the parts.
        terminals = [member for member in group.members if isinstance(member, Group) and member.kind == "terminals"]
        group.members = [member for member in group.members if member not in terminals]
        self._divide(group)
        for terminal_group in terminals:
            is_small = len(list(_nodes_under([terminal_group]))) <= _MAX_LOOSE_TERMINALS
            group.members += terminal_group.members if is_small else [terminal_group]

    def _divide(self, group: Group) -> None:
        """Replace the members of a large group by parts, and divide the parts."""
        if self._count_drawn(group.members) <= MAX_MEMBERS:
            return
        units = self._collect_units(group.members, self.depends)
        if len(units) <= MAX_MEMBERS:  # most members compute constants
            units = self._collect_units(group.members, self.is_drawn)
        if group.kind == "terminals":
            group.members = _number_parts(units, group.offset)
            return
        counts = [self._count_operators(unit) for unit in units]
        numbers: dict[tuple[tuple[str, int], ...], int] = {}
        symbols = [numbers.setdefault(tuple(sorted(count.items())), len(numbers)) for count in counts]
        group.members = []
        for part in divide(symbols, self._count_crossings(units), _find_large_groups(units, counts)):
            if part.stop - part.start == 1 and self._count_drawn(units[part.start]) == 1:
                group.members += units[part.start]
            else:
                group.members.append(self._make_part(part, units, counts, group.offset))

    def _make_part(self, part: Part, units: list[list[Group | int]], counts: list[Counter[str]], offset: int) -> Group:
        """Return the group of a part, divided again if it is large."""
        length = (part.stop - part.start) // part.blocks
        label = _name_part(units[part.start : part.stop], counts[part.start : part.start + length], part.blocks)
        if part.blocks == 1:
            group = Group("part", label, offset, _flatten(units[part.start : part.stop]))
            self._divide(group)
            return group
        blocks: list[list[Group | int]] = []
        for number in range(1, part.blocks + 1):
            stop = part.start + number * length
            members = _flatten(units[stop - length : stop])
            if self._count_drawn(members) > 1:
                block = Group("part", f"{number} of {part.blocks}", offset, members)
                self._divide(block)
                members = [block]
            blocks.append(members)
        return Group("part", label, offset, _number_parts(blocks, offset))

    def _count_drawn(self, members: Sequence[Group | int]) -> int:
        """Return the number of members that the page draws: it draws no Constant."""
        return sum(any(self.is_drawn[node] for node in _nodes_under([member])) for member in members)

    def _collect_units(self, members: Sequence[Group | int], is_main: Sequence[bool]) -> list[list[Group | int]]:
        """Return units of members: each ends with a member that has a main node."""
        units: list[list[Group | int]] = [[]]
        for member in members:
            units[-1].append(member)
            if any(is_main[node] for node in _nodes_under([member])):
                units.append([])
        rest = units.pop()  # behind the last main node
        if units:
            units[-1] += rest
        elif rest:
            units.append(rest)
        return units

    def _count_operators(self, unit: list[Group | int]) -> Counter[str]:
        """Return the numbers of the operators of the last member of a unit."""
        return Counter(self.op_types[node] for node in _nodes_under(unit[-1:]) if self.is_drawn[node])

    def _count_crossings(self, units: list[list[Group | int]]) -> list[int]:
        """Return, for each unit, how many tensors of nodes before it are read by it or by later ones.

        A tensor that depends on no input of the model does not count, because it says nothing about the way.
        """
        place = {node: index for index, unit in enumerate(units) for node in _nodes_under(unit)}
        last_reader: dict[int, int] = {}
        for node, index in place.items():
            for producer in self.producers[node]:
                if producer in place and self.depends[producer]:
                    last_reader[producer] = max(last_reader.get(producer, 0), index)
        changes = [0] * (len(units) + 1)
        for producer, last in last_reader.items():
            if place[producer] < last:
                changes[place[producer] + 1] += 1
                changes[last + 1] -= 1
        return list(accumulate(changes))


def _nodes_under(members: Iterable[Group | int]) -> Iterator[int]:
    """Yield the nodes of the members, and those in the groups among them, in order."""
    for member in members:
        if isinstance(member, Group):
            yield from _nodes_under(member.members)
        else:
            yield member


def _find_large_groups(units: list[list[Group | int]], counts: list[Counter[str]]) -> list[int]:
    """Return the numbers of the units that are a large group, unlike all others. They are not joined with neighbors."""
    same = Counter(tuple(sorted(count.items())) for count in counts)
    sizes = {
        index: count.total()
        for index, (unit, count) in enumerate(zip(units, counts, strict=True))
        if isinstance(unit[-1], Group) and same[tuple(sorted(count.items()))] == 1
    }
    smallest = _LARGE_GROUP_SHARE * sum(count.total() for count in counts)
    largest = sorted(sizes, key=lambda index: -sizes[index])[:_MAX_LARGE_GROUPS]
    return sorted(index for index in largest if sizes[index] >= smallest)


def _flatten(units: Iterable[list[Group | int]]) -> list[Group | int]:
    return [member for unit in units for member in unit]


def _name_part(units: list[list[Group | int]], block_counts: list[Counter[str]], count: int) -> str:
    """Return the label of a part: its first and last scope, or the operators that say most about it.

    ``block_counts``: the numbers of the operators of each unit; of a repeat, those of its first block.
    """
    first, last = units[0][-1], units[-1][-1]
    if isinstance(first, Group) and isinstance(last, Group) and all(isinstance(unit[-1], Group) for unit in units):
        return f"{first.label} to {last.label}"
    totals = sum(block_counts, Counter[str]())  # in the order in which the operators appear first
    # Matrix operators say most about a part, and those that only move numbers least.
    ranked = sorted(totals, key=lambda op_type: (op_type not in _CUBE, op_type in _NO_ARITHMETIC, -totals[op_type]))
    named = ranked[:_NAMED_OPERATORS]
    label = " ".join(op_type.rpartition("::")[2] for op_type in totals if op_type in named)
    return f"{count} x {label}" if count > 1 else label


def _number_parts(blocks: list[list[Group | int]], offset: int) -> list[Group | int]:
    """Return the members of a group of blocks: the blocks, or groups of neighbors called after their numbers."""
    span = 1  # the number of blocks in one piece
    pieces = blocks
    while len(pieces) > MAX_MEMBERS:
        length = -(-len(pieces) // -(-len(pieces) // MAX_MEMBERS)) if len(pieces) <= MAX_MEMBERS**2 else MAX_MEMBERS
        span *= length
        merged: list[list[Group | int]] = []
        for start in range(0, len(pieces), length):
            first = len(merged) * span + 1
            label = f"{first} to {min(first + span - 1, len(blocks))} of {len(blocks)}"
            merged.append([Group("part", label, offset, _flatten(pieces[start : start + length]))])
        pieces = merged
    return _flatten(pieces)
