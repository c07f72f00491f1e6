"""Units: nodes that runtimes fuse, or that fail together. They are decided as a whole.

Rule S4.47: a written-out normalization is a unit, which ``norm_units`` finds.

Rule S4.41: a quantized unit stays as authored. It is one operator between DequantizeLinear and QuantizeLinear:

    DequantizeLinear -> Conv -> Relu -> QuantizeLinear

Runtimes fuse such nodes, so that int8 kernels compute them; ONNX Runtime's kernel for this example is QLinearConv. A
Cast between the nodes prevents it, and so does a scale of another type. Every node except the operator can belong to
several units.

`--protect quantized` and `--protect norms` turn the rules on. Then all nodes of a unit stay as authored, whatever their
lists say: in the example all four nodes stay float32 although Conv is white. Nodes that another rule keeps (S4.3,
S4.38) are still explained by that rule.

A node rule (Rule S4.2) moves the whole unit: if it gives a node of the unit another type, the other nodes get this type
too, where their schemas allow it. A node of several units moves only if all of these units move.
"""

from __future__ import annotations

from collections.abc import Iterator

from mixlist.decide.classification import DECIDED_BY_LIST, DecisionKind
from mixlist.decide.constant_ranges import ConstantRanges
from mixlist.decide.decisions import Unit, UnitsByNode
from mixlist.decide.norm_units import find_norm_nodes
from mixlist.decide.solution import Solution
from mixlist.diagnostics import Diagnostic, FilePlace
from mixlist.lists.policy import LOWERING_ACTIONS
from mixlist.model import dtypes
from mixlist.model.graph import Graph, Node, Value, float_values, has_container, once_per_graph
from mixlist.model.naming import display_name, node_ref
from mixlist.model.signature import Assignment
from mixlist.model.traits import Trait, operators
from mixlist.option_spelling import spell

# ONNX Runtime moves the quantization through a MaxPool, too: the largest of quantized values is the same one.
_VALUE_MOVERS = operators(Trait.MOVES_VALUES) | {"MaxPool"}
# QuantizeLinear needs no Relu and no Clip before it, if its zero point cuts off the same values. So runtimes drop them.
_BEFORE_QUANTIZE = _VALUE_MOVERS | {"Relu", "Clip"}
_QDQ_DOMAINS = ("", "com.microsoft")


# --- find the units of a graph ---


@once_per_graph
def find_quantized_units(graph: Graph) -> UnitsByNode:
    """Return the quantized units of a graph."""
    units_by_node: UnitsByNode = {}
    # Most models have no QuantizeLinear and need no walk.
    if not any(node.op_type == "QuantizeLinear" for node in graph.nodes):
        return units_by_node
    readers = _find_all_readers(graph)
    for node in graph.nodes:
        if not _can_be_operator(node):
            continue
        before, behind = _find_nodes_before(node), _find_nodes_behind(node, readers)
        if before and behind:
            nodes = {member.id: member for member in (*before, node, *behind)}
            unit = Unit(node, tuple(nodes[node_id] for node_id in sorted(nodes)))
            for node_id in nodes:
                units_by_node.setdefault(node_id, []).append(unit)
    return units_by_node


@once_per_graph
def _find_all_readers(graph: Graph) -> dict[Value, list[Node]]:
    """Return the nodes that read each value."""
    readers: dict[Value, list[Node]] = {}
    for node in graph.nodes:
        for value in node.inputs:
            if value is not None:
                readers.setdefault(value, []).append(node)
    return readers


def find_norm_units(graph: Graph, ranges: ConstantRanges) -> list[Unit]:
    """Return the written-out normalizations of a graph (Rule S4.47)."""
    cached = _cache_of_norms(graph)
    if not cached:
        may_have_norms = any(node.op_type in ("Sqrt", "Reciprocal", "Log", "Pow") for node in graph.nodes)
        found = find_norm_nodes(graph, ranges, _find_all_readers(graph)) if may_have_norms else ()
        cached.append([Unit(nodes[0], nodes, "norm") for nodes in found])
    return cached[0]


@once_per_graph
def _cache_of_norms(graph: Graph) -> list[list[Unit]]:
    """Return the cache of a graph, which is empty at first: its written-out normalizations as one item."""
    return []


def _is_qdq(node: Node, op_type: str) -> bool:
    return node.op_type == op_type and node.domain in _QDQ_DOMAINS


