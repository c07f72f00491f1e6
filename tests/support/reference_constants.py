"""Find values that are known before the run or come from shapes, and constants that the low type cannot hold.

Rule S4.15: a constant is an initializer, or is computed from constants. Rule S4.3: shape arithmetic. Rule S4.7: a
constant does not fit if a finite value of it becomes infinite, or if all of its nonzero values become zero.
Rule S4.20: computed constants are judged by their value.
"""

from __future__ import annotations

from collections.abc import Iterator

import ml_dtypes
import numpy as np
import onnx
from onnx import helper
from onnx.reference import ReferenceEvaluator

from mixlist.model.traits import Trait, operators
from tests.support.reference_model import BFLOAT16, FLOAT, FLOAT16, LISTED, Node, Scope, Value

LARGEST_EVALUATED = 2**20
MAKES_VALUES = {"BitCast", "Cast", "CastLike", "Constant", "ConstantOfShape", "EyeLike", "NonZero", "Range", "Shape"}
MOVERS = operators(Trait.NO_ARITHMETIC) - operators(Trait.CONTROL_FLOW) - MAKES_VALUES
FILLS_GAPS = {"Pad", "CenterCropPad", "Trilu"}
NUMPY = {FLOAT: np.float32, FLOAT16: np.float16, BFLOAT16: ml_dtypes.bfloat16}


class Constants:
    """The constants of one model, their values, and the values that come from shapes."""

    def __init__(self) -> None:
        self._constant: dict[Value, bool] = {}
        self._shape: dict[Value, bool] = {}
        self._array: dict[Value, np.ndarray | None] = {}

    # -- Rule S4.15 -----------------------------------------------------------------------------------
    def is_constant(self, value: Value) -> bool:
        """Return whether the value is known before the run."""
        if value not in self._constant:
            node = value.producer
            self._constant[value] = value.array is not None or (node is not None and self._yields_constants(node))
        return self._constant[value]

    def _yields_constants(self, node: Node) -> bool:
        return is_deterministic(node) and all(self.is_constant(v) for v in reads(node))

    # -- Rule S4.3 ------------------------------------------------------------------------------------
    def is_from_shape(self, value: Value) -> bool:
        """Return whether the value comes from a shape."""
        if value not in self._shape:
            node = value.producer
            self._shape[value] = node is not None and not self.is_constant(value) and self._yields_shapes(node)
        return self._shape[value]

    def _yields_shapes(self, node: Node) -> bool:
        if node.is_standard and node.op in ("Shape", "Size"):
            return True
        return is_deterministic(node) and self._all_from_shapes(list(reads(node)))

    def _all_from_shapes(self, values: list[Value]) -> bool:
        from_shapes = [self.is_from_shape(v) for v in values]
        return any(from_shapes) and all(s or self.is_constant(v) for v, s in zip(values, from_shapes, strict=True))

    def is_shape_arithmetic(self, node: Node) -> bool:
        """Return whether all float inputs of the node come from shapes and constants, one of them from a shape."""
        return self._all_from_shapes([v for v in node.inputs if v is not None and v.elem in LISTED])

    # -- Rules S4.7, S4.20 -----------------------------------------------------------------------
    def fits(self, value: Value, low: int) -> bool:
        """Return whether the low type can hold a constant; a value that is not known fits."""
        array = self._values(value)
        if array is None or array.dtype not in (np.float32, ml_dtypes.bfloat16) or not array.size:
            return True
        array = array.astype(np.float32)
        with np.errstate(all="ignore"):
            rounded = array.astype(NUMPY[low]).astype(np.float32)
        if (np.isfinite(array) & ~np.isfinite(rounded)).any():
            return False
        return not (array.any() and not rounded.any())

    def result_fits(self, node: Node, low: int) -> bool:
        """Return whether the low type can hold what a node makes of constants alone."""
        outputs = [v for v in node.outputs if v is not None]
        return all(self.fits(v, low) for v in outputs if self.is_constant(v))

    def _values(self, value: Value) -> np.ndarray | None:
        """Return the elements of a constant, in no order: of a mover all that it could move, and zeros for gaps."""
        node = value.producer
        if node is None or not node.is_standard or not self.is_constant(value):
            return self.array(value)
        if node.op in MOVERS:
            parts = [self._values(v) for v in node.inputs if v is not None and v.elem == value.elem]
            if not parts or any(part is None for part in parts):
                return None
            gaps = [np.zeros(1, parts[0].dtype)] if node.op in FILLS_GAPS and len(parts) < 2 else []
            return np.concatenate([part.ravel() for part in [*parts, *gaps] if part is not None])
        if node.op in ("ConstantOfShape", "Range"):
            return self._closed_form(node)
        return self.array(value)

    def _closed_form(self, node: Node) -> np.ndarray | None:
        """Return the first and the last value of a Range, or the one value of a ConstantOfShape."""
        inputs = [self.array(v) for v in node.inputs if v is not None]
        if any(array is None for array in inputs):
            return None
        if node.op == "ConstantOfShape":
            fill = node.attribute("value")
            size = int(np.prod(inputs[0])) if inputs[0] is not None else 0
            return (onnx.numpy_helper.to_array(fill.t) if fill else np.zeros(1, np.float32)) if size else np.zeros(0)
        start, limit, delta = (np.asarray(array).reshape(()) for array in inputs)
        count = int(np.ceil((limit - start) / delta))
        return np.array([start, start + (count - 1) * delta], start.dtype) if count > 0 else np.zeros(0)

    def array(self, value: Value) -> np.ndarray | None:
        """Return the elements of a constant; None where they are not known."""
        if value not in self._array:
            self._array[value] = self._evaluate(value)
        return self._array[value]

    def _evaluate(self, value: Value) -> np.ndarray | None:
        if value.array is not None:
            return value.array
        node = value.producer
        if node is None or not value.is_tensor or not self.is_constant(value) or node.bodies or node.schema() is None:
            return None
        inputs = [None if v is None else self.array(v) for v in node.inputs]
        if any(v is not None and array is None for v, array in zip(node.inputs, inputs, strict=True)):
            return None
        return run_node(node, inputs)[value.slot]


