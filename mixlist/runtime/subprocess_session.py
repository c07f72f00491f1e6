"""Sessions in a process of their own, since ONNX Runtime dies of some models instead of raising an error.

A ``Process`` is a new interpreter that is spoken with over pipes. (Not ``multiprocessing``: its spawned children
run the caller's main module again.) That costs 0.15 s, measured on two cores, nearly all of it the imports of numpy and
ONNX Runtime, during which the parent prepares the model; what a run costs more than here, ``wire`` tells. A ``Worker``
is a session in such a process: one of its own, or one that several share.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Literal, Self

from mixlist import errors
from mixlist.errors import MixlistError, ModelError
from mixlist.runtime import pipe_protocol
from mixlist.runtime.crash_artifacts import bring_in, ending, keep_feed
from mixlist.runtime.sessions import Runner, lies_ready, make_session, outside_of, write_model

Stage = Literal["load", "run", "drop", "hold", "time", "peak", "end_profile"]  # the last four are those of ``timed``
_CHILD = "import sys; sys.path[:] = sys.argv[1:]; from mixlist.runtime.subprocess_server import serve; serve()"
_DOING = {"load": "loaded"}  # else "ran"


class Crashed(ModelError):  # noqa: N818 - it is what happened
    """ONNX Runtime died. ``signal``: its name (SIGSEGV), or the exit status where the system has no signals.

    ``stage``: ``load`` or ``run``. ``model``: where the model is kept. ``feed``: the input of a run as ``.npz``,
    usable with ``--data``, None while loading.
    """

    def __init__(self, signal: str, stage: Stage, model: Path, feed: Path | None, said: str) -> None:
        words = f" ({said})" if said else ""
        message = f"ONNX Runtime died with {signal}{words} while it {_DOING.get(stage, 'ran')} the model"
        message += f"; the model is kept at {model}" + (f", its input at {feed}" if feed else "")
        hint = "the model may be fine: this is ONNX Runtime's bug; another version of it may do"
        if signal == "SIGKILL":
            hint = "the system kills what takes too much memory: try smaller batches"
        super().__init__(message, hint=hint)
        self.signal = signal
        self.stage = stage
        self.model = model
        self.feed = feed


class TimedOut(ModelError):  # noqa: N818
    """ONNX Runtime took longer than ``limit`` seconds to load or run the model (``stage``), and was ended."""

    def __init__(self, stage: Stage, limit: float) -> None:
        message = f"ONNX Runtime had not {_DOING.get(stage, 'run')} the model after {limit:g} s"
        super().__init__(message, hint="allow more time, or give smaller batches")
        self.stage = stage
        self.limit = limit


@dataclass(eq=False)
class _Question:
    """Something that a process was asked: of the model at ``model``, with ``limit`` seconds to answer."""

    stage: Stage
    request: tuple[Any, ...]
    model: Path
    folder: Path | None
    limit: float | None
    answer: tuple[Any, ...] | None = None


class Process:
    """A process that may die, for Workers to put their sessions in. A context manager.

    It does what it is asked in turn, while this process goes on. Once it has ended, the next Worker starts it again.
    """

    def __init__(self) -> None:
        self._numbers = count()
        self._start()

    def _start(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="mixlist-"))
        self.child = _start(self.home)
        self._end = weakref.finalize(self, _dispose, self.child, self.home)
        self._waiting: deque[_Question] = deque()
        self._unsent: SimpleQueue[Any] = SimpleQueue()
        assert self.child.stdin is not None
        threading.Thread(target=_write, args=(self.child.stdin, self._unsent), daemon=True).start()
        self._stop = weakref.finalize(self, self._unsent.put, None)

    def session(self) -> tuple[subprocess.Popen[bytes], int, Path]:
        """The live child, the number of a new session in it and a folder for the session's model."""
        if not self._end.alive:
            self._start()
        number = next(self._numbers)
        home = self.home / str(number) if number else self.home
        home.mkdir(exist_ok=True)
        return self.child, number, home

    def post(self, child: subprocess.Popen[bytes], number: int, question: _Question) -> None:
        """Send a request to a session of this ``child``, which need not listen yet."""
        if not self._end.alive or child is not self.child:
            raise ModelError("the process that ran this model has ended", hint="start another Worker")
        self._waiting.append(question)
        self._unsent.put((question.stage, number, *question.request))

    def answer(self, question: _Question) -> Any:
        """Wait for the answer to a question; whatever goes wrong, the child and the pipes end with it."""
        assert self.child.stdout is not None
        while question.answer is None:
            if question not in self._waiting:
                raise ModelError("the process that ran this model has ended", hint="start another Worker")
            with self._guard(self._waiting[0]):
                self._waiting[0].answer = pipe_protocol.receive(self.child.stdout)
                self._waiting.popleft()
        return value_of(question.answer)

    @contextmanager
    def _guard(self, asked: _Question) -> Iterator[None]:
        """Speak with the child, which is at work on what was asked."""
        alarm = _Alarm(asked.limit, self.child)
        try:
            with alarm:
                yield
            return
        except (EOFError, OSError):
            pass
        except BaseException:  # Ctrl-C in the middle of a message
            self.close()
            raise
        if alarm.rang:
            self.close()
            assert asked.limit is not None
            raise TimedOut(asked.stage, asked.limit)
        raise self._crashed(asked)

    def _crashed(self, asked: _Question) -> Crashed:
        """What ended the child; the model stays, and the input of a run with it."""
        self._waiting.clear()
        self._stop()
        ended = ending(self.child)
        lines = (self.home / "stderr").read_text("utf-8", "replace").split("\n")
        said = next((line.strip()[:200] for line in reversed(lines) if line.strip()), "")
        feed = keep_feed(self.home, asked.request[1]) if asked.stage == "run" else None
        if feed is None and not asked.model.is_relative_to(self.home):
            self.close()
        else:
            if asked.folder is not None:
                bring_in(asked.model, asked.folder)
            self._end.detach()
            _close(self.child)
        return Crashed(ended, asked.stage, asked.model, feed, said)

    def close(self) -> None:
        """End the process; its temporary files go, except those of a crash."""
        self._waiting.clear()
        self._stop()
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Worker:
    """A session in a process that may die, with the methods of ``sessions.Runner``. A context manager.

    ``model`` is a ModelProto, whose external data lies in ``folder``, or the path of a model file. ``process`` is where
    the session lives, by default in one of its own. ``limit`` is the time in seconds that loading, and each run, may
    take. Without ``wait`` the model loads while this process goes on: what is wrong with it comes up when it is used.
    The other options are those of ``open_session``.

    Raises what ``open_session`` does, Crashed and TimedOut; after these two a Worker is closed: make another.
    """

    def __init__(
        self,
        model: Any,
        *,
        process: Process | None = None,
        wait: bool = True,
        provider: str = "cpu",
        folder: Path | None = None,
        optimise: bool = True,
        threads: int | None = None,
        limit: float | None = None,
        **others: Any,
    ) -> None:
        self._limit = limit
        self._own = process is None
        self._process = process or Process()  # it imports while the model is written
        try:
            self._child, self._number, home = self._process.session()
            options = {"provider": provider, "optimise": optimise, "threads": threads, **others}
            if isinstance(model, str | os.PathLike):
                self._model = Path(model)
            elif (outside := outside_of(model)) and lies_ready(outside, folder):
                self._model, options["folder"] = home / "model.onnx", folder
                self._model.write_bytes(model.SerializeToString())
            else:
                self._model = write_model(model, home, folder)
            self._folder = options.get("folder")  # of the weights, where these are not the Worker's own
            self._loaded = self._post("load", os.fspath(self._model), options)
            if wait:
                self._process.answer(self._loaded)
        except BaseException:
            if self._own:
                self._process.close()
            raise

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the outputs, in the model's order."""
        names: tuple[str, ...] = self._process.answer(self._loaded)
        return names

    @property
    def pid(self) -> int:
        """The process that holds the session."""
        return self._child.pid

    def run(self, outputs: Sequence[str] | None, feed: Mapping[str, Any]) -> list[Any]:
        """The outputs named (None: all, in the model's order) for a feed: input name -> array."""
        return self.start(outputs, feed)()

    def start(self, outputs: Sequence[str] | None, feed: Mapping[str, Any]) -> Callable[[], list[Any]]:
        """A run that goes on while this process does; what is returned waits for its outputs."""
        asked = self._post("run", None if outputs is None else list(outputs), dict(feed))

        def wait() -> list[Any]:
            self._process.answer(self._loaded)
            answer: list[Any] = self._process.answer(asked)
            return answer

        return wait

    def close(self) -> None:
        """Let the session go, and its process where no others are in it; temporary files go, but those of a crash."""
        if self._own:
            self._process.close()
            return
        with suppress(MixlistError):  # it has ended already
            self._post("drop")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, stage: Stage, *request: Any) -> Any:
        self._process.answer(self._loaded)
        return self._process.answer(self._post(stage, *request))

    def _post(self, stage: Stage, *request: Any) -> _Question:
        question = _Question(stage, request, self._model, self._folder, self._limit)
        self._process.post(self._child, self._number, question)
        return question


