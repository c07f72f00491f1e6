"""A session of a model that is larger than memory: it loads and runs one segment of the model after another.

A segment is loaded, runs all batches that have been started, hands on the tensors that later segments read, and is
closed. So the memory holds the weights of one segment, however large the model is. ONNX Runtime maps these weights from
their file. The more batches are started before the first one is waited for, the less often a segment is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from mixlist.errors import MixlistError
from mixlist.runtime.refused_run import RunRefused
from mixlist.runtime.session import Session
from mixlist.runtime.value_store import ValueStore
from mixlist.runtime.weight_cuts import split_by_weights

if TYPE_CHECKING:
    from onnx import ModelProto

    from mixlist.graph.split import GraphPart
    from mixlist.runtime.session import Feed, Outputs


@dataclass(eq=False)
class _Run:
    """One batch that was started. ``feed`` is empty after the run. ``error``: why it has no outputs, None if it has."""

    output_names: Sequence[str]
    feed: Feed
    error: MixlistError | None = None


class SegmentedSession(Session):
    """A session that holds one segment of its model at a time.

    ``segment_bytes``: the most bytes of weights in a segment; a node that reads more is a segment of its own.
    ``open_session``: opens a session of a segment. The model is loaded at the first run, so that run raises the errors
    of loading.
    """

    def __init__(self, proto: ModelProto, segment_bytes: int, open_session: Callable[[ModelProto], Session]) -> None:
        self._proto, self._segment_bytes, self._open_session = proto, segment_bytes, open_session
        self._parts: list[GraphPart] = []  # chosen for the shapes of the first batch
        self._started: list[_Run] = []
        self._values = ValueStore()

    def start(self, output_names: Sequence[str] | None, feed: Feed) -> Callable[[], Outputs]:
        """Start a run. It waits until the outputs of any started run are needed; then all started runs go together."""
        names = [output.name for output in self._proto.graph.output] if output_names is None else output_names
        run = _Run(names, feed)
        self._started.append(run)
        return partial(self._finish, run)

    def _finish(self, run: _Run) -> Outputs:
        if run in self._started:
            runs, self._started = self._started, []
            self._run_segments(runs)
        if run.error is not None:
            raise run.error
        outputs = [self._values.get((run, name)) for name in run.output_names]
        for name in run.output_names:
            self._values.drop((run, name))
        return outputs

    def _run_segments(self, runs: Sequence[_Run]) -> None:
        """Run all segments, each on all batches."""
        if not self._parts:
            shapes = {name: tuple(value.shape) for name, value in runs[0].feed.items() if hasattr(value, "shape")}
            self._parts = split_by_weights(self._proto, self._segment_bytes, shapes)
        requested = {name for run in runs for name in run.output_names}
        needed = requested.union(*(part.input_names for part in self._parts))
        try:
            for index, part in enumerate(self._parts):
                needed_later = requested.union(*(later.input_names for later in self._parts[index + 1 :]))
                with closing(self._open_session(part.model)) as session:
                    for run in runs:
                        if run.error is None:
                            self._run_part(part, session, run, needed, needed_later)
        except MixlistError as error:  # the segment cannot be loaded, or its process died: no run can go on
            for run in runs:
                run.error = run.error or error

    def _run_part(self, part: GraphPart, session: Session, run: _Run, needed: set[str], needed_later: set[str]) -> None:
        """Run one segment on one batch, and store the outputs that are needed."""
        # The data may omit an optional input.
        computed = [name for name in part.input_names if name not in run.feed]
        feed = {name: run.feed[name] for name in part.input_names if name in run.feed}
        feed |= {name: self._values.get((run, name)) for name in computed if (run, name) in self._values}
        names = [name for name in part.output_names if name in needed]
        try:
            outputs = session.run(names, feed) if names else []
        except RunRefused as refused:  # the other batches go on
            run.error = refused
            outputs = []
        for name, value in zip(names, outputs, strict=False):
            self._values.put((run, name), value)
        for name in computed:
            if name not in needed_later or run.error is not None:
                self._values.drop((run, name))

    def close(self) -> None:
        """Forget the runs that were started, and remove the files of values."""
        self._started.clear()
        self._values.close()
