"""The statistics of a trial: as few as tell whether anything overflows.

A sum of magnitudes is not finite where one value is not: one reduction per tensor. Where the reference holds masks or
infinities, or values whose sum might itself overflow, an infinity says nothing: only a NaN is an overflow. Where the
accelerator saturates, the largest magnitudes of the tensors beyond the range tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mixlist.checker.instrument import Instrumented, Key, Probe, Statistic, instrument
from mixlist.checker.result import TensorRange
from mixlist.graph.naming import NewNames
from mixlist.ops import types
from mixlist.resolver.constants import overflow_bound
from mixlist.rewriter.emulate import FINITE_MAX

LARGE = 1e30  # of a magnitude: 1e8 such values add up to what float32 holds

_Where = tuple[str, str, str]  # scope, node, tensor


@dataclass(frozen=True)
class Column:
    """The statistic of one tensor of a node. ``alone``: only a NaN counts there."""

    scope: str
    node: str
    alone: bool = False

    def __str__(self) -> str:
        return f"{self.scope}/{self.node}" if self.scope else self.node


@dataclass(frozen=True)
class Watch:
    """What each column of the statistics' outputs is of: ``sums`` and ``peaks`` by output name. ``low``: the low type.

    An output has the shape [columns], or [iterations, columns] where it comes out of a loop.
    """

    sums: Mapping[str, tuple[Column, ...]]
    peaks: Mapping[str, tuple[Column, ...]]
    low: int

    @property
    def names(self) -> list[str]:
        """All outputs with statistics."""
        return [*self.sums, *self.peaks]

    def overflow(self, exact: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
        """The first node found that overflows, or saturates, and does not in the reference; "" for none."""
        import numpy as np

        for name, columns in self.sums.items():
            theirs, mine = np.atleast_2d(exact[name]), np.atleast_2d(ours[name])
            alone = np.array([c.alone for c in columns])
            nan = np.isnan(mine).any(axis=0) & ~np.isnan(theirs).any(axis=0)
            infinite = ~np.isfinite(mine).all(axis=0) & np.isfinite(theirs).all(axis=0)
            bad = np.where(alone, nan, infinite)
            if bad.any():
                return str(columns[int(np.argmax(bad))])
        limit = FINITE_MAX[self.low]
        for name, columns in self.peaks.items():
            theirs, mine = np.atleast_2d(exact[name]), np.atleast_2d(ours[name])
            bad = (mine == limit).any(axis=0) & (theirs > limit).any(axis=0)
            if bad.any():
                return str(columns[int(np.argmax(bad))])
        return ""


def watched(proto: Any, tensors: Iterable[TensorRange], low: int, saturate: bool) -> tuple[Any, Watch]:
    """A copy of the model with the statistics of a trial, and what they are of.

    ``tensors``: what the reference's values are like over all batches; ``low``: the low type; ``saturate``: whether
    values beyond its range become its largest one.
    """
    largest = {(t.scope, t.node, t.tensor): max(abs(t.minimum), abs(t.maximum)) for t in tensors}
    sums = instrument(proto, (_SUM,))
    columns = _columns(sums, _SUM, lambda p: largest.get(_where(p), 0.0) >= LARGE or p.elem == types.DOUBLE)
    if not saturate:
        return sums.proto, Watch(columns, {}, low)
    beyond = {where for where, size in largest.items() if size >= overflow_bound(low)}
    peaks = instrument(sums.proto, (_PEAK,), lambda probe: _where(probe) in beyond)
    return peaks.proto, Watch(columns, _columns(peaks, _PEAK, lambda _: False), low)


def _columns(made: Instrumented, statistic: Statistic, alone: Any) -> dict[str, tuple[Column, ...]]:
    """What the columns of each output are of."""
    probes: dict[Key, Probe] = {probe.key: probe for probe in made.probes}
    found: dict[str, dict[int, Column]] = {}
    for (key, name), places in made.outputs.items():
        if name == statistic.name:
            for place in places:
                found.setdefault(place.output, {})[place.column] = Column(key.scope, key.node, alone(probes[key]))
    return {output: tuple(of[at] for at in sorted(of)) for output, of in found.items()}


def _where(probe: Probe) -> _Where:
    return probe.key.scope, probe.key.node, probe.tensor


def _sum(tensor: str, out: str, elem: int, names: NewNames) -> list[Any]:
    from onnx import helper

    return [helper.make_node("ReduceL1", [tensor], [out], name=names.make(f"ReduceL1_{out}"), keepdims=0)]


def _peak(tensor: str, out: str, elem: int, names: NewNames) -> list[Any]:
    from onnx import helper

    size = names.make(f"{out}_abs")
    return [
        helper.make_node("Abs", [tensor], [size], name=names.make(f"Abs_{size}")),
        helper.make_node("ReduceMax", [size], [out], name=names.make(f"ReduceMax_{out}"), keepdims=0),
    ]


_SUM = Statistic("sum", 0.0, "ReduceSum", _sum)
_PEAK = Statistic("peak", 0.0, "ReduceMax", _peak)