def make_runner(
    proto: Any,
    *,
    isolate: bool | Process = False,
    wait: bool = True,
    provider: str = "cpu",
    folder: Path | None = None,
    optimise: bool = True,
    threads: int | None = None,
    limit: float | None = None,
    lean: bool = False,
) -> Runner | Worker:
    """The session of a ModelProto in this process, or with ``isolate`` in one of its own or in the one given.

    All run alike. ``limit`` and ``wait`` hold for other processes only. Raises what ``Worker`` does.
    """
    options: dict[str, Any] = {"provider": provider, "optimise": optimise, "threads": threads, "lean": lean}
    if isolate:
        process = isolate if isinstance(isolate, Process) else None
        return Worker(proto, process=process, wait=wait, folder=folder, limit=limit, **options)
    return Runner(make_session(proto, folder=folder, **options))


class _Alarm:
    """Kills a child after ``limit`` seconds; on every system the one way to end a wait for its answer."""

    def __init__(self, limit: float | None, child: subprocess.Popen[bytes]) -> None:
        self.rang = False
        self._child = child
        self._timer = threading.Timer(limit, self._ring) if limit is not None else None

    def _ring(self) -> None:
        self.rang = True
        self._child.kill()

    def __enter__(self) -> _Alarm:
        if self._timer is not None:
            self._timer.daemon = True
            self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()  # it rang or it never will


