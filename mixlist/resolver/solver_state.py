"""The state of deciding one graph, which the rule modules of this room read and write.

It lies below the rules and the solver, so that both can import it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mixlist.graph.model import Node, Value
from mixlist.ops import types
from mixlist.patterns.call_frames import CallFrame
from mixlist.patterns.mask_plan import MaskPlan
from mixlist.patterns.positions import PositionPlan
from mixlist.resolver.decisions import UNDECIDED, GraphSolution
from mixlist.resolver.sequence_groups import SequenceGroup

if TYPE_CHECKING:
    from mixlist.resolver.solver import ModelSolver


@dataclass(frozen=True)
class CallArguments:
    """The properties of a call that the decisions in the function's body depend on; empty for the main graph.

    ``types``: the decided element type per argument. ``wanted``: the type that the caller needs of each output that is
    a sequence or optional, which no Cast could change; UNDECIDED for other outputs. ``blacks``: whether an argument is
    high by black. ``positions``: the position arithmetic in the body; None if there is none or the policy does not
    protect it. ``masks``: the same for masks. ``frame``: the constant arguments.
    """

    types: tuple[int, ...] = ()
    wanted: tuple[int, ...] = ()
    blacks: tuple[bool, ...] = ()
    positions: PositionPlan | None = None
    masks: MaskPlan | None = None
    frame: CallFrame | None = None

    @property
    def key(self) -> Hashable:
        """Return the properties but for the constants: calls of one key share decisions that their constants admit."""
        return self.types, self.wanted, self.blacks, self.positions, self.masks


@dataclass(eq=False)
class SolverState:
    """The decisions for one graph so far, and the facts about the graph that the rules need.

    ``low_grays``: ids of the gray nodes that are low precision under ``between``. ``groups``: the group of each
    sequence or optional. ``authored_at_last``: ids of values that no vote decided, so that they keep their type.
    ``is_settling``: whether votes may still come. ``frame``: the call whose constants the graph reads. ``step``:
    the step that is being evaluated.
    """

    shared: ModelSolver
    solution: GraphSolution
    frame: CallFrame | None = None
    low_grays: set[int] = field(default_factory=set)
    groups: dict[Value, SequenceGroup] = field(default_factory=dict)
    authored_at_last: set[int] = field(default_factory=set)
    is_settling: bool = False
    step: Hashable = None

    def __post_init__(self) -> None:
        # The rules read these for every node.
        self.graph = self.solution.graph
        self.decided_types = self.solution.decided_types
        self.policy = self.shared.classifier.policy
        self.low = self.shared.classifier.low

    def may_rise(self, value: Value, elem: int) -> bool:
        """Return whether the decided type may become ``elem``: undecided < low < anything else (Rule S4.28)."""
        before = self.decided_types[value.id]
        return (
            before == UNDECIDED
            or (before == self.low and elem != UNDECIDED)
            or types.element(value.type) not in types.MIXABLE
        )

    def raise_types(self, values: Sequence[Value | None], elements: Sequence[int]) -> list[Value]:
        """Set the decided types of values where they may rise; return the values that changed."""
        changed = []
        for value, elem in zip(values, elements, strict=False):
            if value is not None and self.decided_types[value.id] != elem and self.may_rise(value, elem):
                self.decided_types[value.id] = elem
                changed.append(value)
        return changed


def authored_type(node: Node) -> int:
    """Return the element type that the model gives a node that has one."""
    assert node.signature is not None and node.signature.primary is not None
    return node.signature.primary.authored
