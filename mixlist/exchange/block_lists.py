"""Describe each node of a plan as block lists see it, and find the smallest block lists.

Block lists, as the converters of ONNX models have them, know two states: a blocked node stays in float32, and every
other node gets the low type in all of its float slots. A plan decides each slot. This module says which of the two
states is that of the plan, and which slots then differ. The smallest block lists have op types whose nodes all stay in
float32, and the names of other nodes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias

from mixlist.decide.solution import Solution, find_precision
from mixlist.exchange.export_result import ExportException
from mixlist.model import dtypes
from mixlist.model.graph import Node, Scope, Value
from mixlist.model.low_precision import LOW_TYPES
from mixlist.model.naming import NodeRef, node_ref
from mixlist.model.traits import Trait, operators

# "any": the node computes no float, or computes the same in both types.
Need = Literal["low", "high", "any"]
# The inputs that a converter keeps in float32 although it converts their node, by op type.
FloatInputs: TypeAlias = Mapping[str, tuple[int, ...]]
_READS_ONLY_SHAPE = operators(Trait.READS_ONLY_SHAPE)
_ADVICE = "give every node a name of its own, for example node.name = f'{node.op_type}_{position}', and export again"


# --- the nodes of a plan ---


class Slots(NamedTuple):
    """The positions of a node's float32 slots in the original model, by their type in the plan."""

    low_inputs: tuple[int, ...] = ()
    high_inputs: tuple[int, ...] = ()
    low_outputs: tuple[int, ...] = ()
    high_outputs: tuple[int, ...] = ()
    fixed_inputs: tuple[int, ...] = ()  # those of ``high_inputs`` that the operator's schema keeps in float32
    fixed_outputs: tuple[int, ...] = ()  # those of ``high_outputs`` that the schema keeps in float32

    @property
    def any_high(self) -> bool:
        return bool(self.high_inputs or self.high_outputs)


@dataclass(frozen=True, eq=False)
class PlannedNode:
    """One node, its slots in the plan, and the state that a block list must give it."""

    node: Node
    ref: NodeRef
    slots: Slots
    need: Need

    @property
    def name(self) -> str:
        """Return the name in the file; empty for an unnamed node."""
        return self.node.proto.name

    @property
    def op_type(self) -> str:
        return self.node.op_type


class PlannedGraph:
    """The nodes of the main graph and of the bodies in it, as block lists see them."""

    def __init__(self, solution: Solution) -> None:
        self.solution = solution
        self.nodes = [_plan_node(solution, solution.low_type, node) for node in solution.graph.nodes]
        self.by_node = {planned.node: planned for planned in self.nodes}
        self._settle_constants()

    @cached_property
    def readers(self) -> dict[Value, list[tuple[PlannedNode, int]]]:
        """The nodes and input slots that read each value."""
        readers: dict[Value, list[tuple[PlannedNode, int]]] = {}
        for planned in self.nodes:
            for slot, value in enumerate(planned.node.inputs):
                if value is not None:
                    readers.setdefault(value, []).append((planned, slot))
        return readers

    def nodes_in_bodies(self, owner: Node) -> list[PlannedNode]:
        """Return the nodes in the bodies of a control-flow node, and in the bodies in these."""
        inner_nodes: list[PlannedNode] = []
        scopes = list(owner.bodies.values())
        for scope in scopes:  # the loop also reaches what it appends
            for node in scope.nodes:
                inner_nodes.append(self.by_node[node])
                scopes.extend(node.bodies.values())
        return inner_nodes

    def _settle_constants(self) -> None:
        """Give each Constant the state that its readers need: high if one of them reads it in float32.

        A Constant has no precision of its own: mixlist stores it in each type that its readers need.
        """
        for index, planned in enumerate(self.nodes):
            if planned.op_type == "Constant" and planned.node.outputs and planned.node.outputs[0] is not None:
                readers = self.readers.get(planned.node.outputs[0], [])
                if any(slot in reader.slots.high_inputs for reader, slot in readers):
                    need: Need = "high"
                else:
                    need = "low" if any(slot in reader.slots.low_inputs for reader, slot in readers) else "any"
                self.nodes[index] = PlannedNode(planned.node, planned.ref, Slots(), need)
                self.by_node[planned.node] = self.nodes[index]


def find_low_inputs(node: Node) -> dict[Value, int]:
    """Return the tensors that a node reads in float16 or bfloat16 in the original model, each with this element type.

    Initializers are left out, because tools convert them for each reader.
    """
    # The type of the slot counts: behind a Cast of mixlist, it is not that of the value.
    slots = zip(node.inputs, node.input_types, strict=True)
    elements = {value: dtypes.element(slot_type) for value, slot_type in slots if value is not None}
    low_tensors = (value for value, elem in elements.items() if elem in LOW_TYPES)
    return {value: elements[value] for value in low_tensors if value.kind not in ("initializer", "overridable")}


def is_authored_low(planned: PlannedNode, low_type: int) -> bool:
    """Return whether the plan keeps a node that computes in ``low_type`` in the original model; no Cast does."""
    if planned.need != "any" or planned.op_type == "Cast" or planned.node.bodies:
        return False
    return low_type in find_low_inputs(planned.node).values()


def captured_floats(bodies: Iterable[Scope]) -> list[Value]:
    """Return the float32 values of outer scopes that the bodies read."""
    return [value for body in bodies for value in body.captures if dtypes.element(value.type) == dtypes.FLOAT]


def _plan_node(solution: Solution, low_type: int, node: Node) -> PlannedNode:
    slots = _find_slots(solution, low_type, node)
    return PlannedNode(node, node_ref(node), slots, _find_need(solution, low_type, node, slots))


