"""Nodes whose inputs have no precision: they take the type of their readers.

Rule S4.44: a node that only moves or fills in constants takes the type of its readers.

    W (initializer) -> Transpose -> MatMul

Every element of the Transpose's output is an element of ``W``. So a Cast of the output and a conversion of ``W`` give
the same numbers, but the conversion costs no node: with a low-precision MatMul, Transpose becomes low precision and
``W`` is converted in the file. The same holds for a ConstantOfShape, whose number is an attribute.

Rule S4.45: a Cast of integers to float32 makes float16 if all its readers want it. A pair of Casts would give the same
numbers.

Rule S4.46: a gray node that reads floats only from constants, from such Casts and from such nodes is *unbound*: no
float of the model decides its type, so its readers do. An example is the arithmetic of an attention mask:

    attention_mask (int64) -> Cast -> Sub(1, .) -> Mul(., -10000) -> Add(scores, .)

No decision depends on the type of such a node. So these nodes are decided last, from the readers back to the constants:
all readers of a node are decided before the node, and a chain takes the type that its last node has.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import replace

from mixlist.decide.classification import Classification, Classifier
from mixlist.decide.constant_ranges import read_fill_value
from mixlist.decide.gray_policies import is_idle_cast
from mixlist.decide.node_types import assign_target
from mixlist.decide.solution import Solution
from mixlist.decide.value_uses import Use, find_node_uses, find_uses
from mixlist.lists.policy import LOWERING_ACTIONS
from mixlist.model import dtypes
from mixlist.model.graph import Graph, Node, Value, float_values, has_container, once_per_graph
from mixlist.model.low_precision import round_to_low_type
from mixlist.model.signature import Assignment
from mixlist.model.traits import Trait, operators
from mixlist.model.value_origins import is_random
from mixlist.model.weights import stored_element_count

_MOVERS = operators(Trait.MOVES_VALUES)
_COUNT_TYPES = dtypes.INTEGERS | {dtypes.BOOL}
_ACCUMULATORS = frozenset({"ConvInteger", "MatMulInteger"})
# The most bytes by which a second copy of a constant may enlarge the file: a Cast node takes about as many.
_MOST_COPIED_BYTES = 256


# --- which nodes ---


@once_per_graph
def find_moving_nodes(graph: Graph) -> Mapping[Node, None]:
    """Return the nodes that only move or fill in constants, in topological order (Rule S4.44).

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


@once_per_graph
def find_integer_casts(graph: Graph) -> Mapping[Node, None]:
    """Return the Casts of integers or booleans to float32, in topological order (Rule S4.45)."""
    casts: dict[Node, None] = {}
    for node in graph.nodes:
        if node.op_type != "Cast" or not node.is_plain:
            continue
        source, output = node.inputs[0], node.outputs[0]
        if source is not None and source.type in _COUNT_TYPES and output is not None and output.type == dtypes.FLOAT:
            casts[node] = None
    return casts


@once_per_graph
def find_idle_casts(graph: Graph) -> Mapping[Node, None]:
    """Return the Casts from float32 to float32, in topological order (Rule S4.48)."""
    return dict.fromkeys(node for node in graph.nodes if is_idle_cast(node))


def find_unbound_values(graph: Graph, classifications: list[Classification], classifier: Classifier) -> set[int]:
    """Return the ids of the values that no gray node follows, because they have no precision (Rule S4.46).

    The result is empty for the lists of an engine or a framework, which have no such rule.
    """
    if not classifier.adapts_to_readers:
        return set()
    moving_nodes = find_moving_nodes(graph)
    casts = find_integer_casts(graph) if not classifier.cast_is_black else {}
    idle_casts = find_idle_casts(graph) if classifier.skips_idle_casts else {}
    unbound: set[int] = set()
    for node in graph.nodes:
        kind = classifications[node.id].kind
        is_free = node in moving_nodes and kind in ("gray", "cast")
        is_free |= node in casts and not _is_accumulator(node.inputs[0])
        is_free |= node in idle_casts and _reads_only(node, unbound)
        if is_free or (kind == "gray" and node.is_plain and not is_random(node) and _reads_only(node, unbound)):
            unbound.update(value.id for value in float_values(node.outputs))
        elif kind == "low":  # a constant that a white node computes, which need not be float32 for its gray readers
            unbound.update(value.id for value in float_values(node.outputs) if value.is_constant)
    return unbound


