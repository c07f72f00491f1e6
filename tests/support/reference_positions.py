"""Find the nodes that compute positions.

Rule S4.38: the arithmetic that brings positions to Sin, Cos or the grid of GridSample, and these readers, stay as
authored with --protect positions.
"""

from __future__ import annotations

from collections.abc import Iterable

from onnx import TensorProto

from tests.support.reference_constants import MOVERS, Constants, is_deterministic
from tests.support.reference_flow import Flow
from tests.support.reference_model import LISTED, Node, Value

FLOATS = (*LISTED, TensorProto.DOUBLE)
ARITHMETIC = {"Cast", "Mul", "Add", "Sub", "Div", "MatMul", "Gemm", "Einsum", "Concat", "ScatterElements", "ScatterND"}
READERS = {"Sin": 0, "Cos": 0, "GridSample": 1}


class Positions:
    """Find the position arithmetic of one model; ``nodes`` holds it with its readers."""

    def __init__(self, nodes: list[Node], flow: Flow, constants: Constants) -> None:
        self.flow, self.constants = flow, constants
        self._fixed = self._find_fixed(nodes)
        self.positions: set[Value] = set()
        self._find(nodes)
        self.nodes: set[Node] = set()
        for node in nodes:
            slot = READERS.get(node.op, len(node.inputs)) if node.is_standard else len(node.inputs)
            value = node.inputs[slot] if slot < len(node.inputs) else None
            if value in self.positions:
                self.nodes.add(node)
                self._add_arithmetic(value, set())
        self.nodes |= {node for node in nodes if self._scales(node)}

    def _scales(self, node: Node) -> bool:
        """Return whether a node multiplies a sine or cosine of positions with a constant."""
        values = [v for v in node.inputs if v is not None and not self.constants.is_constant(v)]
        is_mul = node.op == "Mul" and node.is_standard and not node.bodies and len(values) == 1 < len(node.inputs)
        producer = values[0].producer if is_mul else None
        return producer is not None and producer.op in ("Sin", "Cos") and producer in self.nodes

    # -- fixed floats ---------------------------------------------------------------------------------
    def is_fixed(self, value: Value) -> bool:
        """Return whether the value is a constant, or made of constants, shapes and fixed floats alone."""
        return value in self._fixed or self.constants.is_constant(value)

    def _find_fixed(self, nodes: list[Node]) -> set[Value]:
        """Find the fixed floats: the greatest fixpoint, since the state of a loop may depend on itself."""
        fixed = {v for node in nodes for v in node.outputs if v is not None} | set(self.flow.sources)
        while varying := {v for v in fixed if not self._stays_fixed(v, fixed)}:
            fixed -= varying
        return fixed

    def _stays_fixed(self, value: Value, fixed: set[Value]) -> bool:
        """Return whether the value is fixed if these are."""
        if self.constants.is_constant(value):
            return True
        if value in self.flow.sources:
            sources = self.flow.sources[value]
        else:
            node = value.producer
            if node is None or node.bodies or not is_deterministic(node):
                return False
            sources = [v for v in node.inputs if v is not None]
        are_fixed = [v in fixed or self.constants.is_constant(v) or self.constants.is_from_shape(v) for v in sources]
        return bool(are_fixed) and all(are_fixed)

    # -- positions ------------------------------------------------------------------------------------
    def _find(self, nodes: list[Node]) -> None:
        """Find all positions: the least fixpoint."""
        before = -1
        while before != len(self.positions):
            before = len(self.positions)
            for node in nodes:
                outputs = [v for v in node.outputs if v is not None and v.elem in FLOATS]
                if node.is_standard and not node.bodies and outputs and self._makes_positions(node):
                    self.positions.update(outputs)
            for value, sources in self.flow.sources.items():
                if value.elem in FLOATS and self._are_positions(sources):
                    self.positions.add(value)

    def _makes_positions(self, node: Node) -> bool:
        values = [v for v in node.inputs if v is not None]
        floats = [v for v in values if v.elem in FLOATS]
        if node.op == "Range":
            return True
        if node.op == "Cast" and not floats:
            return values[0].elem not in (None, TensorProto.STRING)
        if node.op == "CumSum":
            return all(v in self.positions or self.is_fixed(v) for v in floats)
        return node.op in ARITHMETIC | MOVERS and self._are_positions(floats)

    def _are_positions(self, values: Iterable[Value]) -> bool:
        """Return whether one of the values is a position and all others are positions or fixed."""
        values = list(values)
        are_positions = [v in self.positions for v in values]
        return any(are_positions) and all(p or self.is_fixed(v) for v, p in zip(values, are_positions, strict=True))

    # -- position arithmetic --------------------------------------------------------------------------
    def _add_arithmetic(self, value: Value, seen: set[Value]) -> None:
        """Add the nodes that make a position or fixed float, back to the integers."""
        if value in seen or value.elem not in FLOATS:
            return
        seen.add(value)
        sources = self.flow.sources.get(value)
        if sources is None and value.producer is not None:
            self.nodes.add(value.producer)
            sources = [source for source in value.producer.inputs if source is not None]
        for source in sources or ():
            self._add_arithmetic(source, seen)
