"""Masks before a softmax (Rules S4.34 to S4.37): constants of many sizes, behind many operators, with several readers.

These graphs serve the comparison of decisions: a runtime need not run them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from onnx import TensorProto, helper

from tests.support.graph_constants import plain
from tests.support.graph_ops import NewValues, broadcast
from tests.support.graph_scope import BOOL, FLOAT, FLOAT16, INT64, Scope, Shape, Value

SIZES = (-1e9, -1e5, -3.4028235e38, -65504.0, -65504.0, -50000.0, -30000.0, -10000.0, -9000.0, -np.inf)


def masked_softmax(s: Scope) -> NewValues:
    """Scores that masks are added to, and a softmax; now and then a second one that reads one of the masks too."""
    scores = [v for v in s.floats() if v.shape and isinstance(v.shape[-1], int)]
    if not scores:
        return None
    s.gen.features.add("mask")
    x: Value | None = s.gen.pick(scores)
    for _ in range(s.gen.pick([1, 1, 2, 2, 3, 4])):
        x = _masked(s, x) if x else None
        x = _carried(s, x) if x and s.gen.chance(35) else x
    if x is None:
        return None
    if s.gen.chance(12):
        s.emit_one("Tanh", [x], plain(x.shape))  # a second reader, for which the mask is a value like any other
    probabilities = s.emit_one(
        s.gen.pick(["Softmax", "Softmax", "LogSoftmax"]), [x], plain(x.shape), axis=len(x.shape) - 1
    )
    if s.gen.chance(12):
        s.emit_one("Softmax", [x], plain(x.shape), axis=0)
    return probabilities


# -- scores with a mask -------------------------------------------------------------------------------
def _masked(s: Scope, x: Value) -> Value | None:
    """The scores with a mask: added, subtracted, chosen by Where, written by a scatter, or as a lower bound."""
    kinds = {"add": 8, "sub": 2, "where": 3, "max": 1, "scatter": 1, "scaled": 1}
    kind = s.gen.pick([kind for kind, weight in kinds.items() for _ in range(weight)])
    if kind == "where" and s.gen.opset >= 9:
        flag = _flag(s, x.shape)
        choices = [x, _mask_constant(s, s.gen.pick(SIZES))]
        return (
            s.emit_one("Where", [flag, *(choices if s.gen.chance(70) else choices[::-1])], plain(x.shape))
            if flag
            else x
        )
    if kind == "max" and s.gen.opset >= 8:
        return s.emit_one("Max", [x, _mask_constant(s, s.gen.pick(SIZES))], plain(x.shape))
    if kind == "scatter" and s.gen.opset >= 11 and x.shape == (4,):
        operands = [x, s.constant([1], INT64), _filled(s, s.gen.pick(SIZES), (1,))]
        reductions = ["none", "none", "add", "mul", "max"][: 5 if s.gen.opset >= 18 else 1]
        attributes = {"reduction": s.gen.pick(reductions)} if s.gen.opset >= 16 else {}
        return s.emit_one("ScatterElements", operands, plain((4,)), **attributes)
    if kind == "scaled":
        return _scaled(s, x)
    if kind == "sub":
        return s.emit_one("Sub", [x, _mask_constant(s, -s.gen.pick(SIZES))], plain(x.shape))
    mask = _mask(s, x.shape)
    if mask is None or broadcast(x.shape, mask.shape) != x.shape:
        return x
    return s.emit_one("Add", [mask, x] if s.gen.chance(30) else [x, mask], plain(x.shape))


def _mask(s: Scope, shape: Shape) -> Value | None:
    """A tensor that is zero, or one, where nothing is masked; now and then a mask that the graph has already."""
    ready = [v for v in s.visible() if v.name in s.gen.masks and broadcast(shape, v.shape) == shape]
    if ready and s.gen.chance(35):
        return s.gen.pick(ready)
    kinds: list[Callable[[Scope, Shape, float], Value | None]] = [
        _constant_mask,
        _multiplied,
        _multiplied,
        _selected,
        _divided,
    ]
    mask = s.gen.pick(kinds)(s, shape, s.gen.pick(SIZES))
    if mask is not None and s.gen.chance(25):
        mask = _scaled(s, mask)
    if mask is not None and s.gen.chance(25):
        mask = _carried(s, mask)
    if mask is not None:
        s.gen.masks.add(mask.name)
    if mask is not None and s.gen.opset >= 11 and s.gen.chance(20):
        _compared(s, mask)
    return mask


def _compared(s: Scope, mask: Value) -> None:
    """A comparison of a mask, or of a sum with one, with zero and now and then with another number."""
    factor = _factor(s, mask.shape) if s.gen.chance(50) else None
    x = (
        s.emit_one("Add", [mask, factor], plain(mask.shape))
        if factor
        else s.emit_one("Identity", [mask], plain(mask.shape))
    )
    if x and broadcast(mask.shape, x.shape) == mask.shape:
        s.emit_one("Equal", [x, s.constant(s.gen.pick([0.0, 0.0, 1.0]))], Value("", BOOL, x.shape, 0.0, 1.0))


def _constant_mask(s: Scope, shape: Shape, size: float) -> Value:
    return _mask_constant(s, size)


def _multiplied(s: Scope, shape: Shape, size: float) -> Value | None:
    """A constant times a factor; the factor is now and then a mask, too."""
    factor = _mask(s, shape) if s.gen.chance(8) else _factor(s, shape)
    if factor is None:
        return None
    operands = [factor, _mask_constant(s, size)]
    return s.emit_one("Mul", operands if s.gen.chance(60) else operands[::-1], plain(factor.shape))


def _divided(s: Scope, shape: Shape, size: float) -> Value | None:
    """A constant divided by a factor, or a factor divided by a constant that is large or small."""
    factor = _factor(s, shape)
    if factor is None:
        return None
    if s.gen.chance(40):
        return s.emit_one("Div", [_mask_constant(s, size), factor], plain(factor.shape))
    return s.emit_one("Div", [factor, s.constant(s.gen.pick([-1e-9, 1e9, -30000.0]))], plain(factor.shape))


def _selected(s: Scope, shape: Shape, size: float) -> Value | None:
    """Zero or a constant by a flag; now and then one of two masks."""
    flag = _flag(s, shape) if s.gen.opset >= 9 else None
    if flag is None:
        return None
    unmasked = _mask_constant(s, s.gen.pick(SIZES)) if s.gen.chance(15) else s.constant(0.0)
    operands = [unmasked, _mask_constant(s, size)]
    return s.emit_one("Where", [flag, *(operands if s.gen.chance(60) else operands[::-1])], plain(flag.shape))


# -- constants ----------------------------------------------------------------------------------------
def _mask_constant(s: Scope, value: float) -> Value:
    """A constant, now and then with elements that are no mask, or behind operators on constants."""
    if s.gen.chance(75):
        return s.constant(s.gen.pick([value, value, [0.0, value, 0.0, value]]) if s.gen.chance(30) else value)
    s.gen.features.add("computed constant")
    kinds = ["Identity", "Identity", "Neg", "Mul", "Expand", "ConstantOfShape", "Cast", "Where", "Max", "Pow", "Sqrt"]
    kind = s.gen.pick(kinds)
    out = plain((), constant=True)
    if kind == "Mul":
        constant = s.emit_one(kind, [s.constant(value), s.constant(s.gen.pick([1.0, 0.5, 4.0]))], out)
    elif kind == "Expand" and s.gen.opset >= 8:
        constant = s.emit_one(kind, [s.constant(value), s.constant([4], INT64)], plain((4,), constant=True))
    elif kind == "ConstantOfShape" and s.gen.opset >= 9:
        fill = helper.make_tensor("value", TensorProto.FLOAT, [1], [value])
        constant = s.emit_one(kind, [s.constant([4], INT64)], plain((4,), constant=True), value=fill)
    elif kind == "Cast":
        constant = s.emit_one(kind, [s.constant(min(max(value, -65504.0), 65504.0), FLOAT16)], out, to=FLOAT)
    elif kind == "Max" and s.gen.opset >= 8:
        constant = s.emit_one(kind, [s.constant(value), s.constant(-3.4028235e38)], out)
    elif kind == "Where" and s.gen.opset >= 9:
        constant = s.emit_one(kind, [s.constant(True, BOOL), s.constant(value), s.constant(0.0)], out)
    elif kind == "Pow":
        constant = s.emit_one(kind, [s.constant(float(np.cbrt(value))), s.constant(3.0)], out)
    elif kind == "Sqrt":
        side = s.constant(value)
        square = s.emit_one("Mul", [side, side], out)
        constant = s.emit_one("Neg", [root], out) if square and (root := s.emit_one(kind, [square], out)) else None
    elif kind == "Neg":
        constant = s.emit_one(kind, [s.constant(-value)], out)
    else:
        constant = s.emit_one("Identity", [s.constant(value)], out)
    return constant or s.constant(value)


def _filled(s: Scope, value: float, shape: tuple[int, ...]) -> Value:
    return s.constant(np.full(shape, value))


# -- flags and factors --------------------------------------------------------------------------------
def _flag(s: Scope, shape: Shape) -> Value | None:
    """A boolean: an input, a comparison of scores or integers, or its opposite."""
    flags = [v for v in s.visible() if v.dtype == BOOL and v.is_tensor and not v.constant and v.shape in ((), shape)]
    if flags and s.gen.chance(60):
        return s.gen.pick(flags)
    ids = [v for v in s.visible() if v.dtype == INT64 and not v.constant and v.shape == shape]
    scores = [v for v in s.floats() if v.shape == shape]
    if ids and s.gen.chance(60):
        flag = s.emit_one("Equal", [ids[0], s.constant(0, INT64)], Value("", BOOL, shape, 0.0, 0.0))
    elif scores and s.gen.opset >= 9:
        flag = s.emit_one("Greater", [s.gen.pick(scores), s.constant(0.5)], Value("", BOOL, shape, 0.0, 0.0))
    else:
        return None
    return s.emit_one("Not", [flag], replace(flag, name="")) if flag and s.gen.chance(30) else flag


def _factor(s: Scope, shape: Shape) -> Value | None:
    """A factor from 0 to 1: a boolean or integer as a number, or one minus it; now and then one that reaches 2, or any
    tensor, which may be a score.
    """
    ids = [v for v in s.visible() if v.dtype == INT64 and not v.constant and v.shape == shape]
    source = s.gen.pick(ids) if ids and s.gen.chance(40) else _flag(s, shape)
    if source is None or s.gen.chance(12):
        values = [v for v in s.floats() if v.shape == shape]
        return s.gen.pick(values) if values else None
    factor = s.emit_one("Cast", [source], plain(source.shape), to=FLOAT)
    if factor and s.gen.chance(50):
        factor = s.emit_one("Sub", [s.constant(1.0), factor], plain(factor.shape))
    if factor and s.gen.chance(15):
        factor = s.emit_one(s.gen.pick(["Sqrt", "Identity", "Neg"]), [factor], plain(factor.shape))
    if factor and s.gen.chance(20):
        operand = s.gen.pick([factor, s.constant(-1.0), s.constant(0.5), s.constant(2.0)])
        factor = s.emit_one(s.gen.pick(["Add", "Sub", "Mul", "Div"]), [factor, operand], plain(factor.shape))
    return factor


# -- operators between the mask and the softmax -------------------------------------------------------
def _scaled(s: Scope, x: Value) -> Value | None:
    """The tensor times a constant, or divided by it."""
    factor = s.constant(s.gen.pick([0.5, 1.0, 2.0, 1.5, 3.0, 0.125, 4.0]))
    operands = [factor, x] if s.gen.chance(20) else [x, factor]
    return s.emit_one("Div" if operands[0] is x and s.gen.chance(40) else "Mul", operands, plain(x.shape))


def _carried(s: Scope, x: Value) -> Value | None:
    """A value mover, a Cast, or an operator that carries no mask."""
    kind = s.gen.pick(["Identity", "Dropout", "Neg", "Neg", "Transpose", "Concat", "Cast", "Unsqueeze", "Relu", "Abs"])
    out = plain(x.shape)
    if kind == "Transpose" and x.shape:
        permutation = list(range(len(x.shape)))[::-1]
        transposed = s.emit_one(kind, [x], plain(x.shape[::-1]), perm=permutation)
        return s.emit_one(kind, [transposed], out, perm=permutation) if transposed else None
    if kind == "Concat" and x.shape and isinstance(x.shape[-1], int) and s.gen.opset >= 10:
        doubled = s.emit_one(kind, [x, x], plain((*x.shape[:-1], 2 * x.shape[-1])), axis=len(x.shape) - 1)
        ends = [s.constant([k], INT64) for k in (0, x.shape[-1], len(x.shape) - 1)]
        return s.emit_one("Slice", [doubled, *ends], out) if doubled else None
    if kind == "Cast":
        low = s.emit_one(kind, [x], Value("", FLOAT16, x.shape, 1.0, 0.0), to=FLOAT16)
        return s.emit_one(kind, [low], out, to=FLOAT) if low else None
    if kind == "Unsqueeze" and s.gen.opset < 13:
        wide = s.emit_one(kind, [x], plain((1, *x.shape)), axes=[0])
        return s.emit_one("Squeeze", [wide], out, axes=[0]) if wide else None
    return s.emit_one(kind if kind in ("Dropout", "Neg", "Relu", "Abs") else "Identity", [x], out)
