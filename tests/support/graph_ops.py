"""The operators of random graphs: each function appends one (or a small pattern) to a scope, or declines.

A function returns the new values, or None if the scope holds no suitable input or a result
would leave the bounds of graph_scope. Bounds and errors follow from the operator's own calculus:
``rounded_error`` is the error of an input after one more rounding, and every result is rounded again.
"""

from __future__ import annotations

import numpy as np

from tests.support.graph_scope import BFLOAT16, DOUBLE, FLOAT, FLOAT16, INT64, Scope, Shape, Value

NewValues = list[Value] | Value | None


def rounded(dtype: int, shape: Shape, bound: float, error: float, constant: bool = False) -> Value:
    return Value("", dtype, shape, bound, error + bound, constant)


def random_dtype(s: Scope) -> int:
    """Return mostly float32, now and then another float type of which the scope has a value."""
    present = [d for d in (DOUBLE, FLOAT16, BFLOAT16) if s.floats(d)]
    return s.gen.pick(present) if present and s.gen.chance(25) else FLOAT


def random_float(s: Scope, **limits: float) -> Value | None:
    values = s.floats(random_dtype(s), **limits)
    newest = 3 if s.gen.chance(60) else len(values)  # often only the newest values: graphs become deep, not wide
    return s.gen.pick(values[:newest]) if values else None


def float_of_rank(s: Scope, rank: int) -> Value | None:
    values = [v for v in s.floats() if len(v.shape) == rank]
    return s.gen.pick(values) if values else None


def broadcast(a: Shape, b: Shape) -> Shape | None:
    """The broadcast shape, None where it does not exist or is not known."""
    width = max(len(a), len(b))
    padded_a, padded_b = (1,) * (width - len(a)) + a, (1,) * (width - len(b)) + b
    result = []
    for x, y in zip(padded_a, padded_b, strict=True):
        if x != y and x != 1 and y != 1:
            return None
        result.append(y if x == 1 else x)
    return tuple(result)


def random_array(s: Scope, shape: tuple[int, ...], bound: float = 1.0) -> np.ndarray:
    """Few distinct values, so that constants are shared and shrunk models are readable."""
    size = int(np.prod(shape, dtype=int))
    start = s.gen.integer(0, 3)
    return (np.resize(np.array([0.5, -0.75, 1.0, 0.25]), size + start)[start:] * bound).reshape(shape)


# -- one input, one output, the same shape --------------------------------------------------------
def unary(s: Scope) -> NewValues:
    x = random_float(s)
    if x is None:
        return None
    b, e = x.bound, x.rounded_error
    table = [("Relu", b, e), ("Tanh", 1.0, e + 4), ("Neg", b, e), ("Abs", b, e), ("Sigmoid", 1.0, e + 4)]
    if x.dtype == FLOAT:
        table += [("Softplus", b + 1, e + 4 * b), ("Sin", 1.0, e + 4) if b <= 2 else ("Identity", b, e)]
        table += [("Erf", 1.0, 1.2 * e + 4)] if s.gen.opset >= 9 else []
        table += [("HardSwish", b, 2 * e + 4 * b)] if s.gen.opset >= 14 else []
    else:
        table = table[:4]
    op, bound, error = s.gen.pick(table)
    return s.emit_one(op, [x], rounded(x.dtype, x.shape, bound, error))


def exponential(s: Scope) -> NewValues:
    x = random_float(s, bound=1.5)
    if x is None or x.dtype != FLOAT:
        return None
    bound = float(np.exp(x.bound))
    return s.emit_one("Exp", [x], rounded(x.dtype, x.shape, bound, bound * x.rounded_error))


def leaky(s: Scope) -> NewValues:
    """LeakyRelu or Elu."""
    x = random_float(s)
    if x is None or x.dtype != FLOAT:
        return None
    return s.emit_one(
        s.gen.pick(["LeakyRelu", "Elu"]),
        [x],
        rounded(x.dtype, x.shape, x.bound, x.rounded_error + x.bound),
        alpha=s.gen.pick([0.25, 0.5]),
    )


def clip(s: Scope) -> NewValues:
    x = random_float(s)
    if x is None or x.dtype != FLOAT:
        return None
    out = rounded(FLOAT, x.shape, min(x.bound, 2.0), x.rounded_error)
    if s.gen.opset < 11:
        return s.emit_one("Clip", [x], out, min=-2.0, max=2.0)
    low, high = s.constant(-2.0), s.constant(2.0)
    if s.gen.chance(30):
        return s.emit_one("Clip", [x, None, high], rounded(FLOAT, x.shape, max(x.bound, 2.0), x.rounded_error))
    return s.emit_one("Clip", [x, low, high], out)