def _can_be_operator(node: Node) -> bool:
    """Return whether the node is an operator on tensors, and no part of the quantization."""
    # Control flow has no signature, and a Cast has a fixed output.
    if node.signature is None or node.signature.has_fixed_output or has_container(node):
        return False
    return not (_is_qdq(node, "DequantizeLinear") or _is_qdq(node, "QuantizeLinear"))


def _find_nodes_before(operator: Node) -> list[Node]:
    """Return each DequantizeLinear that gives the operator its floats, and the value movers between; [] without a unit.

    A constant need not come from a DequantizeLinear: a bias often does not, and runtimes quantize it themselves.
    """
    before: list[Node] = []
    has_data = False
    for value in float_values(_find_data_inputs(operator)):
        nodes = _go_back_to_dequantize(value)
        if value.is_constant:
            before += nodes
        elif nodes:
            has_data = True
            before += nodes
        else:
            return []
    return before if has_data else []


def _find_data_inputs(operator: Node) -> list[Value | None]:
    """Return the inputs whose type the schema leaves open; the ``scales`` of Resize are always float32."""
    assert operator.signature is not None
    if (schema := operator.signature.schema) is None:
        return operator.inputs
    formal_slots = schema.formal_slots(schema.inputs, len(operator.inputs))
    pairs = zip(formal_slots, operator.inputs, strict=False)
    return [value for formal, value in pairs if formal.parameter in schema.allowed]


def _go_back_to_dequantize(value: Value) -> list[Node]:
    """Return the DequantizeLinear that makes a value, and the value movers between; [] if another node makes it."""
    nodes: list[Node] = []
    while (node := value.producer) is not None:
        nodes.append(node)
        if _is_qdq(node, "DequantizeLinear"):
            return nodes
        data = _find_only_data(node) if node.op_type in _VALUE_MOVERS else None
        if data is None:
            break
        value = data
    return []


def _find_only_data(node: Node) -> Value | None:
    """Return the float input of a node that is no constant, or the only constant; None if there are more of them."""
    if not node.is_plain or has_container(node):
        return None
    floats = float_values(node.inputs)
    data = [value for value in floats if not value.is_constant] or floats
    return data[0] if len(data) == 1 else None


def _find_nodes_behind(operator: Node, readers: dict[Value, list[Node]]) -> list[Node]:
    """Return each QuantizeLinear that the results of the operator reach, and the nodes between; [] without one."""
    behind: list[Node] = []
    waiting = [operator]
    paths: dict[Node, list[Node]] = {operator: []}  # by node, the nodes between the operator and it, with itself
    for node in waiting:  # the loop also reaches what it appends
        for reader in _find_readers(node, readers):
            if _is_qdq(reader, "QuantizeLinear"):
                behind += [*paths[node], reader]
            elif reader.op_type in _BEFORE_QUANTIZE and _find_only_data(reader) is not None and reader not in paths:
                paths[reader] = [*paths[node], reader]
                waiting.append(reader)
    return behind


def _find_readers(node: Node, readers: dict[Value, list[Node]]) -> Iterator[Node]:
    """Yield the nodes that read a float output of ``node`` as data, not as a scale."""
    for value in float_values(node.outputs):
        for reader in readers.get(value, ()):
            if reader.inputs[0] is value or not _is_qdq(reader, "QuantizeLinear"):
                yield reader


# --- protect them ---


def _find_protected_units(solution: Solution) -> UnitsByNode:
    """Return the units of a graph that the policy protects."""
    graph, policy = solution.graph, solution.policy
    if policy.mode.action not in LOWERING_ACTIONS:
        return {}
    units_by_node = find_quantized_units(graph) if "quantized" in policy.protect else {}
    # bfloat16 holds the squares of all numbers that occur.
    if "norms" not in policy.protect or policy.mode.low != "float16" or policy.mode.action != "lists":
        return units_by_node
    units_by_node = {node_id: list(units) for node_id, units in units_by_node.items()}
    for unit in find_norm_units(graph, solution.constant_ranges):
        for node in unit.nodes:
            units_by_node.setdefault(node.id, []).append(unit)
    return units_by_node


