"""Run a model in other processes: in one process, which ONNX Runtime may crash, or in every worker of an executor.

Each run of a ``RemoteSession`` is a task that names the session by a key. A worker loads the model at its first task,
and keeps the session under this key. A single process of this machine loads the model at once. If it dies, the model
and the input are kept for a report of the crash.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeAlias, TypeVar

from mixlist.errors import ModelError
from mixlist.files.scratch_folder import ScratchFolder
from mixlist.lru_cache import LruCache
from mixlist.run.executors import Workers, wait_for
from mixlist.run.local_session import LocalSession
from mixlist.run.model_files import copy_weights_to_model, write_model_file
from mixlist.run.session import DEFAULT_OPTIONS, Session, SessionOptions
from mixlist.worker_processes import WorkerDied

if TYPE_CHECKING:
    from onnx import ModelProto

    from mixlist.run.session import Feed, Outputs

P = ParamSpec("P")
S = TypeVar("S", bound=LocalSession)
T = TypeVar("T")
OpenSession: TypeAlias = Callable[[str | bytes], LocalSession]  # opens a session of the model that was sent to a worker
Stage = Literal["load", "run"]

_SAVEZ_PARAMETERS = frozenset({"file", "allow_pickle"})


class Crashed(WorkerDied):
    """ONNX Runtime died while it loaded or ran a model.

    stage: ``load`` or ``run``.
    model: path of the kept model.
    feed: path of the input of a run, a ``.npz`` file that ``--data`` reads; None if there is no such file.
    """

    def __init__(self, signal: str, stage: Stage, model: Path, feed: Path | None, last_line: str) -> None:
        quoted_line = f" ({last_line})" if last_line else ""
        activity = "loaded" if stage == "load" else "ran"
        message = f"ONNX Runtime died with {signal}{quoted_line} while it {activity} the model"
        message += f"; the model is kept at {model}" + (f", its input at {feed}" if feed else "")
        hint = "the model may be valid and ONNX Runtime at fault: try another version of onnxruntime"
        if signal == "SIGKILL":
            hint = "the system kills a process that takes too much memory: try smaller batches"
        super().__init__(message, hint=hint, signal=signal, last_line=last_line)
        self.stage = stage
        self.model = model
        self.feed = feed


class RemoteSession(Session):
    """A session in each of some workers.

    model: a ModelProto, whose external data is in ``folder``, or the path of a model file.
    session_class: the class of the session in a worker.
    wait: if the workers are one process, wait until it has loaded the model. Otherwise the constructor returns at once,
        and the first use of the session raises an error of loading.

    Workers on other machines get the model as one protobuf message, which holds at most 2 GiB: raises ModelError for a
    larger model. Raises the errors of ``open_session``, and Crashed if the only process dies.
    """

    def __init__(
        self,
        model: ModelProto | str | os.PathLike[str],
        options: SessionOptions = DEFAULT_OPTIONS,
        *,
        workers: Workers,
        folder: Path | None = None,
        session_class: type[LocalSession] = LocalSession,
        wait: bool = True,
    ) -> None:
        self._workers = workers
        self._key = os.urandom(8).hex()
        self._scratch = ScratchFolder()
        self._unfinished: set[Future[Any]] = set()
        self._crash: Crashed | None = None
        self._is_closed = False
        self._path, self._data_folder = write_model_file(model, self._scratch.path, folder, workers.shares_files)
        options = replace(options, threads=options.threads or workers.threads)
        self._open_session: OpenSession = partial(session_class.open, options=options, folder=self._data_folder)
        self._sent_model = workers.send_file(os.fspath(self._path))
        # A single process loads the model now. Other workers load it at their first run.
        self._loading = self._submit(load_session) if workers.is_one_process else None
        if wait:
            try:
                self._wait_until_loaded()
            except BaseException:  # this object is never returned, so nobody else closes it
                self.close()
                raise

    def start(self, output_names: Sequence[str] | None, feed: Feed) -> Callable[[], Outputs]:
        """Start a run in one of the workers, which goes on while this process continues."""
        submit = partial(self._submit, run_session, output_names, dict(feed))
        running = submit()

        def wait() -> Outputs:
            self._wait_until_loaded()  # raises the error of loading, which explains why the run fails
            return self._finish(running, submit, "run", feed)

        return wait

    def call(self, method: Callable[Concatenate[S, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a method of the session in the only worker, which is an instance of ``session_class``."""
        self._wait_until_loaded()
        submit = partial(self._submit, call_session, method, args, kwargs)
        result: T = self._finish(submit(), submit, "run")
        return result

    def _wait_until_loaded(self) -> None:
        if self._loading is not None:
            self._finish(self._loading, partial(self._submit, load_session), "load")

    def _submit(self, task: Callable[..., T], *arguments: object) -> Future[T]:
        ended = ModelError("the process that ran this model has ended", hint="start another session")
        if self._is_closed:
            raise ended
        if self._crash is not None:
            raise self._crash
        try:
            # The sent model must be an argument of its own: Dask replaces a future by its data only if the future
            # itself is an argument, and not inside another object.
            future = self._workers.executor.submit(task, self._key, self._sent_model, self._open_session, *arguments)
        except RuntimeError:  # the executor is shut down
            raise ended from None
        self._unfinished.add(future)
        future.add_done_callback(self._unfinished.discard)
        return future

    def _finish(self, future: Future[T], submit: Callable[[], Future[T]], stage: Stage, feed: Feed | None = None) -> T:
        """Return the result of a task. ``submit`` sends it again; ``stage`` and ``feed``: what a crash says about
        it."""

        def resend() -> Future[T]:
            self._sent_model = self._workers.send_file(os.fspath(self._path))
            return submit()

        try:
            return wait_for(future, resend)
        except WorkerDied as death:
            raise self._explain(death, stage, feed) from None

    def _explain(self, death: WorkerDied, stage: Stage, feed: Feed | None) -> WorkerDied:
        """Return the error for the death of a worker. Keep the model and the input of the run that it names."""
        if not self._workers.reports_crashes:
            return death
        if self._crash is None:
            feed_path = _save_feed(self._scratch.path, feed) if feed is not None else None
            # From now on the scratch folder belongs to the user, if it holds something that a report needs.
            if feed_path is not None or self._path.is_relative_to(self._scratch.path):
                if self._data_folder is not None:
                    copy_weights_to_model(self._path, self._data_folder)
                self._scratch.keep()
            self._crash = Crashed(death.signal, stage, self._path, feed_path, death.last_line)
        return self._crash

    def close(self) -> None:
        """Release the session and its files. Workers other than one process drop it when others need the memory."""
        self._is_closed = True
        for future in tuple(self._unfinished):
            future.cancel()
        if self._workers.is_one_process and self._crash is None:
            # The worker may have the file open, so the file is removed after the session.
            with suppress(RuntimeError):  # the executor is shut down
                dropped = self._workers.executor.submit(drop_session, self._key)
                dropped.add_done_callback(lambda _: self._scratch.remove())
                return
        self._scratch.remove()


