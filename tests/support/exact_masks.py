"""Masks that the graph proves, from the text of Rule S8.12: constants that reach a softmax and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import numpy_helper

from tests.support.exact_operators import LOW, Ambiguous, Bounded

SOFTMAX = ("Softmax", "LogSoftmax")
JOINS = ("Add", "Sub", "Max", "Where", "Concat")
CARRIERS = (*JOINS, "Transpose", "Reshape")
LEAST = 1e4  # the smallest constant that can be a mask
ALONE = 131040.0  # half of it is beyond float16 whatever is added
MASK = 1e37  # no quantity reaches it: Rule S8.11


@dataclass(frozen=True)
class Carried:
    """Hold how a tensor carries a constant: with these signs, joined to these tensors, times these factors."""

    signs: frozenset[int] = frozenset()
    joined: frozenset[str] = frozenset()
    factors: frozenset[str] = frozenset()

    def union(self, other: Carried) -> Carried:
        return Carried(self.signs | other.signs, self.joined | other.joined, self.factors | other.factors)


@dataclass(frozen=True)
class Levels:
    """Hold from which magnitude a value is a mask's, by its sign."""

    by_sign: Mapping[int, float] = field(default_factory=lambda: {-1: MASK, 1: MASK})

    def of(self, value: np.ndarray) -> np.ndarray:
        return np.where(value > 0, self.by_sign[1], self.by_sign[-1])


@dataclass(frozen=True)
class Constant:
    """Hold a constant that is a mask: its magnitude, and the tensors that carry it."""

    size: float
    path: dict[str, Carried]

    def signs(self, tensor: str, values: Mapping[str, Bounded]) -> set[int]:
        """Return the signs of the mask's values in one batch; none where the mask is not proven there."""
        carried = self.path[tensor]
        factors = [values[name].value for name in carried.factors]
        if any(not (np.abs(x) <= 1).all() for x in factors):
            return set()
        reach = [magnitude(values[name], only_finite=self.size >= ALONE) for name in carried.joined]
        limit = LOW["float16"][3] if self.size < ALONE else self.size / 2
        low, high = (sum(each[i] for each in reach) for i in (0, 1))
        if low < limit <= high:
            raise Ambiguous("a mask that is perhaps proven")
        if not high < limit:
            return set()
        turned = {-sign for sign in carried.signs} if any((x < 0).any() for x in factors) else set()
        return turned | carried.signs


def magnitude(t: Bounded, only_finite: bool) -> tuple[float, float]:
    """Return bounds of the largest magnitude; NaN and infinities are infinite, or left out."""
    finite = np.isfinite(t.value)
    if not only_finite and not finite.all():
        return np.inf, np.inf
    size, radius = np.abs(t.value[finite].astype(np.float64)), t.radius[finite]
    return float((size - radius).max(initial=0)), float((size + radius).max(initial=0))


def proven_masks(model: onnx.ModelProto) -> list[Constant]:
    """Return the constants that are masks."""
    found = []
    for t in model.graph.initializer:
        value = numpy_helper.to_array(t)
        if value.dtype != np.float32 or not value.size or np.abs(value).max() < LEAST:
            continue
        size = float(np.abs(value).max())
        signs = frozenset(sign for sign in (-1, 1) if (value * sign).max() >= size / 2)
        path = carry(model, t.name, signs)
        if path:
            found.append(Constant(size, path))
    return found


def carry(model: onnx.ModelProto, constant: str, signs: frozenset[int]) -> dict[str, Carried]:
    """Return the tensors between a constant and its softmaxes; none if another node or an output reads one."""
    constants = {t.name for t in model.graph.initializer}
    path = {constant: Carried(signs)}
    for node in model.graph.node:
        inputs = node.input[node.op_type == "Where" :]
        if not set(node.input) & path.keys() or node.op_type in SOFTMAX:
            continue
        others = frozenset(inputs) - path.keys() - constants
        found = Carried(factors=others) if node.op_type == "Mul" else Carried()
        if node.op_type in JOINS:
            found = Carried(joined=others)
        elif node.op_type not in (*CARRIERS, "Mul"):
            return {}
        for place, name in enumerate(inputs):
            if name in path:
                carried = path[name]
                if node.op_type == "Mul" and carried.joined:
                    return {}
                if node.op_type == "Sub" and place == 1:
                    carried = Carried(frozenset(-sign for sign in carried.signs), carried.joined, carried.factors)
                found = found.union(carried)
        path[node.output[0]] = found
    if path.keys() & {v.name for v in model.graph.output}:
        return {}
    return {name: carried for name, carried in path.items() if name != constant}


def levels_of(masks: list[Constant], tensor: str, values: Mapping[str, Bounded]) -> Levels:
    """Return from which magnitude a value of a tensor is a mask's in one batch; ``values`` are the reference's."""
    least = {-1: MASK, 1: MASK}
    for constant in masks:
        if tensor in constant.path and constant.size / 2 < MASK:
            for sign in constant.signs(tensor, values):
                least[sign] = min(least[sign], constant.size / 2)
    return Levels(least)
