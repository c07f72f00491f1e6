"""Decide whether a node's output is a constant, or computed from shapes.

Rule S4.15: a *constant* is an initializer, a Constant, or what a deterministic node makes of constants alone.
Rule S4.3: *shape arithmetic* is what comes from Shape and Size through Casts and arithmetic.
"""

from __future__ import annotations

from mixlist.graph.model import Node, float_values
from mixlist.ops.traits import Trait, operators

_RANDOM = operators(Trait.RANDOM)
_YIELDS_SHAPE = operators(Trait.YIELDS_SHAPE)


def is_random(node: Node) -> bool:
    """Return True if the node's output may differ from run to run; a Dropout counts only with a third input."""
    if node.op_type == "Dropout":
        return len(node.inputs) > 2
    return node.op_type in _RANDOM


def is_constant(node: Node) -> bool:
    """Return True if the node is deterministic and reads constants only."""
    for value in node.inputs:
        if value is not None and not value.is_constant:
            return False
    return not is_random(node)


def is_from_shape(node: Node) -> bool:
    """Return True if the node's output is computed from shapes.

    Only the float inputs decide, if there are any: a row that a shape picks from a float table is no shape.
    """
    if node.op_type in _YIELDS_SHAPE and node.domain == "":
        return True
    shaped = False
    floats = float_values(node.inputs)
    if not floats and node.op_type != "Cast" and float_values(node.outputs):
        return False  # ConstantOfShape, RandomNormal ...: made after a shape, not of it
    for value in floats or node.inputs:
        if value is None:
            continue
        if value.is_from_shape:
            shaped = True
        elif not value.is_constant:
            return False
    return shaped and not is_random(node)
