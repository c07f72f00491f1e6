"""Sessions in a worker process, because ONNX Runtime dies on some models instead of raising an error.

A ``SessionProcess`` is the worker process. A ``SubprocessSession`` writes its model to a file, lets the process load
the file under a session number, and sends its runs there. If the process dies, mixlist keeps the model and the input
for a report of the crash.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, ClassVar, Concatenate, Literal, NamedTuple, ParamSpec, Self, TypeVar

from mixlist.errors import ModelError
from mixlist.files.scratch_folder import ScratchFolder, write_scratch
from mixlist.runtime.crash_artifacts import copy_weights_to_model, save_feed
from mixlist.runtime.local_session import LocalSession
from mixlist.runtime.model_files import external_tensors, is_readable_in_place, write_model
from mixlist.runtime.session import DEFAULT_OPTIONS, Session, SessionOptions
from mixlist.runtime.worker_process import WorkerDied, WorkerProcess
from mixlist.runtime.worker_server import call_session, drop_session, load_session

if TYPE_CHECKING:
    from onnx import ModelProto

    from mixlist.runtime.session import Feed, Outputs

P = ParamSpec("P")
S = TypeVar("S", bound=LocalSession)
T = TypeVar("T")
Stage = Literal["load", "run"]


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


class RequestContext(NamedTuple):
    """The facts about a request that the report of a crash needs.

    stage: the work of the process: ``load`` or ``run``.
    model: the path of the model file.
    weights_folder: the folder of its external data; None if the data is next to the model.
    feed: the input of a run.
    """

    stage: Stage
    model: Path
    weights_folder: Path | None
    feed: Feed | None = None


class SessionProcess:
    """A process in which SubprocessSessions load and run their models; a context manager that ends it.

    The process answers the requests in their order, while this process continues. It is not restarted after a crash.
    """

    def __init__(self) -> None:
        self._scratch = ScratchFolder()
        # The folder of the models, and of the files that are kept after a crash.
        self.scratch_path = self._scratch.path
        self._worker = WorkerProcess()
        self.pid = self._worker.pid
        # One thread, because a WorkerProcess answers one request after the other. The thread waits for the answers.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="mixlist")
        self._session_numbers = count()
        self._crash: Crashed | None = None
        self._finalizer = weakref.finalize(self, _end_process, self._worker, self._scratch)

    def reserve_session(self) -> tuple[int, Path]:
        """Return a number for a new session, and the folder for its model."""
        number = next(self._session_numbers)
        # Session 0 is often the only one. Its model goes to the folder that a crash report names.
        folder = self.scratch_path / str(number) if number else self.scratch_path
        folder.mkdir(exist_ok=True)
        return number, folder

    def release_folder(self, number: int) -> None:
        """Remove the folder of a session that was released."""
        if number:  # session 0 has no folder of its own
            rmtree(self.scratch_path / str(number), ignore_errors=True)

    def submit(self, context: RequestContext, request: Callable[[], T]) -> Future[T]:
        """Send a request, and return the future of its answer.

        Raises ModelError after ``close``. The future raises Crashed if the process dies or has died.

        This method itself never raises Crashed. A caller may send a second request before the answer to the first one
        is there. If the first request crashes, the caller must get that error from the first future.
        """
        try:
            return self._thread.submit(self._call, context, request)
        except RuntimeError:  # the thread is shut down
            raise ModelError("the process that ran this model has ended", hint="start another session") from None

    def _call(self, context: RequestContext, request: Callable[[], T]) -> T:
        # An earlier request killed the process. Its error says what happened, also for the requests after it.
        if self._crash is not None:
            raise self._crash
        try:
            return self._worker.call(request)
        except WorkerDied as death:
            self._crash = self._keep_crash_files(context, death)
            raise self._crash from None

    def _keep_crash_files(self, context: RequestContext, death: WorkerDied) -> Crashed:
        """Keep the model and the input of the run for the user, and return the error that names their paths."""
        feed_path = save_feed(self.scratch_path, context.feed) if context.feed is not None else None
        if feed_path is None and not context.model.is_relative_to(self.scratch_path):
            self._finalizer()  # the scratch folder holds nothing that a report needs
        else:
            if context.weights_folder is not None:
                copy_weights_to_model(context.model, context.weights_folder)
            # From now on the scratch folder belongs to the user.
            self._finalizer.detach()
            self._scratch.keep()
        return Crashed(death.signal, context.stage, context.model, feed_path, death.last_line)

    def close(self) -> None:
        """End the process, and remove its temporary files except those of a crash."""
        self._finalizer()
        self._thread.shutdown(cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _end_process(worker: WorkerProcess, scratch: ScratchFolder) -> None:
    worker.close()
    scratch.remove()


class SubprocessSession(Session):
    """A session in a worker process.

    model: a ModelProto, whose external data is in ``folder``, or the path of a model file.
    process: the process of the session; None for a process of its own.
    wait: if True, wait until the model is loaded. If False, the constructor returns at once, and the first use of the
        session raises an error of loading.

    Raises the errors of ``open_session``, and Crashed.
    """

    session_class: ClassVar[type[LocalSession]] = LocalSession  # the class of the session in the worker process

    def __init__(
        self,
        model: ModelProto | str | os.PathLike[str],
        options: SessionOptions = DEFAULT_OPTIONS,
        *,
        folder: Path | None = None,
        process: SessionProcess | None = None,
        wait: bool = True,
    ) -> None:
        self._owns_process = process is None
        # Start the process first: it imports ONNX Runtime while this process writes the model.
        self._process = process or SessionProcess()
        self.pid = self._process.pid
        try:
            self._number, target_folder = self._process.reserve_session()
            path, weights_folder = _prepare_model_file(model, target_folder, folder)
            self._context = RequestContext("run", path, weights_folder)
            load = partial(load_session, self._number, self.session_class, os.fspath(path), options, weights_folder)
            self._loaded = self._process.submit(self._context._replace(stage="load"), load)
            if wait:
                self._loaded.result()
        except BaseException:  # Ctrl-C too: the process must not outlive this object, which is never returned
            if self._owns_process:
                self._process.close()
            raise

    def start(self, output_names: Sequence[str] | None, feed: Feed) -> Callable[[], Outputs]:
        """Start a run, which goes on while this process continues."""
        context = self._context._replace(feed=feed)
        request = partial(call_session, self._number, LocalSession.run, output_names, dict(feed))
        running = self._process.submit(context, request)

        def wait() -> Outputs:
            self._loaded.result()  # raises the error of loading, which explains why the run fails
            return running.result()

        return wait

    def call(self, method: Callable[Concatenate[S, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a method of the session in the worker process, which is an instance of ``session_class``."""
        self._loaded.result()
        request = partial(call_session, self._number, method, *args, **kwargs)
        return self._process.submit(self._context, request).result()

    def close(self) -> None:
        """Release the session, and end its process if no other session shares it."""
        if self._owns_process:
            self._process.close()
            return
        with suppress(ModelError):  # the process has ended already
            dropped = self._process.submit(self._context, partial(drop_session, self._number))
            dropped.add_done_callback(self._remove_model)

    def _remove_model(self, dropped: Future[None]) -> None:
        """Remove the model's file after the session was released. A crash keeps the files."""
        if not dropped.cancelled() and dropped.exception() is None:
            self._process.release_folder(self._number)


def _prepare_model_file(
    model: ModelProto | str | os.PathLike[str], target_folder: Path, folder: Path | None
) -> tuple[Path, Path | None]:
    """Return the path of a model file, and the folder of its external data if that is not the folder of the file.

    A ModelProto is written to ``target_folder``.
    """
    # 1. A file of the user: load it where it is.
    if isinstance(model, str | os.PathLike):
        return Path(model), None
    # 2. A message whose external data ONNX Runtime can read in its folder: write the message without the weights.
    if external_tensors(model) and is_readable_in_place(model, folder):
        path = target_folder / "model.onnx"
        write_scratch(path, model.SerializeToString())
        return path, folder
    # 3. All other messages: write them with their weights.
    return write_model(model, target_folder, folder), None
