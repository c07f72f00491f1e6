"""The second look: how many values of a tensor are not finite, flushed, saturated or near the limit.

The first look takes only ranges. Where a range calls for it (or everywhere, with full statistics) the batches in
question run again with counting reductions, computed inside the graph like the ranges.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from mixlist.checker.instrument import Key, Statistic
from mixlist.checker.overflow import NEAR, Tally
from mixlist.checker.result import Kind
from mixlist.graph.naming import NewNames
from mixlist.ops import types
from mixlist.rewriter.emulate import FINITE_MAX

Counts = Mapping[tuple[Key, str], float]
_FLOAT32_LOWEST_SUBNORMAL = 2.0**-149


def statistics(low: int) -> tuple[Statistic, ...]:
    """The counting statistics for a low type: number of elements, and of those below some magnitudes."""
    limit = FINITE_MAX[low]
    return (
        Statistic("size", 0.0, "ReduceSum", _size, types.FLOAT),
        _below("zero", _FLOAT32_LOWEST_SUBNORMAL),
        _below("far", NEAR * limit),
        _below("inside", limit),
        _below("finite", math.inf),
    )


NAMES = ("size", "zero", "far", "inside", "finite")


def number(kind: Kind, key: Key, mixed: Counts, exact: Counts) -> int:
    """How many values of the tensor are what the finding says, in the batches that were looked at."""
    size = mixed.get((key, "size"), 0.0)
    if kind == "underflow":
        return max(0, int(mixed.get((key, "zero"), 0.0) - exact.get((key, "zero"), 0.0)))
    below = {"near-limit": "far", "saturated": "inside"}.get(kind, "finite")
    return int(size - mixed.get((key, below), 0.0))


def suspects(tallies: Mapping[Key, Tally]) -> dict[int, set[Key]]:
    """The tensors to look at again, by the first batch in which each kind of finding arose."""
    found: dict[int, set[Key]] = {}
    for key, tally in tallies.items():
        for batches in tally.batches.values():
            found.setdefault(batches[0], set()).add(key)
    return found


def _size(tensor: str, out: str, _: int, names: NewNames) -> list[Any]:
    from onnx import helper

    count = names.make(f"{out}_int64")
    return [
        helper.make_node("Size", [tensor], [count], name=names.make(f"Size_{out}")),
        helper.make_node("Cast", [count], [out], name=names.make(f"Cast_{out}"), to=types.FLOAT),
    ]


def _below(name: str, bound: float) -> Statistic:
    """How many values have a magnitude below ``bound``; NaN is never below."""

    def build(tensor: str, out: str, _: int, names: NewNames) -> list[Any]:
        from onnx import TensorProto, helper

        wide, size, edge = names.make(f"{out}_wide"), names.make(f"{out}_abs"), names.make(f"{out}_bound")
        yes, one = names.make(f"{out}_yes"), names.make(f"{out}_one")
        value = helper.make_tensor("", TensorProto.FLOAT, [], [bound])
        return [
            helper.make_node("Cast", [tensor], [wide], name=names.make(f"Cast_{wide}"), to=types.FLOAT),
            helper.make_node("Abs", [wide], [size], name=names.make(f"Abs_{size}")),
            helper.make_node("Constant", [], [edge], name=names.make(f"Constant_{edge}"), value=value),
            helper.make_node("Less", [size, edge], [yes], name=names.make(f"Less_{yes}")),
            helper.make_node("Cast", [yes], [one], name=names.make(f"Cast_{one}"), to=types.FLOAT),
            helper.make_node("ReduceSum", [one], [out], name=names.make(f"ReduceSum_{out}"), keepdims=0),
        ]

    return Statistic(name, 0.0, "ReduceSum", build, types.FLOAT)
