"""The state of deciding a graph. The rules of this room read and change it.

This file imports neither the rules nor the solver, so that both can import it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mixlist.decide.decisions import UNDECIDED, GraphSolution
from mixlist.model import dtypes
from mixlist.model.graph import Node, Value

if TYPE_CHECKING:
    from mixlist.decide.solver import ModelSolver


@dataclass(eq=False)
class SolverState:
    """The decisions for a graph so far, and the facts about the graph that the rules need.

    - ``model_solver``: the policy, and the ranges of the constants.
    - ``low_gray_ids``: ids of the gray nodes that are low precision under the gray policy ``between``.
    - ``unvoted_ids``: ids of the values that no vote decided, so that they have their authored type (Rule S4.28).
    - ``is_voting``: whether votes may still come.

    ``incremental_solver`` makes a state from the solution of an earlier policy: a new field must also be set in its
    ``_copy_solver``, or ``tune`` decides otherwise than ``resolve``.
    """

    model_solver: ModelSolver
    solution: GraphSolution
    low_gray_ids: set[int] = field(default_factory=set)
    unvoted_ids: set[int] = field(default_factory=set)
    is_voting: bool = False

    def __post_init__(self) -> None:
        # The rules read these for every node: one attribute is faster than a chain of three.
        self.graph = self.solution.graph
        self.decided_types = self.solution.decided_types
        self.policy = self.model_solver.classifier.policy
        self.low_type = self.model_solver.classifier.low_type

    def may_become(self, value: Value, elem: int) -> bool:
        """Return whether the decided type may become ``elem``.

        A type can only rise: undecided < low < any other type (Rule S4.28). So each value changes at most twice,
        and a loop ends. Types that lists never change, such as float64, are not in this order.
        """
        before = self.decided_types[value.id]
        return (
            before == UNDECIDED
            or (before == self.low_type and elem != UNDECIDED)
            or dtypes.element(value.type) not in dtypes.MIXABLE
        )

    def decide_types(self, values: Sequence[Value | None], elements: Sequence[int]) -> list[Value]:
        """Set the decided types of values to ``elements`` where ``may_become`` allows it; return the changed values."""
        changed = []
        for value, elem in zip(values, elements, strict=False):
            if value is not None and self.decided_types[value.id] != elem and self.may_become(value, elem):
                self.decided_types[value.id] = elem
                changed.append(value)
        return changed


def find_authored_type(node: Node) -> int:
    """Return the element type that the model gives the main slots of a node; the node must have such slots."""
    assert node.signature is not None and node.signature.primary_group is not None
    return node.signature.primary_group.authored