# --- the input of a crash ---


def _save_feed(target_folder: Path, feed: Feed) -> Path | None:
    """Write a feed as ``feed.npz`` into a folder; return its path, or None if that fails."""
    import numpy as np

    # np.savez takes the names of its own parameters for these parameters, not for arrays.
    if not _SAVEZ_PARAMETERS.isdisjoint(feed):
        return None
    path = target_folder / "feed.npz"
    # numpy stores arrays of Python strings only with pickle, which ``--data`` refuses: use numpy's string dtype.
    arrays = {name: array.astype(str) if array.dtype == object else array for name, array in feed.items()}
    try:
        np.savez(path, **arrays)  # type: ignore[arg-type] # no array has the name of a parameter
    except (OSError, ValueError):  # a full disk
        return None
    return path


# --- the tasks, which run in a worker ---

# The sessions of this process. One check has at most six, so none of them is loaded twice.
_sessions: LruCache[LocalSession] = LruCache(6)


def load_session(key: str, model: str | bytes, open_session: OpenSession) -> None:
    """Load a model into the session of this process with this key, unless it is loaded.

    model: the argument that ``Workers.send_file`` returned.
    """
    _get_session(key, model, open_session)


def run_session(
    key: str, model: str | bytes, open_session: OpenSession, output_names: Sequence[str] | None, feed: Feed
) -> Outputs:
    """Run the session of this process with this key. A session that is not loaded is loaded first."""
    return _get_session(key, model, open_session).run(output_names, feed)


def call_session(
    key: str,
    model: str | bytes,
    open_session: OpenSession,
    method: Callable[..., T],
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> T:
    """Call a method of the session of this process with this key, as ``run_session`` does."""
    return method(_get_session(key, model, open_session), *args, **kwargs)


def drop_session(key: str) -> None:
    """Release a session."""
    _sessions.drop(key)


def _get_session(key: str, model: str | bytes, open_session: OpenSession) -> LocalSession:
    return _sessions.get_or_make(key, partial(open_session, model))
