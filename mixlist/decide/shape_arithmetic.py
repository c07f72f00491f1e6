"""Rule S4.3: shape arithmetic stays as authored.

In every mode, a node keeps its authored type if all of its float inputs come from shapes and constants, at least one of
them from a shape; a value comes from a shape if `Shape` or `Size` yields it and only Casts and deterministic operators
of such values and constants follow.

Example: Mul in ``Shape -> Cast(to=float) -> Mul``. A product of dimensions soon exceeds the largest float16, 65504.

``graph.value_origins`` finds the values that come from a shape.
"""

from __future__ import annotations

from mixlist.model import dtypes
from mixlist.model.graph import Node


def is_shape_arithmetic(node: Node) -> bool:
    """Return whether all float inputs come from shapes and constants, at least one of them from a shape."""
    has_shape = False
    for value in node.inputs:
        if value is None or dtypes.element(value.type) not in dtypes.FLOATS:
            continue
        if value.is_from_shape:
            has_shape = True
        elif not value.is_constant:
            return False
    return has_shape
