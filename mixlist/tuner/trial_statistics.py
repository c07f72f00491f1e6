"""The statistics of a trial: as few as tell whether anything overflows.

A sum of magnitudes is not finite where one value is not: one reduction per tensor, and none where it is ``spared``. Of
some tensors an infinity says nothing by itself: of those that carry masks, that hold infinities or numbers beyond all
quantities in the reference already and, where the accelerator saturates, of those beyond the range. They have their
whole ranges taken, and where one of them is at the limit, ``masked`` judges as ``check`` does.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from mixlist.checker.result import TensorRange
from mixlist.emulation.graph_statistics import SUM, Instrumented, Probe
from mixlist.emulation.instrument import instrument
from mixlist.emulation.observer import RangeReader, Ranges
from mixlist.graph.dataflow import DataflowNode
from mixlist.graph.model import Value
from mixlist.graph.refs import TensorRef
from mixlist.ops import types
from mixlist.ops.low_precision import FINITE_MAX, overflow_bound
from mixlist.patterns import constants
from mixlist.patterns.masks import Mask
from mixlist.tuner.skippable_statistics import is_spared, sizes

LARGE = 1e30  # of a magnitude: 1e8 such values add up to what float32 holds


class Column(NamedTuple):
    """The statistic of one tensor. ``alone``: only a NaN counts there."""

    tensor: TensorRef
    alone: bool


@dataclass(frozen=True)
class Watch:
    """What each column of the statistics' outputs is of: ``sums`` by output name, an output has the shape [columns],
    or [iterations, columns] where it comes out of a loop; ``ranged`` are the tensors with ranges, without the model;
    ``ends`` what stands last before each cut.

    ``low``: the low type; ``saturate``: whether values beyond its range become its largest one.
    """

    sums: Mapping[str, tuple[Column, ...]]
    ranged: Instrumented
    ends: Sequence[tuple[str, ...]]
    low: int
    saturate: bool

    @property
    def names(self) -> list[str]:
        """All outputs with statistics."""
        return [*self.sums, *self.ranged.widths]

    def overflow(self, exact: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
        """The first node found that overflows and does not in the reference; "" for none.

        ``ours`` may be a part of the statistics.
        """
        import numpy as np

        for name, columns in self.sums.items():
            if name not in ours:
                continue
            if np.isfinite(ours[name]).all():
                continue
            theirs, mine = np.atleast_2d(exact[name]), np.atleast_2d(ours[name])
            alone = np.array([c.alone for c in columns])
            nan = np.isnan(mine).any(axis=0) & ~np.isnan(theirs).any(axis=0)
            infinite = ~np.isfinite(mine).all(axis=0) & np.isfinite(theirs).all(axis=0)
            bad = np.where(alone, nan, infinite)
            if bad.any():
                return str(columns[int(np.argmax(bad))].tensor.producer)
        return ""

    def doubtful(self, exact: Mapping[str, Any], ours: Mapping[str, Any]) -> tuple[Ranges, Ranges] | None:
        """The ranges in the reference and in the trial, if one of the trial's is at the limit."""
        if not self.ranged.widths:
            return None
        mine = self._reader.read(ours)
        limit = FINITE_MAX[self.low]
        if all(r.finite and not (self.saturate and r.magnitude >= limit) for r in mine.values()):
            return None
        return self._reader.read(exact), mine

    @cached_property
    def _reader(self) -> RangeReader:
        return RangeReader(self.ranged)


def watched(
    proto: Any,
    tensors: Iterable[TensorRange],
    masks: Mapping[TensorRef, Mask],
    low: int,
    saturate: bool,
    wired: Iterable[DataflowNode] = (),
    cuts: Container[str] = (),
    range_of: Callable[[Value], constants.ConstantRange | None] = lambda _: None,
) -> tuple[Any, Watch]:
    """A copy of the model with the statistics of a trial, and what they are of.

    ``wired``: the model's nodes, without which every tensor is watched; ``tensors``: what the reference's values are
    like over all batches; ``masks``: the tensors that carry masks; ``low``: the low type; ``saturate``: whether values
    beyond its range become its largest one; ``cuts`` as for ``instrument``; ``range_of``: the range of a constant.
    """
    tensors = list(tensors)
    bound = overflow_bound(low) if saturate else LARGE
    beyond = {(t.producer, t.tensor) for t in tensors if not t.magnitude < bound}
    known = sizes(tensors, range_of, low)
    spared = {w.ref for w in wired if is_spared(w, known)}
    wanted: AbstractSet[TensorRef] = {*masks}.union(*(mask.beside | mask.factors for mask in masks.values()))

    def doubtful(probe: Probe) -> bool:
        return probe.key in wanted or ((probe.key.producer, probe.tensor) in beyond and probe.elem != types.DOUBLE)

    def own(key: TensorRef) -> bool:
        return key in wanted or key.producer in known.near

    def summed(probe: Probe) -> bool:
        return not doubtful(probe) and probe.key.producer not in spared

    sums = instrument(proto, (SUM,), summed, own=own, cuts=cuts)
    ranged = instrument(sums.proto, wanted=doubtful, own=own, cuts=cuts)
    ends = [(*one, *other) for one, other in zip(sums.parts, ranged.parts, strict=True)]
    return ranged.proto, Watch(_columns(sums), replace(ranged, proto=type(ranged.proto)()), ends, low, saturate)


def _columns(made: Instrumented) -> dict[str, tuple[Column, ...]]:
    """What the columns of each output are of."""
    probes: dict[TensorRef, Probe] = {probe.key: probe for probe in made.probes}
    found: dict[str, dict[int, Column]] = {}
    for (key, _), places in made.outputs.items():
        for place in places:
            column = Column(key, probes[key].elem == types.DOUBLE)
            found.setdefault(place.output, {})[place.column] = column
    return {output: tuple(of[at] for at in sorted(of)) for output, of in found.items()}
