"""Rule S4.43: the guard of a division stays in high precision as far as the low type would undo it.

A *guard* keeps a value away from zero, because an operator after it divides by this value or takes its logarithm::

    ReduceL2 -> Clip(min=1e-12) -> Expand -> Div

In float16, 1e-12 is zero. Rule S4.7 keeps only the node that reads the constant, and a Cast before the next node would
undo it: a row of zeros then gives 0 / 0.

The *guarded value* is the value of a tensor where the guard acts: 1e-12 above. It is followed from the guard through
arithmetic with constants, roots, powers and reciprocals to the nodes that fail if it is zero or infinite. A node on
this way stays as authored if it reads or makes a guarded value that the low type turns into zero or infinity::

    Add(v, 1e-12) -> Sqrt -> Div

Add and Sqrt stay, because 1e-12 is lost. Div follows the lists: it reads 1e-6, which float16 holds.
"""

from __future__ import annotations

import math
from typing import NamedTuple, TypeGuard

from mixlist.decide.constant_ranges import ConstantRanges
from mixlist.decide.solution import Solution, keep_as_authored
from mixlist.lists.policy import LOWERING_ACTIONS
from mixlist.model import dtypes
from mixlist.model.graph import Graph, Node, Value, once_per_graph
from mixlist.model.low_precision import flush_bound, overflow_bound
from mixlist.model.naming import node_ref
from mixlist.model.traits import Trait, operators

# These keep the guarded value, which comes in slot 0. A mean of guarded values is one, too.
_KEEPERS = operators(Trait.PICKS) | operators(Trait.SAME_VALUES) | {"Cast", "Expand", "ReduceMax", "ReduceMin", "Tile"}
_KEEPERS |= {"ReduceMean", "ReduceSum"}
_RAISERS = frozenset({"Add", "Clip", "Max"})  # with a constant between 0 and 1, each of them is a guard
_DIVISIONS = frozenset({("Div", 1), ("Log", 0), ("Reciprocal", 0)})  # and Pow with a negative exponent
_DIVIDERS = frozenset({"Pow", *(op_type for op_type, _ in _DIVISIONS)})
_OPERATORS = _KEEPERS | _RAISERS | {"Div", "Mul", "Pow", "Reciprocal", "Sqrt"}


class _Guarded(NamedTuple):
    """The guarded value of a tensor: its ``number`` where ``guard`` acts.

    The number is the smallest one of the tensor. With ``is_inverted`` it is the largest one, because a division by the
    guarded value made it: one over the smallest.
    """

    number: float
    guard: Node
    is_inverted: bool = False


def keep_guards(solution: Solution) -> None:
    """Classify the nodes that must stay as authored for a guard."""
    # The Ascend engine clips large numbers, and lets small ones become zero.
    keeps_guards = solution.policy.constants != "ieee" and solution.policy.clamp != "all"
    if solution.policy.mode.action not in LOWERING_ACTIONS or not keeps_guards:
        return
    cached, low_type = _cache_of(solution.graph), solution.low_type
    if low_type not in cached:
        cached[low_type] = _GuardWalk(solution.constant_ranges, low_type).run(solution.graph.nodes)
    solution.guards = cached[low_type]
    keep_as_authored(solution, solution.guards, "guard")


def explain_guard(solution: Solution, node: Node, kept_type: str) -> str:
    """Return why a node stays as authored, in ``kept_type``, for a guard."""
    return f"{solution.guards[node.id]}: it stays {kept_type} (S4.43)"


@once_per_graph
def _cache_of(graph: Graph) -> dict[int, dict[int, str]]:
    """Return the cache of a graph, which is empty at first: the guarded nodes by low type.

    The guarded nodes depend on nothing else of a policy.
    """
    return {}


def _may_be_guarded(value: Value | None) -> TypeGuard[Value]:
    return value is not None and not value.is_constant and value.type == dtypes.FLOAT


