"""Find the masks that the graph proves, from the text of Rule S8.12: constants that reach only softmaxes."""

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
SMALLEST_MASK = 1e4  # the smallest constant that can be a mask
UNCONDITIONAL_MASK = 131040.0  # from here a constant is a mask whatever is added: half of it is beyond float16
LARGEST_QUANTITY = 1e37  # a value from here is a mask: Rule S8.11


@dataclass(frozen=True)
class Carried:
    """Hold how a tensor carries a constant: the signs of its values, the tensors joined to it, and its factors."""

    signs: frozenset[int] = frozenset()
    joined: frozenset[str] = frozenset()
    factors: frozenset[str] = frozenset()

    def union(self, second: Carried) -> Carried:
        return Carried(self.signs | second.signs, self.joined | second.joined, self.factors | second.factors)


@dataclass(frozen=True)
class Levels:
    """Hold the smallest magnitude of a mask's value, for each sign.

    ``infinity_signs``: the signs of which every infinity is a mask's, because no other value can be infinite.
    """

    by_sign: Mapping[int, float] = field(default_factory=lambda: {-1: LARGEST_QUANTITY, 1: LARGEST_QUANTITY})
    infinity_signs: frozenset[int] = frozenset()

    def explain_infinity(self, mixed: np.ndarray) -> np.ndarray:
        """Return where a value of the mixed model is an infinity that only a mask can cause."""
        return np.isinf(mixed) & np.isin(np.sign(mixed), list(self.infinity_signs))

    def of(self, value: np.ndarray) -> np.ndarray:
        return np.where(value > 0, self.by_sign[1], self.by_sign[-1])


@dataclass(frozen=True)
class Constant:
    """Hold a constant that is a mask: its magnitude, and the tensors that carry it."""

    size: float
    path: dict[str, Carried]

    def signs(self, tensor: str, values: Mapping[str, Bounded]) -> set[int]:
        """Return the signs of the mask's values in a tensor in one batch; none if the mask is not proven there."""
        carried = self.path[tensor]
        factors = [values[name].value for name in carried.factors]
        if any(not (np.abs(x) <= 1).all() for x in factors):
            return set()
        joined_bounds = [
            largest_magnitude(values[name], only_finite=self.size >= UNCONDITIONAL_MASK) for name in carried.joined
        ]
        limit = LOW["float16"][3] if self.size < UNCONDITIONAL_MASK else self.size / 2
        low, high = (sum(bounds[i] for bounds in joined_bounds) for i in (0, 1))
        if low < limit <= high:
            raise Ambiguous("a mask whose proof depends on rounding")
        if not high < limit:
            return set()
        negated_signs = {-sign for sign in carried.signs} if any((x < 0).any() for x in factors) else set()
        return negated_signs | carried.signs


def largest_magnitude(t: Bounded, only_finite: bool) -> tuple[float, float]:
    """Return bounds of the largest magnitude. NaN and infinities count as infinite, or not at all."""
    finite = np.isfinite(t.value)
    if not only_finite and not finite.all():
        return np.inf, np.inf
    size, radius = np.abs(t.value[finite].astype(np.float64)), t.radius[finite]
    return float((size - radius).max(initial=0)), float((size + radius).max(initial=0))


def proven_masks(model: onnx.ModelProto) -> list[Constant]:
    """Return the constants that are masks."""
    masks = []
    for t in model.graph.initializer:
        value = numpy_helper.to_array(t)
        if value.dtype != np.float32 or not value.size or np.abs(value).max() < SMALLEST_MASK:
            continue
        size = float(np.abs(value).max())
        signs = frozenset(sign for sign in (-1, 1) if (value * sign).max() >= size / 2)
        path = carry(model, t.name, signs)
        if path:
            masks.append(Constant(size, path))
    return masks


def carry(model: onnx.ModelProto, constant: str, signs: frozenset[int]) -> dict[str, Carried]:
    """Return the tensors between a constant and its softmaxes; none if another node reads one, or one is an output."""
    constants = {t.name for t in model.graph.initializer}
    path = {constant: Carried(signs)}
    for node in model.graph.node:
        inputs = node.input[node.op_type == "Where" :]
        if not set(node.input) & path.keys() or node.op_type in SOFTMAX:
            continue
        other_inputs = frozenset(inputs) - path.keys() - constants
        output_carries = Carried(factors=other_inputs) if node.op_type == "Mul" else Carried()
        if node.op_type in JOINS:
            output_carries = Carried(joined=other_inputs)
        elif node.op_type not in (*CARRIERS, "Mul"):
            return {}
        for slot, name in enumerate(inputs):
            if name in path:
                carried = path[name]
                if node.op_type == "Mul" and carried.joined:
                    return {}
                if node.op_type == "Sub" and slot == 1:
                    carried = Carried(frozenset(-sign for sign in carried.signs), carried.joined, carried.factors)
                output_carries = output_carries.union(carried)
        path[node.output[0]] = output_carries
    if path.keys() & {v.name for v in model.graph.output}:
        return {}
    return {name: carried for name, carried in path.items() if name != constant}


def levels_of(masks: list[Constant], tensor: str, values: Mapping[str, Bounded]) -> Levels:
    """Return the smallest magnitudes of a mask's values in a tensor in one batch; ``values`` are the reference's."""
    least = {-1: LARGEST_QUANTITY, 1: LARGEST_QUANTITY}
    infinity_signs: set[int] = set()
    for constant in masks:
        if tensor in constant.path and constant.size / 2 < LARGEST_QUANTITY:
            signs = constant.signs(tensor, values)
            for sign in signs:
                least[sign] = min(least[sign], constant.size / 2)
            # The values joined to a small constant are in the range of float16, so they are infinite with it alone.
            infinity_signs |= signs if constant.size < UNCONDITIONAL_MASK else set()
    return Levels(least, frozenset(infinity_signs))
