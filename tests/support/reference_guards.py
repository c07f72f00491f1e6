"""Find the nodes that a guard of a division keeps, and the guards that are raised.

Rule S4.43: a guard keeps a value away from zero before a division or a logarithm, or below one before ``1 - value``.
The nodes on the way stay as authored where the low type turns the guarded value into zero or one, or its reciprocal
into infinity. A Clip or Max that is only moved and divided by is raised instead.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import ml_dtypes
import numpy as np
from onnx import numpy_helper

from mixlist.model.traits import Trait, operators
from tests.support.reference_constants import NUMPY, Constants
from tests.support.reference_model import FLOAT, Node, Value

RESHAPES = operators(Trait.PICKS) | operators(Trait.SAME_VALUES) | {"Cast", "Expand", "Tile"}
# Each element of the output is an element of a float input, up to its sign or rounded, or a sum or mean of such.
CARRIES = RESHAPES | {"Concat", "Compress", "Pad", "Split", "Trilu", "CenterCropPad", "Where", "OneHot"}
CARRIES |= {"Relu", "MaxPool", "GlobalMaxPool", "TopK", "ReduceMax", "ReduceMin", "Dropout"}
CARRIES |= {"Abs", "Neg", "ReduceMean", "ReduceSum", "Clip", "Max", "Min"}
CARRIES |= {"Ceil", "Floor", "Round", "Sign", "Hardmax", "ThresholdedRelu"}
Guarded = tuple[float, str]  # the number where the guard acts, and what its loss makes of it: zero, infinity or one


class Guards:
    """The guards of one model; ``nodes`` holds the nodes that they keep.

    ``raised`` holds the guards that are raised, each with itself and the nodes from it to the divisions.
    """

    def __init__(
        self, nodes: list[Node], constants: Constants, low: int, results: Collection[Value], kind: str = ""
    ) -> None:
        self.constants, self.low, self.kind, self.results = constants, low, kind, results
        ways = {node: self.way(node.outputs[0]) for node in nodes if self.is_small_floor(node)}
        self.raised = {guard: {guard, *way} for guard, way in ways.items() if way}
        self.numbers: dict[Value, Guarded | None] = {}
        self.nodes: set[Node] = set()
        if not kind:
            self.nodes = {n for kind in ("zero", "one") for n in Guards(nodes, constants, low, results, kind).nodes}
            return
        for node in nodes:
            for slot, value in enumerate(node.inputs):
                if value is not None and self.breaks(node, slot):
                    if self.is_lost(value):
                        self.keep(node)
                    self.walk_back(value)

    def is_small_floor(self, node: Node) -> bool:
        """Return whether a node is a Clip or Max whose bounds are all below the smallest normal number."""
        bounds = [v for v in node.inputs if v is not None and self.constants.is_constant(v)]
        is_floor = node.op == "Max" or (node.op == "Clip" and not any(node.inputs[2:]))
        return is_floor and node.is_standard and bool(bounds) and all(map(self.is_small, bounds))

    def is_small(self, bound: Value) -> bool:
        is_stored = bound.array is not None or (bound.producer is not None and bound.producer.op == "Constant")
        array = self.constants.array(bound) if is_stored and bound.elem == FLOAT and not bound.is_input else None
        numbers = set(array.ravel().tolist()) if array is not None else set()
        return len(numbers) == 1 and 0 < numbers.pop() < float(ml_dtypes.finfo(NUMPY[self.low]).tiny)

    def way(self, value: Value | None) -> list[Node]:
        """Return the nodes from a value to the divisions by it; [] if anything else reads it."""
        is_float = value is not None and value.elem == FLOAT and not self.constants.is_constant(value)
        if value is None or not is_float or value in self.results or not value.readers:
            return []
        nodes: list[Node] = []
        for reader, slot in value.readers:
            is_plain = reader.is_standard and not reader.bodies
            ends = is_plain and (reader.op, slot) in (("Div", 1), ("Reciprocal", 0))
            moved = self.way(reader.outputs[0]) if is_plain and reader.op in RESHAPES and slot == 0 else []
            if not ends and not moved:
                return []
            nodes += [reader, *moved]
        return nodes

    def keep(self, node: Node) -> None:
        """Keep a node, and those that give a shape to the constants that it reads."""
        self.nodes.add(node)
        for value in node.inputs:
            if value is not None and not self.constants.is_constant(value) and self.smallest(value) is not None:
                assert value.producer is not None
                self.keep(value.producer)

    def walk_back(self, value: Value) -> None:
        """Keep the nodes that read or make a lost value on the way to this one."""
        node = value.producer
        if node is None or self.number(value) is None:
            return
        if node.op == "If":
            for branch in node.bodies.values():
                self.walk_back(branch.outputs[value.slot])
            return
        if self.is_lost(value):
            self.keep(node)
        for source in node.inputs:
            if source is not None and self.number(source) is not None:
                if self.is_lost(source):
                    self.keep(node)
                self.walk_back(source)

    def breaks(self, node: Node, slot: int) -> bool:
        """Return whether the node fails if the guarded value in a slot is lost."""
        value = node.inputs[slot]
        guarded = self.number(value) if value is not None else None
        if guarded is None or not node.is_standard:
            return False
        if guarded[1] == "one":
            return False
        if guarded[1] == "infinity":
            others = [v for i, v in enumerate(node.inputs) if i != slot and v is not None]
            return node.op == "Mul" and not any(self.number(v) or self.constants.is_constant(v) for v in others)
        if node.op == "Pow":
            exponent = self.smallest(node.inputs[1])
            return slot == 0 and exponent is not None and exponent < 0
        return (node.op == "Div" and slot == 1) or node.op in ("Log", "Reciprocal")

    def is_lost(self, value: Value) -> bool:
        """Return whether the low type turns a guarded value into zero or one, or a reciprocal into infinity."""
        guarded = self.number(value)
        if guarded is None:
            return False
        with np.errstate(over="ignore"):
            with_rounding = float(np.float64(guarded[0]).astype(NUMPY[self.low]))
        return with_rounding == {"zero": 0, "one": 1, "infinity": math.inf}[guarded[1]]

    def smallest(self, value: Value | None) -> float | None:
        """Return the smallest element of a constant, whatever shape it is given."""
        if value is None:
            return None
        if not self.constants.is_constant(value):
            node = value.producer
            if node is None or not node.is_standard:
                return None
            if node.op == "ConstantOfShape":
                fill = node.attribute("value")
                return float(numpy_helper.to_array(fill.t).item()) if fill is not None else 0.0
            return self.smallest(node.inputs[0]) if node.op in RESHAPES else None
        array = self.constants._values(value)
        return float(array.astype("float64").min()) if array is not None and array.size else None

    def number(self, value: Value) -> Guarded | None:
        """Return the guarded value of a tensor."""
        if value not in self.numbers:
            self.numbers[value] = None
            is_tensor = value.elem == FLOAT and value.is_tensor and not self.constants.is_constant(value)
            node = value.producer
            if node is not None and node.op == "If" and node.is_standard:
                branches = [self.number(branch.outputs[value.slot]) for branch in node.bodies.values()]
                self.numbers[value] = next((number for number in branches if number is not None), None)
            elif node is not None and is_tensor and node.is_standard and (value.slot == 0 or node.op == "Split"):
                self.numbers[value] = self.made_by(node) if not node.bodies else None
        return self.numbers[value]

    def made_by(self, node: Node) -> Guarded | None:
        """Return the guarded value that a node makes."""
        if node in self.raised:
            return None
        before = [self.number(v) if v is not None else None for v in node.inputs]
        given = [number for number in before if number is not None]
        constants = [self.smallest(v) for v in node.inputs]
        if self.kind == "one" and (not given or given[0][1] == "one"):
            return self.made_below_one(node, given, constants)
        if node.op == "Clip" and len(node.inputs) < 2:
            minimum = node.attribute("min")
            bounds = [minimum.f] if minimum is not None else []
        else:
            bounds = [c for c in (constants[1:2] if node.op == "Clip" else constants) if c is not None]
        if not given:
            is_guard = node.op in ("Add", "Clip", "Max", "Sum") and bounds and 0 < max(bounds) < 1
            return (max(bounds), "zero") if is_guard else None
        number, lost = min(given, key=lambda pair: (pair[1] != "zero", pair[0]))
        if node.op in CARRIES:
            return number, lost
        if node.op == "Sum":
            terms = [guarded[0] if guarded else c for guarded, c in zip(before, constants, strict=True)]
            known = [term for term in terms if term is not None and term > 0]
            return (sum(known), lost) if len(known) == len(terms) and len({g[1] for g in given}) == 1 else None
        if node.op == "Sqrt":
            return given[0][0] ** 0.5, given[0][1]
        if node.op == "Reciprocal":
            return self.power(given[0], -1.0)
        return self.calculated(node.op, before, constants)

    def made_below_one(self, node: Node, given: list[Guarded], constants: list[float | None]) -> Guarded | None:
        """Return the guarded value that a node makes of one below one, or as the guard of such a value."""
        if given:
            if node.op == "Sub" and constants[0] == 1:
                return 1 - given[0][0], "zero"
            return given[0] if node.op in CARRIES else None
        bounds = constants[2:3] if node.op == "Clip" else constants if node.op == "Min" else []
        if node.op == "Clip" and len(node.inputs) < 2:
            maximum = node.attribute("max")
            bounds = [maximum.f] if maximum is not None else []
        number = min([bound for bound in bounds if bound is not None], default=1.0)
        return (number, "one") if number < 1 and float(np.float64(number).astype(NUMPY[self.low])) == 1 else None

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
        lost = {"zero": "infinity", "infinity": "zero"}
        return number, lost[base[1]] if exponent < 0 else base[1]
