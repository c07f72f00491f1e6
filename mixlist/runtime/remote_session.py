"""Sessions in the workers of an executor: the model goes to each once, every run is a task of its own."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, Self

from mixlist.errors import ModelError
from mixlist.runtime.executors import Workers, awaited, is_loss
from mixlist.runtime.pool import WorkerDied
from mixlist.runtime.session_cache import Kept
from mixlist.runtime.sessions import Runner, make_session


class RemoteRunner:
    """A session of a ModelProto in every worker, with the methods of ``sessions.Runner``; ``submit`` does not wait.

    Raises ModelError for a model beyond protobuf's 2 GiB: workers may share no disk with it.
    """

    def __init__(self, proto: Any, folder: Path | None, workers: Workers, options: Mapping[str, Any]) -> None:
        """``folder`` is where the model's external data lies."""
        try:
            data = _whole(proto, folder).SerializeToString()
        except ValueError as problem:
            raise ModelError(f"the model is too large to be sent to other processes: {problem}") from None
        self._workers = workers
        self._options = {**options, "threads": options.get("threads") or workers.threads}
        self._token = hashlib.sha256(data + repr(sorted(self._options.items())).encode()).hexdigest()[:16]
        self._home = tempfile.TemporaryDirectory(prefix="mixlist-")
        self._path = Path(self._home.name, "model.onnx")
        self._path.write_bytes(data)
        self._sent = workers.send(str(self._path))
        self.names: tuple[str, ...] = tuple(output.name for output in proto.graph.output)

    def submit(self, outputs: Sequence[str] | None, feed: Mapping[str, Any]) -> Future[list[Any]]:
        """Start a run in some worker."""
        names = list(self.names if outputs is None else outputs)
        return self._workers.executor.submit(run_model, self._token, self._sent, self._options, names, dict(feed))

    def start(self, outputs: Sequence[str] | None, feed: Mapping[str, Any]) -> Callable[[], list[Any]]:
        """A run that goes on meanwhile; what is returned waits for its outputs."""
        return partial(self._awaited, self.submit(outputs, feed), outputs, feed)

    def run(self, outputs: Sequence[str] | None, feed: Mapping[str, Any]) -> list[Any]:
        """The outputs named (None: all, in the model's order) for a feed."""
        return self._awaited(self.submit(outputs, feed), outputs, feed)

    def _awaited(self, future: Future[list[Any]], outputs: Sequence[str] | None, feed: Mapping[str, Any]) -> list[Any]:
        """What a run gave; raises WorkerDied where the workers die of it."""

        def again() -> Future[list[Any]]:
            self._sent = self._workers.send(str(self._path))
            return self.submit(outputs, feed)

        try:
            return awaited(future, again)
        except Exception as problem:
            if is_loss(problem):
                told = f"the workers die of this model: {problem}"
                raise WorkerDied(told, hint="ONNX Runtime crashes on it") from None
            raise

    def close(self) -> None:
        """Remove what was written; workers let sessions go when they need room."""
        self._home.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _whole(proto: Any, folder: Path | None) -> Any:
    """The model with all its data inside."""
    from mixlist.graph.messages import copied
    from mixlist.graph.save import tensors
    from mixlist.graph.weights import is_external
    from mixlist.rewriter.convert import bring_in

    if not any(is_external(tensor) for tensor in tensors(proto)):
        return proto
    made = copied(proto)
    bring_in(made, folder)
    return made


_sessions: Kept[Runner] = Kept(6)  # those of one check


def run_model(
    token: str, model: bytes | str, options: Mapping[str, Any], names: Sequence[str], feed: Mapping[str, Any]
) -> list[Any]:
    """One run in this process; ``model`` is serialised, or the path of a file. ``token`` names it and its options."""
    from onnx import ModelProto

    def make(data: bytes) -> Runner:
        return Runner(make_session(ModelProto.FromString(data), **options))

    return _sessions.get(token, model, make).run(names, feed)
