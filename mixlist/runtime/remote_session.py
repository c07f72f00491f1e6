"""A session in the workers of an executor: each run is one task.

The model is sent to each worker once. A worker loads the model at its first task, and keeps the session for the next
tasks.
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
    """A session in every worker; the external data of the model is in ``folder``.

    The model is sent as one protobuf message, because workers on other machines may not share the disk. Such a message
    holds at most 2 GiB. Raises ModelError for a larger model.
    """

    def __init__(self, proto: ModelProto, options: SessionOptions, workers: Workers, folder: Path | None) -> None:
        try:
            data = _inline_weights(proto, folder).SerializeToString()
        except ValueError as error:
            raise ModelError(f"the model is too large to be sent to other processes: {error}") from None
        self._workers = workers
        self._options = replace(options, threads=options.threads or workers.threads)
        # The key under which workers keep the session: one model may run with several options.
        self._session_key = hashlib.sha256(data + repr(self._options).encode()).hexdigest()[:16]
        self._scratch = ScratchFolder()
        self._path = self._scratch.path / "model.onnx"
        write_scratch(self._path, data)
        self._sent_model = workers.send_file(str(self._path))

    def start(self, output_names: Sequence[str] | None, feed: Feed) -> Callable[[], Outputs]:
        """Start a run in one of the workers."""

        def submit() -> Future[Outputs]:
            # The sent model must be an argument of its own: Dask replaces a future by its data only if the future
            # itself is an argument, and not inside another object.
            return self._workers.executor.submit(
                run_model, self._session_key, self._sent_model, self._options, output_names, dict(feed)
            )

        def resend() -> Future[Outputs]:
            self._sent_model = self._workers.send_file(str(self._path))
            return submit()

        return partial(wait_for, submit(), resend)

    def close(self) -> None:
        """Remove the file of the model. Workers drop their sessions when other sessions need the memory."""
        self._scratch.remove()


def _inline_weights(proto: ModelProto, folder: Path | None) -> ModelProto:
    """Return the model with all its weights inside; ``proto`` does not change."""
    from mixlist.graph.proto_edits import copy_message
    from mixlist.rewriter.tensor_conversion import inline_external_data

    if not external_tensors(proto):
        return proto
    inlined: ModelProto = copy_message(proto)
    inline_external_data(inlined, folder)
    return inlined


# The sessions of this process. One check has at most six, so none of them is loaded twice.
_sessions: LruCache[LocalSession] = LruCache(6)


def run_model(
    session_key: str, model: str | bytes, options: SessionOptions, output_names: Sequence[str] | None, feed: Feed
) -> Outputs:
    """Run a model in this process, and return the values of the outputs.

    session_key: identifies the model and its options. model: the argument that ``Workers.send_file`` returned.
    """
    from onnx import ModelProto

    def load() -> LocalSession:
        return LocalSession(make_session(ModelProto.FromString(read_sent_file(model)), options))

    return _sessions.get_or_make(session_key, load).run(output_names, feed)