def _find_slots(solution: Solution, low_type: int, node: Node) -> Slots:
    """Return the slots of a node that the model authored in float32, by their planned type."""
    assignment, signature = solution.assignments[node.id], node.signature
    if node.op_type == "Constant" or assignment is None or signature is None:
        return Slots()  # a Constant or control flow
    possible = signature.assign((low_type,) * len(signature.groups))
    low_inputs: list[int] = []
    high_inputs: list[int] = []
    fixed_inputs: list[int] = []
    for slot, value in enumerate(node.inputs):
        if value is None or dtypes.element(node.input_types[slot]) != dtypes.FLOAT:
            continue
        required = assignment.inputs[slot] if slot < len(assignment.inputs) else None
        # A slot that accepts every type reads the type that its value was given.
        elem = solution.decided_types[value.id] if required is None else dtypes.element(required)
        (low_inputs if elem == low_type else high_inputs).append(slot)
        if elem != low_type and slot < len(possible.inputs) and dtypes.element(possible.inputs[slot] or 0) != low_type:
            fixed_inputs.append(slot)
    low_outputs: list[int] = []
    high_outputs: list[int] = []
    fixed_outputs: list[int] = []
    for slot, value in enumerate(node.outputs):
        if value is None or dtypes.element(value.type) != dtypes.FLOAT:
            continue
        is_low = solution.decided_types[value.id] == low_type
        (low_outputs if is_low else high_outputs).append(slot)
        if not is_low and slot < len(possible.outputs) and dtypes.element(possible.outputs[slot]) != low_type:
            fixed_outputs.append(slot)
    slots = (low_inputs, high_inputs, low_outputs, high_outputs, fixed_inputs, fixed_outputs)
    return Slots(*map(tuple, slots))


def _find_need(solution: Solution, low_type: int, node: Node, slots: Slots) -> Need:
    """Return the state of a node; other functions find that of Constants and control flow."""
    if solution.assignments[node.id] is None or node.op_type == "Constant":
        return "any"
    if node.op_type == "Cast" and not node.domain:
        return _find_need_of_cast(solution, low_type, node, slots)
    if node.op_type in _READS_ONLY_SHAPE and not node.domain and not slots.low_outputs:
        return "high" if slots.high_outputs else "any"
    if not (slots.any_high or slots.low_inputs or slots.low_outputs):
        return "any"
    if slots.low_outputs or find_precision(solution, node) == dtypes.type_name(low_type):
        return "low"
    return "high" if slots.any_high else "low"


def _find_need_of_cast(solution: Solution, low_type: int, node: Node, slots: Slots) -> Need:
    """Return the state of a Cast of the user, which no list changes.

    The value of a Cast to the low type is the same in both states. A Cast of a float32 value to integers is not: the
    low type would round the value first.
    """
    if slots.high_outputs:
        return "high"
    output = node.outputs[0]
    if output is not None and solution.decided_types[output.id] == low_type:
        return "any"
    return "high" if slots.high_inputs else "low" if slots.low_inputs else "any"


def is_broken(planned: PlannedNode, float_inputs: FloatInputs) -> bool:
    """Return whether a converter of the node would convert a slot that its schema keeps in float32."""
    slots = planned.slots
    return bool(set(slots.fixed_inputs) - set(float_inputs.get(planned.op_type, ())) or slots.fixed_outputs)


# --- the smallest block lists ---


@dataclass
class BlockLists:
    """The two block lists, sorted, and the nodes that they block.

    ``blocked`` also has nodes that should be low precision, but share a name with a blocked node. ``exceptions`` names
    these nodes, and those that no list can name.
    """

    op_types: list[str]
    names: list[str]
    blocked: set[Node] = field(default_factory=set)
    exceptions: list[ExportException] = field(default_factory=list)


def find_block_lists(
    planned_nodes: Iterable[PlannedNode], needs: Mapping[Node, Need], by_name_only: tuple[str, ...] = ()
) -> BlockLists:
    """Return the smallest lists that block every node whose need is "high".

    An op type is listed if none of its nodes, in any domain and scope, is needed in low precision. ``needs`` has the
    state of each node; a tool may need another one than the plan, for example for the node of an operator that it
    cannot convert. ``by_name_only``: op types that the tool must not get as such.
    """
    by_op_type: defaultdict[str, list[PlannedNode]] = defaultdict(list)
    for planned in planned_nodes:
        by_op_type[planned.op_type].append(planned)
    op_types, single_nodes = [], []
    for op_type, members in by_op_type.items():
        states = {needs[planned.node] for planned in members}
        if "high" in states and "low" not in states and op_type not in by_name_only:
            op_types.append(op_type)
        elif "high" in states:
            single_nodes += [planned for planned in members if needs[planned.node] == "high"]
    names = {planned.name for planned in single_nodes if planned.name}
    lists = BlockLists(sorted(op_types), sorted(names))
    for planned in single_nodes:
        if not planned.name:
            why = f"is high precision but has no name, so that no list can hold it: the tool converts it; {_ADVICE}"
            lists.exceptions.append(ExportException(planned.ref, why))
    listed_types = set(op_types)
    for op_type, members in by_op_type.items():
        for planned in members:
            if op_type in listed_types or planned.name in names:
                lists.blocked.add(planned.node)
                if needs[planned.node] == "low":
                    why = f"has the name of a node that stays high precision, so that both do; {_ADVICE}"
                    lists.exceptions.append(ExportException(planned.ref, why))
    return lists
