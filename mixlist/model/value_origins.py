"""Decide whether the outputs of a node are constants, or are computed from shapes.

Rule S4.15: a *constant* is an initializer, the output of a Constant, or the output of a deterministic node that reads
only constants.
Rule S4.3: a value is *from a shape* if it is the output of Shape or Size, or computed from such values and constants.
Example: Shape -> Cast(to=FLOAT) -> Mul(2.0).
"""

from __future__ import annotations

from collections.abc import Iterable

from mixlist.model.graph import Node, Value, float_values
from mixlist.model.traits import Trait, operators

_RANDOM = operators(Trait.RANDOM)
_YIELDS_SHAPE = operators(Trait.YIELDS_SHAPE)


def is_random(node: Node) -> bool:
    """Return True if the outputs of the node can differ from run to run."""
    if node.op_type == "Dropout":
        return len(node.inputs) > 2  # only with training_mode, the third input since opset 12, is Dropout random
    return node.op_type in _RANDOM


def is_constant(node: Node) -> bool:
    """Return True if the node is deterministic and reads only constants (Rule S4.15)."""
    # A plain loop, because this runs for every node and is faster than all() with a generator.
    for value in node.inputs:
        if value is not None and not value.is_constant:
            return False
    return not is_random(node)


def is_from_shape(node: Node) -> bool:
    """Return True if the outputs of the node are computed from shapes (Rule S4.3).

    If the node has float inputs, only these decide: Gather(float_table, index) with an index from a shape returns
    numbers of the table, not of a shape.
    """
    if node.op_type in _YIELDS_SHAPE and node.domain == "":
        return True
    float_inputs = float_values(node.inputs)
    if not float_inputs and node.op_type != "Cast" and float_values(node.outputs):
        # ConstantOfShape or RandomNormal: the shape sets the size of the output, not its numbers.
        return False
    return come_from_shapes(float_inputs or node.inputs) and not is_random(node)


def come_from_shapes(values: Iterable[Value | None]) -> bool:
    """Return True if every value is constant or from a shape, and at least one of them is from a shape."""
    reads_shape = False
    for value in values:
        if value is None:
            continue
        if value.is_from_shape:
            reads_shape = True
        elif not value.is_constant:
            return False
    return reads_shape