# -- arithmetic -----------------------------------------------------------------------------------
def second_operand(s: Scope, x: Value) -> Value | None:
    """A second operand: another value that broadcasts, or a constant."""
    if s.gen.chance(45):
        fits = [v for v in s.floats(x.dtype) if broadcast(x.shape, v.shape) is not None]
        return s.gen.pick(fits) if fits else None
    last = x.shape[-1:] if x.shape and isinstance(x.shape[-1], int) else ()
    shape = s.gen.pick([(), last])
    return s.constant(random_array(s, shape), x.dtype)  # type: ignore[arg-type]


def binary(s: Scope) -> NewValues:
    x = random_float(s)
    y = second_operand(s, x) if x else None
    if x is None or y is None:
        return None
    shape = broadcast(x.shape, y.shape)
    assert shape is not None
    if y.constant and s.gen.chance(30):
        x, y = y, x  # the weight first: Add(weight, low)
    total, product = x.bound + y.bound, x.bound * y.bound
    table = [
        ("Add", total, x.rounded_error + y.rounded_error),
        ("Mul", product, x.rounded_error * y.bound + y.rounded_error * x.bound),
        ("Sub", total, x.rounded_error + y.rounded_error),
        ("Max", max(x.bound, y.bound), max(x.rounded_error, y.rounded_error)),
        ("Min", max(x.bound, y.bound), max(x.rounded_error, y.rounded_error)),
    ]
    op, bound, error = s.gen.pick(table if x.dtype == FLOAT and s.gen.opset >= 8 else table[:3])
    return s.emit_one(op, [x, y], rounded(x.dtype, shape, bound, error))


def divide(s: Scope) -> NewValues:
    """x / (|y| + 1): a divisor that stays away from zero."""
    x, y = random_float(s, bound=4), random_float(s, bound=4)
    if x is None or y is None or x.dtype != FLOAT or y.dtype != FLOAT or broadcast(x.shape, y.shape) is None:
        return None
    positive = s.emit_one("Abs", [y], rounded(FLOAT, y.shape, y.bound, y.rounded_error))
    ones = s.constant(1.0)
    divisor = (
        s.emit_one("Add", [positive, ones], rounded(FLOAT, y.shape, y.bound + 1, y.rounded_error + 1))
        if positive
        else None
    )
    if divisor is None:
        return None
    shape = broadcast(x.shape, y.shape) or ()
    return s.emit_one(
        "Div", [x, divisor], rounded(FLOAT, shape, x.bound, x.rounded_error + x.bound * divisor.rounded_error)
    )


def scale(s: Scope) -> NewValues:
    """A contraction: keeps bounds from growing until every operator declines."""
    x = random_float(s)
    if x is None:
        return None
    half = s.constant(0.5, x.dtype)
    return s.emit_one("Mul", [x, half], rounded(x.dtype, x.shape, x.bound / 2, x.rounded_error / 2))


def variadic(s: Scope) -> NewValues:
    x = random_float(s)
    if x is None or x.dtype != FLOAT:
        return None
    same = [v for v in s.floats() if v.shape == x.shape]
    operands = [x] + [s.gen.pick(same) for _ in range(s.gen.integer(1, 2))]
    total = sum(v.bound for v in operands)
    error = sum(v.rounded_error for v in operands) + total
    if s.gen.chance(50):
        return s.emit_one("Sum", operands, rounded(FLOAT, x.shape, total, error))
    return s.emit_one("Mean", operands, rounded(FLOAT, x.shape, max(v.bound for v in operands), error))


def harmless_extreme(s: Scope) -> NewValues:
    """A constant that float16 cannot hold, where neither inf nor zero changes the result."""
    x = random_float(s)
    if x is None or x.dtype != FLOAT:
        return None
    s.gen.features.add("extreme constant")
    out = rounded(FLOAT, x.shape, x.bound, x.rounded_error)
    if s.gen.chance(50):
        return s.emit_one("Min", [x, s.constant(1e6)], out)
    return s.emit_one("Add", [x, s.constant(1e-9)], out)


# -- contractions and reductions ------------------------------------------------------------------
def matmul(s: Scope) -> NewValues:
    fits = [v for v in s.floats() if len(v.shape) >= 2 and v.shape[-1] == 4]
    if not fits:
        return None
    x = s.gen.pick(fits)
    w = s.constant(random_array(s, (4, 4), 0.25))
    out = rounded(FLOAT, (*x.shape[:-1], 4), x.bound, x.rounded_error + 8 * x.bound)
    if len(x.shape) == 2 and s.gen.chance(40):
        bias = s.constant(random_array(s, (4,)))
        out = rounded(FLOAT, out.shape, x.bound + 1, x.rounded_error + 9 * x.bound + 2)
        return s.emit_one("Gemm", [x, w, bias], out, transB=s.gen.integer(0, 1))
    return s.emit_one("MatMul", [x, w], out)


