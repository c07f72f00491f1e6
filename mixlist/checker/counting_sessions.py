"""Runs that count values: both models with counting statistics, in sessions that are made when first needed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from mixlist.checker import value_counts
from mixlist.checker.model_pair import Pair, replace_scope
from mixlist.checker.overflow import Batch, Tally, has_suspects, suspects
from mixlist.checker.result import ValueCounts
from mixlist.emulation.instrument import Instrumented, Probe, Statistic, instrument
from mixlist.emulation.observed_range import ObservedRange
from mixlist.emulation.observer import Observer
from mixlist.graph.dataflow import DataflowNode
from mixlist.graph.io import Loaded
from mixlist.graph.refs import TensorRef
from mixlist.ops import types
from mixlist.ops.low_precision import overflow_bound
from mixlist.patterns.masks import Mask, find_masks

Totals = dict[tuple[TensorRef, str], float]
_FINITE = "finite"


class Counter:
    """One of the two models with counting statistics of some tensors; all Keys are those of the original."""

    def __init__(
        self,
        model: Loaded,
        probes: Iterable[Probe],
        observe: Callable[[Loaded, Instrumented, list[str]], Observer],
        statistics: tuple[Statistic, ...],
        keys: Iterable[TensorRef] | None,
        *,
        renamed: Mapping[str, str] | None = None,
        guard: bool = False,
    ) -> None:
        """``probes`` of the model, ``observe`` what opens its session; ``keys`` are the tensors to count, None for all.

        ``renamed``: what the original calls the model's functions; ``guard`` as for ``instrument``.
        """
        self._renamed = renamed or {}
        self._names = tuple(statistic.name for statistic in statistics)
        self._sources = {self._plain(p.key): self._plain(p.source) for p in probes if p.source is not None}
        asked = None if keys is None else {self._sources.get(key, key) for key in keys}

        def wanted(probe: Probe) -> bool:
            return asked is None or self._plain(probe.key) in asked

        self._observer = observe(model, instrument(model.proto, statistics, wanted, guard=guard), [])

    @classmethod
    def of(
        cls, pair: Pair, mixed: bool, statistics: tuple[Statistic, ...], keys: Iterable[TensorRef] | None
    ) -> Counter:
        """In the reference or the mixed model of a check."""
        way = pair.way
        if mixed:
            probes = pair.ours.instrumented.probes
            observe, renamed = way.observe_mixed, pair.renamed
            return cls(pair.mixed, probes, observe, statistics, keys, renamed=renamed, guard=way.guard)
        probes = pair.reference.instrumented.probes
        return cls(pair.original, probes, way.observe_reference, statistics, keys, guard=way.guard)

    def _plain(self, key: TensorRef) -> TensorRef:
        return replace_scope(key, self._renamed)

    def count(self, feed: Mapping[str, Any]) -> tuple[Totals, dict[TensorRef, float]]:
        """One batch: the totals, and the smallest magnitudes where they are among the statistics.

        Specialisations of one function are one function; what only moves another tensor's values has its numbers.
        """
        totals: Totals = {}
        smallest: dict[TensorRef, float] = {}
        for (key, name), found in self._observer.values(feed, self._names).items():
            plain = self._plain(key)
            if name == value_counts.SMALLEST:
                least = np.nanmin(found, initial=value_counts.NO_SMALLEST)
                smallest[plain] = min(float(least), smallest.get(plain, value_counts.NO_SMALLEST))
            else:
                totals[plain, name] = totals.get((plain, name), 0.0) + float(found.sum())
        for key, source in self._sources.items():
            if source in smallest:
                smallest[key] = smallest[source]
            for name in self._names:
                if (source, name) in totals:
                    totals[key, name] = totals[source, name]
        return totals, smallest

    def close(self) -> None:
        """Let the session go."""
        self._observer.close()


MakeCounter = Callable[[tuple[Statistic, ...], Iterable[TensorRef]], Counter]


class MaskedOverflowFinder:
    """Finds what overflows beside the infinities of a mask; values are counted only where a range asks for it.

    ``lows`` are the low types there are; ``reference`` and ``mixed`` make a Counter in each of the two models, None
    where there is no such model to count in.
    """

    def __init__(
        self, wired: list[DataflowNode], lows: AbstractSet[int], reference: MakeCounter, mixed: MakeCounter | None
    ) -> None:
        self._wired, self._lows = wired, lows
        self._make_reference, self._make_mixed = reference, mixed
        self._masks: dict[TensorRef, Mask] | None = None
        self._levels: dict[TensorRef, set[float]] = {}
        self._counter: Counter | None = None
        self._mixed: Counter | None = None
        self._mixed_keys: set[TensorRef] = set()

    @classmethod
    def of(cls, pair: Pair) -> MaskedOverflowFinder:
        """For the two models of a check."""
        lows = frozenset(pair.low.values())
        return cls(pair.wired, lows, partial(Counter.of, pair, False), partial(Counter.of, pair, True))

    def look(self, feed: Mapping[str, Any], batch: Batch) -> Batch:
        """The batch with its masks and what they hide."""
        if not has_suspects(batch):
            return batch
        if self._masks is None:  # only float16 is too narrow for the usual masks
            self._masks = find_masks(self._wired) if types.FLOAT16 in self._lows else {}
        batch = replace(batch, masks=self._masks)
        return replace(batch, hidden=self._find(feed, batch))

    def _find(self, feed: Mapping[str, Any], batch: Batch) -> frozenset[TensorRef]:
        """The tensors with a value that overflows and is no mask's."""
        asked = suspects(batch)
        if not asked:
            return frozenset()
        if any(level not in self._levels.get(key, ()) for key, level in asked.items()):
            self._prepare(asked)
        assert self._counter is not None
        totals, _ = self._counter.count(feed)
        found = set()
        for key, level in asked.items():
            bound = overflow_bound(batch.low[key])
            if totals.get((key, _name(level)), 0) > totals.get((key, _name(bound)), 0):
                found.add(key)
        return frozenset(found | self._among_infinities(feed, batch, asked, totals))

    def _among_infinities(
        self, feed: Mapping[str, Any], batch: Batch, asked: Mapping[TensorRef, float], totals: Totals
    ) -> set[TensorRef]:
        """Tensors infinite in float32 with fewer finite values in the mixed model: something they read overflowed."""
        infinite = {key for key in asked if _has_infinities(batch.reference[key]) and _has_infinities(batch.mixed[key])}
        if not infinite or self._make_mixed is None:
            return set()
        if self._mixed is None or not infinite <= self._mixed_keys:
            if self._mixed is not None:
                self._mixed.close()
            self._mixed_keys = infinite | self._mixed_keys
            self._mixed = self._make_mixed((value_counts.below(_FINITE, math.inf),), self._mixed_keys)
        finite, _ = self._mixed.count(feed)
        return {key for key in infinite if finite.get((key, _FINITE), 0) < totals.get((key, _name(asked[key])), 0)}

    def _prepare(self, asked: Mapping[TensorRef, float]) -> None:
        """A session that counts these too; the next batch mostly asks for the same."""
        if self._counter is not None:
            self._counter.close()
        for key, level in asked.items():
            self._levels.setdefault(key, set()).add(level)
        edges = {overflow_bound(low) for low in self._lows}
        edges.update(level for found in self._levels.values() for level in found)
        statistics = tuple(value_counts.below(_name(edge), edge) for edge in sorted(edges))
        self._counter = self._make_reference(statistics, self._levels)

    def close(self) -> None:
        """Let the sessions go."""
        for counter in (self._counter, self._mixed):
            if counter is not None:
                counter.close()


