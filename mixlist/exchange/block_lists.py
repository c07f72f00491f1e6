"""Find the smallest block lists for a plan: op types whose nodes all stay in float32, and the names of other nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from mixlist.exchange.planned_nodes import Need, PlannedNode
from mixlist.exchange.result import ExportException
from mixlist.model.graph import Node

_ADVICE = "give every node a name of its own, for example node.name = f'{node.op_type}_{position}', and export again"


@dataclass
class BlockLists:
    """The two block lists, sorted, and the nodes that they block.

    ``blocked`` also has nodes that should be low precision, but share a name with a blocked node. ``exceptions`` names
    these nodes, and those that no list can name.
    """

    op_types: list[str]
    names: list[str]
    blocked: set[Node] = field(default_factory=set)
    exceptions: list[ExportException] = field(default_factory=list)

    def as_lists(self, op_key: str, name_key: str) -> Mapping[str, list[str]]:
        """Return the lists by the names that a tool has for them."""
        return {op_key: self.op_types, name_key: self.names}


def find_block_lists(
    planned_nodes: Iterable[PlannedNode], needs: Mapping[Node, Need], by_name_only: tuple[str, ...] = ()
) -> BlockLists:
    """Return the smallest lists that block every node whose need is "high".

    An op type is listed if none of its nodes, in any domain and scope, is needed in low precision. ``needs`` has the
    state of each node; a tool may need another one than the plan, for example for the node of an operator that it
    cannot convert. ``by_name_only``: op types that the tool must not get as such.
    """
    by_op_type: defaultdict[str, list[PlannedNode]] = defaultdict(list)
    for planned in planned_nodes:
        by_op_type[planned.op_type].append(planned)
    op_types, single_nodes = [], []
    for op_type, members in by_op_type.items():
        states = {needs[planned.node] for planned in members}
        if "high" in states and "low" not in states and op_type not in by_name_only:
            op_types.append(op_type)
        elif "high" in states:
            single_nodes += [planned for planned in members if needs[planned.node] == "high"]
    names = {planned.name for planned in single_nodes if planned.name}
    lists = BlockLists(sorted(op_types), sorted(names))
    for planned in single_nodes:
        if not planned.name:
            why = f"is high precision but has no name, so that no list can hold it: the tool converts it; {_ADVICE}"
            lists.exceptions.append(ExportException(planned.ref, why))
    listed_types = set(op_types)
    for op_type, members in by_op_type.items():
        for planned in members:
            if op_type in listed_types or planned.name in names:
                lists.blocked.add(planned.node)
                if needs[planned.node] == "low":
                    why = f"has the name of a node that stays high precision, so that both do; {_ADVICE}"
                    lists.exceptions.append(ExportException(planned.ref, why))
    return lists
