"""More operators of random graphs: data movement, booleans, shapes, the Casts of the user, sequences."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from tests.support.graph_ops import NewValues, broadcast, random_float, rounded, second_operand
from tests.support.graph_scope import BOOL, DOUBLE, FLOAT, FLOAT16, INT64, Scope, Shape, Value


def _with_shape(x: Value, shape: Shape) -> Value:
    return rounded(x.dtype, shape, x.bound, x.rounded_error)


def transpose(s: Scope) -> NewValues:
    x = random_float(s)
    if x is None:
        return None
    return s.emit_one("Transpose", [x], _with_shape(x, x.shape[::-1]))


def identity(s: Scope) -> NewValues:
    x = random_float(s)
    return s.emit_one("Identity", [x], _with_shape(x, x.shape)) if x else None


def dropout(s: Scope) -> NewValues:
    x = random_float(s)
    if x is None or x.dtype != FLOAT:
        return None
    mask = Value("", BOOL, x.shape, 0.0, 0.0)
    masked = s.gen.opset >= 12 and s.gen.chance(30)
    return s.emit("Dropout", [x], [_with_shape(x, x.shape), mask] if masked else [_with_shape(x, x.shape)])


def reshape(s: Scope) -> NewValues:
    fits = [v for v in s.floats() if len(v.shape) >= 2 and v.shape[0] == "N"]
    if not fits:
        return None
    x = s.gen.pick(fits)
    if not all(isinstance(d, int) for d in x.shape[1:]):
        return None
    size = int(np.prod(x.shape[1:], dtype=int))
    if size == 0:
        return None
    shape = s.gen.pick([(size,), (1, size), (1, size, 1)])
    return s.emit_one("Reshape", [x, s.constant([0, *shape], INT64)], _with_shape(x, ("N", *shape)))


def concat(s: Scope) -> NewValues:
    x = random_float(s)
    if x is None or not x.shape or not isinstance(x.shape[-1], int) or x.shape[-1] > 8:
        return None
    fits = [v for v in s.floats(x.dtype) if v.shape[:-1] == x.shape[:-1] and v.shape and isinstance(v.shape[-1], int)]
    y = s.gen.pick(fits)
    if s.gen.chance(15) and all(isinstance(d, int) for d in x.shape):
        y = s.constant(np.zeros((*x.shape[:-1], 0)), x.dtype)
        s.gen.features.add("zero-size")
    shape = (*x.shape[:-1], int(x.shape[-1]) + int(y.shape[-1]))
    bound, error = max(x.bound, y.bound), max(x.rounded_error, y.rounded_error)
    return s.emit_one("Concat", [x, y], rounded(x.dtype, shape, bound, error), axis=len(x.shape) - 1)


def split(s: Scope) -> NewValues:
    x = random_float(s)
    if x is None or x.dtype != FLOAT or not x.shape or not isinstance(x.shape[-1], int) or x.shape[-1] < 2:
        return None
    sizes = [1, int(x.shape[-1]) - 1]
    outs: list[Value | None] = [_with_shape(x, (*x.shape[:-1], k)) for k in sizes]
    axis = len(x.shape) - 1
    if s.gen.opset >= 13:
        return s.emit("Split", [x, s.constant(sizes, INT64)], outs, axis=axis)
    return s.emit("Split", [x], outs, axis=axis, split=sizes)


def slice_or_gather(s: Scope) -> NewValues:
    fits = [v for v in s.floats() if v.shape and isinstance(v.shape[-1], int) and v.shape[-1] >= 2]
    if not fits:
        return None
    x = s.gen.pick(fits)
    axis = len(x.shape) - 1
    if s.gen.chance(50):
        return s.emit_one("Gather", [x, s.constant([1, 0], INT64)], _with_shape(x, (*x.shape[:-1], 2)), axis=axis)
    out = _with_shape(x, (*x.shape[:-1], 1))
    if s.gen.opset < 10:
        return s.emit_one("Slice", [x], out, starts=[0], ends=[1], axes=[axis])
    return s.emit_one("Slice", [x, *(s.constant([k], INT64) for k in (0, 1, axis))], out)


def where(s: Scope) -> NewValues:
    conditions = [v for v in s.visible() if v.dtype == BOOL and v.is_tensor and not v.constant]
    x = random_float(s)
    y = second_operand(s, x) if x else None
    if x is None or y is None or x.dtype != FLOAT:
        return None
    fits = [c for c in conditions if broadcast(broadcast(x.shape, y.shape) or (), c.shape) is not None]
    if not fits:
        return None
    c = s.gen.pick(fits)
    shape = broadcast(broadcast(x.shape, y.shape) or (), c.shape) or ()
    return s.emit_one(
        "Where", [c, x, y], rounded(FLOAT, shape, max(x.bound, y.bound), max(x.rounded_error, y.rounded_error))
    )


def pad(s: Scope) -> NewValues:
    x = random_float(s)
    if x is None or x.dtype != FLOAT or len(x.shape) != 2 or not isinstance(x.shape[1], int) or x.shape[1] > 8:
        return None
    out = rounded(FLOAT, (x.shape[0], x.shape[1] + 1), max(x.bound, 1.0), x.rounded_error)
    if s.gen.opset < 11:
        return s.emit_one("Pad", [x], out, pads=[0, 1, 0, 0], value=0.5)
    return s.emit_one("Pad", [x, s.constant([0, 1, 0, 0], INT64), s.constant(0.5)], out)


# -- booleans, integers, shapes -------------------------------------------------------------------
def compare(s: Scope) -> NewValues:
    """A comparison with a threshold outside the bounds of the value: no rounding changes the result."""
    x = random_float(s)
    if x is None or x.dtype != FLOAT:
        return None
    threshold = s.constant(float(2 ** np.ceil(np.log2(x.bound + 1)) * 2) * s.gen.pick([1, -1]))
    return s.emit_one(s.gen.pick(["Greater", "Less"]), [x, threshold], Value("", BOOL, x.shape, 0.0, 0.0))


def shape_arithmetic(s: Scope) -> NewValues:
    """A dimension through float arithmetic that would overflow float16, then used to slice or fill."""
    fits = [v for v in s.floats() if len(v.shape) >= 2]
    if not fits or s.gen.opset < 10:
        return None
    x = s.gen.pick(fits)
    s.gen.features.add("shape arithmetic")
    rank = len(x.shape)
    exact = {"bound": 0.0, "error": 0.0, "constant": True}  # as constants: other operators do not read them
    shape = s.emit_one("Shape", [x], Value("", INT64, (rank,), **exact))
    size = s.emit_one("Slice", [shape, s.constant([0], INT64), s.constant([1], INT64)], Value("", INT64, (1,), **exact))
    real = s.emit_one("Cast", [size], Value("", FLOAT, (1,), **exact), to=TensorProto.FLOAT)
    large = s.emit_one("Mul", [real, s.constant([100000.0])], Value("", FLOAT, (1,), **exact))
    back = s.emit_one("Div", [large, s.constant([100000.0])], Value("", FLOAT, (1,), **exact))
    count = s.emit_one("Cast", [back], Value("", INT64, (1,), **exact), to=INT64)
    if s.gen.chance(40):
        return s.emit_one("ConstantOfShape", [count], rounded(FLOAT, (x.shape[0],), 0.0, 0.0, constant=True))
    return s.emit_one("Slice", [x, s.constant([0], INT64), count, s.constant([0], INT64)], _with_shape(x, x.shape))


# -- the Casts of the user ------------------------------------------------------------------------
def cast_pair(s: Scope) -> NewValues:
    """A Cast into an island, or out of one, or a rounding pair float32 -> low -> float32."""
    s.gen.features.add("user cast")
    kind = s.gen.pick(["round", "island", "leave", "integer"])
    if kind == "leave":
        inside = [v for v in s.floats(DOUBLE) + s.floats(FLOAT16) if v.name not in s.gen.widened]
        if inside:
            x = s.gen.pick(inside)
            return s.emit_one("Cast", [x], rounded(FLOAT, x.shape, x.bound, x.rounded_error), to=TensorProto.FLOAT)
    if kind == "integer":
        x = next((v for v in s.visible() if v.dtype in (BOOL, INT64) and v.is_tensor and not v.constant), None)
        if x is not None and x.dtype == BOOL:
            return s.emit_one("Cast", [x], rounded(FLOAT, x.shape, 1.0, 0.0), to=TensorProto.FLOAT)
    values = s.floats()
    if not values:
        return None
    x = s.gen.pick(values)
    target = s.gen.pick([FLOAT16, DOUBLE])
    inner = s.emit_one("Cast", [x], rounded(target, x.shape, x.bound, x.rounded_error), to=target)
    if inner is None or kind == "island":
        s.gen.widened.update([inner.name] if inner and target == DOUBLE else [])
        return inner
    if target == DOUBLE:
        s.gen.widened.add(inner.name)  # ONNX Runtime folds float -> double -> float wrongly where it is captured
        inner = s.emit_one("Neg", [inner], rounded(DOUBLE, x.shape, x.bound, inner.rounded_error))
        if inner is None:
            return None
    return s.emit_one("Cast", [inner], rounded(FLOAT, x.shape, inner.bound, inner.rounded_error), to=TensorProto.FLOAT)


def idle_cast(s: Scope) -> NewValues:
    """A Cast from float32 to float32. ONNX Runtime 1.32.0 loses one that a body captures."""
    return _cast_of_float(s, FLOAT)


def cast_again(s: Scope) -> NewValues:
    """A low Cast of a float32 value with other uses: the one that mixlist can reuse."""
    return _cast_of_float(s, FLOAT16)


def _cast_of_float(s: Scope, target: int) -> NewValues:
    values = s.floats()
    if not values:
        return None
    s.gen.features.add("user cast")
    x = s.gen.pick(values)
    return s.emit_one("Cast", [x], rounded(target, x.shape, x.bound, x.rounded_error), to=target)


# -- sequences ------------------------------------------------------------------------------------
def sequence(s: Scope) -> NewValues:
    x = random_float(s)
    if x is None or x.dtype != FLOAT or not x.shape or s.outer:
        return None
    y = s.gen.pick([v for v in s.floats() if v.shape == x.shape])
    bound, error = max(x.bound, y.bound), max(x.rounded_error, y.rounded_error)
    s.gen.features.add("sequence")
    template = Value("", FLOAT, x.shape, bound, error, sequence=True)
    if s.gen.chance(30):
        empty = s.emit_one("SequenceEmpty", [], template, dtype=TensorProto.FLOAT)
        first = s.emit_one("SequenceInsert", [empty, x], template)
        seq = s.emit_one("SequenceInsert", [first, y], template) if first else None
    else:
        seq = s.emit_one("SequenceConstruct", [x, y], template)
    if seq is None:
        return None
    return s.emit_one(
        "SequenceAt", [seq, s.constant(s.gen.integer(0, 1), INT64)], rounded(FLOAT, x.shape, bound, error)
    )
