"""Patterns on which decisions depend: positions, quantized units, bfloat16 tensors, and tensors of unknown type.

These graphs serve the comparison of decisions: a runtime need not run them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tests.support.graph_constants import plain
from tests.support.graph_ops import NewValues
from tests.support.graph_scope import BFLOAT16, BOOL, FLOAT, INT8, INT64, Scope, Value

CUSTOM_DOMAIN = "test.custom"
CONTRIB_DOMAIN = "com.microsoft"
MORE_DOMAINS = (CUSTOM_DOMAIN, CONTRIB_DOMAIN)


# -- positions (Rule S4.38) ---------------------------------------------------------------------------
def positions(s: Scope) -> NewValues:
    """Positions times frequencies, before Sin, Cos or the grid of GridSample."""
    p = _position(s)
    if p is None:
        return None
    s.gen.features.add("position")
    x: Value | None = p
    for _ in range(s.gen.integer(0, 3)):
        x = _position_step(s, x) if x else None
    if x is None:
        return None
    if s.gen.opset >= 16 and s.gen.chance(20):
        return _grid(s, x)
    return s.emit_one(s.gen.pick(["Sin", "Cos", "Sin", "Cos", "Tanh"]), [x], plain(x.shape))


def _position(s: Scope) -> Value | None:
    """Integers as floats, of shape (N,4): an input, a range, or a running sum; or data, which is no position."""
    kind = s.gen.pick(["input", "input", "range", "sum", "data"])
    ids = [v for v in s.visible() if v.name == "ids"]
    if kind == "input" and ids:
        return s.emit_one("Cast", [ids[0]], plain(ids[0].shape), to=FLOAT)
    if kind == "range" and s.gen.opset >= 11:
        s.gen.features.add("computed constant")
        r = s.emit_one("Range", [s.constant(k, INT64) for k in (0, 4, 1)], Value("", INT64, (4,), 0.0, 0.0, True))
        return s.emit_one("Cast", [r], plain((4,)), to=FLOAT) if r else None
    if kind == "sum" and ids and s.gen.opset >= 11:
        total = s.emit_one("CumSum", [ids[0], s.constant(0, INT64)], replace(ids[0], name=""))
        return s.emit_one("Cast", [total], plain(ids[0].shape), to=FLOAT) if total else None
    values = [v for v in s.floats() if v.shape and v.shape[-1] == 4]
    return s.gen.pick(values) if values and s.gen.chance(30) else None


def _position_step(s: Scope, x: Value) -> Value | None:
    """An operator of position arithmetic, or one that does not belong to it."""
    kind = s.gen.pick(["Mul", "Mul", "Add", "Sub", "Div", "MatMul", "Concat", "Identity", "CumSum", "Relu", "data"])
    if s.gen.opset >= 11 and s.gen.chance(12):
        return _scattered(s, x)
    if kind in ("Mul", "Add", "Sub", "Div"):
        k = s.constant(np.array([1.0, 0.1, 0.01, 0.001]))
        return s.emit_one(kind, [k, x] if s.gen.chance(30) else [x, k], plain(x.shape))
    if kind == "MatMul" and len(x.shape) == 2:
        return s.emit_one(kind, [x, s.constant(np.eye(4))], plain(x.shape))
    if kind == "Concat" and x.shape[-1] == 4 and s.gen.chance(50):
        doubled = s.emit_one(kind, [x, x], plain((*x.shape[:-1], 8)), axis=len(x.shape) - 1)
        half = [s.constant([k], INT64) for k in (0, 4, len(x.shape) - 1)]
        return s.emit_one("Slice", [doubled, *half], plain(x.shape)) if doubled and s.gen.opset >= 10 else None
    if kind == "CumSum" and s.gen.opset >= 11:
        return s.emit_one(kind, [x, s.constant(0, INT64)], plain(x.shape))
    if kind == "data":
        fits = [v for v in s.floats() if v.shape == x.shape]
        return s.emit_one("Add", [x, s.gen.pick(fits)], plain(x.shape)) if fits else None
    return s.emit_one("Relu" if kind == "Relu" else "Identity", [x], plain(x.shape))


def _scattered(s: Scope, x: Value) -> Value | None:
    """The tensor with other elements written into it: fixed ones, its own, or those of a tensor of data."""
    fits = [v for v in s.floats() if v.shape == x.shape]
    source = s.gen.pick([x, x, *fits])
    updates = s.emit_one("Mul", [source, s.constant(0.5)], plain(x.shape))
    indices = s.emit_one("Shape", [x], Value("", INT64, (len(x.shape),), 0.0, 4.0))
    if updates is None or indices is None or len(x.shape) != 2:
        return None
    zeros = s.emit_one("Expand", [s.constant([[0]], INT64), indices], Value("", INT64, x.shape, 0.0, 0.0))
    return s.emit_one("ScatterElements", [x, zeros, updates], plain(x.shape), axis=1) if zeros else None


def _grid(s: Scope, x: Value) -> Value | None:
    images = [v for v in s.floats() if v.shape == (2, 4)]
    if not images:
        return None
    grid = s.emit_one("Reshape", [x, s.constant([1, -1, 2, 2], INT64)], plain((1, "M", 2, 2)))
    image = s.emit_one("Reshape", [s.gen.pick(images), s.constant([1, 1, 2, 4], INT64)], plain((1, 1, 2, 4)))
    return s.emit_one("GridSample", [image, grid], plain((1, 1, "M", 2))) if grid and image else None


# -- guards (Rule S4.43) ------------------------------------------------------------------------------
def guard(s: Scope) -> NewValues:
    """A small constant that keeps a tensor away from zero, and steps from it to a division or a logarithm."""
    values = s.floats()
    if not values:
        return None
    s.gen.features.add("guard")
    source = s.gen.pick(values)
    if s.gen.opset >= 11 and s.gen.chance(40):
        return _small_floor(s, source)
    x = _guarded(s, source)
    for _ in range(s.gen.integer(0, 3)):
        x = _guarded_step(s, x) if x else None
    if x is None:
        return None
    op = s.gen.pick(["Div", "Div", "Log", "Mul", "Pow", "Exp"])
    if op == "Pow":
        return s.emit_one(op, [x, s.constant(s.gen.pick([-1.0, -0.5, 2.0]))], plain(x.shape))
    return s.emit_one(op, [x] if op in ("Log", "Exp") else [source, x], plain(x.shape))


def _small_floor(s: Scope, source: Value) -> NewValues:
    """A small lower bound that is moved and divided by; now and then something else reads it, too."""
    x = s.emit_one(
        s.gen.pick(["Clip", "Max"]), [source, s.constant(s.gen.pick([1e-12, 1e-9, 1e-6]))], plain(source.shape)
    )
    for _ in range(s.gen.integer(0, 2)):
        x = s.emit_one(s.gen.pick(["Identity", "Identity", "Abs"]), [x], plain(x.shape)) if x else None
    if x and s.gen.chance(20):
        s.emit_one("Neg", [x], plain(x.shape))
    return s.emit_one(*s.gen.pick([("Div", [source, x]), ("Reciprocal", [x])]), plain(x.shape)) if x else None


def _guarded(s: Scope, x: Value) -> Value | None:
    """A guard over a tensor, or what only looks like one."""
    k = s.gen.pick([1e-12, 1e-9, 1e-6, 1e-3, 0.5, 2.0, -1e-9])
    op = s.gen.pick(["Add", "Max", "Clip", "Sub", "Sum", "Min"])
    if op == "Min":
        bounded = s.emit_one(op, [x, s.constant(s.gen.pick([0.9999999, 0.5]))], plain(x.shape))
        return s.emit_one("Sub", [s.constant(1.0), bounded], plain(x.shape)) if bounded else None
    if op == "Clip" and s.gen.opset < 11:
        return s.emit_one(op, [x], plain(x.shape), min=k)
    operands = [x, s.constant(k)]
    is_swapped = op in ("Add", "Max") and s.gen.chance(30)
    return s.emit_one(op, operands[::-1] if is_swapped else operands, plain(x.shape))


def _guarded_step(s: Scope, x: Value) -> Value | None:
    """An operator that carries a guarded value, or ends it."""
    one_operand = ["Sqrt", "Reciprocal", "Identity", "Neg", "Abs", "Relu", "Ceil", "Dropout"]
    arithmetic = ["Pow", "Mul", "Div", "over", "Add", "Max", "square", "Min", "Sum", "Sub", "Where"]
    op = s.gen.pick([*one_operand, *arithmetic[: None if s.gen.opset >= 9 else -1]])
    if op in one_operand:
        return s.emit_one(op, [x], plain(x.shape))
    k = s.constant(s.gen.pick([0.5, 2.0, -0.5, 1e-4]))
    if op in ("Mul", "square") and s.gen.chance(40):
        others = [v for v in s.floats() if v.shape == x.shape]
        return s.emit_one("Mul", [x, x if op == "square" or not others else s.gen.pick(others)], plain(x.shape))
    if op == "Where":
        others = [v for v in s.floats() if v.shape == x.shape]
        keep = s.emit_one("Cast", [s.gen.pick(others or [x])], Value("", BOOL, x.shape, 0.0, 0.0), to=BOOL)
        return s.emit_one("Where", [keep, x, s.gen.pick(others or [x])], plain(x.shape)) if keep else None
    if op == "over":
        return s.emit_one("Div", [k, x], plain(x.shape))
    return s.emit_one("Pow" if op == "square" else op, [x, k], plain(x.shape))


# -- written-out normalizations (Rule S4.47) -----------------------------------------------------------
def written_norm(s: Scope) -> NewValues:
    """A square, a mean, steps, a root and a quotient; now and then one of them is another operator."""
    values = s.floats()
    if not values:
        return None
    s.gen.features.add("written norm")
    a = s.gen.pick(values)
    a = s.emit_one("Sub", [a, s.gen.pick([v for v in values if v.shape == a.shape])], plain(a.shape)) or a
    squares = [("Pow", [a, s.constant(s.gen.pick([2.0, 2.0, 3.0]))]), ("Mul", [a, a])]
    op, operands = s.gen.pick(squares)
    x = s.emit_one(op, operands, plain(a.shape))
    mean = plain((*a.shape[:-1], 1))
    x = s.emit_one("ReduceMean", [x], mean, axes=[-1]) if x and s.gen.chance(80) and s.gen.opset < 18 else x
    for _ in range(s.gen.integer(0, 2)):
        step = s.gen.pick(["Add", "Max", "Identity", "Neg"])
        epsilon = [s.constant(s.gen.pick([1e-12, 1e-3]))] if step in ("Add", "Max") else []
        x = s.emit_one(step, [x, *epsilon], plain(x.shape)) if x else None
    x = s.emit_one(s.gen.pick(["Sqrt", "Sqrt", "Log", "Exp"]), [x], plain(x.shape)) if x else None
    if x and s.gen.chance(30):
        x = s.emit_one("Reciprocal", [x], plain(x.shape))
        x = s.emit_one("Mul", [a, x], plain(a.shape)) if x else None
    elif x and s.gen.chance(80):
        x = s.emit_one("Div", [a, x], plain(a.shape))
    return s.emit_one("Mul", [x, s.constant(0.5)], plain(x.shape)) if x else None


# -- quantized units (Rule S4.41) ---------------------------------------------------------------------
def quantized_unit(s: Scope) -> NewValues:
    """An operator between DequantizeLinear and QuantizeLinear; now and then one of them is missing."""
    values = s.floats()
    if not values:
        return None
    s.gen.features.add("quantized unit")
    x = _dequantized(s, s.gen.pick(values))
    for _ in range(s.gen.integer(0, 2)):
        x = s.emit_one(s.gen.pick(["Identity", "Relu"]), [x], plain(x.shape)) if x and s.gen.chance(30) else x
    if x is None:
        return None
    second = _second_operand(s, x)
    op = s.gen.pick(["Add", "Mul", "Max", "Neg", "Softmax", "Identity"])
    y = s.emit_one(op, [x, second] if second and op in ("Add", "Mul", "Max") else [x], plain(x.shape))
    for _ in range(s.gen.integer(0, 2)):
        y = s.emit_one(s.gen.pick(["Relu", "Identity", "Neg"]), [y], plain(x.shape)) if y and s.gen.chance(50) else y
    return _dequantized(s, y) if y and s.gen.chance(80) else y


def _dequantized(s: Scope, x: Value) -> Value | None:
    """The tensor, quantized and dequantized, or only dequantized as if a caller had quantized it."""
    scale, zero = s.constant(0.05), s.constant(0, INT8)
    q = s.emit_one("QuantizeLinear", [x, scale, zero], Value("", INT8, x.shape, 0.0, 0.0))
    return s.emit_one("DequantizeLinear", [q, scale, zero], plain(x.shape)) if q else None


def _second_operand(s: Scope, x: Value) -> Value | None:
    """A dequantized tensor or weight, a constant, or a tensor that is not dequantized."""
    kind = s.gen.pick(["weight", "dequantized", "constant", "data"])
    if kind == "weight":
        return s.emit_one("DequantizeLinear", [s.constant(3, INT8), s.constant(0.05)], plain(()))
    if kind == "constant":
        return s.constant(0.5)
    fits = [v for v in s.floats() if v.shape == x.shape]
    if not fits:
        return None
    return _dequantized(s, s.gen.pick(fits)) if kind == "dequantized" else s.gen.pick(fits)


# -- bfloat16 (Rules S3.8, S4.9) ----------------------------------------------------------------------
def bfloat16(s: Scope) -> NewValues:
    """A bfloat16 copy of a tensor, and operators on it, whose constants float16 cannot always hold."""
    values = s.floats()
    if not values:
        return None
    source = s.gen.pick(values)
    like = Value("", BFLOAT16, source.shape, 1.0, 0.0)
    x = s.emit_one("Cast", [source], like, to=BFLOAT16)
    s.gen.features.add("bfloat16")
    for _ in range(s.gen.integer(1, 4)):
        op = s.gen.pick(["Add", "Mul", "Sub", "Relu", "Neg", "Exp", "Softmax", "Identity", "Where"])
        if x is None:
            return None
        if op in ("Add", "Mul", "Sub"):
            candidates = [v for v in s.floats(BFLOAT16) if v.shape == x.shape]
            k = s.constant(s.gen.pick([0.5, 2.0, 1e5, 1e-9, 1e30]), BFLOAT16)
            operand = s.gen.pick(candidates) if s.gen.chance(30) else k
            x = s.emit_one(op, [operand, x] if s.gen.chance(30) else [x, operand], like)
        elif op == "Where":
            flags = [v for v in s.visible() if v.dtype == BOOL and v.is_tensor and v.shape == () and not v.constant]
            admits = s.gen.opset >= 16
            x = s.emit_one(op, [flags[0], x, s.constant(0.0, BFLOAT16)], like) if flags and admits else x
        else:
            x = s.emit_one(op, [x], like)
    return s.emit_one("Cast", [x], plain(x.shape), to=FLOAT) if x and s.gen.chance(60) else x


# -- unknown types (Rules S4.12, S4.39, S4.40) --------------------------------------------------------
def value_of_unknown_type(s: Scope) -> NewValues:
    """A tensor from a custom operator: its type is not inferred, and now and then declared."""
    values = s.floats()
    if not values:
        return None
    x = s.gen.pick(values)
    outputs = s.emit("Custom", [x], [plain(x.shape)], domain=CUSTOM_DOMAIN)
    s.gen.features.add("unknown type")
    if outputs and s.outer is None and s.gen.chance(25):
        s.gen.declared.append(outputs[0])
    return outputs


def reader_of_unknown_type(s: Scope) -> NewValues:
    """A node that reads a tensor of unknown type and another tensor, or a Cast of the former."""
    values = s.floats()
    outputs = value_of_unknown_type(s)
    if not outputs or not isinstance(outputs, list):
        return None
    u = outputs[0]
    kind = s.gen.pick(["Add", "Mul", "Cast", "Pow", "Equal" if s.gen.opset >= 11 else "Sub"])
    if kind == "Cast":
        s.gen.features.add("user cast")
        return s.emit_one(kind, [u], plain(u.shape), to=FLOAT)
    if kind == "Equal":
        return s.emit_one(kind, [u, u], Value("", BOOL, u.shape, 0.0, 0.0))
    operand = s.gen.pick([v for v in values if v.shape == u.shape])
    return s.emit_one(kind, [operand, u] if s.gen.chance(50) else [u, operand], plain(u.shape))


def contrib(s: Scope) -> NewValues:
    """An operator of ONNX Runtime's contrib domain; only its schema gives its types."""
    values = [v for v in s.floats() if v.shape and v.shape[-1] == 4]
    if not values:
        return None
    x = s.gen.pick(values)
    op = s.gen.pick(["Gelu", "BiasGelu", "QuickGelu", "FusedMatMul"])
    second = {"BiasGelu": [s.constant(np.ones(4))], "FusedMatMul": [s.constant(np.eye(4))]}.get(op, [])
    s.gen.features.add("contrib operator")
    return s.emit(op, [x, *second], [plain(x.shape)], domain=CONTRIB_DOMAIN)
