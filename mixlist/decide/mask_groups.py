"""Join the nodes that a mask connects into groups, and find the limit to which each group's constants must be reduced.

Rule S4.35: Two softmaxes belong together if a mask on the way to one also reaches the other. If one of
them is low precision, the constants are reduced for both (Rule S4.36). So a group is decided as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING

from mixlist.decide.graph_masks import MaskGroup
from mixlist.decide.proven_masks import SMALLEST_MASK
from mixlist.model import dtypes
from mixlist.model.graph import Node, Value
from mixlist.model.low_precision import FINITE_MAX
from mixlist.model.traits import Trait, operators

if TYPE_CHECKING:
    from mixlist.decide.mask_finder import MaskFinder

_READS_ONLY_SHAPE = operators(Trait.READS_ONLY_SHAPE)


def make_mask_groups(finder: MaskFinder) -> tuple[MaskGroup, ...]:
    """Return the groups of nodes with a mask that leaves the range, in the order of their first node.

    ``finder`` has followed the masks of its graph. Nodes whose mask is also read elsewhere become unreducible.
    """
    grouper = _MaskGrouper(finder)
    grouper.connect()
    return tuple(grouper.groups())


def mixable_values(values: Iterable[Value | None]) -> list[Value]:
    """Return the values that are float32, float16 or bfloat16 tensors: only these can carry a mask."""
    return [value for value in values if value is not None and value.type in dtypes.MIXABLE]


class _MaskGrouper:
    """Joins the nodes that masks connect.

    The groups are a union-find forest: each group is a tree of nodes, and its root is the *leader* of the group.
    ``parents``: by node, the parent in the tree; a leader has none.
    """

    def __init__(self, finder: MaskFinder) -> None:
        self.finder = finder
        self.parents: dict[Node, Node] = {}

    def connect(self) -> None:
        """Join each node that reads a mask with the node that makes it; find the masks that cannot be reduced."""
        finder = self.finder
        masked_values = finder.masks.keys()
        results = [finder.graph.root.outputs]
        for node in finder.graph.nodes:
            results += [body.outputs for body in node.bodies.values()]
            # Most nodes read no mask, so this fast test comes first.
            if masked_values.isdisjoint(node.inputs):
                continue
            is_on_path = node in finder.carrying_nodes or node in finder.softmaxes
            for value in node.inputs:
                if value is None or value.producer is None or value not in masked_values:
                    continue
                if is_on_path:
                    self._join(value.producer, node)
                # A reader outside the path would get other numbers if the mask were reduced, but a Shape would not.
                elif node.op_type not in _READS_ONLY_SHAPE or node.domain:
                    finder.unreducible.add(value.producer)
        for value in chain.from_iterable(results):  # a result is read outside, too
            if value in masked_values and value.producer is not None:
                finder.unreducible.add(value.producer)

    def groups(self) -> Iterator[MaskGroup]:
        """Yield the groups in which a value leaves the range."""
        finder = self.finder
        groups: dict[Node, MaskGroup] = {}  # by leader
        summed_masks: dict[Node, float] = {}  # by leader
        exceeding_leaders: set[Node] = set()
        for node in sorted(finder.carrying_nodes | finder.softmaxes, key=_node_id):
            tensors = (*node.inputs, *node.outputs)
            masks = [mask for value in tensors if (mask := finder.masks.get(value)) is not None]
            if not masks:
                continue  # a softmax without a mask
            # A constant can be larger than the mask in the node's output, and the node reads it in low precision.
            masks += finder.constant_masks.get(node, ())
            leader = self._leader(node)
            exceeds = any(mask.exceeds(finder.low) for mask in masks)
            if exceeds:
                exceeding_leaders.add(leader)
            # The sum with the most masks decides how much of the range each constant of the group may take.
            summed_masks[leader] = max(summed_masks.get(leader, 1.0), *(mask.summed_masks for mask in masks))
            group = groups.setdefault(leader, MaskGroup())
            group.magnitude = max(group.magnitude, *(mask.magnitude for mask in masks))
            # A reduced mask takes half of the range, and the scores must fit into the other half.
            group.reducible &= all(mask.scores <= FINITE_MAX[finder.low] / 2 for mask in masks)
            self._add_node(group, node, exceeds)
        # A limit holds for a whole group, so it is known only after all of its nodes.
        for leader, group in groups.items():
            # The other half of the range is for the scores (Rule S4.36).
            group.limit = FINITE_MAX[finder.low] / 2 / summed_masks[leader]
            group.reducible &= group.limit >= SMALLEST_MASK  # a smaller constant would not mask every score
        self._add_limits(groups)
        # A group without a destination reaches no softmax.
        yield from (group for leader, group in groups.items() if leader in exceeding_leaders and group.destination)

    def _add_node(self, group: MaskGroup, node: Node, exceeds: bool) -> None:
        """Add a node to its group; ``exceeds``: whether a mask at the node leaves the range."""
        finder = self.finder
        if node in finder.softmaxes:
            group.softmaxes.append(node)
            scores = node.inputs[0]
            # Slots are noted where a node passes a mask on. A softmax passes none on, so its slot is noted here.
            if scores is not None and scores.is_constant and scores in finder.masks:
                finder.constant_slots.append((node, 0))
        group.reducible &= node not in finder.unreducible
        group.source = group.source or finder.source_texts.get(node, "")
        if exceeds or node in finder.softmaxes:
            group.exceeding_nodes.append(node)
        group.destination = group.destination or self._destination(node)

    def _add_limits(self, groups: dict[Node, MaskGroup]) -> None:
        """Add the limit of its group to each slot that reads a constant of a mask."""
        finder = self.finder
        for node, slot in finder.constant_slots:
            if node in finder.carrying_nodes or node in finder.softmaxes:
                group = groups[self._leader(node)]
                if self._may_change(node.inputs[slot], group.limit):
                    group.limits.setdefault(node, {})[slot] = group.limit

    def _may_change(self, value: Value | None, limit: float) -> bool:
        """Return whether a limit may change a constant, or the constants from which it is computed."""
        if value is None or value.constant_proto is None:
            return True
        # Of an unknown constant, every magnitude is possible.
        constant_range = self.finder.ranges.known_range_of(value)
        return constant_range is None or constant_range.max_abs > limit

    def _destination(self, node: Node) -> str:
        """Return the name of a softmax; empty for other nodes."""
        if node not in self.finder.softmaxes:
            return ""
        return f"{node.op_type} {node.proto.name!r}" if node.proto.name else node.op_type

    def _leader(self, node: Node) -> Node:
        """Return the leader of a node's group; halve the path to it, so that the next search is short."""
        while (parent := self.parents.get(node, node)) is not node:
            self.parents[node] = self.parents.get(parent, parent)
            node = parent
        return node

    def _join(self, producer: Node, reader: Node) -> None:
        """Unite the groups of two nodes; the earlier one of their leaders becomes the leader."""
        first, second = sorted((self._leader(producer), self._leader(reader)), key=_node_id)
        if first is not second:
            self.parents[second] = first


def _node_id(node: Node) -> int:
    return node.id
