"""Rule S4.44: a node that only moves or fills in constants takes the type of its readers.

    W (initializer) -> Transpose -> MatMul

Every element of the Transpose's output is an element of ``W``. So a Cast of the output and a conversion of ``W`` give
the same numbers, but the conversion costs no node: with a low-precision MatMul, Transpose becomes low precision and
``W`` is converted in the file. The same holds for a ConstantOfShape, whose number is an attribute.

No decision depends on the type of a constant. So these nodes are decided last, from the readers back to the constants:
all readers of a node are decided before the node, and a chain of movers takes the type that its last one has.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from mixlist.decide.constant_ranges import read_fill_value
from mixlist.decide.decisions import GraphSolution
from mixlist.decide.node_types import assign_target
from mixlist.decide.solver_state import SolverState
from mixlist.decide.value_uses import Use, find_node_uses, find_uses
from mixlist.lists.policy import LOWERING_ACTIONS
from mixlist.model import dtypes
from mixlist.model.graph import Graph, Node, Value, float_values, has_container, once_per_graph
from mixlist.model.low_precision import round_to_low_type
from mixlist.model.signature import Assignment
from mixlist.model.traits import Trait, operators
from mixlist.model.weights import stored_element_count

_MOVERS = operators(Trait.MOVES_VALUES)
# The most bytes by which a second copy of a constant may enlarge the file: a Cast node takes about as many.
_MOST_COPIED_BYTES = 256


def settle_moved_constants(state: SolverState) -> None:
    """Give each node that only moves or fills in constants the type that all its readers want, if it can have it.

    Call it when all other nodes are decided.
    """
    moving_nodes = find_moving_nodes(state.graph)
    if state.policy.mode.action not in LOWERING_ACTIONS or not moving_nodes:
        return
    # The values of control flow have one type for several readers, so a node that makes one of them stays.
    fixed = {use.value for use in find_uses(state.solution, node_inputs=False)}
    output_uses = [*_find_output_uses(state)]
    # First look through all these nodes: which constants does the file need in float32? A second copy of a large one
    # would cost more bytes than a Cast, so the nodes that read it stay.
    wanted = _WantedTypes(output_uses)
    for node in reversed(state.graph.nodes):
        if node in moving_nodes:
            wanted.pass_on(node)
        else:
            wanted.add(_find_uses_of_node(state.solution, node))
    float32_constants = {value for value, types in wanted.types.items() if dtypes.FLOAT in types and _is_large(value)}
    # Then decide, from the readers back to the constants.
    wanted = _WantedTypes(output_uses)
    for node in reversed(state.graph.nodes):
        if node in moving_nodes and float32_constants.isdisjoint(node.inputs) and fixed.isdisjoint(node.outputs):
            _take_type_of_readers(node, wanted.find(node), state)
        wanted.add(_find_uses_of_node(state.solution, node))


@once_per_graph
def find_moving_nodes(graph: Graph) -> Mapping[Node, None]:
    """Return the nodes that only move or fill in constants, in topological order.

    The indices, shapes and conditions of a value mover need not be constants.
    """
    nodes: dict[Node, None] = {}
    for node in graph.nodes:
        if not node.is_plain or node.signature is None:
            continue
        if node.op_type == "ConstantOfShape":
            if node.outputs[:1] and node.outputs[0] is not None and node.outputs[0].type == dtypes.FLOAT:
                nodes[node] = None
        elif node.op_type in _MOVERS and not has_container(node):
            floats = float_values(node.inputs)
            if floats and all(value.is_constant or value.producer in nodes for value in floats):
                nodes[node] = None
    return nodes


# --- the types that readers want ---


class _WantedTypes:
    """The element types that the readers of values want."""

    def __init__(self, uses: Iterable[Use]) -> None:
        self.types: dict[Value, set[int]] = {}
        self.add(uses)

    def add(self, uses: Iterable[Use]) -> None:
        """Add the types that uses want."""
        for use in uses:
            wanted_type = use.wanted_type
            # A Cast of the author reads the numbers as they are: rounded ones would change its result.
            if wanted_type is None and use.node is not None and use.node.op_type == "Cast":
                wanted_type = dtypes.element(use.value.type)
            if wanted_type is not None:
                self.types.setdefault(use.value, set()).add(wanted_type)

    def find(self, node: Node) -> set[int]:
        """Return the types that the readers of a node's outputs want."""
        return set().union(*(self.types.get(value, ()) for value in float_values(node.outputs)))

    def pass_on(self, node: Node) -> None:
        """Add the types that the readers of a node want to those of its inputs."""
        types = self.find(node)
        for value in float_values(node.inputs):
            self.types.setdefault(value, set()).update(types)


