"""Find what a plan rounds: the inputs and outputs of each node that become low, as the emulation rounds them.

A low node reads each input rounded to its low type, and its outputs are rounded. Two plans for one model differ only in
these roundings. So one graph that can do all the roundings, each behind a gate, can run every plan.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple
from weakref import WeakKeyDictionary

from mixlist.decide.solution import Solution
from mixlist.decide.value_uses import Use, find_node_uses, find_uses
from mixlist.model import dtypes
from mixlist.model.graph import Node, Value
from mixlist.model.low_precision import LOW_TYPES
from mixlist.model.naming import NodeRef, node_ref, scope_path
from mixlist.model.signature import Assignment
from mixlist.model.traits import Trait, operators

_VALUE_PRESERVING = operators(Trait.VALUE_PRESERVING)


class RoundingPoint(NamedTuple):
    """A place where values are rounded.

    With ``slot`` -1 the point is a node, whose inputs and outputs are rounded together. With another ``slot`` the point
    is one value that ``node`` reads, where ``node`` is control flow. If the name of ``node`` is "", the point is the
    output ``slot`` of the scope.
    """

    node: NodeRef
    slot: int = -1


@dataclass(frozen=True, slots=True)
class Rounding:
    """The low element types to which a node's inputs and outputs are rounded, by slot; 0 where they are not rounded.

    ``magnitude_limits``: by input slot the magnitude to which the constant of a mask is reduced, or that of a guard is
    raised, 0 where it is not changed; () if no input is.
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...] = ()
    magnitude_limits: tuple[float, ...] = ()

    def covers(self, needed: Rounding) -> bool:
        """Return True if this rounding can be used where ``needed`` is asked for.

        This rounding may round more inputs than ``needed``: an input that ``needed`` leaves alone was rounded before,
        and rounding it to the same type again changes nothing. If ``needed`` only changes a constant, both must be
        equal: the node may be high precision, and then its inputs must not be rounded.
        """
        if not (any(needed.inputs) or any(needed.outputs)):
            return self == needed
        return (self.outputs, self.magnitude_limits) == (needed.outputs, needed.magnitude_limits) and all(
            needed_elem in (0, elem) for elem, needed_elem in zip(self.inputs, needed.inputs, strict=True)
        )


Roundings = dict[RoundingPoint, Rounding]
# Returns the types of certain values from ``Solution.decided_types``, in a form that can be a key.
TypePicker = Callable[[list[int]], Hashable]


class RoundingPlanner:
    """Finds the roundings of one model under many policies.

    A search decides almost the same again and again. So the planner caches:

    - ``_points``: the point of each node, because names take time to make;
    - ``_by_solution``: the roundings of a solution;
    - ``_node_roundings``: the roundings of nodes that follow from decided types, by these types.
    """

    def __init__(self) -> None:
        self._points: dict[Node, RoundingPoint] = {}
        self._by_solution: WeakKeyDictionary[Solution, Roundings] = WeakKeyDictionary()
        self._type_pickers: dict[Node, TypePicker] = {}
        self._node_roundings: dict[Hashable, tuple[Assignment | None, Rounding | None]] = {}

    def find_roundings(self, solution: Solution) -> Roundings:
        """Return the roundings of a solution."""
        roundings = self._by_solution.get(solution)
        if roundings is None:
            roundings = self._by_solution[solution] = self.compute_roundings(solution, include_low_inputs=False)
        return roundings

    def compute_roundings(self, solution: Solution, *, include_low_inputs: bool) -> Roundings:
        """Return the roundings of a solution; with ``include_low_inputs`` also of inputs that have their low type."""
        roundings = dict(self._find_slot_roundings(solution, include_low_inputs))
        for node in solution.graph.nodes:
            # The slots of a node with bodies are rounding points of their own.
            rounding = None if node.bodies else self._find_rounding(solution, node, include_low_inputs)
            if rounding is not None:
                roundings[self._point(node)] = rounding
        return roundings

    def _point(self, node: Node) -> RoundingPoint:
        """Return the point of a node."""
        point = self._points.get(node)
        if point is None:
            point = self._points[node] = RoundingPoint(node_ref(node))
        return point

    def _find_slot_roundings(
        self, solution: Solution, include_low_inputs: bool
    ) -> Iterator[tuple[RoundingPoint, Rounding]]:
        """Yield the roundings of the values that control flow and scope outputs read."""
        for use in find_uses(solution, node_inputs=False):
            elem = _rounded_type(use, solution, include_low_inputs)
            if elem and use.node is None:
                yield RoundingPoint(NodeRef(scope_path(use.scope), ""), use.slot), Rounding((elem,))
            elif elem and use.node is not None:
                yield self._point(use.node)._replace(slot=use.slot), Rounding((elem,))
        yield from _find_output_roundings(solution, include_low_inputs)

    def _find_rounding(self, solution: Solution, node: Node, include_low_inputs: bool) -> Rounding | None:
        """Return the rounding of a node, from the cache if its types were the same before."""
        pick_types = self._type_pickers.get(node)
        if pick_types is None:
            pick_types = self._type_pickers[node] = _type_picker(filter(None, (*node.inputs, *node.outputs)))
        assignment = solution.assignments[node.id]
        # An id is a faster key than an assignment. The entry holds the assignment, so that no other one gets its id. A
        # changed constant changes the rounding without a change of types, so it is a part of the key too.
        types_of_node = pick_types(solution.decided_types)
        key = node, include_low_inputs, id(assignment), types_of_node, node in solution.changed_slots
        entry = self._node_roundings.get(key)
        if entry is None:
            entry = self._node_roundings[key] = assignment, _find_node_rounding(solution, node, include_low_inputs)
        return entry[1]


