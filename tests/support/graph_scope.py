"""Build random graphs: the values with their bounds, and the scope that collects nodes.

Every value carries a bound on its magnitude, and a bound on the error of computing it, or any of its
producers, in low precision. Both stay small by construction, so that float16 never overflows and a
comparison with the original model has a small tolerance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

if TYPE_CHECKING:
    from tests.support.graphs import Generator

FLOAT, FLOAT16, BFLOAT16, DOUBLE, INT64, INT8, BOOL = (
    TensorProto.FLOAT,
    TensorProto.FLOAT16,
    TensorProto.BFLOAT16,
    TensorProto.DOUBLE,
    TensorProto.INT64,
    TensorProto.INT8,
    TensorProto.BOOL,
)
MAX_BOUND = 8.0
MAX_ERROR = 60.0
STATE_BOUND, STATE_ERROR = (
    2.0,
    20.0,
)  # the limits of a loop state, so that they hold by induction
NUMPY = {
    FLOAT: np.float32,
    FLOAT16: np.float16,
    BFLOAT16: ml_dtypes.bfloat16,
    DOUBLE: np.float64,
    INT64: np.int64,
    INT8: np.int8,
    BOOL: np.bool_,
}

Dim = int | str
Shape = tuple[Dim, ...]


@dataclass(frozen=True)
class Value:
    """A value of the graph that is built.

    ``bound`` is its largest possible magnitude. ``error`` is the largest difference between its exact
    value and one computed with any mix of precisions, in units of the low type's epsilon.
    """

    name: str
    dtype: int
    shape: Shape
    bound: float = 1.0
    error: float = 0.0
    constant: bool = False
    sequence: bool = False
    optional: bool = False

    @property
    def is_tensor(self) -> bool:
        """Return whether the value is no sequence and no optional."""
        return not self.sequence and not self.optional

    @property
    def rounded_error(self) -> float:
        """The error after the value has been rounded to low precision once more."""
        return self.error + self.bound

    def type_proto(self) -> onnx.TypeProto:
        """The value's ONNX type."""
        type_proto = helper.make_tensor_type_proto(self.dtype, self.shape)
        if self.sequence:
            type_proto = helper.make_sequence_type_proto(type_proto)
        return helper.make_optional_type_proto(type_proto) if self.optional else type_proto


def value_info(value: Value) -> onnx.ValueInfoProto:
    """The ValueInfoProto of a graph input or output."""
    return helper.make_value_info(value.name, value.type_proto())


