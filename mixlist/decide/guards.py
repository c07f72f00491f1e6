"""Rule S4.43: the low type must not undo the guard of a division: it is raised, or stays in high precision.

A *guard* keeps a value away from zero, because an operator after it divides by this value or takes its logarithm::

    ReduceL2 -> Clip(min=1e-12) -> Expand -> Div

In float16, 1e-12 is zero: a row of zeros then gives 0 / 0. If what Clip or Max makes is only moved, and only divided
by, the constant is *raised* to the smallest normal number of the low type. No quotient becomes larger, a reciprocal is
at most 16384 in float16, and hardware that flushes subnormal numbers to zero keeps the constant.

Any other guard stays in float32. Rule S4.7 keeps only the node that reads the constant, and a Cast behind this node
would round the constant after all. The *guarded value* is the value of a tensor where the guard acts. It is followed
from the guard through arithmetic with constants, roots, powers and reciprocals to the nodes that fail if it is zero or
infinite. A node on this way stays as authored if the low type turns the guarded value that it reads or makes into zero
or infinity::

    Add(v, 1e-12) -> Sqrt -> Div

Add and Sqrt stay, because 1e-12 is lost. Div follows the lists: it reads 1e-6, which float16 holds.

A second kind of guard keeps a value below one, because an operator after it divides by the difference to one, or takes
its logarithm. In float16, 0.9999999 is one::

    Clip(max=0.9999999) -> Sub(1, c) -> Log
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Literal, NamedTuple, TypeGuard

from mixlist.decide.constant_ranges import ConstantRanges, read_fill_value
from mixlist.decide.decisions import SlotLimits
from mixlist.decide.solution import Solution, is_changed, keep_as_authored
from mixlist.lists.policy import LOWERING_ACTIONS
from mixlist.model import dtypes
from mixlist.model.graph import Graph, Node, Value, find_scope_outputs, once_per_graph
from mixlist.model.low_precision import SMALLEST_NORMAL, flush_bound, overflow_bound, round_to_low_type
from mixlist.model.naming import node_ref
from mixlist.model.traits import Trait, operators

# These keep the magnitude of the guarded value, and Max and Clip may lift it. A sum or a mean of guarded values is one,
# too.
_KEEPERS = operators(Trait.VALUE_PRESERVING) | {"Cast", "Dropout", "ReduceMean", "ReduceSum"}
_RAISERS = frozenset({"Add", "Clip", "Max", "Sum"})  # with a constant between 0 and 1, each of them is a guard
_LOWERERS = frozenset({"Clip", "Min"})  # with a constant that the low type rounds up to 1, each of them is a guard
# These move the elements of their first input alone. They give a constant a shape that only the run knows.
_MOVERS = operators(Trait.SAME_VALUES) | operators(Trait.PICKS) | {"Cast", "Expand", "Tile"}
_DIVISIONS = frozenset({("Div", 1), ("Log", 0), ("Reciprocal", 0)})  # and Pow with a negative exponent
_QUOTIENTS = frozenset({("Div", 1), ("Reciprocal", 0)})  # a guard that only these read is raised
_DIVIDERS = frozenset({"Pow", *(op_type for op_type, _ in _DIVISIONS)})
# All operators that carry a guarded value, or fail without it.
_OPERATORS = _KEEPERS | _RAISERS | _DIVIDERS | {"Mul", "Sqrt", "Sub"}


class _Guarded(NamedTuple):
    """The guarded value of a tensor: its ``number`` where ``guard`` acts.

    The number is the smallest one of the tensor. With ``is_inverted`` it is the largest one, because a division by the
    guarded value made it: one over the smallest. With ``is_below_one`` it is the largest one, too, which the guard
    keeps below one.
    """

    number: float
    guard: Node
    is_inverted: bool = False
    is_below_one: bool = False


def keep_guards(solution: Solution) -> None:
    """Classify the nodes that must stay as authored for a guard."""
    # The Ascend engine clips large numbers, and lets small ones become zero.
    keeps_guards = solution.policy.constants != "ieee" and solution.policy.clamp != "all"
    if solution.policy.mode.action not in LOWERING_ACTIONS or not keeps_guards:
        return
    cached, low_type = _cache_of(solution.graph), solution.low_type
    if low_type not in cached:
        nodes = [node for node in solution.graph.nodes if node.op_type in _OPERATORS and not node.domain]
        raised = _find_raised(nodes, solution)
        walks = [_GuardWalk(solution.constant_ranges, low_type, raised, below_one=below) for below in (True, False)]
        divisors = walks[0].find_divisors(nodes)
        kept = walks[0].run(nodes, divisors) | walks[1].run(nodes, divisors) if divisors else {}
        cached[low_type] = _Guards(kept, raised)
    solution.guards = cached[low_type].kept
    solution.changed_slots = {guard: found.limits for guard, found in cached[low_type].raised.items()}
    keep_as_authored(solution, solution.guards, "guard")


def leave_high_guards(solution: Solution) -> None:
    """Leave the constants of those guards alone from which no node to the division changed; call it at the end."""
    found = _cache_of(solution.graph).get(solution.low_type)
    high = {
        guard
        for guard, raised in (found.raised if found is not None else {}).items()
        if guard in solution.changed_slots and not any(is_changed(solution, node) for node in raised.way)
    }
    if high:
        solution.changed_slots = {node: slots for node, slots in solution.changed_slots.items() if node not in high}


def explain_guard(solution: Solution, node: Node, kept_type: str) -> str:
    """Return why a node stays as authored, in ``kept_type``, for a guard."""
    return f"{solution.guards[node.id]}: it stays {kept_type} (S4.43)"


@once_per_graph
def _cache_of(graph: Graph) -> dict[int, _Guards]:
    """Return the cache of a graph, which is empty at first: its guards by low type.

    They depend on nothing else of a policy.
    """
    return {}


class _RaisedGuard(NamedTuple):
    """A guard that is raised: its constants with the new number, and the nodes from it to the divisions."""

    limits: SlotLimits
    way: list[Node]


class _Guards(NamedTuple):
    """The guards of a graph: by id, why a node must stay as authored, and the guards that are raised instead."""

    kept: dict[int, str]
    raised: dict[Node, _RaisedGuard]


def _find_raised(nodes: list[Node], solution: Solution) -> dict[Node, _RaisedGuard]:
    """Return the Clips and Maxes whose constants are raised to the smallest normal number of the low type."""
    floor, ranges = SMALLEST_NORMAL[solution.low_type], solution.constant_ranges
    limits: dict[Node, SlotLimits] = {}
    for node in nodes:
        # Below an upper bound there may be no room for a larger lower one.
        if node.op_type != "Max" and (node.op_type != "Clip" or any(node.inputs[2:])):
            continue
        constants = {slot: value for slot, value in enumerate(node.inputs) if value is not None and value.is_constant}
        numbers = [_single_number(value, ranges) for value in constants.values()]
        if numbers and all(number is not None and 0 < number < floor for number in numbers):
            limits[node] = dict.fromkeys(constants, floor)
    if not limits:
        return {}
    readers: dict[Value, list[tuple[Node, int]]] = {}
    results = find_scope_outputs(solution.graph)
    for node in solution.graph.nodes:
        for slot, value in enumerate(node.inputs):
            if value is not None:
                readers.setdefault(value, []).append((node, slot))
    ways = {guard: _find_way(guard, readers, results) for guard in limits}
    return {guard: _RaisedGuard(limits[guard], way) for guard, way in ways.items() if way}


def _single_number(value: Value, ranges: ConstantRanges) -> float | None:
    """Return the number that all elements of a stored float32 constant have; None for any other value."""
    tensor = value.constant_proto
    if tensor is None or value.kind == "overridable" or value.type != dtypes.FLOAT:
        return None
    constant_range = ranges.known_range_of(value)
    return constant_range.single_value if constant_range is not None else None


def _find_way(guard: Node, readers: Mapping[Value, list[tuple[Node, int]]], results: AbstractSet[Value]) -> list[Node]:
    """Return a guard and the nodes to the divisions by it; [] if anything else reads what it makes."""
    way, made = [guard], _carriers(guard)
    if not made:
        return []
    for value in made:  # grows
        if value in results or value not in readers:
            return []
        for reader, slot in readers[value]:
            outputs = _carriers(reader) if reader.is_plain else []
            is_moved = reader.op_type in _MOVERS and slot == 0
            if not outputs or not (is_moved or (reader.op_type, slot) in _QUOTIENTS):
                return []
            way.append(reader)
            made += outputs if is_moved else []
    return way


def _may_be_guarded(value: Value | None) -> TypeGuard[Value]:
    return value is not None and not value.is_constant and value.type == dtypes.FLOAT


class _GuardWalk:
    """The walk from the guards to the operators that fail, and back.

    ``below_one``: the guards keep values below one, and not away from zero. ``guarded``: by tensor, its guarded value.
    ``failing``: by tensor, the node that fails if the guarded value is lost.
    """

    def __init__(
        self, ranges: ConstantRanges, low_type: int, raised: Mapping[Node, _RaisedGuard], *, below_one: bool
    ) -> None:
        self.ranges, self.low_type, self.raised, self.below_one = ranges, low_type, raised, below_one
        self.guarded: dict[Value, _Guarded] = {}
        self.failing: dict[Value, Node] = {}

    def run(self, nodes: list[Node], divisors: AbstractSet[Value]) -> dict[int, str]:
        """Return, by id, the nodes to keep, each with the reason. ``nodes`` are in topological order."""
        guards = _LOWERERS if self.below_one else _RAISERS
        visited = []
        for node in nodes:
            inputs = [self._find_guarded(value) for value in node.inputs]
            if any(inputs) or (node.op_type in guards and not divisors.isdisjoint(node.outputs[:1])):
                visited.append(node)
                result = self._result(node, inputs)
                if result is not None:
                    self.guarded.update(dict.fromkeys(_carriers(node), result))
        kept: dict[int, str] = {}
        for node in reversed(visited):
            reason = self._visit_back(node)
            if reason is not None:
                kept[node.id] = reason
                kept.update(dict.fromkeys(self._nodes_that_shape_constants(node), reason))
        return kept

    def _find_guarded(self, value: Value | None) -> _Guarded | None:
        """Return the guarded value of a tensor, which an If may hand out of a branch."""
        found = (self.guarded[source] for source in _sources(value) if source in self.guarded)
        return next(found, None)

    def find_divisors(self, nodes: list[Node]) -> set[Value]:
        """Return the divisors, what logarithms read, and the values from which operators of this rule compute them."""
        divisors: set[Value] = set()
        for node in reversed(nodes):
            is_passed = node.op_type != "Log" and not divisors.isdisjoint(_carriers(node))
            if not is_passed and node.op_type not in _DIVIDERS:
                continue
            for slot, value in enumerate(node.inputs):
                if _may_be_guarded(value) and (is_passed or self._divides(node, slot)):
                    divisors.update(_sources(value))
        return divisors

    # --- forward: what becomes of a guarded value ---

    def _result(self, node: Node, inputs: list[_Guarded | None]) -> _Guarded | None:
        """Return the guarded value that a node makes; None if it makes none."""
        carried = [guarded for guarded in inputs if guarded is not None]
        if node in self.raised:
            return None
        if not carried:
            return self._guard(node)
        if carried[0].is_below_one:
            if node.op_type == "Sub" and inputs[0] is None and self._smallest(node.inputs[0]) == 1:
                return carried[0]._replace(number=1 - carried[0].number, is_below_one=False)
            return carried[0] if node.op_type in _KEEPERS else None
        # Of tensors that are joined, the smallest guarded value counts.
        lowest = min(carried, key=lambda guarded: (guarded.is_inverted, guarded.number))
        if node.op_type in _KEEPERS:
            return lowest
        if node.op_type in ("Add", "Div", "Mul", "Pow", "Sum"):
            return self._arithmetic(node, inputs)
        if node.op_type == "Sqrt":
            return lowest._replace(number=math.sqrt(lowest.number))
        return _power(lowest, -1.0) if node.op_type == "Reciprocal" else None

    def _guard(self, node: Node) -> _Guarded | None:
        """Return the guarded value that a node makes if it is a guard."""
        if self.below_one and node.op_type in _LOWERERS:
            number = min(self._constants(node, "max"), default=1.0)
            is_guard = number < 1 and round_to_low_type(number, self.low_type) == 1
            return _Guarded(number, node, is_below_one=True) if is_guard else None
        if self.below_one or node.op_type not in _RAISERS:
            return None
        # Of Clip and Max, and of Add of something positive, no result is below the largest constant.
        number = max(self._constants(node), default=0.0)
        return _Guarded(number, node) if 0 < number < 1 else None

    def _constants(self, node: Node, bound: Literal["min", "max"] = "min") -> list[float]:
        """Return the smallest element of each constant of an Add, Max, Min or Sum, or of a bound of a Clip."""
        if node.op_type == "Clip" and len(node.inputs) < 2:  # before opset 11, an attribute
            return [attribute.f for attribute in node.proto.attribute if attribute.name == bound]
        slot = 1 if bound == "min" else 2
        values = node.inputs[slot : slot + 1] if node.op_type == "Clip" else node.inputs
        return [number for value in values if (number := self._smallest(value)) is not None]

    def _arithmetic(self, node: Node, inputs: list[_Guarded | None]) -> _Guarded | None:
        """Return the guarded value after Add, Div, Mul, Pow or Sum of guarded values and constants above zero."""
        carried = [guarded for guarded in inputs if guarded is not None]
        numbers = [
            guarded.number if guarded is not None else self._smallest(value)
            for guarded, value in zip(inputs, node.inputs, strict=True)
        ]
        if None in numbers:
            return None
        operands = [number for number in numbers if number is not None]
        if node.op_type == "Pow":
            return _power(carried[0], operands[1]) if inputs[1] is None else None
        if min(operands) <= 0 or len({guarded.is_inverted for guarded in carried}) > 1:
            return None
        if node.op_type in ("Add", "Sum"):
            return carried[0]._replace(number=sum(operands))
        first, second = operands
        if node.op_type == "Div":
            if len(carried) == 2:
                return None
            divisor = inputs[1]
            if divisor is None:
                return carried[0]._replace(number=first / second)
            inverse = _power(divisor, -1.0)
            return inverse._replace(number=first * inverse.number)
        return carried[0]._replace(number=first * second)

    def _smallest(self, value: Value | None) -> float | None:
        """Return the smallest element of a constant, also of one in a shape that only the run knows.

        Return None for any other value.
        """
        while value is not None and not value.is_constant:
            node = value.producer
            if node is None or node.domain:
                return None
            if node.op_type == "ConstantOfShape":
                return read_fill_value(node)
            value = node.inputs[0] if node.op_type in _MOVERS else None
        constant_range = self.ranges.known_range_of(value) if value is not None else None
        return constant_range.smallest if constant_range is not None else None

    def _nodes_that_shape_constants(self, node: Node) -> Iterator[int]:
        """Yield the ids of the nodes between the constants that a node reads and the node."""
        for value in node.inputs:
            while value is not None and not value.is_constant and self._smallest(value) is not None:
                assert value.producer is not None  # it has a constant to give a shape to
                yield value.producer.id
                value = value.producer.inputs[0] if value.producer.op_type in _MOVERS else None

    # --- back: where the loss of a guarded value does harm ---

    def _visit_back(self, node: Node) -> str | None:
        """Find the inputs whose loss makes a node, or one after it, fail; return why the node must stay, or None."""
        loss: tuple[_Guarded, Node] | None = None
        later = None
        output = next((value for value in _carriers(node) if value in self.failing), None)
        if output is not None:
            later = self.failing[output]
            if output in self.guarded and self._is_lost(self.guarded[output]):
                loss = self.guarded[output], later
        for slot, value in enumerate(node.inputs):
            guarded = self._find_guarded(value)
            if guarded is None:
                continue
            end = node if self._fails(node, slot, guarded) else later
            if end is None:
                continue
            for source in _sources(value):
                self.failing.setdefault(source, end)
            if self._is_lost(guarded):
                loss = guarded, end
        if loss is None:
            return None
        lost, failing = loss
        reader = "this node" if failing is node else f"{failing.op_type} {node_ref(failing)}"
        effect = "1" if lost.is_below_one else "infinity" if lost.is_inverted else "0"
        danger = {"Log": "log(0)", "Mul": "0 times infinity"}.get(failing.op_type, "a division by 0")
        number = f"{lost.number:.{8 if lost.is_below_one else 6}g}"
        return (
            f"{lost.guard.op_type} {node_ref(lost.guard)} keeps {reader} from {danger} by a value that is {number}"
            f" here, and {effect} in {dtypes.type_name(self.low_type)}"
        )

    def _fails(self, node: Node, slot: int, guarded: _Guarded) -> bool:
        """Return whether a node gives NaN or infinity if the guarded value in ``slot`` becomes zero or infinite."""
        if guarded.is_below_one:
            return False
        if not guarded.is_inverted:
            return self._divides(node, slot)
        # Zero times infinity is NaN, and the other factor is often zero where the guard acts.
        factors = [value for other, value in enumerate(node.inputs) if other != slot]
        return node.op_type == "Mul" and all(_may_be_guarded(v) and not self._find_guarded(v) for v in factors)

    def _divides(self, node: Node, slot: int) -> bool:
        """Return whether a node divides by the value in ``slot``, or takes its logarithm."""
        if node.op_type == "Pow" and slot == 0:
            exponent = self._smallest(node.inputs[1])
            return exponent is not None and exponent < 0
        return (node.op_type, slot) in _DIVISIONS

    def _is_lost(self, guarded: _Guarded) -> bool:
        low = self.low_type
        if guarded.is_below_one:
            return round_to_low_type(guarded.number, low) == 1
        return guarded.number >= overflow_bound(low) if guarded.is_inverted else guarded.number <= flush_bound(low)


def _carriers(node: Node) -> list[Value]:
    """Return the outputs of a node that can carry a guarded value: the first one, and all of a Split."""
    return [v for v in node.outputs[: None if node.op_type == "Split" else 1] if _may_be_guarded(v)]


def _sources(value: Value | None) -> list[Value]:
    """Return a value, and for the output of an If what its branches give for it, through any number of Ifs."""
    found = [value] if value is not None else []
    for source in found:  # grows
        node = source.producer
        if node is not None and node.op_type == "If" and node.domain == "":
            found += [branch.outputs[source.output_slot] for branch in node.bodies.values()]
    return found


def _power(base: _Guarded, exponent: float) -> _Guarded:
    try:
        number = math.pow(base.number, exponent)
    except (OverflowError, ValueError):  # a ValueError: a negative power of zero
        number = math.inf
    return base._replace(number=number, is_inverted=base.is_inverted != (exponent < 0))