def _type_picker(values: Iterable[Value]) -> TypePicker:
    """Return the function that picks the types of these values."""
    ids = [value.id for value in values]
    return itemgetter(*ids) if ids else lambda _: ()


def _find_node_rounding(solution: Solution, node: Node, include_low_inputs: bool) -> Rounding | None:
    """Return the rounding of a node's inputs and outputs; None if it rounds nothing."""
    # Two lists, because a constant can be changed at a slot that is not rounded.
    inputs, limits = [0] * len(node.inputs), [0.0] * len(node.inputs)
    low_slots = set()
    for use in find_node_uses(solution, node):
        elem, limits[use.slot] = _rounded_type(use, solution, include_low_inputs), use.magnitude_limit
        inputs[use.slot] = elem
        # A slot is low if the node rounds its value, and also if the value was rounded before.
        read_type = solution.decided_types[use.value.id] if use.wanted_type is None else use.wanted_type
        if elem or read_type in LOW_TYPES:
            low_slots.add(use.slot)
    # The readers of a Constant round its numbers.
    needs_no_output_rounding = _yields_rounded_values(node, low_slots) or node.op_type == "Constant"
    outputs = () if needs_no_output_rounding else _low_output_types(solution, node)
    if not (any(inputs) or any(outputs) or any(limits)):
        return None
    return Rounding(tuple(inputs), outputs, tuple(limits) if any(limits) else ())


def _find_output_roundings(solution: Solution, include_low_inputs: bool) -> Iterator[tuple[RoundingPoint, Rounding]]:
    """Yield the roundings of graph outputs that are declared low and made in float32.

    The rewriter keeps the declared type (Rule S7.2), so it puts a Cast before such an output.
    """
    root = solution.graph.root
    for slot, value in enumerate(root.outputs):
        declared = dtypes.element(root.declared_output_types[slot])
        if declared not in LOW_TYPES or not isinstance(value.type, int):
            continue
        if include_low_inputs or solution.decided_types[value.id] != declared:
            yield RoundingPoint(NodeRef("", ""), slot), Rounding((declared,))


def _rounded_type(use: Use, solution: Solution, include_low_inputs: bool) -> int:
    """Return the low type to which a reader rounds a value; 0 if it reads the value as it is."""
    wanted_type, value = use.wanted_type, use.value
    if wanted_type is None or wanted_type not in LOW_TYPES or not isinstance(value.type, int):
        return 0
    if value.constant_proto is not None:
        # A constant is converted for each type that a reader wants. Its decided type does not matter.
        return wanted_type if dtypes.element(value.type) != wanted_type else 0
    return wanted_type if include_low_inputs or solution.decided_types[value.id] != wanted_type else 0


def _low_output_types(solution: Solution, node: Node) -> tuple[int, ...]:
    """Return the low type of each output of a node, 0 for other types; () if no output is low."""
    elems = [
        solution.decided_types[v.id] if v is not None and isinstance(v.type, int) else dtypes.UNKNOWN
        for v in node.outputs
    ]
    return tuple([e if e in LOW_TYPES else 0 for e in elems]) if not LOW_TYPES.isdisjoint(elems) else ()


def _yields_rounded_values(node: Node, low_slots: set[int]) -> bool:
    """Return True if rounding the outputs changes nothing: a value-preserving operator whose float inputs are all low.

    Example: Transpose or Max of rounded values yields rounded values.
    """
    if not low_slots or node.op_type not in _VALUE_PRESERVING or node.domain:
        return False
    return all(
        slot in low_slots
        for slot, value in enumerate(node.inputs)
        if value is not None and dtypes.element(value.type) in dtypes.MIXABLE
    )
