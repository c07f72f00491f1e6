"""Find the nodes that a guard of a division keeps.

Rule S4.43: a guard keeps a value away from zero before a division or a logarithm. The nodes on the way stay as authored
where the low type turns the guarded value into zero, or its reciprocal into infinity.
"""

from __future__ import annotations

import math

import numpy as np

from mixlist.model.traits import Trait, operators
from tests.support.reference_constants import NUMPY, Constants
from tests.support.reference_model import FLOAT, Node, Value

ONE_SOURCE = operators(Trait.PICKS) | operators(Trait.SAME_VALUES)
ONE_SOURCE |= {"Cast", "Expand", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum", "Tile"}
Guarded = tuple[float, bool]  # the number where the guard acts, and whether it was divided by


class Guards:
    """The guards of one model; ``nodes`` holds the nodes that they keep."""

    def __init__(self, nodes: list[Node], constants: Constants, low: int) -> None:
        self.constants, self.low = constants, low
        self.numbers: dict[Value, Guarded | None] = {}
        self.nodes: set[Node] = set()
        for node in nodes:
            for slot, value in enumerate(node.inputs):
                if value is not None and self.breaks(node, slot):
                    if self.is_lost(value):
                        self.nodes.add(node)
                    self.walk_back(value)

    def walk_back(self, value: Value) -> None:
        """Keep the nodes that read or make a lost value on the way to this one."""
        node = value.producer
        if node is None or self.number(value) is None:
            return
        if self.is_lost(value):
            self.nodes.add(node)
        for source in node.inputs:
            if source is not None and self.number(source) is not None:
                if self.is_lost(source):
                    self.nodes.add(node)
                self.walk_back(source)

    def breaks(self, node: Node, slot: int) -> bool:
        """Return whether the node fails if the guarded value in a slot is lost."""
        value = node.inputs[slot]
        guarded = self.number(value) if value is not None else None
        if guarded is None or not node.is_standard:
            return False
        if guarded[1]:
            others = [v for i, v in enumerate(node.inputs) if i != slot and v is not None]
            return node.op == "Mul" and not any(self.number(v) or self.constants.is_constant(v) for v in others)
        if node.op == "Pow":
            exponent = self.smallest(node.inputs[1])
            return slot == 0 and exponent is not None and exponent < 0
        return (node.op == "Div" and slot == 1) or node.op in ("Log", "Reciprocal")

    def is_lost(self, value: Value) -> bool:
        """Return whether the low type turns a guarded value into zero, or a reciprocal into infinity."""
        guarded = self.number(value)
        if guarded is None:
            return False
        with np.errstate(over="ignore"):
            with_rounding = float(np.float64(guarded[0]).astype(NUMPY[self.low]))
        return math.isinf(with_rounding) if guarded[1] else with_rounding == 0

    def smallest(self, value: Value | None) -> float | None:
        """Return the smallest element of a constant."""
        if value is None or not self.constants.is_constant(value):
            return None
        array = self.constants._values(value)
        return float(array.astype("float64").min()) if array is not None and array.size else None

    def number(self, value: Value) -> Guarded | None:
        """Return the guarded value of a tensor."""
        if value not in self.numbers:
            self.numbers[value] = None
            is_tensor = value.elem == FLOAT and value.is_tensor and not self.constants.is_constant(value)
            node = value.producer
            if is_tensor and node is not None and node.is_standard and not node.bodies and value.slot == 0:
                self.numbers[value] = self.made_by(node)
        return self.numbers[value]

    def made_by(self, node: Node) -> Guarded | None:
        """Return the guarded value that a node makes."""
        before = [self.number(v) if v is not None else None for v in node.inputs]
        given = [number for number in before if number is not None]
        constants = [self.smallest(v) for v in node.inputs]
        if node.op == "Clip" and len(node.inputs) < 2:
            minimum = node.attribute("min")
            bounds = [minimum.f] if minimum is not None else []
        else:
            bounds = [c for c in (constants[1:2] if node.op == "Clip" else constants) if c is not None]
        if not given:
            is_guard = node.op in ("Add", "Clip", "Max") and bounds and 0 < max(bounds) < 1
            return (max(bounds), False) if is_guard else None
        if node.op in ("Clip", "Max"):
            number, is_reciprocal = max(given)
            return max([number, *bounds]), is_reciprocal
        if node.op in ONE_SOURCE:
            return before[0]
        if node.op == "Sqrt":
            return given[0][0] ** 0.5, given[0][1]
        if node.op == "Reciprocal":
            return self.power(given[0], -1.0)
        return self.calculated(node.op, before, constants)

    def calculated(self, op: str, before: list[Guarded | None], constants: list[float | None]) -> Guarded | None:
        """Return the guarded value that arithmetic on two operands makes."""
        if op not in ("Add", "Mul", "Div", "Pow") or len(before) != 2:
            return None
        (left, right), (left_constant, right_constant) = before, constants
        if op == "Pow":
            return self.power(left, right_constant) if left is not None and right_constant is not None else None
        if left is not None and right is not None:
            if op == "Div" or left[1] != right[1]:
                return None
            return (left[0] + right[0] if op == "Add" else left[0] * right[0]), left[1]
        constant = right_constant if left is not None else left_constant
        if constant is None or constant <= 0:
            return None
        if op == "Div" and right is not None:
            inverse = self.power(right, -1.0)
            return constant * inverse[0], inverse[1]
        carried = left or right
        assert carried is not None
        results = {"Add": carried[0] + constant, "Mul": carried[0] * constant, "Div": carried[0] / constant}
        return results[op], carried[1]

    def power(self, base: Guarded, exponent: float) -> Guarded:
        """Return a power of a guarded value; a negative one divides by it."""
        try:
            number = base[0] ** exponent
        except (OverflowError, ZeroDivisionError):
            number = math.inf
        return number, base[1] != (exponent < 0)
