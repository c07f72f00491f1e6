"""A session in this process that hands batches with empty arrays to another one, since ONNX Runtime may die of these.

A GRU or LSTM over a batch of size 0 aborts ONNX Runtime 1.31.1, and with it the process. The other process starts, and
loads the model once more, at the first batch with an empty array; all other batches run in this process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mixlist.runtime.feeds import has_empty_array
from mixlist.runtime.inference_session import make_session
from mixlist.runtime.local_session import LocalSession
from mixlist.runtime.session import Session, SessionOptions
from mixlist.runtime.subprocess_session import SubprocessSession

if TYPE_CHECKING:
    from onnx import ModelProto

    from mixlist.runtime.session import Feed, Outputs


class GuardedSession(Session):
    """A session in this process that survives batches with empty arrays.

    Raises what LocalSession does, and Crashed where a batch with an empty array kills the other process.
    """

    def __init__(self, proto: ModelProto, options: SessionOptions, folder: Path | None) -> None:
        self._local = LocalSession(make_session(proto, options, folder=folder))
        self._start_other = partial(SubprocessSession, proto, options, folder=folder, wait=False)
        self._other: SubprocessSession | None = None

    def start(self, outputs: Sequence[str] | None, feed: Feed) -> Callable[[], Outputs]:
        """Begin a run, in the other process if an array of the batch is empty."""
        if not has_empty_array(feed):
            return self._local.start(outputs, feed)
        if self._other is None:
            self._other = self._start_other()
        return self._other.start(outputs, feed)

    def close(self) -> None:
        """Release the session, and end the other process."""
        self._local.close()
        if self._other is not None:
            self._other.close()
