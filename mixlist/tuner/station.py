"""Where trials run: the gated graph in a session, the batches, and what the reference gave for each of them.

A station lives in the process that works; a trial of one batch is one run with other flags.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mixlist.checker.accuracy import OutputAccuracy
from mixlist.checker.task import TaskAccuracy
from mixlist.runtime.kept import Kept
from mixlist.runtime.sessions import Runner, make_session
from mixlist.tuner.watching import Ranges, Watch

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Payload:
    """What a station is made of: sent once to every process. ``fetched``: what the gated graph calls the outputs."""

    model: bytes
    flags: str
    count: int
    outputs: tuple[str, ...]
    fetched: tuple[str, ...]
    watch: Watch
    feeds: tuple[Mapping[str, Any], ...]
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


@dataclass
class _Reference:
    outputs: list[Any]
    statistics: dict[str, Any]


class Station:
    """A session of the gated graph; ``trial`` runs one batch with the flags of one plan."""

    def __init__(self, payload: Payload) -> None:
        from onnx import ModelProto

        self.payload = payload
        self.runner = Runner(make_session(ModelProto.FromString(payload.model), threads=payload.threads, lean=True))
        self.references: dict[int, _Reference] = {}
        self.offsets = [0]  # of each batch's labels
        self.lock = threading.RLock()

    def trial(self, flags: bytes, batch: int) -> Batch:
        """``flags`` are packed bits, one per gate."""
        given = self._reference(batch)
        outputs, statistics = self._run(self._flags(flags), batch)
        judged = []
        for name, exact, ours in zip(self.payload.outputs, given.outputs, outputs, strict=True):
            judged.append(OutputAccuracy(name))
            judged[-1].add(exact, ours)
        watch, exact = self.payload.watch, given.statistics
        overflow = watch.overflow(exact, statistics)
        doubtful = None if overflow else watch.doubtful(exact, statistics)
        return Batch(overflow, tuple(judged), self._right(batch, given.outputs, outputs), doubtful)

    def _reference(self, batch: int) -> _Reference:
        import numpy as np

        with self.lock:
            if batch not in self.references:
                self.references[batch] = _Reference(*self._run(np.zeros(self.payload.count, bool), batch))
            return self.references[batch]

    def _run(self, flags: NDArray[Any], batch: int) -> tuple[list[Any], dict[str, Any]]:
        payload = self.payload
        feed = dict(payload.feeds[batch])
        if payload.count:
            feed[payload.flags] = flags
        names = payload.watch.names
        values = self.runner.run([*payload.fetched, *names], feed)
        own = len(payload.fetched)
        return values[:own], dict(zip(names, values[own:], strict=True))

    def _flags(self, packed: bytes) -> NDArray[Any]:
        import numpy as np

        return np.unpackbits(np.frombuffer(packed, np.uint8), count=self.payload.count).astype(bool)

    def _right(self, batch: int, exact: list[Any], ours: list[Any]) -> tuple[float, float, int]:
        if self.payload.labels is None:
            return 0.0, 0.0, 0
        with self.lock:
            while len(self.offsets) <= batch + 1:  # how many labels each batch takes, the reference tells
                at = len(self.offsets) - 1
                task = TaskAccuracy(self.payload.labels[self.offsets[at] :])
                one = dict(zip(self.payload.outputs, self._reference(at).outputs, strict=True))
                task.add(one, one)
                self.offsets.append(self.offsets[at] + task.used)
        task = TaskAccuracy(self.payload.labels[self.offsets[batch] :])
        names = self.payload.outputs
        task.add(dict(zip(names, exact, strict=True)), dict(zip(names, ours, strict=True)))
        found = task.result()
        return found.reference * found.count, found.mixed * found.count, found.count


_stations: Kept[Station] = Kept(2)  # that of the search, and one before it


def trial(token: str, payload: bytes | str, flags: bytes, batch: int) -> Batch:
    """One batch of one trial in this process; ``payload`` is pickled, or the path of a file that holds it.

    ``token`` names the payload: its station is made when it is first asked for, and kept.
    """
    return station(token, payload).trial(flags, batch)


def station(token: str, payload: bytes | str) -> Station:
    """The station of this process for a payload."""
    return _stations.get(token, payload, lambda data: Station(pickle.loads(data)))


def pack(flags: Sequence[bool]) -> bytes:
    """Flags as bits."""
    import numpy as np

    return np.packbits(np.array(flags, bool)).tobytes()
