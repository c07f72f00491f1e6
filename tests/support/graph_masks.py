"""Masks before a softmax (Rules S4.34 to S4.37): constants of many sizes, on many ways, read at one or several places.

These graphs serve the comparison of decisions: a runtime need not run them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from onnx import TensorProto, helper

from tests.support.graph_constants import plain
from tests.support.graph_ops import Made, broadcast
from tests.support.graph_scope import BOOL, FLOAT, FLOAT16, INT64, Scope, Shape, Val

SIZES = (-1e9, -1e5, -3.4028235e38, -65504.0, -65504.0, -50000.0, -30000.0, -10000.0, -9000.0, -np.inf)


def masked_softmax(s: Scope) -> Made:
    """Scores that masks are added to, and a softmax; now and then a second one that reads one of the masks too."""
    scores = [v for v in s.floats() if v.shape and isinstance(v.shape[-1], int)]
    if not scores:
        return None
    s.gen.features.add("mask")
    x: Val | None = s.gen.pick(scores)
    for _ in range(s.gen.pick([1, 1, 2, 2, 3, 4])):
        x = _masked(s, x) if x else None
        x = _carried(s, x) if x and s.gen.chance(35) else x
    if x is None:
        return None
    if s.gen.chance(12):
        s.one("Tanh", [x], plain(x.shape))  # a second reader, for which the mask is a value like any other
    made = s.one(s.gen.pick(["Softmax", "Softmax", "LogSoftmax"]), [x], plain(x.shape), axis=len(x.shape) - 1)
    if s.gen.chance(12):
        s.one("Softmax", [x], plain(x.shape), axis=0)
    return made


# -- scores with a mask -------------------------------------------------------------------------------
def _masked(s: Scope, x: Val) -> Val | None:
    """The scores with a mask: added, subtracted, chosen by Where, written by a scatter, or as a lower bound."""
    kinds = {"add": 8, "sub": 2, "where": 3, "max": 1, "scatter": 1, "scaled": 1}
    kind = s.gen.pick([kind for kind, weight in kinds.items() for _ in range(weight)])
    if kind == "where" and s.gen.opset >= 9:
        flag = _flag(s, x.shape)
        choices = [x, _amount(s, s.gen.pick(SIZES))]
        return s.one("Where", [flag, *(choices if s.gen.chance(70) else choices[::-1])], plain(x.shape)) if flag else x
    if kind == "max" and s.gen.opset >= 8:
        return s.one("Max", [x, _amount(s, s.gen.pick(SIZES))], plain(x.shape))
    if kind == "scatter" and s.gen.opset >= 11 and x.shape == (4,):
        operands = [x, s.constant([1], INT64), _spread(s, s.gen.pick(SIZES), (1,))]
        reductions = ["none", "none", "add", "mul", "max"][: 5 if s.gen.opset >= 18 else 1]
        how = {"reduction": s.gen.pick(reductions)} if s.gen.opset >= 16 else {}
        return s.one("ScatterElements", operands, plain((4,)), **how)
    if kind == "scaled":
        return _scaled(s, x)
    if kind == "sub":
        return s.one("Sub", [x, _amount(s, -s.gen.pick(SIZES))], plain(x.shape))
    mask = _mask(s, x.shape)
    if mask is None or broadcast(x.shape, mask.shape) != x.shape:
        return x
    return s.one("Add", [mask, x] if s.gen.chance(30) else [x, mask], plain(x.shape))


def _mask(s: Scope, shape: Shape) -> Val | None:
    """A tensor that is zero, or one, where nothing is masked; now and then one that is there already."""
    ready = [v for v in s.visible() if v.name in s.gen.masks and broadcast(shape, v.shape) == shape]
    if ready and s.gen.chance(35):
        return s.gen.pick(ready)
    kinds: list[Callable[[Scope, Shape, float], Val | None]] = [_amount_of, _multiplied, _multiplied, _chosen, _divided]
    mask = s.gen.pick(kinds)(s, shape, s.gen.pick(SIZES))
    if mask is not None and s.gen.chance(25):
        mask = _scaled(s, mask)
    if mask is not None and s.gen.chance(25):
        mask = _carried(s, mask)
    if mask is not None:
        s.gen.masks.add(mask.name)
    return mask


def _amount_of(s: Scope, shape: Shape, size: float) -> Val:
    return _amount(s, size)


def _multiplied(s: Scope, shape: Shape, size: float) -> Val | None:
    """A constant times a share; the share is now and then a mask as well."""
    share = _mask(s, shape) if s.gen.chance(8) else _share(s, shape)
    if share is None:
        return None
    operands = [share, _amount(s, size)]
    return s.one("Mul", operands if s.gen.chance(60) else operands[::-1], plain(share.shape))


def _divided(s: Scope, shape: Shape, size: float) -> Val | None:
    """A constant over a share, or a share over a constant that is large or small."""
    share = _share(s, shape)
    if share is None:
        return None
    if s.gen.chance(40):
        return s.one("Div", [_amount(s, size), share], plain(share.shape))
    return s.one("Div", [share, s.constant(s.gen.pick([-1e-9, 1e9, -30000.0]))], plain(share.shape))


def _chosen(s: Scope, shape: Shape, size: float) -> Val | None:
    """Zero or a constant by a flag; now and then one of two masks."""
    flag = _flag(s, shape) if s.gen.opset >= 9 else None
    if flag is None:
        return None
    other = _amount(s, s.gen.pick(SIZES)) if s.gen.chance(15) else s.constant(0.0)
    operands = [other, _amount(s, size)]
    return s.one("Where", [flag, *(operands if s.gen.chance(60) else operands[::-1])], plain(flag.shape))


# -- constants ----------------------------------------------------------------------------------------
def _amount(s: Scope, value: float) -> Val:
    """A constant, now and then with elements that are no mask, or behind operators on constants."""
    if s.gen.chance(75):
        return s.constant(s.gen.pick([value, value, [0.0, value, 0.0, value]]) if s.gen.chance(30) else value)
    s.gen.features.add("computed constant")
    kinds = ["Identity", "Identity", "Neg", "Mul", "Expand", "ConstantOfShape", "Cast", "Where", "Max", "Pow", "Sqrt"]
    kind = s.gen.pick(kinds)
    out = plain((), constant=True)
    if kind == "Mul":
        made = s.one(kind, [s.constant(value), s.constant(s.gen.pick([1.0, 0.5, 4.0]))], out)
    elif kind == "Expand" and s.gen.opset >= 8:
        made = s.one(kind, [s.constant(value), s.constant([4], INT64)], plain((4,), constant=True))
    elif kind == "ConstantOfShape" and s.gen.opset >= 9:
        fill = helper.make_tensor("value", TensorProto.FLOAT, [1], [value])
        made = s.one(kind, [s.constant([4], INT64)], plain((4,), constant=True), value=fill)
    elif kind == "Cast":
        made = s.one(kind, [s.constant(min(max(value, -65504.0), 65504.0), FLOAT16)], out, to=FLOAT)
    elif kind == "Max" and s.gen.opset >= 8:
        made = s.one(kind, [s.constant(value), s.constant(-3.4028235e38)], out)
    elif kind == "Where" and s.gen.opset >= 9:
        made = s.one(kind, [s.constant(True, BOOL), s.constant(value), s.constant(0.0)], out)
    elif kind == "Pow":
        made = s.one(kind, [s.constant(float(np.cbrt(value))), s.constant(3.0)], out)
    elif kind == "Sqrt":
        side = s.constant(value)
        square = s.one("Mul", [side, side], out)
        made = s.one("Neg", [root], out) if square and (root := s.one(kind, [square], out)) else None
    elif kind == "Neg":
        made = s.one(kind, [s.constant(-value)], out)
    else:
        made = s.one("Identity", [s.constant(value)], out)
    return made or s.constant(value)


def _spread(s: Scope, value: float, shape: tuple[int, ...]) -> Val:
    return s.constant(np.full(shape, value))


# -- flags and shares ---------------------------------------------------------------------------------
def _flag(s: Scope, shape: Shape) -> Val | None:
    """A boolean: an input, a comparison of scores or integers, or its opposite."""
    flags = [v for v in s.visible() if v.dtype == BOOL and v.is_tensor and not v.constant and v.shape in ((), shape)]
    if flags and s.gen.chance(60):
        return s.gen.pick(flags)
    ids = [v for v in s.visible() if v.dtype == INT64 and not v.constant and v.shape == shape]
    scores = [v for v in s.floats() if v.shape == shape]
    if ids and s.gen.chance(60):
        made = s.one("Equal", [ids[0], s.constant(0, INT64)], Val("", BOOL, shape, 0.0, 0.0))
    elif scores and s.gen.opset >= 9:
        made = s.one("Greater", [s.gen.pick(scores), s.constant(0.5)], Val("", BOOL, shape, 0.0, 0.0))
    else:
        return None
    return s.one("Not", [made], replace(made, name="")) if made and s.gen.chance(30) else made


def _share(s: Scope, shape: Shape) -> Val | None:
    """A factor from 0 to 1: a boolean or integer as a number, or one minus it; now and then one that reaches 2, or any
    tensor, which may be a score.
    """
    ids = [v for v in s.visible() if v.dtype == INT64 and not v.constant and v.shape == shape]
    source = s.gen.pick(ids) if ids and s.gen.chance(40) else _flag(s, shape)
    if source is None or s.gen.chance(12):
        values = [v for v in s.floats() if v.shape == shape]
        return s.gen.pick(values) if values else None
    share = s.one("Cast", [source], plain(source.shape), to=FLOAT)
    if share and s.gen.chance(50):
        share = s.one("Sub", [s.constant(1.0), share], plain(share.shape))
    if share and s.gen.chance(15):
        share = s.one(s.gen.pick(["Sqrt", "Identity", "Neg"]), [share], plain(share.shape))
    if share and s.gen.chance(20):
        other = s.gen.pick([share, s.constant(-1.0), s.constant(0.5), s.constant(2.0)])
        share = s.one(s.gen.pick(["Add", "Sub", "Mul", "Div"]), [share, other], plain(share.shape))
    return share


# -- ways ---------------------------------------------------------------------------------------------
def _scaled(s: Scope, x: Val) -> Val | None:
    """The tensor times or over a constant."""
    factor = s.constant(s.gen.pick([0.5, 1.0, 2.0, 1.5, 3.0, 0.125, 4.0]))
    operands = [factor, x] if s.gen.chance(20) else [x, factor]
    return s.one("Div" if operands[0] is x and s.gen.chance(40) else "Mul", operands, plain(x.shape))


def _carried(s: Scope, x: Val) -> Val | None:
    """A value mover, a Cast, or an operator that carries no mask."""
    kind = s.gen.pick(["Identity", "Dropout", "Neg", "Neg", "Transpose", "Concat", "Cast", "Unsqueeze", "Relu", "Abs"])
    out = plain(x.shape)
    if kind == "Transpose" and x.shape:
        turned = list(range(len(x.shape)))[::-1]
        made = s.one(kind, [x], plain(x.shape[::-1]), perm=turned)
        return s.one(kind, [made], out, perm=turned) if made else None
    if kind == "Concat" and x.shape and isinstance(x.shape[-1], int) and s.gen.opset >= 10:
        doubled = s.one(kind, [x, x], plain((*x.shape[:-1], 2 * x.shape[-1])), axis=len(x.shape) - 1)
        ends = [s.constant([k], INT64) for k in (0, x.shape[-1], len(x.shape) - 1)]
        return s.one("Slice", [doubled, *ends], out) if doubled else None
    if kind == "Cast":
        low = s.one(kind, [x], Val("", FLOAT16, x.shape, 1.0, 0.0), to=FLOAT16)
        return s.one(kind, [low], out, to=FLOAT) if low else None
    if kind == "Unsqueeze" and s.gen.opset < 13:
        wide = s.one(kind, [x], plain((1, *x.shape)), axes=[0])
        return s.one("Squeeze", [wide], out, axes=[0]) if wide else None
    return s.one(kind if kind in ("Dropout", "Neg", "Relu", "Abs") else "Identity", [x], out)