def _reads_only(node: Node, unbound: Container[int]) -> bool:
    """Return whether each float that a node reads is a constant or unbound, and at least one is unbound."""
    floats = float_values(node.inputs)
    bound = [value for value in floats if value.id not in unbound]
    return len(bound) < len(floats) and all(value.is_constant for value in bound) and not has_container(node)


def _is_accumulator(value: Value | None) -> bool:
    """Return whether a value holds sums of integer products, which leave the range of float16."""
    while value is not None and value.producer is not None:
        node = value.producer
        if node.op_type in _ACCUMULATORS:
            return True
        if node.op_type not in _MOVERS and node.op_type != "Add":
            return False
        value = node.inputs[0]
    return False


# --- decide them ---


def settle_types_from_readers(solution: Solution) -> None:
    """Give each of these nodes the type that all its readers want, if the node can have it.

    Call it when all other nodes are decided.
    """
    graph = solution.graph
    if solution.policy.mode.action not in LOWERING_ACTIONS:
        return
    moving_nodes = find_moving_nodes(graph)
    casts = find_integer_casts(graph) if not solution.classifier.cast_is_black else {}
    unbound_nodes = {
        value.producer
        for value in graph.values
        if value.id in solution.unbound_values
        and value.producer is not None
        and solution.classifications[value.producer.id].kind == "gray"
    }
    if not (moving_nodes or casts):
        return
    idle_casts = find_idle_casts(graph) if solution.classifier.skips_idle_casts else {}
    # The values of control flow have one type for several readers, so a node that makes one of them stays.
    fixed = {use.value for use in find_uses(solution, node_inputs=False)}
    output_uses = [*find_output_uses(solution)]
    # First look through the nodes that may take a type: which constants does the file need in float32? A second copy of
    # a large one would cost more bytes than a Cast, so the nodes that move it stay.
    wanted = _WantedTypes(output_uses)
    for node in reversed(graph.nodes):
        if node in moving_nodes or node in unbound_nodes or node in idle_casts:
            wanted.pass_on(node)
        else:
            wanted.add(_find_uses_of_node(solution, node))
    float32_constants = {value for value, types in wanted.types.items() if dtypes.FLOAT in types and _is_large(value)}
    # Then decide, from the readers back to the constants.
    wanted = _WantedTypes(output_uses)
    for node in reversed(graph.nodes):
        if fixed.isdisjoint(node.outputs):
            if node in moving_nodes and float32_constants.isdisjoint(node.inputs):
                _take_type_of_readers(node, wanted.find(node), solution)
            elif node in casts:
                _merge_casts(node, wanted, solution)
            elif node in unbound_nodes and node not in moving_nodes and wanted.find(node) == {solution.low_type}:
                lower_node(node, solution)
        if node in idle_casts:
            wanted.pass_on(node)
        else:
            wanted.add(_find_uses_of_node(solution, node))


class _WantedTypes:
    """The element types that the readers of values want; ``captured``: the values that a node of a body reads."""

    def __init__(self, uses: Iterable[Use]) -> None:
        self.types: dict[Value, set[int]] = {}
        self.captured: set[Value] = set()
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
            if use.scope is not use.value.scope:
                self.captured.add(use.value)

    def find(self, node: Node) -> set[int]:
        """Return the types that the readers of a node's outputs want."""
        return set().union(*(self.types.get(value, ()) for value in float_values(node.outputs)))

    def pass_on(self, node: Node) -> None:
        """Add the types that the readers of a node want to those of its inputs."""
        types = self.find(node)
        for value in float_values(node.inputs):
            self.types.setdefault(value, set()).update(types)


