"""Find the quantized units of a model.

Rule S4.41: an operator whose floats come from DequantizeLinear and whose result reaches QuantizeLinear, with the nodes
between, stays as authored with --protect quantized.
"""

from __future__ import annotations

from onnx import TensorProto

from mixlist.model.traits import Trait, operators
from tests.support.reference_constants import Constants
from tests.support.reference_model import LISTED, Node, Value
from tests.support.reference_signature import groups, has_fixed_output
from tests.support.reference_types import slot_params

FLOATS = (*LISTED, TensorProto.DOUBLE)
MOVERS = operators(Trait.MOVES_VALUES) | {"MaxPool"}


def find_units(nodes: list[Node], constants: Constants) -> list[list[Node]]:
    """Return the nodes of each unit, in the order of the graph."""
    order = {node: index for index, node in enumerate(nodes)}
    units = []
    for node in nodes:
        if is_qdq(node, "Dequantize") or is_qdq(node, "Quantize") or not is_operator(node):
            continue
        read = floats([value for value, parameter, is_output, _ in slot_params(node) if is_open(parameter, is_output)])
        before = [path_to_dequantize(value, constants) for value in read]
        data = [path for path, value in zip(before, read, strict=True) if not constants.is_constant(value)]
        behind = paths_to_quantize(node, constants)
        if data and all(data) and behind:
            unit = {node, *(n for path in before for n in path), *behind}
            units.append(sorted(unit, key=order.__getitem__))
    return units


def is_open(parameter: str, is_output: bool) -> bool:
    """Return whether a slot is an input whose type the schema does not fix, as it fixes the ``scales`` of Resize."""
    return not is_output and "(" not in parameter


def floats(values: list[Value | None]) -> list[Value]:
    """Return the values that hold floats."""
    return [value for value in values if value is not None and value.elem in FLOATS]


def is_qdq(node: Node, name: str) -> bool:
    return node.op == f"{name}Linear" and node.proto.domain in ("", "ai.onnx", "com.microsoft")


def has_tensors_only(node: Node) -> bool:
    return all(value is None or value.is_tensor or value.elem is None for value in (*node.inputs, *node.outputs))


def is_operator(node: Node) -> bool:
    if node.bodies or has_fixed_output(node) or not has_tensors_only(node):
        return False
    return node.schema() is not None or bool(groups(node))


def only_data(node: Node, constants: Constants) -> Value | None:
    """Return the one float that a plain operator reads, constants aside; None if there are more."""
    if not node.is_standard or node.bodies or not has_tensors_only(node):
        return None
    values = floats(node.inputs)
    varying = [value for value in values if not constants.is_constant(value)] or values
    return varying[0] if len(varying) == 1 else None


def path_to_dequantize(value: Value, constants: Constants) -> list[Node]:
    """Return the nodes from a value that is read back to its DequantizeLinear; [] if it does not come from one."""
    node = value.producer
    if node is None:
        return []
    if is_qdq(node, "Dequantize"):
        return [node]
    moved = only_data(node, constants) if node.op in MOVERS else None
    path = path_to_dequantize(moved, constants) if moved is not None else []
    return [node, *path] if path else []


def paths_to_quantize(node: Node, constants: Constants) -> list[Node]:
    """Return the QuantizeLinear nodes that the node reaches, and the nodes between."""
    paths = quantizers(node)
    for reader, _ in readers_of(node):
        if reader.op in MOVERS | {"Relu", "Clip"} and only_data(reader, constants) is not None:
            path = paths_to_quantize(reader, constants)
            paths += [reader, *path] if path else []
    return paths


def quantizers(node: Node) -> list[Node]:
    return [reader for reader, slot in readers_of(node) if is_qdq(reader, "Quantize") and slot == 0]


def readers_of(node: Node) -> list[tuple[Node, int]]:
    """Return the readers of a node's floats, with the slots that read them."""
    return [use for value in floats(node.outputs) for use in value.readers]
