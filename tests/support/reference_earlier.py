"""Find the value movers that become low precision, so that Casts come before them (Rule S4.49)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mixlist.model.traits import Trait, operators
from tests.support.reference_gray import source_of_marked_casts
from tests.support.reference_model import FLOAT, LISTED, Node, Value
from tests.support.reference_moved import Moved

ReadType = Callable[[Node, int], int | None]


def find_groups_to_lower(
    nodes: list[Node], can_move: Callable[[Node], bool], moved: Moved, read_type: ReadType, low: int
) -> Iterator[set[Node]]:
    """Yield the connected groups of movers, of which all readers behind the group want the low type."""
    left = set(filter(can_move, nodes))
    while rejected := {node for node in left if not _all_readers_want(node, left, moved, read_type, low)}:
        left -= rejected
    while left:
        group = {left.pop()}
        while joined := {node for node in left if any(_is_connected(node, other) for other in group)}:
            group |= joined
            left -= joined
        yield group


def _all_readers_want(node: Node, movers: set[Node], moved: Moved, read_type: ReadType, low: int) -> bool:
    for value in filter(None, node.outputs):
        if any(reader.scope is not node.scope for reader, _ in value.readers):
            return False
        if not moved.wanted_of(value, read_type, without=movers) <= {low}:
            return False
    return True


def _is_connected(node: Node, other: Node) -> bool:
    return any(v is not None and v in other.inputs for v in node.outputs) or any(
        v is not None and v in node.inputs for v in other.outputs
    )


def saves_casts(
    group: set[Node],
    moved: Moved,
    read_type: ReadType,
    type_of: Callable[[Value], int | None],
    low: int,
    *,
    cast_is_black: bool,
) -> bool:
    """Return whether a group needs fewer Casts in the low type, or as many and picks no elements."""
    made = [value for node in group for value in node.outputs if value is not None]
    read = {v for node in group for v in node.inputs if v is not None and v.elem in LISTED and v.producer not in group}
    read = {source_of_marked_casts(v) for v in read if not moved.constants.is_constant(v)}
    saved = sum(low in moved.wanted_of(value, read_type, without=group) for value in made)
    if not saved:
        return False
    added = 0
    for value in read:
        wanted = moved.wanted_of(value, read_type, without=group)
        is_seen_through = value.producer is not None and value.producer.is_user_cast and not cast_is_black
        source = value.producer.inputs[0] if value.producer is not None and is_seen_through else None
        if type_of(value) == low:
            saved += FLOAT not in wanted
        elif low not in wanted and (source is None or type_of(source_of_marked_casts(source)) != low):
            added += 1
    picks = any(node.op in operators(Trait.PICKS) for node in group)
    return added < saved or (added == saved and not picks)
