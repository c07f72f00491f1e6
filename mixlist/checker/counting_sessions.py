"""Run both models with counting statistics, in sessions that are made when they are first needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from mixlist.checker.finding_rules import FindingRecord
from mixlist.checker.model_pair import ModelPair, ObservedModel
from mixlist.checker.operand_rules import OperandKey, OperandRecord, operand_count
from mixlist.checker.result import FindingKind, ValueCounts
from mixlist.checker.value_counts import (
    LARGEST,
    NO_LARGEST,
    NO_SMALLEST,
    SMALLEST,
    Totals,
    conversion_statistics,
    converted_counts,
    finding_count,
    mixed_statistics,
    reference_statistics,
    smallest_nonzero,
    value_counts,
)
from mixlist.emulation.conversions import Conversion
from mixlist.emulation.graph_statistics import Probe, Statistic
from mixlist.emulation.instrument import instrument
from mixlist.graph.refs import TensorRef
from mixlist.ops import types

if TYPE_CHECKING:
    from mixlist.runtime.feeds import Batches
    from mixlist.runtime.session import Feed

Key = TypeVar("Key")
_UNCOUNTED: tuple[FindingKind, ...] = ("intended", "refused")


class CountingSession:
    """One of the two models with counting statistics of some ``tensors`` (None for all), called as in the original."""

    def __init__(
        self, model: ObservedModel, statistics: tuple[Statistic, ...], tensors: Iterable[TensorRef] | None
    ) -> None:
        name = self._name = model.in_original
        self._statistics = tuple(statistic.name for statistic in statistics)
        # a tensor that only moves the values of another one is not counted itself
        self._sources = {name(p.ref): name(p.source) for p in model.probes if p.source is not None}
        asked = None if tensors is None else {self._sources.get(tensor, tensor) for tensor in tensors}

        def wanted(probe: Probe) -> bool:
            return asked is None or name(probe.ref) in asked

        instrumented = instrument(
            model.loaded.proto, statistics, wanted, safe_reductions=model.guard, extra_probes=model.read
        )
        self._observer = model.observe(model.loaded, instrumented, [])

    def count(self, feed: Feed) -> Totals:
        """Run one batch; return the statistics by tensor and name. Specializations of a function count together."""
        totals: dict[tuple[TensorRef, str], float] = {}
        for (tensor, name), values in self._observer.read_statistics(feed, self._statistics).items():
            which = self._name(tensor), name
            if name == SMALLEST:
                least = float(np.nanmin(values, initial=NO_SMALLEST))
                totals[which] = min(least, totals.get(which, NO_SMALLEST))
            elif name == LARGEST:
                totals[which] = max(float(values.max(initial=NO_LARGEST)), totals.get(which, NO_LARGEST))
            else:
                totals[which] = totals.get(which, 0.0) + float(values.sum())
        for tensor, source in self._sources.items():
            totals.update(
                {(tensor, name): totals[source, name] for name in self._statistics if (source, name) in totals}
            )
        return totals

    def close(self) -> None:
        """Release the session."""
        self._observer.close()


class CountingSessions:
    """A CountingSession for each low type of the mixed model, since the bounds of a tensor are those of its type.

    ``statistics``: those of a low type. ``tensors``: None for all; those that are not low have the first type's bounds.
    """

    def __init__(
        self,
        pair: ModelPair,
        model: ObservedModel,
        statistics: Callable[[int], tuple[Statistic, ...]],
        tensors: Iterable[TensorRef] | None,
    ) -> None:
        first = next(iter(pair.low_types), types.FLOAT16)
        by_type: dict[int, list[TensorRef]] = {first: []}
        for tensor in pair.low_type_of if tensors is None else tensors:
            by_type.setdefault(pair.low_type_of.get(tensor, first), []).append(tensor)
        self._sessions = [
            CountingSession(model, statistics(elem), None if tensors is None and elem == first else of_type)
            for elem, of_type in by_type.items()
            if of_type or tensors is None
        ]

    def count(self, feed: Feed) -> Totals:
        """Run one batch in each session; a later session replaces what the first one counted of its tensors."""
        totals: dict[tuple[TensorRef, str], float] = {}
        for session in self._sessions:
            totals |= session.count(feed)
        return totals

    def close(self) -> None:
        """Release the sessions."""
        for session in self._sessions:
            session.close()


class ConvertedCount:
    """Counts the values that conversions of the mixed model lose, flush or make subnormal."""

    def __init__(self, pair: ModelPair, conversions: Iterable[Conversion]) -> None:
        groups: dict[tuple[bool, int], dict[Conversion, TensorRef]] = {}
        for conversion in conversions:
            group = groups.setdefault((conversion.in_reference, conversion.elem), {})
            group[conversion] = probe_in_original(pair, conversion)
        self._sessions = [
            (
                CountingSession(pair.reference if there else pair.mixed, conversion_statistics(elem), tensors.values()),
                tensors,
            )
            for (there, elem), tensors in groups.items()
        ]

    def count(self, feed: Feed) -> dict[Conversion, ValueCounts]:
        """Count one batch."""
        counts: dict[Conversion, ValueCounts] = {}
        for session, tensors in self._sessions:
            totals = session.count(feed)
            for conversion, tensor in tensors.items():
                if (tensor, "values") in totals:
                    counts[conversion] = converted_counts(tensor, totals)
        return counts

    def close(self) -> None:
        """Release the sessions."""
        for session, _ in self._sessions:
            session.close()


def probe_in_original(pair: ModelPair, conversion: Conversion) -> TensorRef:
    """Return the tensor that a conversion reads, by its name in the counts of the model that observes it."""
    model = pair.reference if conversion.in_reference else pair.mixed
    return model.in_original(conversion.probe)


class FullStatistics:
    """Counts every value of every low tensor, and finds the smallest value of every tensor (full statistics)."""

    def __init__(self, pair: ModelPair) -> None:
        self._pair = pair
        # of the mixed model, of the reference, and of conversions
        self._sessions: tuple[CountingSessions, CountingSessions, ConvertedCount] | None = None
        self._mixed: Totals = {}
        self._reference: Totals = {}
        self.operands: dict[Conversion, ValueCounts] = {}  # of the batch that was added last
        self.totals: dict[TensorRef, ValueCounts] = {}
        self.smallest: dict[TensorRef, float] = {}

    def add(self, feed: Feed) -> dict[TensorRef, ValueCounts]:
        """Count one batch; return the counts by low tensor."""
        pair = self._pair
        if self._sessions is None:
            self._sessions = (
                CountingSessions(pair, pair.mixed, mixed_statistics, pair.low_type_of),
                CountingSessions(
                    pair, pair.reference, lambda elem: (*reference_statistics(elem), smallest_nonzero()), None
                ),
                ConvertedCount(pair, pair.conversions),
            )
        mixed, reference, converted = self._sessions
        self._mixed, self._reference, self.operands = mixed.count(feed), reference.count(feed), converted.count(feed)
        for (tensor, name), least in self._reference.items():
            if name == SMALLEST and least < self.smallest.get(tensor, NO_SMALLEST):
                self.smallest[tensor] = least
        counted = {tensor: value_counts(tensor, self._mixed, self._reference) for tensor in pair.low_type_of}
        for tensor, counts in counted.items():
            self.totals[tensor] = self.totals[tensor] + counts if tensor in self.totals else counts
        return counted

    def count_findings(
        self, index: int, records: Mapping[TensorRef, FindingRecord], operands: Mapping[OperandKey, OperandRecord]
    ) -> None:
        """Put the counts of the batch that was added last, the one of this index, into its records."""
        for tensor, record in records.items():
            for kind, batches in record.batches.items():
                if batches[-1] == index and (tensor, "values") in self._mixed:
                    record.add_count(kind, finding_count(kind, tensor, self._mixed, self._reference))
        for operand in operands.values():
            for kind, batches in operand.batches.items():
                if batches[-1] == index and operand.conversion in self.operands:
                    operand.add_count(kind, operand_count(kind, self.operands[operand.conversion]))

    def close(self) -> None:
        """Release the sessions."""
        for session in self._sessions or ():
            session.close()


def count_findings(pair: ModelPair, batches: Batches, records: Mapping[TensorRef, FindingRecord]) -> None:
    """Count the values behind the findings, in the first batch where each arose.

    Those of an intended finding are not worth two sessions: masked values are as many as the data masks. A refused run
    has no values.
    """
    chosen = first_batches(records)
    if not chosen:
        return
    tensors = set[TensorRef]().union(*chosen.values())
    mixed = CountingSessions(pair, pair.mixed, mixed_statistics, tensors)
    reference = CountingSessions(pair, pair.reference, reference_statistics, tensors)
    for index, feed in enumerate(islice(batches, max(chosen) + 1)):
        if index in chosen:
            totals = mixed.count(feed), reference.count(feed)
            for tensor in chosen[index]:
                for kind, indices in records[tensor].batches.items():
                    if index in indices and kind not in _UNCOUNTED:
                        records[tensor].add_count(kind, finding_count(kind, tensor, *totals))
    mixed.close()
    reference.close()


def count_operands(pair: ModelPair, batches: Batches, records: Mapping[OperandKey, OperandRecord]) -> None:
    """Count the values behind the findings of converted inputs, in the first batch where each arose."""
    chosen = first_batches(records)
    if not chosen:
        return
    asked = (records[operand].conversion for operands in chosen.values() for operand in operands)
    session = ConvertedCount(pair, asked)
    for index, feed in enumerate(islice(batches, max(chosen) + 1)):
        counts = session.count(feed) if index in chosen else {}
        for operand in chosen.get(index, ()):
            record = records[operand]
            for kind, indices in record.batches.items():
                if index in indices and kind not in _UNCOUNTED and record.conversion in counts:
                    record.add_count(kind, operand_count(kind, counts[record.conversion]))
    session.close()


def first_batches(records: Mapping[Key, FindingRecord]) -> dict[int, set[Key]]:
    """Return by batch the keys of the records with a finding that first arose there, of a kind that is counted."""
    chosen: dict[int, set[Key]] = {}
    for key, record in records.items():
        for kind, indices in record.batches.items():
            if kind not in _UNCOUNTED:
                chosen.setdefault(indices[0], set()).add(key)
    return chosen
