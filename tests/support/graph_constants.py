"""Constants that a model computes: products, fills, ranges, joins and casts.

Values may be out of the range of the low types: these graphs serve the comparison of decisions, not of numbers.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper

from tests.support.graph_ops import NewValues
from tests.support.graph_scope import DOUBLE, FLOAT, INT64, Scope, Shape, Value

ORDINARY = (0.5, 2.0, -0.75)
LARGE = 2**20 + 8
FACTORS = (1000.0, 1e-5, 300.0, 1e-3, 1e6, 1e-9)


def plain(shape: Shape, *, constant: bool = False) -> Value:
    """The template of a float32 value; its bounds mean nothing, since no test depends on its magnitude."""
    return Value("", FLOAT, shape, 1.0, 0.0, constant)


def _random_constant(s: Scope, shape: tuple[int, ...]) -> Value:
    """A constant of equal elements, or with one different element; of ordinary, large or small magnitude."""
    value = s.gen.pick([*ORDINARY, *FACTORS])
    array = np.full(shape, value)
    if array.size > 1 and s.gen.chance(40):
        array[0] = s.gen.pick(ORDINARY)
    return s.constant(array)


def constant_expression(s: Scope, shape: tuple[int, ...], depth: int = 2) -> Value:
    """A constant of a shape, computed by up to a few nodes."""
    kinds = [_product, _fill, _move, _cast, _range, _join]
    if depth == 0 or s.gen.chance(25):
        return _random_constant(s, shape)
    constant = s.gen.pick(kinds)(s, shape, depth - 1)
    return constant if constant is not None else _random_constant(s, shape)


def _product(s: Scope, shape: tuple[int, ...], depth: int) -> Value | None:
    a = constant_expression(s, shape, depth)
    b = a if s.gen.chance(40) else constant_expression(s, s.gen.pick([shape, ()]), depth)
    return s.emit_one(s.gen.pick(["Mul", "Add", "Sub", "Div", "Pow"]), [a, b], plain(shape, constant=True))


def _fill(s: Scope, shape: tuple[int, ...], depth: int) -> Value | None:
    if s.gen.opset < 9:
        return None
    value = s.gen.pick([1e5, 0.5, 1e-9, 70000.0])
    tensor = helper.make_tensor("value", TensorProto.FLOAT, [1], [value])
    if s.gen.opset >= 10 and len(shape) == 1 and s.gen.chance(10):  # more elements than are evaluated
        large = s.emit_one(
            "ConstantOfShape", [s.constant([LARGE], INT64)], plain((LARGE,), constant=True), value=tensor
        )
        ends = [s.constant([k], INT64) for k in (0, shape[0])]
        return s.emit_one("Slice", [large, *ends], plain(shape, constant=True)) if large else None
    return s.emit_one("ConstantOfShape", [s.constant(shape, INT64)], plain(shape, constant=True), value=tensor)


def _move(s: Scope, shape: tuple[int, ...], depth: int) -> Value | None:
    """Reshape, Transpose, Identity, Expand, or a Slice that leaves out the first element."""
    x = constant_expression(s, shape, depth)
    out = plain(shape, constant=True)
    kind = s.gen.pick(["Identity", "Transpose", "Reshape", "Expand", "Slice"])
    if kind == "Reshape":
        return s.emit_one("Reshape", [x, s.constant(shape, INT64)], out)
    if kind == "Expand" and s.gen.opset >= 8:
        return s.emit_one("Expand", [x, s.constant(shape, INT64)], out)
    if kind == "Slice" and s.gen.opset >= 10 and len(shape) == 1:
        longer = constant_expression(s, (shape[0] + 1,), depth)
        return s.emit_one("Slice", [longer, s.constant([1], INT64), s.constant([shape[0] + 1], INT64)], out)
    return s.emit_one(kind if kind == "Transpose" else "Identity", [x], out)


def _cast(s: Scope, shape: tuple[int, ...], depth: int) -> Value | None:
    """A Cast from float64 or integers."""
    value = np.full(shape, s.gen.pick([1e6, 3.0, 70000.0]))
    return s.emit_one("Cast", [s.constant(value, s.gen.pick([DOUBLE, INT64]))], plain(shape, constant=True), to=FLOAT)


def _range(s: Scope, shape: tuple[int, ...], depth: int) -> Value | None:
    if s.gen.opset < 11 or len(shape) != 1:
        return None
    step = s.gen.pick([1e5, 1.0, 30000.0])
    ends = [s.constant(v) for v in (0.0, step * shape[0], step)]
    return s.emit_one("Range", ends, plain(shape, constant=True))


def _join(s: Scope, shape: tuple[int, ...], depth: int) -> Value | None:
    if len(shape) != 1 or shape[0] < 2:
        return None
    parts = [constant_expression(s, (k,), depth) for k in (1, shape[0] - 1)]
    return s.emit_one("Concat", parts, plain(shape, constant=True), axis=0)


def use_constant(s: Scope, constant: Value | None = None) -> NewValues:
    """An operator on a value and a computed constant, in either order."""
    values = s.floats()
    if not values:
        return None
    x = s.gen.pick(values)
    last = (int(x.shape[-1]),) if x.shape and isinstance(x.shape[-1], int) and x.shape[-1] > 0 else ()
    k = constant or constant_expression(s, s.gen.pick([(), last]))
    s.gen.features.add("computed constant")
    table = ["Add", "Mul", "Sub", "Pow", "Sum", "PRelu"] + (["Max", "Min"] if s.gen.opset >= 8 else [])
    op = s.gen.pick(table)
    operands = [k, x] if s.gen.chance(30) and op != "PRelu" else [x, k]
    return s.emit_one(op, operands, plain(x.shape))


def constant_state(s: Scope) -> NewValues:
    """A constant that a Loop starts with, or that an If or a Scan reads."""
    values = [v for v in s.floats() if v.shape == (4,)]
    if not values:
        return None
    k = constant_expression(s, (4,))
    s.add(Value(k.name, FLOAT, (4,), 1.0, 0.0))  # later operators may also read it as data
    s.gen.features.add("computed constant")
    return k