def _find_uses_of_node(solution: GraphSolution, node: Node) -> Iterable[Use]:
    """Return the uses of a node's inputs; those of a node with bodies are uses of control flow."""
    return () if node.bodies else find_node_uses(solution, node)


def _find_output_uses(state: SolverState) -> Iterator[Use]:
    """Yield the uses of the outputs of the main graph, which keep their types or get that of a free interface."""
    root, interface = state.graph.root, state.applied.interface
    for slot, value in enumerate(root.outputs):
        declared = root.declared_output_types[slot] or value.type
        elem = interface.find_type(value.name, declared) if interface is not None else dtypes.element(declared)
        yield Use(value, elem, root, None, slot)


def _is_large(value: Value) -> bool:
    """Return whether a second copy of a constant costs more bytes than a Cast."""
    tensor = value.constant_proto
    return tensor is not None and 2 * stored_element_count(tensor) > _MOST_COPIED_BYTES


# --- one node ---


def _take_type_of_readers(node: Node, types: set[int], state: SolverState) -> None:
    """Give a node the only type in ``types``: the low type, or float32 if a list made it low precision."""
    solution, low_type = state.solution, state.low_type
    classification, output = solution.classifications[node.id], _first_output(node)
    if output.type != dtypes.FLOAT or len(types) != 1 or solution.decided_types[output.id] in types:
        return
    if low_type in types and node.op_type == "ConstantOfShape":
        if classification.rule == "cast" and _can_fill(node, state):
            _set_types(node, replace(_authored(node), outputs=(low_type,)), solution)
    elif low_type in types and (classification.kind == "gray" or classification.rule == "mode"):
        _lower(node, state)
    # What computes a constant runs before the model. So this node need not be low precision for speed.
    elif dtypes.FLOAT in types and classification.kind == "low" and output.is_constant:
        _set_types(node, _authored(node), solution)


def _lower(node: Node, state: SolverState) -> None:
    """Give a value mover the low type, if its schema and its constants allow it."""
    solution = state.solution
    before = solution.rule_overrides.get(node.id), solution.reason_notes.get(node.id)
    assignment = assign_target(node, state.low_type, state.applied.classifier.movable_types, state)
    if state.low_type in assignment.elements:
        _set_types(node, assignment, solution)
        return
    _restore(solution.rule_overrides, node, before[0])
    _restore(solution.reason_notes, node, before[1])


def _can_fill(node: Node, state: SolverState) -> bool:
    """Return whether a ConstantOfShape can make its number in the low type, which must hold the number."""
    schema, number = node.signature.schema if node.signature is not None else None, read_fill_value(node)
    if schema is None or number is None:
        return False
    formal = schema.formal_slots(schema.outputs, 1)[0]
    rounded = round_to_low_type(state.solution.reduced_fills.get(node, number), state.low_type)
    fits = math.isfinite(rounded) == math.isfinite(number) and bool(rounded) == bool(number)
    return fits and state.low_type in schema.types_of(formal.parameter)


def _set_types(node: Node, assignment: Assignment, solution: GraphSolution) -> None:
    solution.assignments[node.id] = assignment
    solution.rule_overrides[node.id] = "readers"
    for value, output_type in zip(node.outputs, assignment.outputs, strict=False):
        if value is not None:
            solution.decided_types[value.id] = dtypes.element(output_type)


def _authored(node: Node) -> Assignment:
    assert node.signature is not None
    return node.signature.authored_assignment()


def _first_output(node: Node) -> Value:
    return next(value for value in node.outputs if value is not None)


def _restore(texts: dict[int, str], node: Node, text: str | None) -> None:
    """Set or remove the text of a node."""
    texts.pop(node.id, None)
    if text is not None:
        texts[node.id] = text
