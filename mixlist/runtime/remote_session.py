"""A session in the workers of an executor: each run is a task of its own.

The model is sent to each worker once; a worker that gets a task loads it, unless it has done so already.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mixlist.errors import ModelError
from mixlist.files.scratch_folder import ScratchFolder, write_scratch
from mixlist.runtime.executors import Workers, read_sent_file, wait_for
from mixlist.runtime.inference_session import make_session
from mixlist.runtime.local_session import LocalSession
from mixlist.runtime.lru_cache import LruCache
from mixlist.runtime.model_files import external_tensors
from mixlist.runtime.session import Session, SessionOptions

if TYPE_CHECKING:
    from onnx import ModelProto

    from mixlist.runtime.session import Feed, Outputs


class RemoteSession(Session):
    """A session in every worker. Raises ModelError for a model beyond 2 GiB: workers may not share the disk."""

    def __init__(self, proto: ModelProto, options: SessionOptions, workers: Workers, folder: Path | None) -> None:
        """``folder`` is where the model's external data lies."""
        try:
            data = _with_weights(proto, folder).SerializeToString()
        except ValueError as problem:
            raise ModelError(f"the model is too large to be sent to other processes: {problem}") from None
        self._workers = workers
        self._options = replace(options, threads=options.threads or workers.threads)
        self._token = hashlib.sha256(data + repr(self._options).encode()).hexdigest()[:16]
        self._home = ScratchFolder()
        self._path = self._home.path / "model.onnx"
        write_scratch(self._path, data)
        self._sent = workers.send_file(str(self._path))

    def start(self, outputs: Sequence[str] | None, feed: Feed) -> Callable[[], Outputs]:
        """Begin a run in some worker."""

        def submit() -> Future[Outputs]:
            submit_task = self._workers.executor.submit  # Dask resolves what was sent only as an argument of its own
            return submit_task(run_model, self._token, self._sent, self._options, outputs, dict(feed))

        def resend() -> Future[Outputs]:
            self._sent = self._workers.send_file(str(self._path))
            return submit()

        return partial(wait_for, submit(), resend)

    def close(self) -> None:
        """Remove the model's file; workers drop sessions when they need room."""
        self._home.remove()


def _with_weights(proto: ModelProto, folder: Path | None) -> ModelProto:
    """Return the model with all its data inside."""
    from mixlist.graph.proto_edits import copy_message
    from mixlist.rewriter.tensor_conversion import inline_external_data

    if not external_tensors(proto):
        return proto
    whole: ModelProto = copy_message(proto)
    inline_external_data(whole, folder)
    return whole


_sessions: LruCache[LocalSession] = LruCache(6)  # one check has so many


def run_model(
    token: str, model: str | bytes, options: SessionOptions, outputs: Sequence[str] | None, feed: Feed
) -> Outputs:
    """Run a model in this process. ``token`` names the model, as ``Workers.send_file`` has sent it, and its options."""
    from onnx import ModelProto

    def load() -> LocalSession:
        return LocalSession(make_session(ModelProto.FromString(read_sent_file(model)), options))

    return _sessions.get_or_make(token, load).run(outputs, feed)