def reduce(s: Scope) -> NewValues:
    fits = [v for v in s.floats() if v.shape and isinstance(v.shape[-1], int) and v.shape[-1] > 0]
    if not fits:
        return None
    x = s.gen.pick(fits)
    op = s.gen.pick(["ReduceMean", "ReduceMax", "ReduceSum"])
    factor = int(x.shape[-1]) if op == "ReduceSum" else 1
    keep = s.gen.integer(0, 1)
    shape = (*x.shape[:-1], 1) if keep else x.shape[:-1]
    out = rounded(FLOAT, shape, x.bound * factor, (x.rounded_error + 4 * x.bound) * factor)
    if s.gen.opset >= (13 if op == "ReduceSum" else 18):
        return s.emit_one(op, [x, s.constant([-1], INT64)], out, keepdims=keep)
    return s.emit_one(op, [x], out, axes=[len(x.shape) - 1], keepdims=keep)


def softmax(s: Scope) -> NewValues:
    fits = [v for v in s.floats(bound=4) if v.shape and isinstance(v.shape[-1], int) and v.shape[-1] > 0]
    if not fits:
        return None
    x = s.gen.pick(fits)
    return s.emit_one("Softmax", [x], rounded(FLOAT, x.shape, 1.0, 2 * x.rounded_error + 8), axis=len(x.shape) - 1)


def layer_norm(s: Scope) -> NewValues:
    """Epsilon 1 keeps the amplification of a flat input within 1."""
    fits = [v for v in s.floats(bound=4) if len(v.shape) >= 2 and v.shape[-1] == 4]
    if not fits:
        return None
    x = s.gen.pick(fits)
    gamma, beta = s.constant(random_array(s, (4,))), s.constant(random_array(s, (4,)))
    out = rounded(FLOAT, x.shape, 2.8, 3 * x.rounded_error + 16)
    # Mean and InvStdDev are left out: onnx.reference gives them the type of the input, ONNX says float32.
    return s.emit_one("LayerNormalization", [x, gamma, beta], out, epsilon=1.0)


def unsqueeze(s: Scope, x: Value, axes: list[int]) -> NewValues:
    shape = list(x.shape)
    for axis in axes:
        shape.insert(axis, 1)
    out = rounded(x.dtype, tuple(shape), x.bound, x.rounded_error)
    if s.gen.opset >= 13:
        return s.emit_one("Unsqueeze", [x, s.constant(axes, INT64)], out)
    return s.emit_one("Unsqueeze", [x], out, axes=axes)


def convolution(s: Scope) -> NewValues:
    """Conv, pooling, batch normalization or Resize on a 4-d value; an Unsqueeze makes one if there is none."""
    x = float_of_rank(s, 4)
    if x is None:
        flat = float_of_rank(s, 2)
        return unsqueeze(s, flat, [0, 1]) if flat else None
    n, c, h, w = x.shape
    if not isinstance(c, int):
        return None
    kind = s.gen.pick(["Conv", "BatchNormalization", "MaxPool", "Resize", "GlobalAveragePool"])
    if kind == "BatchNormalization" and s.gen.opset < 15:  # onnx.reference is wrong about the older ones
        kind = "Conv"
    if kind == "Conv":
        weight = s.constant(random_array(s, (2, c, 1, 1), 0.5))
        return s.emit_one(
            "Conv", [x, weight], rounded(FLOAT, (n, 2, h, w), x.bound * c / 2, (x.rounded_error + 2 * x.bound) * c)
        )
    if kind == "BatchNormalization":
        ones, halves = s.constant(np.ones(c)), s.constant(np.full(c, 0.5))
        return s.emit_one(
            "BatchNormalization",
            [x, ones, halves, halves, ones],
            rounded(FLOAT, x.shape, x.bound + 1, x.rounded_error + 8),
        )
    if kind == "MaxPool":
        return s.emit_one("MaxPool", [x], rounded(FLOAT, x.shape, x.bound, x.rounded_error), kernel_shape=[1, 1])
    if kind == "GlobalAveragePool":
        return s.emit_one(
            "GlobalAveragePool", [x], rounded(FLOAT, (n, c, 1, 1), x.bound, x.rounded_error + 8 * x.bound)
        )
    if s.gen.opset < 13 or not isinstance(h, int) or not isinstance(w, int) or h * w > 32:
        return None
    scales = s.constant([1.0, 1.0, 2.0, 2.0])
    nearest = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return s.emit_one(
        "Resize", [x, None, scales], rounded(FLOAT, (n, c, 2 * h, 2 * w), x.bound, x.rounded_error), **nearest
    )
