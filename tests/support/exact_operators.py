"""Compute single nodes in float32, with bounds of the results that a correct implementation may return.

A ``Bounded`` tensor holds values and a radius around each. The radius is zero where the result does not depend on the
order of a sum or on the approximation of a function: then every implementation returns the same bits. Otherwise the
radius covers the results of all implementations, and a decision that depends on it raises ``Ambiguous``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

Wide = NDArray[np.float64]
ROUNDOFF = 2.0**-24  # half a step of float32 at 1
SMALLEST_FLOAT32 = 2.0**-149  # the smallest positive float32
FLOAT32_END = 2.0**128  # the first power of two that float32 cannot hold

# (type to round to, largest finite, smallest normal, smallest magnitude that rounds to infinity): from the formats
LOW: dict[str, tuple[np.dtype[np.generic], float, float, float]] = {
    "float16": (np.dtype(np.float16), 65504.0, 2.0**-14, 65520.0),
    "bfloat16": (np.dtype(ml_dtypes.bfloat16), 255 * 2.0**120, 2.0**-126, 511 * 2.0**119),
}


class Ambiguous(Exception):  # noqa: N818 - not an error: the case decides nothing
    """Signal that two correct implementations can give different verdicts."""


@dataclass(frozen=True)
class Bounded:
    """Hold values, and the largest distance of another correct result from each; it is 0 for integers and bools."""

    value: NDArray[np.generic]
    radius: Wide

    @property
    def low(self) -> Wide:
        return self.value.astype(np.float64) - self.radius

    @property
    def high(self) -> Wide:
        return self.value.astype(np.float64) + self.radius

    @property
    def is_certain(self) -> bool:
        return not self.radius.any()

    def rearranged(self, move: Callable[[NDArray[np.generic]], NDArray[np.generic]]) -> Bounded:
        """Apply the same movement of elements to values and radii."""
        return Bounded(move(self.value), move(self.radius).astype(np.float64))


def certain_tensor(value: NDArray[np.generic]) -> Bounded:
    return Bounded(value, np.zeros(value.shape))


def float32(value: Wide, radius: Wide) -> Bounded:
    """Round to float32, which widens every radius that is not zero; a result near the end of float32 is ambiguous."""
    radius = np.where(np.isfinite(value) & (radius > 0), radius + 2 * ROUNDOFF * np.abs(value) + SMALLEST_FLOAT32, 0.0)
    size = np.abs(np.where(np.isfinite(value), value, 0))
    end = FLOAT32_END * (1 - ROUNDOFF / 2)
    if ((radius > 0) & (size + radius >= end) & (size - radius < end)).any():
        raise Ambiguous("the end of float32")
    rounded = value.astype(np.float32)
    return Bounded(rounded, np.where(np.isfinite(rounded), radius, 0.0))


def to_low(t: Bounded, low: str, saturate: bool) -> Bounded:
    """Round to the nearest low value, ties to even. Beyond the range: infinity, or the largest value of that sign."""
    kind, largest, _, _ = LOW[low]

    def nearest(x: NDArray[np.generic]) -> NDArray[np.float32]:
        with np.errstate(all="ignore"):
            y = x.astype(np.float32).astype(kind).astype(np.float32)
        return np.where(np.isinf(y), np.copysign(np.float32(largest), y), y) if saturate else y

    value = nearest(t.value)
    if t.is_certain:
        return certain_tensor(value)
    ends = [nearest(t.low), nearest(t.high)]
    return Bounded(value, largest_distance(value, ends))


def largest_distance(value: NDArray[np.generic], corners: list[NDArray[np.generic]]) -> Wide:
    """Return the largest distance from ``value``; values that are not finite must be equal in all of them."""
    finite = np.isfinite(value)
    radius = np.zeros(value.shape)
    for corner in corners:
        if not np.array_equal(np.where(finite, 0, value), np.where(np.isfinite(corner), 0, corner), equal_nan=True):
            raise Ambiguous("an infinity or NaN depends on rounding")
        with np.errstate(invalid="ignore"):
            distance = np.abs(corner.astype(np.float64) - value.astype(np.float64))
        radius = np.maximum(radius, np.where(finite, distance, 0.0))
    return radius


# --- operators on elements ---


def elementwise(op: Callable[..., NDArray[np.generic]], inputs: list[Bounded]) -> Bounded:
    """Compute an operator that IEEE 754 rounds correctly and that is monotonic in its first two inputs."""
    value = op(*(t.value for t in inputs))
    if all(t.is_certain for t in inputs):
        return certain_tensor(value)
    if op is ELEMENTWISE["Abs"] and (np.sign(inputs[0].low) != np.sign(inputs[0].high)).any():
        raise Ambiguous("the magnitude of a value that may be zero")
    if len(inputs) == 3:  # Clip: its bounds are constants
        bounds = [t.value for t in inputs[1:]]
        return elementwise(lambda x: op(x, *bounds), inputs[:1])
    ends = [[t.low, t.high] for t in inputs]  # a monotonic function is extreme at the corners of its domain
    corners = [op(x) for x in ends[0]] if len(inputs) == 1 else [op(x, y) for x in ends[0] for y in ends[1]]
    radius = largest_distance(value, [corner.astype(np.float32) for corner in corners])
    return float32(value.astype(np.float64), radius)


def divide(inputs: list[Bounded]) -> Bounded:
    divisor = inputs[1]
    if ((divisor.radius > 0) & (divisor.low <= 0) & (divisor.high >= 0)).any():
        raise Ambiguous("a division by a value that may be zero")
    return elementwise(np.divide, inputs)


def approximated(function: Callable[[Wide], Wide], error: Callable[[Wide], Wide], t: Bounded) -> Bounded:
    """Compute a function that runtimes approximate; each value is within ``error`` of the true one."""
    value = function(t.value.astype(np.float64))
    ends = np.maximum(np.abs(function(t.low) - value), np.abs(function(t.high) - value))
    return float32(value, np.where(np.isfinite(value), ends + error(value), 0.0))


def sigmoid(t: Bounded) -> Bounded:
    return approximated(lambda x: 1 / (1 + np.exp(-x)), lambda y: np.full_like(y, 4e-7), t)


def tanh(t: Bounded) -> Bounded:
    # Implementations divide two polynomials with a coefficient of about 1/204 (ONNX Runtime: 4.9e-3). The product of a
    # subnormal number with it loses its last bits, and the quotient makes the loss 204 times as large.
    return approximated(np.tanh, lambda y: np.where(y == 0, 0, 1e-6 * np.abs(y) + 256 * SMALLEST_FLOAT32), t)


def softmax(node: onnx.NodeProto, inputs: list[Bounded]) -> Bounded:
    """Divide exponentials by their sum. A row with NaN or +infinity, or of -infinity alone, becomes NaN."""
    assert attribute(node, "axis", -1) == -1
    x, radius = inputs[0].value.astype(np.float64), inputs[0].radius.max(-1, keepdims=True)
    top = x.max(-1, keepdims=True)
    y = np.exp(x - top)
    y = y / y.sum(-1, keepdims=True)
    # The difference from the largest value is rounded: its error is relative to the difference.
    distance = np.where(np.isfinite(x), np.minimum(top - x, 1000), 0)
    relative = np.expm1(np.minimum(4 * radius + 4 * ROUNDOFF * distance, 700)) + 1e-6
    return float32(y, np.where(np.isfinite(y), np.minimum(y * relative, 1) + np.where(y < 1e-30, 1e-30, 0), 0.0))


# --- sums ---


def exact_in_any_order(terms: Wide) -> NDArray[np.bool_]:
    """Return whether each sum along the last axis is exact in any order: its terms are on one grid of 2**24 steps."""
    is_counted = np.isfinite(terms) & (terms != 0)
    fraction, exponent = np.frexp(np.where(is_counted, terms, 1))
    significand = (fraction * 2.0**53).astype(np.int64)
    last_bit = exponent - 53 + np.log2((significand & -significand).astype(np.float64)).astype(np.int64)
    grid = np.where(is_counted, last_bit, 200).min(-1, initial=200)
    total = np.abs(np.where(is_counted, terms, 0)).sum(-1)
    return (total == 0) | ((grid >= -149) & (total < FLOAT32_END) & (total <= np.ldexp(1.0, grid + 24)))


def summed(terms: Wide, radii: Wide) -> Bounded:
    """Sum along the last axis, in any order, with or without fused products."""
    value = terms.sum(-1)
    finite = np.where(np.isfinite(terms), terms, 0)
    size = np.abs(finite).sum(-1)
    one_sided = np.logical_or((finite >= 0).all(-1), (finite <= 0).all(-1))
    agrees = np.isfinite(value) | (np.sign(value) == np.sign(finite.sum(-1)))
    if ((size >= FLOAT32_END / 2) & ~np.isnan(value) & ~(one_sided & agrees)).any():
        raise Ambiguous("a sum may pass the end of float32 on the way")
    exact = exact_in_any_order(terms) & ~radii.any(-1)
    count = terms.shape[-1] + 2
    inexact = radii.sum(-1) + count * (2 * ROUNDOFF * size + SMALLEST_FLOAT32)
    return float32(value, np.where(exact, 0.0, inexact))


def products(a: Bounded, b: Bounded) -> tuple[Wide, Wide]:
    """Return the products in float64, where they are exact, and their radii."""
    x, y = a.value.astype(np.float64), b.value.astype(np.float64)
    for factor, other_factor in ((x, b), (y, a)):
        doubtful = (other_factor.radius > 0) & (other_factor.low <= 0) & (other_factor.high >= 0)
        if (~np.isfinite(factor) & doubtful).any():
            raise Ambiguous("infinity times a value that may be zero")
    radius = np.abs(x) * b.radius + np.abs(y) * a.radius + a.radius * b.radius
    value = x * y
    return value, np.where(np.isfinite(value), radius, 0.0)


def matmul(a: Bounded, b: Bounded) -> Bounded:
    return summed(*products(a.rearranged(lambda x: x[:, None, :]), b.rearranged(lambda x: x.T[None, :, :])))


def gemm(node: onnx.NodeProto, inputs: list[Bounded]) -> Bounded:
    b = inputs[1].rearranged(np.transpose) if attribute(node, "transB", 0) else inputs[1]
    terms, radii = products(inputs[0].rearranged(lambda x: x[:, None, :]), b.rearranged(lambda x: x.T[None, :, :]))
    if len(inputs) == 3:
        shape = terms.shape[:2]
        terms = np.concatenate([terms, np.broadcast_to(inputs[2].value, shape)[..., None]], axis=-1)
        radii = np.concatenate([radii, np.broadcast_to(inputs[2].radius, shape)[..., None]], axis=-1)
    return summed(terms, radii)


def conv(node: onnx.NodeProto, inputs: list[Bounded]) -> Bounded:
    """Convolve (1, C, H, W) with equal padding on all sides and stride 1."""
    weight = inputs[1]
    pad = attribute(node, "pads", [0, 0, 0, 0])[0]

    def windows(x: NDArray[np.generic]) -> NDArray[np.generic]:
        padded = np.pad(x[0], ((0, 0), (pad, pad), (pad, pad)))
        patches = np.lib.stride_tricks.sliding_window_view(padded, weight.value.shape[2:], axis=(1, 2))
        return np.moveaxis(patches, 0, 2).reshape(1, *patches.shape[1:3], -1)

    flat = weight.rearranged(lambda w: w.reshape(w.shape[0], 1, 1, -1))
    terms, radii = products(inputs[0].rearranged(windows), flat)
    if len(inputs) == 3:
        bias = inputs[2].rearranged(lambda c: np.broadcast_to(c[:, None, None, None], (*terms.shape[:3], 1)))
        terms = np.concatenate([terms, bias.value.astype(np.float64)], axis=-1)
        radii = np.concatenate([radii, bias.radius], axis=-1)
    return summed(terms, radii).rearranged(lambda y: y[None])


def reduce_sum(t: Bounded) -> Bounded:
    return summed(t.value.astype(np.float64), t.radius)


def reduce_mean(t: Bounded) -> Bounded:
    total, count = reduce_sum(t), t.value.shape[-1]
    value = total.value.astype(np.float64) / count
    # A division by a power of two is exact, except among subnormal numbers.
    if count & (count - 1) == 0 and total.is_certain:
        return certain_tensor(value.astype(np.float32))
    return float32(value, total.radius / count + 2 * ROUNDOFF * np.abs(np.nan_to_num(value, posinf=0, neginf=0)))


def reduce_sum_square(t: Bounded) -> Bounded:
    return summed(*products(t, t))


def reduce_l2(t: Bounded) -> Bounded:
    squares = reduce_sum_square(t)
    root = np.sqrt(squares.value.astype(np.float64))
    ends = np.maximum(np.sqrt(squares.high) - root, root - np.sqrt(np.maximum(squares.low, 0)))
    return float32(root, np.where(np.isfinite(root), ends + 2 * ROUNDOFF * root, 0.0))


def reduce_l1(t: Bounded) -> Bounded:
    return summed(np.abs(t.value.astype(np.float64)), t.radius)


def extreme(pick: Callable[..., NDArray[np.generic]]) -> Callable[[Bounded], Bounded]:
    """Return ReduceMax or ReduceMin. NaN is ambiguous: runtimes differ in the result."""

    def reduce(t: Bounded) -> Bounded:
        if np.isnan(t.value).any():
            raise Ambiguous("the largest or smallest of NaN")
        value = pick(t.value, axis=-1)
        ends: list[NDArray[np.generic]] = [pick(t.low, axis=-1), pick(t.high, axis=-1)]
        return Bounded(value, largest_distance(value, ends))

    return reduce


REDUCTIONS: dict[str, Callable[[Bounded], Bounded]] = {
    "ReduceSum": reduce_sum,
    "ReduceMean": reduce_mean,
    "ReduceSumSquare": reduce_sum_square,
    "ReduceL1": reduce_l1,
    "ReduceL2": reduce_l2,
    "ReduceMax": extreme(np.max),
    "ReduceMin": extreme(np.min),
}


def reduction(node: onnx.NodeProto, inputs: list[Bounded]) -> Bounded:
    axis = int(inputs[1].value[0])
    reduced = REDUCTIONS[node.op_type](inputs[0].rearranged(lambda x: np.moveaxis(x, axis, -1)))
    return reduced.rearranged(lambda y: np.expand_dims(y, axis))


def layer_normalization(node: onnx.NodeProto, inputs: list[Bounded]) -> Bounded:
    """Normalize along the last axis; the error of the mean grows with the largest value of the row."""
    epsilon = attribute(node, "epsilon", 1e-5)
    x, scale, bias = (t.value.astype(np.float64) for t in inputs)
    count = x.shape[-1]
    finite = np.isfinite(x).all(-1, keepdims=True) & np.ones_like(x, bool)
    size = np.abs(np.where(np.isfinite(x), x, 0)).max(-1, keepdims=True)
    if (size >= 2.0**60).any():
        raise Ambiguous("squares near the end of float32")
    centered = x - x.mean(-1, keepdims=True)
    center_error = inputs[0].radius + inputs[0].radius.mean(-1, keepdims=True) + 4 * (count + 2) * ROUNDOFF * size
    variance = (centered**2).mean(-1, keepdims=True)
    variance_error = (2 * np.abs(centered) * center_error + center_error**2).mean(-1, keepdims=True)
    variance_error = variance_error + 4 * (count + 2) * ROUNDOFF * variance
    relative = variance_error / (variance + epsilon)
    if (finite & (relative > 0.1)).any():
        raise Ambiguous("a variance that cancels")
    normalized = centered / np.sqrt(variance + epsilon)
    normal_error = center_error / np.sqrt(variance + epsilon) + np.abs(normalized) * (relative + 8 * ROUNDOFF)
    value = np.where(finite, normalized * scale + bias, np.nan)
    radius = normal_error * np.abs(scale) + (np.abs(normalized) + normal_error) * inputs[1].radius + inputs[2].radius
    return float32(value, np.where(finite, radius + 4 * ROUNDOFF * (np.abs(normalized * scale) + np.abs(bias)), 0.0))


# --- comparisons ---


def compare(op_type: str, a: Bounded, b: Bounded) -> Bounded:
    x, y = (np.broadcast_arrays(a.value, b.value)) if op_type != "Greater" else np.broadcast_arrays(b.value, a.value)
    first, second = (b, a) if op_type == "Greater" else (a, b)
    value = np.equal(x, y) if op_type == "Equal" else np.less(x, y)
    uncertain = (first.radius + second.radius > 0) & (first.low <= second.high) & (second.low <= first.high)
    if uncertain.any():
        raise Ambiguous("a comparison of values that may be equal")
    return certain_tensor(value)


def arg_extreme(node: onnx.NodeProto, inputs: list[Bounded]) -> Bounded:
    """Compute ArgMax or ArgMin: the first of equal values. NaN is ambiguous: runtimes differ in the result."""
    axis = attribute(node, "axis", 0)
    sign = 1 if node.op_type == "ArgMax" else -1
    t = inputs[0].rearranged(lambda x: np.moveaxis(x, axis, -1))
    if np.isnan(t.value).any():
        raise Ambiguous("the index of NaN")
    index = (sign * t.value).argmax(-1)
    best = np.take_along_axis(t.value.astype(np.float64), index[..., None], -1)
    radius = t.radius + np.take_along_axis(t.radius, index[..., None], -1)
    with np.errstate(invalid="ignore"):
        close = np.where(t.value == best, 0.0, np.abs(best - t.value)) <= radius
    if (close & (radius > 0) & (np.arange(t.value.shape[-1]) != index[..., None])).any():
        raise Ambiguous("the index of one of several values that may be equal")
    shaped = np.expand_dims(index, axis) if attribute(node, "keepdims", 1) else index
    return certain_tensor(shaped.astype(np.int64))


def top_k(node: onnx.NodeProto, data: Bounded, count: Bounded) -> list[Bounded]:
    """Compute TopK: values and indices, the first of equal values first. NaN is ambiguous: runtimes differ."""
    axis = attribute(node, "axis", -1)
    if np.isnan(data.value).any():
        raise Ambiguous("an order of NaN")
    sign = -1 if attribute(node, "largest", 1) else 1
    order = np.argsort(sign * data.value, axis=axis, kind="stable")
    ordered, radius = (np.take_along_axis(x, order, axis) for x in (data.value, data.radius))
    one_after_another = [np.moveaxis(x, axis, -1) for x in (ordered.astype(np.float64), radius)]
    with np.errstate(invalid="ignore"):
        gap = np.abs(np.diff(one_after_another[0]))
    doubt = one_after_another[1][..., 1:] + one_after_another[1][..., :-1]
    if ((doubt > 0) & ~(gap > doubt)).any():
        raise Ambiguous("an order of values that may be equal")
    first = np.arange(int(count.value[0]))
    return [
        Bounded(ordered.take(first, axis), radius.take(first, axis)),
        certain_tensor(order.take(first, axis).astype(np.int64)),
    ]


# --- integers ---


def cast(node: onnx.NodeProto, t: Bounded) -> Bounded:
    """Convert to float32, which holds all values of these graphs exactly, or to integers, which drops the fraction."""
    kind = helper.tensor_dtype_to_np_dtype(attribute(node, "to", 0))
    if kind.kind not in "iu":
        return Bounded(t.value.astype(np.float32), t.radius)
    ends = [np.trunc(x.astype(np.float64)) for x in (t.value, t.low, t.high)]
    limits = np.iinfo(kind)
    if not all(((x >= limits.min) & (x <= min(limits.max, 2**53))).all() for x in ends):
        raise Ambiguous("a number that the integer type does not hold")
    if (ends[1] != ends[2]).any():
        raise Ambiguous("a fraction that may pass a whole number")
    return certain_tensor(ends[0].astype(kind))


def quantize_linear(inputs: list[Bounded]) -> Bounded:
    """Divide by the scale, round half to even, add the zero point and clip to its type."""
    data, scale, zero = inputs
    if not np.isfinite(data.value).all() or not scale.is_certain or (scale.value == 0).any():
        raise Ambiguous("the quantized value of an infinity or NaN")
    kind = np.iinfo(zero.value.dtype)
    steps = [
        np.clip(np.rint((x / scale.value).astype(np.float32)) + np.float64(zero.value), kind.min, kind.max)
        for x in (data.value, data.low, data.high)
    ]
    if (steps[1] != steps[2]).any():
        raise Ambiguous("a value between two steps")
    return certain_tensor(steps[0].astype(zero.value.dtype))


def gather(node: onnx.NodeProto, inputs: list[Bounded]) -> Bounded:
    data, index = inputs
    axis, places = attribute(node, "axis", 0), index.value.astype(np.int64)
    if node.op_type == "Gather":
        return data.rearranged(lambda x: x.take(places, axis))
    if index.value.size and index.value.max() >= data.value.shape[axis]:
        raise Ambiguous("an index beyond the end")
    return data.rearranged(lambda x: np.take_along_axis(x, places, axis))


# --- one node ---


def attribute(node: onnx.NodeProto, name: str, default: object) -> object:
    return next((helper.get_attribute_value(a) for a in node.attribute if a.name == name), default)


ELEMENTWISE: dict[str, Callable[..., NDArray[np.generic]]] = {
    "Mul": np.multiply,
    "Add": np.add,
    "Sub": np.subtract,
    "Max": np.maximum,
    "Min": np.minimum,
    "Neg": np.negative,
    "Relu": lambda x: np.maximum(x, np.float32(0)),
    "Clip": lambda x, low, high: np.minimum(np.maximum(x, low), high),
    "Round": np.rint,
    "Abs": np.abs,
}


def compute(node: onnx.NodeProto, inputs: list[Bounded]) -> Bounded:
    """Compute the output of one node in float32, as ONNX defines it."""
    op = node.op_type
    with np.errstate(all="ignore"):
        if op in ELEMENTWISE:
            return elementwise(ELEMENTWISE[op], inputs)
        if op in REDUCTIONS:
            return reduction(node, inputs)
        match op:
            case "Div":
                return divide(inputs)
            case "Sigmoid":
                return sigmoid(inputs[0])
            case "Tanh":
                return tanh(inputs[0])
            case "Softmax":
                return softmax(node, inputs)
            case "MatMul":
                return matmul(*inputs)
            case "Gemm":
                return gemm(node, inputs)
            case "Conv":
                return conv(node, inputs)
            case "LayerNormalization":
                return layer_normalization(node, inputs)
            case "Less" | "Greater" | "Equal":
                return compare(op, *inputs)
            case "ArgMax" | "ArgMin":
                return arg_extreme(node, inputs)
            case "Where":
                c, x, y = inputs
                return Bounded(np.where(c.value, x.value, y.value), np.where(c.value, x.radius, y.radius))
            case "Concat":
                values, radii = [t.value for t in inputs], [t.radius for t in inputs]
                return Bounded(np.concatenate(values, axis=0), np.concatenate(radii, axis=0))
            case "Transpose":
                return inputs[0].rearranged(np.transpose)
            case "Reshape":
                return inputs[0].rearranged(lambda x: x.reshape(inputs[1].value))
            case "Identity":
                return inputs[0]
            case "Cast":
                return cast(node, inputs[0])
            case "QuantizeLinear":
                return quantize_linear(inputs)
            case "Gather" | "GatherElements":
                return gather(node, inputs)
    raise NotImplementedError(op)


def compute_outputs(node: onnx.NodeProto, inputs: list[Bounded]) -> list[Bounded]:
    """Compute all outputs of one node in float32, as ONNX defines it."""
    if node.op_type == "TopK":
        return top_k(node, *inputs)
    if node.op_type == "Split":  # into two halves
        axis = attribute(node, "axis", 0)
        values, radii = (np.array_split(x, 2, axis) for x in (inputs[0].value, inputs[0].radius))
        return [Bounded(*half) for half in zip(values, radii, strict=True)]
    return [compute(node, inputs)]
