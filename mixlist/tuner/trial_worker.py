"""Where trials run: the gated graph in a session, the batches, and what the reference gave for each of them.

A station lives in the process that works; a trial of one batch is one run with other flags.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mixlist.checker.accuracy import Limits, OutputAccuracy
from mixlist.checker.label_accuracy import TaskAccuracy
from mixlist.emulation.observer import Ranges
from mixlist.runtime.executors import content
from mixlist.runtime.inference_session import open_session
from mixlist.runtime.local_session import LocalSession
from mixlist.runtime.lru_cache import LruCache
from mixlist.runtime.session import SessionOptions
from mixlist.tuner.graph_partition import Segment
from mixlist.tuner.trial_statistics import Watch

if TYPE_CHECKING:
    from numpy.typing import NDArray

MEMORY = 2**28  # bytes of what pieces made that a process keeps


@dataclass(frozen=True)
class Payload:
    """What a station is made of: sent once to every process.

    ``count``: the number of flags; ``fetched``: what the gated graph calls the outputs; ``first_counts``: an overflow
    settles a trial, so that nothing else need be known of it; ``limits``: what outputs are measured for, None for every
    measure; ``keeps``: what pieces made may be kept, since the model computes the same in every run.
    """

    segments: tuple[Segment, ...]
    count: int
    outputs: tuple[str, ...]
    fetched: tuple[str, ...]
    watch: Watch
    feeds: tuple[Mapping[str, Any], ...]
    first_counts: bool
    limits: Limits | None
    keeps: bool
    labels: Any = None
    threads: int | None = None


@dataclass(frozen=True)
class Batch:
    """One batch of one trial. ``right``: right answers of the reference and of the trial, and labels that count.

    ``doubtful``: ranges, in the reference and in the trial, that may be of an overflow or of a mask.
    """

    overflow: str  # the first node that overflows, "" for none
    outputs: tuple[OutputAccuracy, ...]
    right: tuple[float, float, int] = (0.0, 0.0, 0)
    doubtful: tuple[Ranges, Ranges] | None = None


Values = dict[str, Any]  # arrays by tensor name


class Station:
    """Sessions of the gated graph's pieces; ``trial`` runs one batch with the flags of one plan."""

    def __init__(self, payload: Payload) -> None:
        self.payload = payload
        options = SessionOptions(threads=payload.threads, lean=True, reuse=True)
        self.pieces = [(LocalSession(open_session(part.model, options)), part) for part in payload.segments]
        self.gates = [np.array(segment.gates, np.intp) for segment in payload.segments]
        self.ran: LruCache[Values] = LruCache(MEMORY, _bytes)  # what pieces made, by batch and flags
        self.references: dict[int, Values] = {}
        self.offsets = [0]  # of each batch's labels
        self.lock = threading.RLock()

    def trial(self, flags: bytes, batch: int) -> Batch:
        """``flags`` are packed bits, one per gate."""
        given, found = self._reference(batch), Values()
        watch, overflow = self.payload.watch, ""
        for made in self._run(self._flags(flags), batch):
            found.update(made)
            overflow = overflow or watch.overflow(given, made)
            if overflow and self.payload.first_counts:
                return Batch(overflow, ())
        exact, ours = ([values[name] for name in self.payload.fetched] for values in (given, found))
        judged = []
        for name, one, other in zip(self.payload.outputs, exact, ours, strict=True):
            judged.append(OutputAccuracy(name, self.payload.limits))
            judged[-1].add(one, other)
        doubtful = None if overflow else watch.doubtful(given, found)
        return Batch(overflow, tuple(judged), self._right(batch, exact, ours), doubtful)

    def _reference(self, batch: int) -> Values:
        """What the trials are held against: outputs and statistics with nothing rounded."""
        with self.lock:
            if batch not in self.references:
                kept = {*self.payload.fetched, *self.payload.watch.names}
                every = self._run(np.zeros(self.payload.count, bool), batch)
                self.references[batch] = {n: value for made in every for n, value in made.items() if n in kept}
            return self.references[batch]

    def _run(self, flags: NDArray[Any], batch: int) -> Iterator[Values]:
        """What each piece makes, in order."""
        values: Values = dict(self.payload.feeds[batch])
        known: tuple[Any, ...] = (batch,)
        for (session, segment), gates in zip(self.pieces, self.gates, strict=True):
            own = flags[gates]
            known = (*known, own.tobytes())
            made = self.ran.get(known)
            if made is None:
                feed = {name: values[name] for name in segment.reads if name in values}
                if segment.flags:
                    feed[segment.flags] = own
                made = dict(zip(segment.makes, session.run(segment.makes, feed), strict=True))
                if self.payload.keeps:
                    self.ran.put(known, made)
            values.update(made)
            yield made

    def _flags(self, packed: bytes) -> NDArray[Any]:
        return np.unpackbits(np.frombuffer(packed, np.uint8), count=self.payload.count).astype(bool)

    def _right(self, batch: int, exact: list[Any], ours: list[Any]) -> tuple[float, float, int]:
        if self.payload.labels is None:
            return 0.0, 0.0, 0
        with self.lock:
            while len(self.offsets) <= batch + 1:  # how many labels each batch takes, the reference tells
                at = len(self.offsets) - 1
                task = TaskAccuracy(self.payload.labels[self.offsets[at] :])
                given = self._reference(at)
                one = {name: given[as_] for name, as_ in zip(self.payload.outputs, self.payload.fetched, strict=True)}
                task.add(one, one)
                self.offsets.append(self.offsets[at] + task.used)
        task = TaskAccuracy(self.payload.labels[self.offsets[batch] :])
        names = self.payload.outputs
        task.add(dict(zip(names, exact, strict=True)), dict(zip(names, ours, strict=True)))
        found = task.result()
        return found.reference * found.count, found.mixed * found.count, found.count


def _bytes(values: Values) -> int:
    return 256 + sum(getattr(value, "nbytes", 0) for value in values.values())


_stations: LruCache[Station] = LruCache(2)  # that of the search, and one before it


def trial(token: str, payload: str | bytes, flags: bytes, batch: int) -> Batch:
    """One batch of one trial in this process; ``payload`` is pickled, or the path of a file that holds it.

    ``token`` names the payload: its station is made when it is first asked for, and kept.
    """
    return station(token, payload).trial(flags, batch)


def station(token: str, payload: str | bytes) -> Station:
    """The station of this process for a payload."""
    return _stations.get_or_make(token, lambda: Station(pickle.loads(content(payload))))


def pack(on: Sequence[int], count: int) -> bytes:
    """Flags as bits: ``count`` of them, of which these are on."""
    flags = np.zeros(count, bool)
    flags[list(on)] = True
    return np.packbits(flags).tobytes()