def _has_infinities(span: ObservedRange) -> bool:
    return not span.finite and not span.nan


def _name(edge: float) -> str:
    return f"below_{edge:g}"


class FullStatistics:
    """Counts every value of every low tensor, and looks for the smallest one of every tensor (full statistics)."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self._low = tuple(pair.low)
        self._ours: Counter | None = None
        self._exact: Counter | None = None
        self._last: tuple[Totals, Totals] = {}, {}
        self.totals: dict[TensorRef, ValueCounts] = {}
        self.smallest: dict[TensorRef, float] = {}

    def add(self, feed: Mapping[str, Any]) -> dict[TensorRef, ValueCounts]:
        """Count one batch: what is what, by low tensor."""
        if self._exact is None:
            low = next(iter(self._pair.low.values()), types.FLOAT16)
            if self._low:
                self._ours = Counter.of(self._pair, True, value_counts.of_mixed(low), self._low)
            self._exact = Counter.of(
                self._pair, False, (*value_counts.of_reference(low), value_counts.smallest()), None
            )
        mixed = self._ours.count(feed)[0] if self._ours is not None else {}
        exact, smallest = self._exact.count(feed)
        self._last = mixed, exact
        for key, least in smallest.items():
            if least < self.smallest.get(key, value_counts.NO_SMALLEST):
                self.smallest[key] = least
        counted = {key: value_counts.tell(key, mixed, exact) for key in self._low}
        for key, each in counted.items():
            self.totals[key] = self.totals[key] + each if key in self.totals else each
        return counted

    def number(self, index: int, tallies: Mapping[TensorRef, Tally]) -> None:
        """Put the numbers of the batch that was added last, the one of this index, into its tallies."""
        mixed, _ = self._last
        for key, tally in tallies.items():
            for kind, batches in tally.batches.items():
                if batches[-1] == index and (key, "values") in mixed:
                    tally.counts[kind] = max(value_counts.number(kind, key, *self._last), tally.counts.get(kind, 0))

    def close(self) -> None:
        """Let both sessions go."""
        for counter in (self._ours, self._exact):
            if counter is not None:
                counter.close()