def is_deterministic(node: Node) -> bool:
    """Return whether the node, with its bodies, gives the same output for the same input."""
    if any(not is_deterministic(inner) for body in node.bodies.values() for inner in body.nodes):
        return False
    if node.op == "Dropout" and node.is_standard:
        return not may_train(node)
    return node.op not in operators(Trait.RANDOM)


def may_train(node: Node) -> bool:
    """Return whether a Dropout may drop values: its training mode is given and is not the constant false."""
    if node.scope.opsets.get("", 1) < 12 or len(node.inputs) < 3 or node.inputs[2] is None:
        return False
    flag = node.inputs[2]
    return flag.array is None or bool(flag.array) or flag.is_input


def reads(node: Node) -> Iterator[Value]:
    """Yield the inputs of a node, and what its bodies capture."""
    yield from (v for v in node.inputs if v is not None)
    for body in node.bodies.values():
        yield from captured(body)


def captured(body: Scope) -> Iterator[Value]:
    """Yield the outer values that a body reads."""
    nodes = list(body.walk())
    inner = {v for node in nodes for v in node.outputs if v is not None}
    inner |= {v for scope in {node.scope for node in nodes} | {body} for v in _values_without_producer(scope)}
    for value in [v for node in nodes for v in node.inputs if v is not None] + body.outputs:
        if value not in inner:
            yield value


def _values_without_producer(scope: Scope) -> list[Value]:
    return [v for v in scope.values.values() if v.producer is None]


def run_node(node: Node, inputs: list[np.ndarray | None]) -> list[np.ndarray | None]:
    """Return the outputs of one node by ONNX's reference evaluation; None for all where it cannot evaluate the node."""
    names = [f"i{i}" if array is not None else "" for i, array in enumerate(inputs)]
    proto = onnx.NodeProto()
    proto.CopyFrom(node.proto)
    del proto.input[:]
    proto.input.extend(names)
    feeds = {name: array for name, array in zip(names, inputs, strict=True) if array is not None}
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in feeds.items()
    ]
    outputs = [name for name in proto.output if name]
    graph = helper.make_graph([proto], "g", infos, [onnx.ValueInfoProto(name=name) for name in outputs])
    opsets = [helper.make_opsetid(domain, version) for domain, version in node.scope.opsets.items()]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    try:
        with np.errstate(all="ignore"):
            results = dict(zip(outputs, ReferenceEvaluator(model).run(None, feeds), strict=True))
    except Exception:  # what the reference evaluation does not implement is not known
        results = {}
    arrays = [results.get(name) for name in proto.output]
    return [
        np.asarray(array) if array is not None and np.asarray(array).size <= LARGEST_EVALUATED else None
        for array in arrays
    ]