def _write(stream: Any, unsent: SimpleQueue[Any]) -> None:
    """Write requests as the child takes them, so that nobody waits for it who has other things to do."""
    while (request := unsent.get()) is not None:
        try:
            pipe_protocol.send(stream, request)
        except (OSError, ValueError):  # the child is gone, or the stream closed: whoever waits for the answer is told
            return
        del request


def _start(home: Path) -> subprocess.Popen[bytes]:
    with (home / "stderr").open("wb") as said:
        return subprocess.Popen(
            [sys.executable, "-c", _CHILD, *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            bufsize=0,
        )


def value_of(answer: tuple[Any, ...]) -> Any:
    """The value in a child's answer; raises what the child met."""
    kind, *rest = answer
    if kind == "done":
        return rest[0]
    if kind == "error":
        name, message, hint = rest
        error: type[MixlistError] = getattr(errors, name, ModelError)
        raise error(message, hint=hint)
    raise RuntimeError(f"in the process that runs the model:\n{rest[0]}")


def _close(child: subprocess.Popen[bytes]) -> None:
    for stream in (child.stdin, child.stdout):
        if stream is not None:
            with suppress(OSError):
                stream.close()


def _dispose(child: subprocess.Popen[bytes], home: Path) -> None:
    """End the child at once: it holds nothing that others need, and waiting for its own end takes time."""
    child.kill()
    _close(child)
    child.wait()
    shutil.rmtree(home, ignore_errors=True)