class Scope:
    """One graph or subgraph while it is built."""

    def __init__(self, gen: Generator, outer: Scope | None = None, *, names: str = "") -> None:
        self.gen = gen
        self.outer = outer
        self.names = names  # prefix of the names that this scope makes, so that two branches can use the same names
        self.hidden: set[str] = set()  # outer names that an input of this scope shadows
        self.inputs: list[Value] = []
        self.values: list[Value] = []
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[TensorProto] = []
        self.depth: int = outer.depth + 1 if outer else 0
        self.used: set[str] = set()

    # -- values -----------------------------------------------------------------------------------
    def visible(self) -> list[Value]:
        """Every value that a node of this scope may read."""
        outer = [v for v in self.outer.visible() if v.name not in self.hidden] if self.outer else []
        return outer + self.values

    def floats(self, dtype: int = FLOAT, *, bound: float = MAX_BOUND, error: float = MAX_ERROR) -> list[Value]:
        """Visible tensors of a float type that are not constants, the newest first."""
        return [
            v
            for v in reversed(self.visible())
            if v.dtype == dtype and not v.constant and v.is_tensor and v.bound <= bound and v.error <= error
        ]

    def add(self, value: Value) -> Value:
        """Make a value visible in this scope."""
        self.values.append(value)
        return value

    # -- nodes ------------------------------------------------------------------------------------
    def emit(
        self, op: str, inputs: Sequence[Value | None], outputs: Sequence[Value | None], domain: str = "", **attrs: Any
    ) -> list[Value] | None:
        """Append a node; None (and no node) where a result would leave the bounds.

        ``outputs`` are templates without names: the values get new names. None is an output left out.
        """
        if any(v and v.dtype != INT64 and (v.bound > MAX_BOUND or v.error > MAX_ERROR) for v in outputs):
            return None
        named = [replace(v, name=self.gen.new_name(self, op)) if v else None for v in outputs]
        node = helper.make_node(
            op, [v.name if v else "" for v in inputs], [v.name if v else "" for v in named], domain=domain
        )
        node.name = self.gen.node_name(self, op)
        for key, value in attrs.items():
            node.attribute.append(attribute(key, value))
        self.nodes.append(node)
        self._note_uses(inputs)
        return [self.add(v) for v in named if v]

    def emit_one(self, op: str, inputs: Sequence[Value | None], out: Value, **attrs: Any) -> Value | None:
        """``emit`` for a node with a single output."""
        values = self.emit(op, inputs, [out], **attrs)
        return values[0] if values else None

    def _note_uses(self, inputs: Sequence[Value | None]) -> None:
        mine = {v.name for v in self.values}
        for v in inputs:
            if v is None:
                continue
            if v.name not in mine:
                self.gen.features.add("capture")
            if v.constant and v.dtype == FLOAT and v.name in self.gen.used_constants:
                self.gen.features.add("shared constant")
            if v.constant:
                self.gen.used_constants.add(v.name)

    # -- constants --------------------------------------------------------------------------------
    def constant(self, array: Any, dtype: int = FLOAT) -> Value:
        """A constant as an initializer or a Constant node, often one that the graph has already."""
        array = np.asarray(array, dtype=NUMPY[dtype])
        key = (dtype, array.shape, array.tobytes())
        for v in self.visible():
            if self.gen.constant_keys.get(v.name) == key and self.gen.chance(70):
                return v
        return self._new_constant(array, dtype, key)

    def _new_constant(self, array: np.ndarray, dtype: int, key: tuple[Any, ...]) -> Value:
        gen = self.gen
        finite = array[np.isfinite(array)] if dtype in (FLOAT, FLOAT16, DOUBLE) else array
        bound = float(np.abs(finite).max()) if finite.size and dtype != BOOL else 0.0
        scope = self
        fits_constant_node = gen.opset >= 9 or dtype in (FLOAT, FLOAT16, DOUBLE)  # before opset 9 a Constant is a float
        if self.outer and (not fits_constant_node or gen.chance(30)):
            scope = self._outermost()
        value = Value(gen.new_name(scope, "const"), dtype, array.shape, bound, 0.0, constant=True)
        gen.constant_keys[value.name] = key
        if (scope.outer and gen.ir < 4) or (fits_constant_node and gen.chance(30)):
            scope.nodes.append(self._constant_node(scope, value, array))
        else:
            scope.initializers.append(numpy_helper.from_array(array, value.name))
            if scope.outer is None and (gen.ir < 4 or (dtype == FLOAT and gen.chance(10))):
                gen.overridable.append(value)
                gen.features.add("overridable initializer")
        return scope.add(value)

    def _outermost(self) -> Scope:
        """The main graph. A Constant node added to it now comes before the node that holds this scope."""
        scope: Scope = self
        while scope.outer:
            scope = scope.outer
        return scope

    def _constant_node(self, scope: Scope, value: Value, array: np.ndarray) -> onnx.NodeProto:
        node = helper.make_node("Constant", [], [value.name])
        node.name = self.gen.node_name(scope, "Constant")
        short = self.gen.opset >= 12 and value.dtype == FLOAT and array.ndim <= 1 and array.size and self.gen.chance(50)
        if short and array.ndim == 0:
            node.attribute.append(helper.make_attribute("value_float", float(array)))
        elif short:
            node.attribute.append(helper.make_attribute("value_floats", [float(x) for x in array]))
        else:
            node.attribute.append(helper.make_attribute("value", numpy_helper.from_array(array)))
        return node

    # -- finishing --------------------------------------------------------------------------------
    def graph(self, name: str, outputs: Sequence[Value]) -> onnx.GraphProto:
        """The finished graph."""
        inputs = [value_info(v) for v in self.inputs]
        return helper.make_graph(self.nodes, name, inputs, [value_info(v) for v in outputs], self.initializers)


def attribute(name: str, value: Any) -> onnx.AttributeProto:
    """An attribute from a Python value, a graph or a tensor."""
    return helper.make_attribute(name, value)