def keep_units(solution: Solution) -> None:
    """Classify the nodes that belong to a unit: as authored, or as a node rule moves their units.

    The nodes that a node rule names must have their classification already.
    """
    kinds: dict[Unit, DecisionKind] = {}
    solution.units = _find_protected_units(solution)
    for node_id, units in solution.units.items():
        classification = solution.classifications[node_id]
        if classification.kind not in DECIDED_BY_LIST:
            continue
        for unit in units:
            if unit not in kinds:
                _, kinds[unit] = _find_changed_node(unit, solution) or (None, "authored")
        kinds_of_units = {kinds[unit] for unit in units}
        kind = kinds_of_units.pop() if len(kinds_of_units) == 1 else "authored"
        solution.classifications[node_id] = classification._replace(kind=kind, rule=units[0].rule)
        if units[0].rule == "norm" and kind == "authored":
            _note_squared(units[0], solution.graph.nodes[node_id], solution)


def _note_squared(unit: Unit, node: Node, solution: Solution) -> None:
    """Note that readers of a normalization's result follow the tensor that it squares (Rule S4.47)."""
    squared, output = unit.operator.inputs[0], node.outputs[0]
    is_result = node.op_type in ("Log", "Sqrt") or (node.op_type in ("Div", "Mul") and squared in node.inputs[:2])
    if is_result and node is not unit.operator and squared is not None and output is not None:
        solution.followed_instead[output.id] = squared


def _find_changed_node(unit: Unit, solution: Solution) -> tuple[Node, DecisionKind] | None:
    """Return the first node of a unit to which a node rule gives another type, and the kind of its unit's other nodes.

    None: no node rule moves the unit.
    """
    for node in unit.nodes:
        if solution.classifications[node.id].kind == "rule":
            kind = _find_kind(node, solution.node_rules.find_assignment(node), solution.low_type)
            if kind is not None:
                return node, kind
    return None


def _find_kind(node: Node, assignment: Assignment, low_type: int) -> DecisionKind | None:
    """Return the kind to which ``assignment`` moves a node of a unit; None if it leaves the node as authored."""
    assert node.signature is not None
    changed = [e for e, g in zip(assignment.elements, node.signature.groups, strict=True) if e != g.authored]
    if low_type in changed:
        return "low"
    return "raise" if dtypes.FLOAT in changed else None


def explain_unit(solution: Solution, node: Node, kept_type: str) -> str:
    """Return why a node of a unit has the type ``kept_type``."""
    unit, place = solution.units[node.id][0], _find_place_of_move(solution, node)
    first = f"{unit.operator.op_type} {display_name(unit.operator)}"
    if unit.rule == "norm":
        number, part = "S4.47", f"it belongs to the normalization that {first} begins"
        reason = "and its squares are infinite in float16 from 256 on"
    else:
        number, part = "S4.41", f"it is part of the quantized unit of {first}"
        part = "it is the operator of a quantized unit" if node is unit.operator else part
        ends = f"from {display_name(unit.first)} to {display_name(unit.nodes[-1])}"
        reason = f"{ends}, which an integer kernel can compute"
    if place is not None:
        return f"{part}, which customize_dtypes makes {kept_type} at another node ({place}; {number})"
    return f"{part}, {reason}: it stays {kept_type} ({number})"


def _find_place_of_move(solution: Solution, node: Node) -> FilePlace | None:
    """Return where the node rule stands that moves the unit of a node; None if none does."""
    if solution.classifications[node.id].kind == "authored":  # also if only another unit of the node moves
        return None
    changed = _find_changed_node(solution.units[node.id][0], solution)
    return solution.node_rules.find_rule(changed[0]).place if changed is not None else None


def find_unit_warnings(solution: Solution) -> Iterator[Diagnostic]:
    """Yield a warning if the policy does not protect units, and some of their nodes become low precision."""
    policy = solution.policy
    if "quantized" in policy.protect or policy.mode.action not in LOWERING_ACTIONS:
        return
    lowered = []
    for node_id, units in find_quantized_units(solution.graph).items():
        node, assignment = solution.graph.nodes[node_id], solution.assignments[node_id]
        # A DequantizeLinear alone does not count: a Cast of a low-precision scale would serve other readers too.
        if assignment is not None and _find_kind(node, assignment, solution.low_type) == "low":
            lowered += [unit for unit in units if unit.operator is node]
    if lowered:
        unit = lowered[0]
        low_name = dtypes.type_name(solution.low_type)
        is_one = len(lowered) == 1
        effect = f"is {low_name}" if is_one else f"and {len(lowered) - 1} more are {low_name}"
        yield Diagnostic(
            "ML510",
            "warning",
            f"{unit.operator.op_type} {node_ref(unit.operator)} {effect} between DequantizeLinear and "
            f"QuantizeLinear: no integer kernel computes {'it' if is_one else 'them'}",
            hint=f"{spell('protect', 'quantized')} keeps quantized units as authored",
        )