def _find_uses_of_node(solution: Solution, node: Node) -> Iterable[Use]:
    """Return the uses of a node's inputs; those of a node with bodies are uses of control flow."""
    return () if node.bodies else find_node_uses(solution, node)


def find_output_uses(solution: Solution) -> Iterator[Use]:
    """Yield the uses of the outputs of the main graph, which keep their types or get that of a free interface."""
    root, interface = solution.graph.root, solution.interface
    for slot, value in enumerate(root.outputs):
        declared = root.declared_output_types[slot] or value.type
        elem = interface.find_type(value.name, declared) if interface is not None else dtypes.element(declared)
        yield Use(value, elem, root, None, slot)


def _is_large(value: Value) -> bool:
    """Return whether a second copy of a constant costs more bytes than a Cast."""
    tensor = value.constant_proto
    return tensor is not None and 2 * stored_element_count(tensor) > _MOST_COPIED_BYTES


# --- one node ---


def _take_type_of_readers(node: Node, types: set[int], solution: Solution) -> None:
    """Give a moving node the only type in ``types``: the low type, or float32 if a list made it low precision."""
    low_type = solution.low_type
    classification, output = solution.classifications[node.id], _first_output(node)
    # In a model that was rewritten before, such a node makes the low type already.
    if output.type not in (dtypes.FLOAT, low_type) or len(types) != 1 or solution.decided_types[output.id] in types:
        return
    if low_type in types and node.op_type == "ConstantOfShape":
        if classification.rule == "cast" and _can_fill(node, solution):
            _set_types(node, replace(_authored(node), outputs=(low_type,)), solution)
    elif low_type in types and (classification.kind == "gray" or classification.rule == "mode"):
        lower_node(node, solution)
    # A node that computes a constant runs before the model, so it need not be low precision for speed.
    elif output.type in types and classification.kind == "low" and output.is_constant:
        _set_types(node, _authored(node), solution)


def lower_node(node: Node, solution: Solution) -> None:
    """Give a node the low type, if its schema and its constants allow it."""
    before = solution.rule_overrides.get(node.id), solution.reason_notes.get(node.id)
    assignment = assign_target(node, solution.low_type, solution.classifier.movable_types, solution)
    if solution.low_type in assignment.elements:
        _set_types(node, assignment, solution)
        return
    _restore(solution.rule_overrides, node, before[0])
    _restore(solution.reason_notes, node, before[1])


def _merge_casts(cast: Node, wanted: _WantedTypes, solution: Solution) -> None:
    """Let a Cast of integers make float16, so that its readers need no second Cast.

    bfloat16 would be rounded once instead of twice.
    """
    output = _first_output(cast)
    is_merged = wanted.find(cast) == {solution.low_type} and solution.low_type == dtypes.FLOAT16
    if is_merged and solution.classifications[cast.id].rule == "cast" and output not in wanted.captured:
        _set_types(cast, replace(_authored(cast), outputs=(solution.low_type,)), solution)


def _can_fill(node: Node, solution: Solution) -> bool:
    """Return whether a ConstantOfShape can make its number in the low type, which must hold the number."""
    schema, number = node.signature.schema if node.signature is not None else None, read_fill_value(node)
    if schema is None or number is None:
        return False
    formal = schema.formal_slots(schema.outputs, 1)[0]
    rounded = round_to_low_type(solution.reduced_fills.get(node, number), solution.low_type)
    fits = math.isfinite(rounded) == math.isfinite(number) and bool(rounded) == bool(number)
    return fits and solution.low_type in schema.types_of(formal.parameter)


def _set_types(node: Node, assignment: Assignment, solution: Solution) -> None:
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
