"""A session in this process that sends batches with empty arrays to another process.

ONNX Runtime 1.31.1 aborts on a GRU or LSTM whose batch has size 0, and the process dies with it. The other process
starts, and loads the model a second time, at the first batch with an empty array. All other batches run in this
process.
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

    Raises the errors of LocalSession, and Crashed if a batch with an empty array kills the other process.
    """

    def __init__(self, proto: ModelProto, options: SessionOptions, folder: Path | None) -> None:
        self._local = LocalSession(make_session(proto, options, folder=folder))
        self._open_subprocess = partial(SubprocessSession, proto, options, folder=folder, wait=False)
        self._subprocess: SubprocessSession | None = None

    def start(self, output_names: Sequence[str] | None, feed: Feed) -> Callable[[], Outputs]:
        """Start a run, in the other process if an array of the batch is empty."""
        if not has_empty_array(feed):
            return self._local.start(output_names, feed)
        if self._subprocess is None:
            self._subprocess = self._open_subprocess()
        return self._subprocess.start(output_names, feed)

    def close(self) -> None:
        """Release the session, and end the other process."""
        self._local.close()
        if self._subprocess is not None:
            self._subprocess.close()
