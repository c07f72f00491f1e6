"""Find the quantized units of a graph: what a runtime fuses into one integer kernel (Rule S4.41).

A unit is one operator between DequantizeLinear and QuantizeLinear:

    DequantizeLinear -> Conv -> Relu -> QuantizeLinear

Runtimes fuse such nodes, so that int8 kernels compute them; ONNX Runtime's kernel for this example is QLinearConv. A
Cast between the nodes prevents it. Every node except the operator can belong to several units.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mixlist.model.graph import Graph, Node, Value, float_values, has_container
from mixlist.model.traits import Trait, operators

_MOVERS = operators(Trait.MOVES_VALUES)
# QuantizeLinear needs no Relu and no Clip before it, if its zero point cuts off the same values. So runtimes drop them.
_BEFORE_QUANTIZE = _MOVERS | {"Relu", "Clip"}
_QDQ_DOMAINS = ("", "com.microsoft")


@dataclass(frozen=True, eq=False)
class QuantizedUnit:
    """One quantized unit: its operator, and all its nodes in topological order.

    ``nodes`` has each DequantizeLinear that the operator reads, the value movers behind these, the operator, the Relus,
    Clips and value movers behind it, and each QuantizeLinear at the end.
    """

    operator: Node
    nodes: tuple[Node, ...]

    @property
    def first(self) -> Node:
        """Return the first DequantizeLinear whose result is no constant, such as a weight."""
        return next(
            node for node in self.nodes if not all(value is None or value.is_constant for value in node.outputs)
        )


UnitsByNode = dict[int, list[QuantizedUnit]]  # by the id of a node, the units that it belongs to


def find_quantized_units(graph: Graph) -> UnitsByNode:
    """Return the quantized units of a graph."""
    units_by_node: UnitsByNode = {}
    # Most models have no QuantizeLinear and need no walk.
    if not any(node.op_type == "QuantizeLinear" for node in graph.nodes):
        return units_by_node
    readers: dict[Value, list[Node]] = {}
    for node in graph.nodes:
        for value in node.inputs:
            if value is not None:
                readers.setdefault(value, []).append(node)
    for node in graph.nodes:
        if not _can_be_operator(node):
            continue
        before, behind = _find_nodes_before(node), _find_nodes_behind(node, readers)
        if before and behind:
            nodes = {member.id: member for member in (*before, node, *behind)}
            unit = QuantizedUnit(node, tuple(nodes[node_id] for node_id in sorted(nodes)))
            for node_id in nodes:
                units_by_node.setdefault(node_id, []).append(unit)
    return units_by_node


def _is_qdq(node: Node, op_type: str) -> bool:
    return node.op_type == op_type and node.domain in _QDQ_DOMAINS


def _can_be_operator(node: Node) -> bool:
    """Return whether the node is an operator on tensors, and no part of the quantization."""
    # A signature without a fixed output: no control flow, and no Cast.
    if node.signature is None or node.signature.has_fixed_output or has_container(node):
        return False
    return not (_is_qdq(node, "DequantizeLinear") or _is_qdq(node, "QuantizeLinear"))


def _find_nodes_before(operator: Node) -> list[Node]:
    """Return each DequantizeLinear that gives the operator its floats, and the value movers between; [] without a unit.

    A constant need not come from a DequantizeLinear: a bias often does not, and runtimes quantize it themselves.
    """
    before: list[Node] = []
    has_data = False
    for value in float_values(operator.inputs):
        nodes = _go_back_to_dequantize(value)
        if value.is_constant:
            before += nodes
        elif nodes:
            has_data = True
            before += nodes
        else:
            return []
    return before if has_data else []


def _go_back_to_dequantize(value: Value) -> list[Node]:
    """Return the DequantizeLinear that makes a value, and the value movers between; [] if another node makes it."""
    nodes: list[Node] = []
    while (node := value.producer) is not None:
        nodes.append(node)
        if _is_qdq(node, "DequantizeLinear"):
            return nodes
        moved = _find_only_data(node) if node.op_type in _MOVERS else None
        if moved is None:
            break
        value = moved
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