class _GuardWalk:
    """The walk from the guards to the operators that fail, and back.

    ``guarded``: by tensor, its guarded value. ``failing``: by tensor, the node that fails if the guarded value is lost.
    """

    def __init__(self, ranges: ConstantRanges, low_type: int) -> None:
        self.ranges, self.low_type = ranges, low_type
        self.guarded: dict[Value, _Guarded] = {}
        self.failing: dict[Value, Node] = {}

    def run(self, nodes: list[Node]) -> dict[int, str]:
        """Return, by id, the nodes to keep, each with the reason. ``nodes`` are in topological order."""
        divisors = self._find_divisors(nodes)
        visited = []
        for node in nodes if divisors else ():
            output = node.outputs[0] if node.outputs else None
            if node.domain or node.bodies or output is None:
                continue
            is_guard = node.op_type in _RAISERS and output in divisors
            if is_guard or not self.guarded.keys().isdisjoint(node.inputs):
                visited.append(node)
                inputs = [self.guarded.get(value) if value is not None else None for value in node.inputs]
                result = self._result(node, inputs) if _may_be_guarded(output) else None
                if result is not None:
                    self.guarded[output] = result
        return {node.id: reason for node in reversed(visited) if (reason := self._visit_back(node)) is not None}

    def _find_divisors(self, nodes: list[Node]) -> set[Value]:
        """Return the divisors, what logarithms read, and the values from which operators of this rule compute them."""
        divisors: set[Value] = set()
        for node in reversed(nodes):
            if node.domain or node.bodies:
                continue
            is_passed = node.op_type in _OPERATORS and not divisors.isdisjoint(node.outputs)
            if not is_passed and node.op_type not in _DIVIDERS:
                continue
            for slot, value in enumerate(node.inputs):
                if _may_be_guarded(value) and (is_passed or self._divides(node, slot)):
                    divisors.add(value)
        return divisors

    # --- forward: what becomes of a guarded value ---

    def _result(self, node: Node, inputs: list[_Guarded | None]) -> _Guarded | None:
        """Return the guarded value that a node makes; None if it makes none."""
        if not any(inputs):
            # Of Clip and Max, and of Add of something positive, no result is below the largest constant.
            number = max(self._constants(node), default=0.0) if node.op_type in _RAISERS else 0.0
            return _Guarded(number, node) if 0 < number < 1 else None
        if node.op_type in ("Clip", "Max"):
            carried = [guarded for guarded in inputs if guarded is not None]
            highest = max(carried, key=lambda guarded: guarded.number)
            # The constants of the node may be above every guarded value that it reads.
            return highest._replace(number=max([highest.number, *self._constants(node)]))
        if node.op_type in ("Add", "Div", "Mul", "Pow"):
            return self._arithmetic(node, inputs)
        first = inputs[0]
        if first is None or node.op_type in _KEEPERS:
            return first
        if node.op_type == "Sqrt":
            return first._replace(number=math.sqrt(first.number))
        return _power(first, -1.0) if node.op_type == "Reciprocal" else None

    def _constants(self, node: Node) -> list[float]:
        """Return the smallest element of each constant that raises the values of a Clip (its minimum), Max or Add."""
        if node.op_type == "Clip" and len(node.inputs) < 2:  # before opset 11, an attribute
            return [attribute.f for attribute in node.proto.attribute if attribute.name == "min"]
        raising = node.inputs[1:2] if node.op_type == "Clip" else node.inputs
        return [number for value in raising if (number := self._smallest(value)) is not None]

    def _arithmetic(self, node: Node, inputs: list[_Guarded | None]) -> _Guarded | None:
        """Return the guarded value after Add, Div, Mul or Pow of guarded values and constants above zero."""
        carried = [guarded for guarded in inputs if guarded is not None]
        numbers = [
            guarded.number if guarded is not None else self._smallest(value)
            for guarded, value in zip(inputs, node.inputs, strict=True)
        ]
        if len(numbers) != 2 or numbers[0] is None or numbers[1] is None:
            return None
        first, second = numbers[0], numbers[1]
        if node.op_type == "Pow":
            return _power(carried[0], second) if inputs[1] is None else None
        if first <= 0 or second <= 0 or len({guarded.is_inverted for guarded in carried}) > 1:
            return None
        if node.op_type == "Div":
            if len(carried) == 2:
                return None
            divisor = inputs[1]
            if divisor is None:
                return carried[0]._replace(number=first / second)
            inverse = _power(divisor, -1.0)
            return inverse._replace(number=first * inverse.number)
        return carried[0]._replace(number=first + second if node.op_type == "Add" else first * second)

    def _smallest(self, value: Value | None) -> float | None:
        """Return the smallest element of a constant; None for any other value."""
        constant_range = self.ranges.known_range_of(value) if value is not None else None
        return constant_range.smallest if constant_range is not None else None

    # --- back: where the loss of a guarded value does harm ---

    def _visit_back(self, node: Node) -> str | None:
        """Find the inputs whose loss makes a node, or one after it, fail; return why the node must stay, or None."""
        output = node.outputs[0]
        assert output is not None
        later = self.failing.get(output)
        lost = self.guarded[output] if later is not None and self._is_lost(self.guarded.get(output)) else None
        failing = later if lost is not None else None
        for slot, value in enumerate(node.inputs):
            guarded = self.guarded.get(value) if value is not None else None
            if value is None or guarded is None:
                continue
            end = node if self._fails(node, slot, guarded) else later
            if end is None:
                continue
            self.failing.setdefault(value, end)
            if self._is_lost(guarded):
                lost, failing = guarded, end
        if lost is None or failing is None:
            return None
        reader = "it" if failing is node else f"{failing.op_type} {node_ref(failing)}"
        effect = "infinity" if lost.is_inverted else "zero"
        return (
            f"{reader} relies on the guard {lost.guard.op_type} {node_ref(lost.guard)}: where the guard acts, the value"
            f" here is {lost.number:.6g}, which {dtypes.type_name(self.low_type)} turns into {effect}"
        )

    def _fails(self, node: Node, slot: int, guarded: _Guarded) -> bool:
        """Return whether a node gives NaN or infinity if the guarded value in ``slot`` becomes zero or infinite."""
        if not guarded.is_inverted:
            return self._divides(node, slot)
        # Zero times infinity is NaN, and the other factor is often zero where the guard acts.
        factors = [value for other, value in enumerate(node.inputs) if other != slot]
        return node.op_type == "Mul" and all(_may_be_guarded(v) and v not in self.guarded for v in factors)

    def _divides(self, node: Node, slot: int) -> bool:
        """Return whether a node divides by the value in ``slot``, or takes its logarithm."""
        if node.op_type == "Pow" and slot == 0:
            exponent = self._smallest(node.inputs[1]) if len(node.inputs) > 1 else None
            return exponent is not None and exponent < 0
        return (node.op_type, slot) in _DIVISIONS

    def _is_lost(self, guarded: _Guarded | None) -> bool:
        if guarded is None:
            return False
        low = self.low_type
        return guarded.number >= overflow_bound(low) if guarded.is_inverted else guarded.number <= flush_bound(low)


def _power(base: _Guarded, exponent: float) -> _Guarded:
    try:
        number = math.pow(base.number, exponent)
    except (OverflowError, ValueError):  # a ValueError: a negative power of zero
        number = math.inf
    return base._replace(number=number, is_inverted=base.is_inverted != (exponent < 0))
