"""Sessions in a worker process, since ONNX Runtime dies of some models instead of raising an error.

A ``SessionProcess`` holds the sessions; a ``SubprocessSession`` lays its model out as a file, has it loaded there under
a number, and sends its runs there. If the process dies, the model and the input that it died of are kept.
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
from typing import TYPE_CHECKING, ClassVar, Concatenate, Literal, NamedTuple, ParamSpec, Self, TypeVar

from mixlist.errors import ModelError
from mixlist.files.scratch_folder import ScratchFolder, write_scratch
from mixlist.runtime.crash_artifacts import bring_in, keep_feed
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
    """ONNX Runtime died while it loaded or ran a model (``stage``).

    ``model``: where the model is kept. ``feed``: the input of a run as ``.npz``, usable with ``--data``; None where
    there was none.
    """

    def __init__(self, signal: str, stage: Stage, model: Path, feed: Path | None, last_line: str) -> None:
        words = f" ({last_line})" if last_line else ""
        message = f"ONNX Runtime died with {signal}{words} while it {'loaded' if stage == 'load' else 'ran'} the model"
        message += f"; the model is kept at {model}" + (f", its input at {feed}" if feed else "")
        hint = "the model may be fine: this is ONNX Runtime's bug; another version of it may do"
        if signal == "SIGKILL":
            hint = "the system kills what takes too much memory: try smaller batches"
        super().__init__(message, hint=hint, signal=signal, last_line=last_line)
        self.stage = stage
        self.model = model
        self.feed = feed


class Work(NamedTuple):
    """The work of a request, for the report of a crash: the model's file, the folder of its weights, a run's input."""

    stage: Stage
    model: Path
    folder: Path | None
    feed: Feed | None = None


class SessionProcess:
    """A process for SubprocessSessions. It works in the order of the requests, while this one goes on.

    A context manager that ends the process. After a crash it stays ended.
    """

    def __init__(self) -> None:
        self._scratch = ScratchFolder()
        self.home = self._scratch.path
        self._worker = WorkerProcess()
        self.pid = self._worker.pid
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="mixlist")  # waits for the answers
        self._numbers = count()
        self._crash: Crashed | None = None
        self._end = weakref.finalize(self, _dispose, self._worker, self._scratch)

    def new_session(self) -> tuple[int, Path]:
        """Return the number of a new session and a folder for its model."""
        number = next(self._numbers)
        folder = self.home / str(number) if number else self.home  # the first is mostly the only one
        folder.mkdir(exist_ok=True)
        return number, folder

    def submit(self, work: Work, request: Callable[[], T]) -> Future[T]:
        """Send a request. Raises ModelError after ``close``; the future raises Crashed if the process dies or has died.

        A caller may send a request before it reads the answer to an earlier one, so a crash must not be raised here.
        """
        try:
            return self._thread.submit(self._call, work, request)
        except RuntimeError:  # after ``shutdown``
            raise ModelError("the process that ran this model has ended", hint="start another session") from None

    def _call(self, work: Work, request: Callable[[], T]) -> T:
        if self._crash is not None:  # during an earlier request
            raise self._crash
        try:
            return self._worker.call(request)
        except WorkerDied as death:
            self._crash = self._report(work, death)
            raise self._crash from None

    def _report(self, work: Work, death: WorkerDied) -> Crashed:
        """Keep the model, and the input of a run; end what is left."""
        feed = keep_feed(self.home, work.feed) if work.feed is not None else None
        if feed is None and not work.model.is_relative_to(self.home):
            self._end()
        else:
            if work.folder is not None:
                bring_in(work.model, work.folder)
            self._end.detach()
            self._scratch.keep()
        return Crashed(death.signal, work.stage, work.model, feed, death.last_line)

    def close(self) -> None:
        """End the process; its temporary files are removed, except those of a crash."""
        self._end()
        self._thread.shutdown(cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _dispose(worker: WorkerProcess, scratch: ScratchFolder) -> None:
    worker.close()
    scratch.remove()


class SubprocessSession(Session):
    """A session in a worker process.

    ``model`` is a ModelProto, whose external data lies in ``folder``, or the path of a model file. ``process`` is where
    the session lives, None for a process of its own. Without ``wait`` the model loads while this process goes on, and
    what is wrong with it is raised when the session is used.

    Raises what ``open_session`` does, and Crashed.
    """

    kind: ClassVar[type[LocalSession]] = LocalSession  # of the session in the worker process

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
        self._process = process or SessionProcess()  # it imports while the model is written
        self.pid = self._process.pid
        try:
            self._number, home = self._process.new_session()
            if isinstance(model, str | os.PathLike):
                path, folder = Path(model), None
            elif external_tensors(model) and is_readable_in_place(model, folder):
                path = home / "model.onnx"
                write_scratch(path, model.SerializeToString())
            else:
                path, folder = write_model(model, home, folder), None
            self._work = Work("run", path, folder)
            load = partial(load_session, self._number, self.kind, os.fspath(path), options, folder)
            self._loaded = self._process.submit(self._work._replace(stage="load"), load)
            if wait:
                self._loaded.result()
        except BaseException:
            if self._owns_process:
                self._process.close()
            raise

    def start(self, outputs: Sequence[str] | None, feed: Feed) -> Callable[[], Outputs]:
        """Begin a run, which goes on while this process does."""
        work = self._work._replace(feed=feed)
        running = self._process.submit(work, partial(call_session, self._number, LocalSession.run, outputs, dict(feed)))

        def wait() -> Outputs:
            self._loaded.result()
            return running.result()

        return wait

    def call(self, method: Callable[Concatenate[S, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a method of the session in the worker process, which is of type ``kind``."""
        self._loaded.result()
        request = partial(call_session, self._number, method, *args, **kwargs)
        return self._process.submit(self._work, request).result()

    def close(self) -> None:
        """Let the session go, and its process where no others are in it."""
        if self._owns_process:
            self._process.close()
            return
        with suppress(ModelError):  # it has ended already
            self._process.submit(self._work, partial(drop_session, self._number))
