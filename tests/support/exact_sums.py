"""Find the nodes whose inner sums leave the low range, by the text of Rule S8.13 and not by the implementation."""

from __future__ import annotations

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from tests.support.exact_operators import LOW, Ambiguous, Bounded
from tests.support.exact_verdict import Findings, Pair

EXPLAINING = ("overflow", "saturated", "propagated", "preexisting", "intended")
ROUNDING = 1e-4  # a bound of the relative error of a sum in float32
MASK = 1e37


def nodes_at_risk(pair: Pair, findings: Findings) -> set[str]:
    """Return the names of the low nodes with a sum beyond the low type in one batch."""
    explained = {tensor for tensor, kind in findings.outputs if kind in EXPLAINING}
    readers = {reader for reader, _, kind in findings.operands if kind in EXPLAINING}
    producers = {name: node for node in pair.original.graph.node for name in node.output}

    def is_explained(node: onnx.NodeProto) -> bool:
        return node.name in readers or not explained.isdisjoint(node.output)

    return {
        node.name
        for node in producers.values()
        if node.output[0] in pair.low
        and has_large_sum(node, pair, LOW[pair.low[node.output[0]]][3])
        and not any(map(is_explained, (node, *(producers[name] for name in node.input if name in producers))))
    }


def has_large_sum(node: onnx.NodeProto, pair: Pair, edge: float) -> bool:
    """Return whether the largest sum is from ``edge`` on and below the magnitude of masks."""
    if edge >= MASK or not (terms := terms_of(node, pair)):
        return False
    with np.errstate(all="ignore"):
        low, high = (max(float(np.max(sums, initial=0)) for sums in side) for side in zip(*terms, strict=True))
    if np.isnan(low) or np.isnan(high):
        return False
    if (low < edge) != (high < edge) or (low < MASK) != (high < MASK):
        raise Ambiguous("a sum at the limit")
    return edge <= low < MASK


def terms_of(node: onnx.NodeProto, pair: Pair) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Return a lower and an upper bound of each kind of sums that an operator adds up."""
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    x = pair.reference[node.input[0]]
    match node.op_type:
        case "ReduceSum" | "ReduceMean":
            return signed_sums(x, axes_of(node, pair, attributes))
        case "ReduceL2" | "ReduceSumSquare":
            return [square_sums(x, axes_of(node, pair, attributes))]
        case "LayerNormalization":
            axes = tuple(range(attributes.get("axis", -1) % x.value.ndim, x.value.ndim))
            return [*signed_sums(x, axes), square_sums(x, axes)]
    return []  # the Softmax of so few values adds up less than any low type holds


def axes_of(node: onnx.NodeProto, pair: Pair, attributes: dict[str, object]) -> tuple[int, ...]:
    """Return the axes of a reduction: an input, an attribute, or all of them."""
    axes = attributes.get("axes", ())
    if len(node.input) > 1:
        weights = {t.name: numpy_helper.to_array(t) for t in pair.original.graph.initializer}
        axes = weights[node.input[1]].tolist()
    return tuple(axes) or tuple(range(pair.reference[node.input[0]].value.ndim))  # type: ignore[arg-type, var-annotated]


def signed_sums(x: Bounded, axes: tuple[int, ...]) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Return the bounds of the sums of the positive values, and of those of the negative ones."""
    value = x.value.astype(np.float64)
    with np.errstate(all="ignore"):
        return [bounds(np.maximum(s * value - x.radius, 0), np.maximum(s * value + x.radius, 0), axes) for s in (1, -1)]


def square_sums(x: Bounded, axes: tuple[int, ...]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the bounds of the sums of the squares."""
    size = np.abs(x.value.astype(np.float64))
    with np.errstate(all="ignore"):
        return bounds(np.maximum(size - x.radius, 0) ** 2, (size + x.radius) ** 2, axes)


def bounds(
    low: NDArray[np.float64], high: NDArray[np.float64], axes: tuple[int, ...]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    return low.sum(axis=axes) * (1 - ROUNDING), high.sum(axis=axes) * (1 + ROUNDING)
