"""Find the values that a gray node follows.

Rule S4.6: gray nodes follow upstream. Rule S4.17: one Cast from the low type is looked through. Rule S4.18: Casts of
mixlist are invisible. Rules S4.8, S4.23 and S4.24: the gray policies black-wins and promote.
"""

from __future__ import annotations

from collections.abc import Iterable

from mixlist.lists.policy import Policy
from tests.support import scopes
from tests.support.reference_constants import Constants
from tests.support.reference_model import BFLOAT16, FLOAT, FLOAT16, LISTED, Node, Value

Types = dict[Value, int | None]  # None: not decided yet


def join(types: Iterable[int | None]) -> int | None:
    """The widest of several types: undecided below low precision, low precision below float32."""
    known = {t for t in types if t is not None}
    return known.pop() if len(known) == 1 else FLOAT if known else None


class Follower:
    """Finds the type that gray nodes follow, in one round of the fixpoint."""

    def __init__(self, policy: Policy, low: int, constants: Constants) -> None:
        self.policy, self.low, self.constants = policy, low, constants
        self.by_black: set[Value] = set()  # high precision because of a black node

    def float_inputs(self, node: Node) -> list[Value]:
        """The float inputs that are no constants, in input order."""
        return [v for v in node.inputs if v is not None and v.elem in LISTED and not self.constants.is_constant(v)]

    def followed(self, value: Value, types: Types, reader: Node) -> int | None:
        """The decided type of a producer, through one Cast of the user in the same function."""
        value = seen_through_marked(value)
        node = value.producer
        own = types.get(value, value.elem)
        if node is None or not node.is_user_cast or self.policy.lists.list_of("Cast") == "black":
            return own
        if node.scope.function() is not reader.scope.function():
            return own
        source = node.inputs[0]
        widened = (FLOAT, BFLOAT16) if self.low == FLOAT16 else (FLOAT,)
        if source is None or own not in widened or source.elem not in LISTED or own == self.low:
            return own
        source_type = types.get(seen_through_marked(source), source.elem)
        if source_type is None:
            return None
        return self.low if source_type == self.low else own

    def wish(self, node: Node, types: Types) -> int | None:
        """The type that a gray node asks for; None: not decided yet; 0: its authored type."""
        producers = self.float_inputs(node)
        found = self.combined(producers, [self.followed(v, types, node) for v in producers])
        if self.policy.gray_policy == "black-wins" and found == FLOAT:
            self.by_black |= {v for v in node.outputs if v is not None}
        return found

    def combined(self, producers: list[Value], followed: list[int | None]) -> int | None:
        """The type that a gray node asks for that reads these tensors of these types."""
        if not followed:
            return 0
        if self.policy.gray_policy == "promote":
            return join(followed)
        if self.policy.gray_policy == "black-wins":
            if any(v in self.by_black and t == FLOAT for v, t in zip(producers, followed, strict=True)):
                return FLOAT
            return self.low if self.low in followed else None if None in followed else 0
        return followed[0]


def seen_through_marked(value: Value) -> Value:
    """The tensor that a Cast of mixlist converts."""
    while value.producer is not None and scopes.is_marked_cast(value.producer.proto) and value.producer.inputs[0]:
        value = value.producer.inputs[0]
    return value
