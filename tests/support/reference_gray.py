"""Find the values that a gray node follows.

Rule S4.6: gray nodes follow upstream. Rule S4.17: one Cast from the low type is looked through. Rule S4.18: Casts of
mixlist are invisible. Rules S4.8 and S4.24: the gray policy promote. Rule S4.48: Casts from float32 to float32 are
looked through.
"""

from __future__ import annotations

from collections.abc import Iterable

from mixlist import Policy
from tests.support import scopes
from tests.support.reference_constants import Constants
from tests.support.reference_model import BFLOAT16, FLOAT, FLOAT16, LISTED, Node, Value

Types = dict[Value, int | None]  # None: not decided yet


def widest(types: Iterable[int | None]) -> int | None:
    """Return the widest of several types: undecided below low precision, low precision below float32."""
    decided = {t for t in types if t is not None}
    return decided.pop() if len(decided) == 1 else FLOAT if decided else None


class Follower:
    """Find the type that gray nodes follow, in one round of the fixpoint."""

    def __init__(self, policy: Policy, low: int, constants: Constants) -> None:
        self.policy, self.low, self.constants = policy, low, constants
        is_black = policy.mode.action == "lists" and policy.lists.list_of("Cast") == "black"
        lowers = policy.mode.action not in ("raise", "origin")
        self.skips_idle_casts = lowers and policy.space == "onnx" and not is_black
        self.unbound: set[Value] = set()  # Rule S4.46
        self.instead: dict[Value, Value] = {}  # Rule S4.47

    def float_inputs(self, node: Node) -> list[Value]:
        """Return the float inputs that are no constants and not unbound, in input order."""
        floats = [v for v in node.inputs if v is not None and v.elem in LISTED]
        return [v for v in floats if not self.constants.is_constant(v) and v not in self.unbound]

    def behind_idle_casts(self, value: Value) -> Value:
        """Return the tensor that Casts of mixlist and Casts from float32 to float32 convert."""
        value = source_of_marked_casts(value)
        while self.skips_idle_casts and value.producer is not None and is_idle_cast(value.producer):
            source = value.producer.inputs[0]
            assert source is not None
            value = source_of_marked_casts(source)
        return value

    def followed(self, value: Value, types: Types) -> int | None:
        """Return the decided type of a producer, through one Cast of the user."""
        value = self.behind_idle_casts(value)
        node = value.producer
        decided_type = types.get(value, value.elem)
        if node is None or not node.is_user_cast or self.policy.lists.list_of("Cast") == "black":
            return decided_type
        source = node.inputs[0]
        widened = (FLOAT, BFLOAT16) if self.low == FLOAT16 else (FLOAT,)
        if source is None or decided_type not in widened or source.elem not in LISTED or decided_type == self.low:
            return decided_type
        source_type = types.get(source_of_marked_casts(source), source.elem)
        if source_type is None:
            return None
        return self.low if source_type == self.low else decided_type

    def requested_type(self, node: Node, types: Types) -> int | None:
        """Return the type that a gray node asks for; None: not decided yet; 0: its authored type."""
        producers = self.float_inputs(node)
        if self.policy.gray_policy == "ascend" and producers:
            return self.followed(self.instead.get(self.behind_idle_casts(producers[0]), producers[0]), types)
        return self.combined([self.followed(v, types) for v in producers])

    def combined(self, followed: list[int | None]) -> int | None:
        """Return the type that a gray node asks for that reads these tensors of these types."""
        if not followed:
            return 0
        if self.policy.gray_policy == "promote":
            return widest(followed)
        return followed[0]


def is_idle_cast(node: Node) -> bool:
    """Return whether a node is a Cast of the user that changes nothing."""
    if not node.is_user_cast or not node.inputs or node.inputs[0] is None or node.outputs[0] is None:
        return False
    return node.inputs[0].elem == node.outputs[0].elem == FLOAT


def source_of_marked_casts(value: Value) -> Value:
    """Return the tensor that a Cast of mixlist converts."""
    while value.producer is not None and scopes.is_marked_cast(value.producer.proto) and value.producer.inputs[0]:
        value = value.producer.inputs[0]
    return value
