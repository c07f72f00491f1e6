"""Run trials in a worker process: one batch of a trial is one run of the gated graph with the flags of a plan.

A TrialRunner holds a session for each segment of the gated graph, the batches, and the reference of each batch.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mixlist.checker.accuracy import OutputAccuracy
from mixlist.lru_cache import LruCache
from mixlist.run.executors import read_sent_file
from mixlist.run.local_session import LocalSession, Refusal, RunRefused, open_session
from mixlist.run.session import Array, Feed, Outputs, SessionOptions
from mixlist.search.gated_graph import Segment
from mixlist.search.trial_statistics import AmbiguousValues, TrialStatistics

if TYPE_CHECKING:
    from numpy.typing import NDArray

CACHE_BYTES = 2**28  # of outputs of segments, in each process

Values = dict[str, Array]  # by tensor name


@dataclass(frozen=True)
class Payload:
    """Everything that a TrialRunner needs, sent once to every worker process.

    ``weights_folder``: the folder of the weights if a worker loads one segment at a time; None if the segments hold
    their weights and stay loaded. ``flag_count``: the number of gates of the gated graph. ``reference_flags``:
    those of the reference, packed. ``output_names``: the names of the model's outputs; ``gated_output_names``: the
    names of the same outputs in the gated graph.
    ``one_overflow_fails``: True if a single overflow decides a trial, so that the rest of the batch need not run.
    ``accuracies``: an object without batches for each output; a batch is measured by copies. ``deterministic``: True if
    every run of the model computes the same, so that outputs of segments can be reused. ``returns_outputs``: True if
    the process of the search needs the outputs of both models, for the judge of the user.
    """

    segments: tuple[Segment, ...]
    weights_folder: Path | None
    flag_count: int
    reference_flags: bytes
    output_names: tuple[str, ...]
    gated_output_names: tuple[str, ...]
    statistics: TrialStatistics
    feeds: tuple[Feed, ...]
    one_overflow_fails: bool
    accuracies: tuple[OutputAccuracy, ...]
    deterministic: bool
    threads: int | None = None
    returns_outputs: bool = False


@dataclass(frozen=True)
class BatchResult:
    """The result of one batch of one trial.

    ``overflow``: the first node with an output that is no mask's and overflows, "" if there is none. ``outputs``: the
    errors of the outputs, () if they were not computed. ``ambiguous``: the ranges of tensors whose large values may be
    an overflow, of a node before ``overflow`` too, or those of a mask; None if there are none. ``refusal``: the error
    of ONNX Runtime if it refused to run, else None. ``model_outputs``: the outputs of the reference and of the trial by
    name, None if nothing needs them.
    """

    overflow: str
    outputs: tuple[OutputAccuracy, ...] = ()
    ambiguous: AmbiguousValues | None = None
    refusal: Refusal | None = None
    model_outputs: tuple[Values, Values] | None = None


class TrialRunner:
    """Runs batches of trials in sessions of the gated graph's segments. Several threads may use it at a time."""

    def __init__(self, payload: Payload) -> None:
        self.payload = payload
        # The sessions of the segments; none if each is loaded when it runs.
        in_segments = payload.weights_folder is not None
        self.sessions = [] if in_segments else [self._load(segment) for segment in payload.segments]
        self.gates = [np.array(segment.gates, np.intp) for segment in payload.segments]
        self.cache: LruCache[Values] = LruCache(CACHE_BYTES, _byte_size)  # outputs of segments, by batch and flags
        self.references: dict[int, Values] = {}  # by batch
        self.lock = threading.Lock()

    def run(self, flags: bytes, batch: int) -> BatchResult:
        """Run one batch of a trial. Raises ModelError if ONNX Runtime refuses to run the reference.

        ``flags``: one bit per gate, packed.
        """
        # The reference comes first: an error in it is a fault of the model or the data, and not of the edits.
        payload, reference, mixed, overflow = self.payload, self._reference(batch), Values(), ""
        flag_array = np.unpackbits(np.frombuffer(flags, np.uint8), count=payload.flag_count).astype(bool)
        try:
            for segment_outputs in self._run_segments(flag_array, batch):
                mixed.update(segment_outputs)
                # Segments run in order of computation, so an overflow in an earlier one explains those in later ones.
                overflow = overflow or payload.statistics.find_first_overflow(reference, segment_outputs)
                if overflow and payload.one_overflow_fails:
                    # The segments after the overflow did not run, and have the values of the reference here.
                    ambiguous = payload.statistics.find_ambiguous_values(reference, reference | mixed)
                    return BatchResult(overflow, ambiguous=ambiguous)
        except RunRefused as refused:
            return BatchResult(overflow, refusal=refused.refusal)
        reference_outputs, mixed_outputs = self._model_outputs(reference), self._model_outputs(mixed)
        outputs = deepcopy(payload.accuracies)
        for accuracy in outputs:
            accuracy.add(reference_outputs[accuracy.name], mixed_outputs[accuracy.name])
        ambiguous = payload.statistics.find_ambiguous_values(reference, mixed)
        model_outputs = (reference_outputs, mixed_outputs) if payload.returns_outputs else None
        return BatchResult(overflow, outputs, ambiguous, model_outputs=model_outputs)

    def _model_outputs(self, values: Values) -> Values:
        """Return the model's outputs by their own names."""
        names = zip(self.payload.output_names, self.payload.gated_output_names, strict=True)
        return {name: values[gated_name] for name, gated_name in names}

    def _reference(self, batch: int) -> Values:
        """Return the outputs and statistics of a batch in the reference."""
        # Threads that start with the same batch wait here for one run.
        with self.lock:
            if batch not in self.references:
                names = {*self.payload.gated_output_names, *self.payload.statistics.output_names}
                bits = np.frombuffer(self.payload.reference_flags, np.uint8)
                flags = np.unpackbits(bits, count=self.payload.flag_count).astype(bool)
                self.references[batch] = {
                    name: value
                    for segment_outputs in self._run_segments(flags, batch)
                    for name, value in segment_outputs.items()
                    if name in names
                }
            return self.references[batch]

    def _run_segments(self, flags: NDArray[np.bool], batch: int) -> Iterator[Values]:
        """Yield the outputs of each segment, in order. ``flags``: bool [number of gates of the gated graph]."""
        values: Values = dict(self.payload.feeds[batch])
        # The outputs of a segment depend on the batch and on the flags of all segments so far.
        key: tuple[int | bytes, ...] = (batch,)
        for index, (segment, gates) in enumerate(zip(self.payload.segments, self.gates, strict=True)):
            segment_flags = flags[gates]
            key = (*key, segment_flags.tobytes())
            outputs = self.cache.get(key)
            if outputs is None:
                # The data may omit an optional input.
                feed = {name: values[name] for name in segment.input_names if name in values}
                if segment.flags_input:
                    feed[segment.flags_input] = segment_flags
                outputs = dict(zip(segment.output_names, self._run_segment(index, feed), strict=True))
                # With random nodes, two runs of a segment differ, so its outputs are not reused.
                if self.payload.deterministic:
                    self.cache.put(key, outputs)
            values.update(outputs)
            yield outputs

    def _run_segment(self, index: int, feed: Feed) -> Outputs:
        """Run a segment; load it for this run if the segments do not stay loaded."""
        segment = self.payload.segments[index]
        if self.sessions:
            return self.sessions[index].run(segment.output_names, feed)
        with self._load(segment) as session:
            return session.run(segment.output_names, feed)

    def _load(self, segment: Segment) -> LocalSession:
        """Load a segment."""
        folder = self.payload.weights_folder
        options = SessionOptions(threads=self.payload.threads, lean=True, reuse_memory=True)
        if folder is not None:
            # Without packing, weights stay mapped. The optimization would round them when the segment is loaded, also
            # those that the trial leaves in float32.
            options = replace(options, optimize=False, prepack=False)
        return LocalSession(open_session(segment.model, options, folder=folder))


def _byte_size(values: Mapping[str, Array]) -> int:
    """Return the bytes that a cache entry takes: the arrays, and a little for the entry."""
    return 256 + sum(getattr(value, "nbytes", 0) for value in values.values())


_runners: LruCache[TrialRunner] = LruCache(2)  # the runner of the current gated graph, and the one before it


def run_batch(token: str, payload: str | bytes, flags: bytes, batch: int) -> BatchResult:
    """Run one batch of one trial in this process.

    ``token``: the identity of the payload. ``payload``: a pickled Payload, or the path of a file that holds it.
    """
    return get_runner(token, payload).run(flags, batch)


def get_runner(token: str, payload: str | bytes) -> TrialRunner:
    """Return the runner of this process for a payload; make it if there is none."""
    return _runners.get_or_make(token, lambda: TrialRunner(pickle.loads(read_sent_file(payload))))


def pack_flags(on: Sequence[int], count: int) -> bytes:
    """Return ``count`` flags as packed bits. The flags at the positions ``on`` are set."""
    flags = np.zeros(count, bool)
    flags[list(on)] = True
    return np.packbits(flags).tobytes()
