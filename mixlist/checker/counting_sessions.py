"""Run both models with counting statistics, in sessions that are loaded only when they are needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np

from mixlist.checker.finding_records import FindingRecord, OperandKey, OperandRecord
from mixlist.checker.model_pair import ModelPair, ObservedModel
from mixlist.checker.operand_rules import operand_value_count
from mixlist.checker.result import FindingKind, ValueCounts
from mixlist.checker.value_counts import (
    LARGEST,
    NO_LARGEST,
    NO_SMALLEST,
    SMALLEST,
    VALUES,
    Totals,
    conversion_counts,
    conversion_statistics,
    finding_value_count,
    mixed_statistics,
    reference_statistics,
    smallest_nonzero,
    value_counts,
)
from mixlist.emulation.conversions import Conversion
from mixlist.emulation.graph_statistics import Probe, Statistic
from mixlist.emulation.instrument import instrument
from mixlist.graph.refs import TensorRef
from mixlist.ops import dtypes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mixlist.runtime.feeds import Batches
    from mixlist.runtime.session import Feed

    PendingStatistics: TypeAlias = Callable[[], dict[tuple[TensorRef, str], NDArray[np.float64]]]

Key = TypeVar("Key")
# The count of an intended finding would only show how many values belong to masks. This is not worth two more sessions.
# A refused run has no values.
_UNCOUNTED_KINDS: tuple[FindingKind, ...] = ("intended", "refused")


class CountingSession:
    """A session of one of the two models with counting statistics of some tensors (None for all).

    ``tensors`` are identified as in the original. So are the tensors of the counts.
    """

    def __init__(
        self, model: ObservedModel, statistics: tuple[Statistic, ...], tensors: Iterable[TensorRef] | None
    ) -> None:
        original_ref = self._original_ref = model.original_ref
        self._statistics = tuple(statistic.name for statistic in statistics)
        # x -> Transpose -> y: y has the same values as its source x, so y is not counted itself. It gets the counts of
        # x.
        self._source_of = {original_ref(p.ref): original_ref(p.source) for p in model.probes if p.source is not None}
        counted = None if tensors is None else {self._source_of.get(tensor, tensor) for tensor in tensors}

        def is_counted(probe: Probe) -> bool:
            return counted is None or original_ref(probe.ref) in counted

        # No output of the model is requested: only the statistics are read.
        instrumented = instrument(
            model.loaded.proto,
            statistics,
            is_counted,
            safe_reductions=model.safe_reductions,
            extra_probes=model.extra_probes,
        )
        self._observer = model.open_observer(model.loaded, instrumented, [])
        self._started: dict[int, PendingStatistics] = {}  # by the id of a feed, its run that was started

    def start_ahead(self, feeds: Iterable[Feed]) -> None:
        """Start to run batches early; ``count`` reads these runs. The caller holds the feeds until then.

        A session that runs in segments loads each segment once for all of them.
        """
        # Runs that nobody counted are forgotten: their batches were refused, or are not judged.
        self._started = {id(feed): self._observer.start_statistics(feed, self._statistics) for feed in feeds}

    def count(self, feed: Feed) -> Totals:
        """Run one batch; return the statistics by tensor and name.

        All iterations of a loop, and all calls and specializations of a function, count together.
        """
        totals: dict[tuple[TensorRef, str], float] = {}
        started = self._started.pop(id(feed), None)
        statistics = self._observer.read_statistics(feed, self._statistics) if started is None else started()
        for (tensor, name), values in statistics.items():
            key = self._original_ref(tensor), name
            # ``values`` has one entry for each iteration and call. A scope that did not run has the neutral element of
            # the statistic: inf for SMALLEST, which ``initial`` limits to NO_SMALLEST. ReduceMin may return NaN for a
            # tensor with a NaN; ``nanmin`` leaves it out, so that it does not hide the other iterations and calls.
            if name == SMALLEST:
                smallest = float(np.nanmin(values, initial=NO_SMALLEST))
                totals[key] = min(smallest, totals.get(key, NO_SMALLEST))
            elif name == LARGEST:
                totals[key] = max(float(values.max(initial=NO_LARGEST)), totals.get(key, NO_LARGEST))
            else:
                totals[key] = totals.get(key, 0.0) + float(values.sum())
        # Without the statistics of the source, which may not be counted, the tensor has none either.
        for tensor, source in self._source_of.items():
            totals.update(
                {(tensor, name): totals[source, name] for name in self._statistics if (source, name) in totals}
            )
        return totals

    def close(self) -> None:
        """Release the session."""
        self._observer.close()


class CountingSessionPerType:
    """One CountingSession for each low type of the mixed model, because the bounds of a tensor are those of its type.

    ``statistics`` returns the statistics for a low type. ``tensors``: None for all. Tensors that are not low are
    counted with the bounds of the first type.
    """

    def __init__(
        self,
        pair: ModelPair,
        model: ObservedModel,
        statistics: Callable[[int], tuple[Statistic, ...]],
        tensors: Iterable[TensorRef] | None,
    ) -> None:
        first_type = next(iter(pair.low_types), dtypes.FLOAT16)
        tensors_by_type: dict[int, list[TensorRef]] = {first_type: []}
        for tensor in pair.low_type_of if tensors is None else tensors:
            tensors_by_type.setdefault(pair.low_type_of.get(tensor, first_type), []).append(tensor)
        # If all tensors are counted, the session of the first type counts all of them, because it alone may count high
        # tensors. The session of a second type counts the tensors of its type again, with their own bounds.
        self._sessions = [
            CountingSession(model, statistics(low), None if tensors is None and low == first_type else tensors_of_type)
            for low, tensors_of_type in tensors_by_type.items()
            if tensors_of_type or tensors is None
        ]

    def start_ahead(self, feeds: Sequence[Feed]) -> None:
        """Start to run batches early in each session."""
        for session in self._sessions:
            session.start_ahead(feeds)

    def count(self, feed: Feed) -> Totals:
        """Run one batch in each session; the counts of a later session replace those of the first one."""
        totals: dict[tuple[TensorRef, str], float] = {}
        for session in self._sessions:
            totals |= session.count(feed)
        return totals

    def close(self) -> None:
        """Release the sessions."""
        for session in self._sessions:
            session.close()


class ConversionCounter:
    """A counter of the values that conversions of the mixed model lose, flush to zero or make subnormal."""

    def __init__(self, pair: ModelPair, conversions: Iterable[Conversion]) -> None:
        # One session for each model that observes conversions, and each low type.
        groups: dict[tuple[bool, int], dict[Conversion, TensorRef]] = {}
        for conversion in conversions:
            group = groups.setdefault((conversion.in_reference, conversion.elem), {})
            group[conversion] = probed_tensor(pair, conversion)
        # Conversions in several specializations of one function have the same tensor of the original: it is counted
        # once, over all of them.
        self._sessions: list[tuple[CountingSession, dict[Conversion, TensorRef]]] = []
        for (in_reference, low), tensors in groups.items():
            model = pair.reference if in_reference else pair.mixed
            session = CountingSession(model, conversion_statistics(low), tensors.values())
            self._sessions.append((session, tensors))

    def start_ahead(self, feeds: Sequence[Feed]) -> None:
        """Start to run batches early in each session."""
        for session, _ in self._sessions:
            session.start_ahead(feeds)

    def count(self, feed: Feed) -> dict[Conversion, ValueCounts]:
        """Run one batch; return the counts of each conversion."""
        counts: dict[Conversion, ValueCounts] = {}
        for session, tensors in self._sessions:
            totals = session.count(feed)
            for conversion, tensor in tensors.items():
                # A tensor in the body of a SequenceMap or of a custom operator has no statistics, because these
                # operators can have no further outputs.
                if (tensor, VALUES) in totals:
                    counts[conversion] = conversion_counts(tensor, totals)
        return counts

    def close(self) -> None:
        """Release the sessions."""
        for session, _ in self._sessions:
            session.close()


def probed_tensor(pair: ModelPair, conversion: Conversion) -> TensorRef:
    """Return the tensor that a conversion reads, by its name in the original, as counts have it."""
    model = pair.reference if conversion.in_reference else pair.mixed
    return model.original_ref(conversion.observed_ref)


class FullStatistics:
    """The counts of the values of every low tensor, and the smallest magnitude of every tensor (full statistics).

    ``totals`` and ``smallest`` are over all batches so far; ``conversion_counts`` are those of the last batch.
    """

    def __init__(self, pair: ModelPair) -> None:
        self._pair = pair
        # The sessions of the mixed model, of the reference, and of conversions; None before the first batch.
        self._sessions: tuple[CountingSessionPerType, CountingSessionPerType, ConversionCounter] | None = None
        self._mixed: Totals = {}
        self._reference: Totals = {}
        self.conversion_counts: dict[Conversion, ValueCounts] = {}
        self.totals: dict[TensorRef, ValueCounts] = {}
        self.smallest: dict[TensorRef, float] = {}

    def add(self, feed: Feed) -> dict[TensorRef, ValueCounts]:
        """Count the values of one batch; return the counts of each low tensor."""
        pair = self._pair
        mixed, reference, conversions = self._open_sessions()
        self._mixed, self._reference = mixed.count(feed), reference.count(feed)
        self.conversion_counts = conversions.count(feed)
        # A tensor of zeros has NO_SMALLEST, which is not below NO_SMALLEST. So it gets no entry, and the report None.
        for (tensor, name), value in self._reference.items():
            if name == SMALLEST and value < self.smallest.get(tensor, NO_SMALLEST):
                self.smallest[tensor] = value
        batch_counts = {tensor: value_counts(tensor, self._mixed, self._reference) for tensor in pair.low_type_of}
        for tensor, counts in batch_counts.items():
            self.totals[tensor] = self.totals[tensor] + counts if tensor in self.totals else counts
        return batch_counts

    def start_ahead(self, feeds: Sequence[Feed]) -> None:
        """Start to run the batches of a group early, so that sessions in segments load each segment once."""
        for session in self._open_sessions():
            session.start_ahead(feeds)

    def _open_sessions(self) -> tuple[CountingSessionPerType, CountingSessionPerType, ConversionCounter]:
        # The sessions are loaded at the first batch that is judged: a check without such a batch needs none.
        if self._sessions is None:
            pair = self._pair
            self._sessions = (
                CountingSessionPerType(pair, pair.mixed, mixed_statistics, pair.low_type_of),
                CountingSessionPerType(
                    pair, pair.reference, lambda low: (*reference_statistics(low), smallest_nonzero()), None
                ),
                ConversionCounter(pair, pair.conversions),
            )
        return self._sessions

    def count_findings(
        self,
        index: int,
        records: Mapping[TensorRef, FindingRecord],
        operand_records: Mapping[OperandKey, OperandRecord],
    ) -> None:
        """Add the counts of the last batch, which has this index, to the records with a finding in that batch."""
        for tensor, record in records.items():
            for kind, batches in record.batches.items():
                # The batches are in ascending order: a kind that the last batch has ends with its index.
                if batches[-1] == index and (tensor, VALUES) in self._mixed:
                    record.add_count(kind, finding_value_count(kind, tensor, self._mixed, self._reference))
        for operand_record in operand_records.values():
            counts = self.conversion_counts.get(operand_record.conversion)
            for kind, batches in operand_record.batches.items():
                if batches[-1] == index and counts is not None:
                    operand_record.add_count(kind, operand_value_count(kind, counts))

    def close(self) -> None:
        """Release the sessions."""
        for session in self._sessions or ():
            session.close()


def count_output_findings(pair: ModelPair, batches: Batches, records: Mapping[TensorRef, FindingRecord]) -> None:
    """Count the values that the findings of outputs concern, in the first batch of each finding."""
    tensors_by_batch = keys_by_first_batch(records)
    if not tensors_by_batch:
        return
    tensors = set[TensorRef]().union(*tensors_by_batch.values())
    with (
        closing(CountingSessionPerType(pair, pair.mixed, mixed_statistics, tensors)) as mixed,
        closing(CountingSessionPerType(pair, pair.reference, reference_statistics, tensors)) as reference,
    ):
        # No batch after the last of these first batches has to be read.
        for index, feed in enumerate(islice(batches, max(tensors_by_batch) + 1)):
            if index not in tensors_by_batch:
                continue
            mixed_totals, reference_totals = mixed.count(feed), reference.count(feed)
            # In the first batch of one kind, a tensor may also have a finding of another kind, whose first batch came
            # earlier. That finding is counted again, and ``add_count`` keeps the larger count.
            for tensor in tensors_by_batch[index]:
                record = records[tensor]
                for kind, indices in record.batches.items():
                    if index in indices and kind not in _UNCOUNTED_KINDS:
                        record.add_count(kind, finding_value_count(kind, tensor, mixed_totals, reference_totals))


def count_operand_findings(pair: ModelPair, batches: Batches, records: Mapping[OperandKey, OperandRecord]) -> None:
    """Count the values that the findings of converted inputs concern, in the first batch of each finding."""
    operands_by_batch = keys_by_first_batch(records)
    if not operands_by_batch:
        return
    conversions = (records[operand].conversion for operands in operands_by_batch.values() for operand in operands)
    with closing(ConversionCounter(pair, conversions)) as counter:
        for index, feed in enumerate(islice(batches, max(operands_by_batch) + 1)):
            counts = counter.count(feed) if index in operands_by_batch else {}
            for operand in operands_by_batch.get(index, ()):
                record = records[operand]
                for kind, indices in record.batches.items():
                    if index in indices and kind not in _UNCOUNTED_KINDS and record.conversion in counts:
                        record.add_count(kind, operand_value_count(kind, counts[record.conversion]))


def keys_by_first_batch(records: Mapping[Key, FindingRecord]) -> dict[int, set[Key]]:
    """Return the keys of the records whose findings begin in a batch, by the index of the batch.

    A record with findings of several kinds has several first batches, one for each kind. Kinds that are not counted are
    left out.
    """
    keys_by_batch: dict[int, set[Key]] = {}
    for key, record in records.items():
        for kind, indices in record.batches.items():
            if kind not in _UNCOUNTED_KINDS:
                keys_by_batch.setdefault(indices[0], set()).add(key)
    return keys_by_batch
