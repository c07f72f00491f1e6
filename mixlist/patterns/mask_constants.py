"""The constants of masks: whether they can be changed, and which nodes must not compute them in low precision.

Rule S4.36: A mask that is computed from constants which are no masks has no constant to reduce. The nodes that compute
it, and those that compute its factors, stay as authored if they read or make a constant that does not fit.
"""

from __future__ import annotations

from collections.abc import Iterable

from mixlist.graph.model import Node, Value
from mixlist.graph.weights import embedded_array, is_external, stored_element_count
from mixlist.ops import types
from mixlist.patterns.factor_bounds import RangeOf
from mixlist.patterns.mask_plan import MaskGroup
from mixlist.patterns.masks import SMALLEST_MASK

MOST_ELEMENTS = 2**24  # of a constant that is changed in memory


def is_reducible(value: Value) -> bool:
    """Return whether a constant is a float32 tensor of the model whose elements can be changed in memory."""
    tensor = value.constant_proto
    if tensor is None or value.kind == "overridable" or value.type != types.FLOAT:
        return False
    return stored_element_count(tensor) <= MOST_ELEMENTS and tensor.DESCRIPTOR.name != "SparseTensorProto"


def filled_mask(node: Node) -> float | None:
    """Return the magnitude of the mask that a ConstantOfShape makes; None if it makes none."""
    values = [attribute.t for attribute in node.proto.attribute if attribute.name == "value"]
    if any(is_external(value) or stored_element_count(value) != 1 for value in values):
        return None
    magnitude = abs(float(embedded_array(values[0]).flat[0])) if values else 0.0
    return magnitude if SMALLEST_MASK <= magnitude < float("inf") else None


def computing_group(node: Node, range_of: RangeOf, low: int) -> MaskGroup | None:
    """Return the group of a node that a mask is computed with; None if all constants at the node fit the low type."""
    for value in (*node.outputs, *node.inputs):
        if value is None or not value.is_constant or value.type not in types.MIXABLE:
            continue
        found = range_of(value)
        why = found.misfit_reason(low) if found is not None else None
        if found is not None and why:
            return MaskGroup(
                exceeding=[node],
                reducible=False,
                total=found.max_abs,
                misfit=f"constant {value.name!r} {why}, and a mask is computed from it",
            )
    return None


def computed_inputs(node: Node, slots: Iterable[int]) -> list[Value]:
    """Return those inputs of a node at some slots that are computed constants, or parameters that receive constants."""
    read = [node.inputs[slot] for slot in slots if slot < len(node.inputs)]
    return [value for value in read if value is not None and value.is_constant and value.constant_proto is None]
