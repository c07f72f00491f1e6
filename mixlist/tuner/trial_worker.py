"""Run trials in a worker: the pieces of the gated graph in sessions, the batches, and the reference of each batch.

A TrialRunner lives in the process that works; one batch of a trial is a run with the flags of its plan.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mixlist.checker.accuracy import OutputAccuracy
from mixlist.checker.label_accuracy import Labels, TaskAccuracy
from mixlist.checker.limits import Limits
from mixlist.runtime.executors import read_sent_file
from mixlist.runtime.inference_session import open_session
from mixlist.runtime.local_session import LocalSession
from mixlist.runtime.lru_cache import LruCache
from mixlist.runtime.refused_run import Refusal, RunRefused
from mixlist.runtime.session import Array, Feed, SessionOptions
from mixlist.tuner.graph_partition import Segment
from mixlist.tuner.trial_statistics import AmbiguousValues, TrialStatistics

if TYPE_CHECKING:
    from numpy.typing import NDArray

CACHE_BYTES = 2**28  # of what pieces made, in each process

Values = dict[str, Array]  # by tensor name
AnswerCounts = tuple[int, int, int]  # right in the reference, right in the trial, and all


@dataclass(frozen=True)
class Payload:
    """The content of a TrialRunner, which is sent once to every process.

    ``flag_count``: the flags of all pieces. ``outputs``: the model's outputs, which the gated graph calls
    ``gated_outputs``. ``first_counts``: an overflow settles a trial, so that no more has to be computed. ``limits``:
    what outputs are measured for, None for every measure. ``deterministic``: the model computes the same in every run,
    so that what a piece made serves again.
    """

    segments: tuple[Segment, ...]
    flag_count: int
    outputs: tuple[str, ...]
    gated_outputs: tuple[str, ...]
    statistics: TrialStatistics
    feeds: tuple[Feed, ...]
    first_counts: bool
    limits: Limits | None
    deterministic: bool
    labels: Labels | None = None
    threads: int | None = None


@dataclass(frozen=True)
class BatchResult:
    """One batch of one trial. ``overflow``: the first node that overflows, "" for none.

    ``answers``: how many are right in the reference, how many in the trial, and how many labels there are.
    ``ambiguous``: the ranges in the reference and in the trial, if an infinity among them may be an overflow or a
    mask's. ``refusal``: where ONNX Runtime refused the trial, None where it ran.
    """

    overflow: str
    outputs: tuple[OutputAccuracy, ...] = ()
    answers: AnswerCounts = (0, 0, 0)
    ambiguous: AmbiguousValues | None = None
    refusal: Refusal | None = None


class TrialRunner:
    """Sessions of the gated graph's pieces, which run the batches of trials."""

    def __init__(self, payload: Payload) -> None:
        self.payload = payload
        options = SessionOptions(threads=payload.threads, lean=True, reuse_memory=True)
        self.pieces = [(LocalSession(open_session(part.model, options)), part) for part in payload.segments]
        self.gates = [np.array(segment.gates, np.intp) for segment in payload.segments]
        self.cache: LruCache[Values] = LruCache(CACHE_BYTES, _bytes)  # what pieces made, by batch and flags
        self.references: dict[int, Values] = {}
        self.offsets = [0]  # of each batch's labels
        self.lock = threading.RLock()

    def run(self, flags: bytes, batch: int) -> BatchResult:
        """Run one batch; ``flags`` are packed bits, one per gate. Raises ModelError where the reference is refused."""
        payload, reference, mixed, overflow = self.payload, self._reference(batch), Values(), ""
        unpacked = np.unpackbits(np.frombuffer(flags, np.uint8), count=payload.flag_count).astype(bool)
        try:
            for made in self._run_pieces(unpacked, batch):
                mixed.update(made)
                overflow = overflow or payload.statistics.first_overflow(reference, made)
                if overflow and payload.first_counts:
                    return BatchResult(overflow)
        except RunRefused as refused:
            return BatchResult(overflow, refusal=refused.refusal)
        reference_outputs, mixed_outputs = self._outputs(reference), self._outputs(mixed)
        outputs = []
        for name, output in reference_outputs.items():
            outputs.append(OutputAccuracy(name, payload.limits, payload.statistics.limit))
            outputs[-1].add(output, mixed_outputs[name])
        ambiguous = None if overflow else payload.statistics.ambiguous_values(reference, mixed)
        answers = self._answers(batch, reference_outputs, mixed_outputs)
        return BatchResult(overflow, tuple(outputs), answers, ambiguous)

    def _outputs(self, values: Values) -> Values:
        """Return the model's outputs by their own names."""
        return {n: values[gated] for n, gated in zip(self.payload.outputs, self.payload.gated_outputs, strict=True)}

    def _reference(self, batch: int) -> Values:
        """Return what trials are compared with: outputs and statistics with nothing rounded."""
        with self.lock:
            if batch not in self.references:
                names = {*self.payload.gated_outputs, *self.payload.statistics.names}
                pieces = self._run_pieces(np.zeros(self.payload.flag_count, bool), batch)
                self.references[batch] = {n: value for made in pieces for n, value in made.items() if n in names}
            return self.references[batch]

    def _run_pieces(self, flags: NDArray[np.bool], batch: int) -> Iterator[Values]:
        """Yield what each piece makes, in order."""
        values: Values = dict(self.payload.feeds[batch])
        key: tuple[int | bytes, ...] = (batch,)
        for (session, segment), gates in zip(self.pieces, self.gates, strict=True):
            own = flags[gates]
            key = (*key, own.tobytes())
            made = self.cache.get(key)
            if made is None:
                feed = {name: values[name] for name in segment.reads if name in values}
                if segment.flags:
                    feed[segment.flags] = own
                made = dict(zip(segment.makes, session.run(segment.makes, feed), strict=True))
                if self.payload.deterministic:
                    self.cache.put(key, made)
            values.update(made)
            yield made

    def _answers(self, batch: int, reference: Values, mixed: Values) -> AnswerCounts:
        """Return the right answers of the reference and of the trial, and the labels that count."""
        labels = self.payload.labels
        if labels is None:
            return 0, 0, 0
        with self.lock:
            while len(self.offsets) <= batch + 1:  # the reference tells how many labels each batch takes
                outputs = self._outputs(self._reference(len(self.offsets) - 1))
                task = TaskAccuracy(labels[self.offsets[-1] :])
                task.add(outputs, outputs)
                self.offsets.append(self.offsets[-1] + task.used)
        task = TaskAccuracy(labels[self.offsets[batch] :])
        task.add(reference, mixed)
        return task.right[0], task.right[1], task.count


def _bytes(values: Mapping[str, Array]) -> int:
    return 256 + sum(getattr(value, "nbytes", 0) for value in values.values())


_runners: LruCache[TrialRunner] = LruCache(2)  # that of the search, and one before it


def run_batch(token: str, payload: str | bytes, flags: bytes, batch: int) -> BatchResult:
    """Run one batch of one trial in this process; ``payload`` is pickled, or the path of a file that holds it.

    ``token`` names the payload: its runner is made when it is first needed, and kept.
    """
    return runner_of(token, payload).run(flags, batch)


def runner_of(token: str, payload: str | bytes) -> TrialRunner:
    """Return the runner of this process for a payload."""
    return _runners.get_or_make(token, lambda: TrialRunner(pickle.loads(read_sent_file(payload))))


def pack(on: Sequence[int], count: int) -> bytes:
    """Return ``count`` flags as bits, of which those at these positions are on."""
    flags = np.zeros(count, bool)
    flags[list(on)] = True
    return np.packbits(flags).tobytes()
