"""Find the constants of masks that can be reduced, and the nodes that must not compute masks in low precision.

Rule S4.36: ``Pow(-50, 3)`` makes the mask -125000 from two small constants. There is no large constant that could be
reduced. The nodes that compute such a mask, and those that compute its factors, stay as authored if they read or make a
constant that does not fit the low type.
"""

from __future__ import annotations

from mixlist.decide.factor_bounds import RangeOf
from mixlist.decide.graph_masks import MaskGroup
from mixlist.decide.proven_masks import SMALLEST_MASK
from mixlist.model import dtypes
from mixlist.model.graph import Node, Value
from mixlist.model.weights import embedded_array, is_external, stored_element_count

# A constant with more elements is not reduced, because the whole tensor is changed in memory.
MOST_REDUCED_ELEMENTS = 2**24


def is_reducible(value: Value) -> bool:
    """Return whether a constant is a float32 tensor of the model whose elements can be changed in memory."""
    tensor = value.constant_proto
    # A caller may replace an "overridable" initializer, which is also a graph input: its stored value is a default.
    if tensor is None or value.kind == "overridable" or value.type != dtypes.FLOAT:
        return False
    # The rewriter reduces an array of all elements, which a sparse tensor does not store.
    return stored_element_count(tensor) <= MOST_REDUCED_ELEMENTS and tensor.DESCRIPTOR.name != "SparseTensorProto"


def filled_mask_magnitude(node: Node) -> float | None:
    """Return the magnitude of the mask that a ConstantOfShape makes; None if it makes none."""
    # Without the attribute ``value``, a ConstantOfShape makes zeros. With it, the tensor has exactly one element.
    fill_values = [attribute.t for attribute in node.proto.attribute if attribute.name == "value"]
    if any(is_external(tensor) or stored_element_count(tensor) != 1 for tensor in fill_values):
        return None
    magnitude = abs(float(embedded_array(fill_values[0]).flat[0])) if fill_values else 0.0
    return magnitude if SMALLEST_MASK <= magnitude < float("inf") else None


def make_single_node_group(node: Node, range_of: RangeOf, low: int) -> MaskGroup | None:
    """Return the group of a single node, which computes a mask from other constants.

    Return None if all constants that the node reads or makes fit the low type.
    """
    for value in (*node.outputs, *node.inputs):
        if value is None or not value.is_constant or value.type not in dtypes.MIXABLE:
            continue
        constant_range = range_of(value)
        reason = constant_range.misfit_reason(low) if constant_range is not None else None
        if constant_range is not None and reason:
            return MaskGroup(
                exceeding_nodes=[node],
                reducible=False,
                magnitude=constant_range.max_abs,
                misfit=f"constant {value.name!r} {reason}, and a mask is computed from it",
            )
    return None


def computed_inputs(node: Node) -> list[Value]:
    """Return the inputs of a node that are computed constants."""
    return [value for value in node.inputs if value is not None and value.is_constant and value.constant_proto is None]
