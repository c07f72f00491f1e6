"""Sessions in a process of their own, since ONNX Runtime dies of some models instead of raising an error.

A ``Worker`` starts a new interpreter and speaks with it over pipes. (Not ``multiprocessing``: its spawned children
run the caller's main module again.) That costs 0.1 s, measured on two cores, nearly all of it the import of numpy,
during which the parent writes the model; what a run costs more than here, ``wire`` tells.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, Self

from mixlist import errors
from mixlist.errors import MixlistError, ModelError
from mixlist.runtime import wire
from mixlist.runtime.sessions import Runner, make_session, write_model

Stage = Literal["load", "run", "hold", "time", "peak", "end_profile"]  # the last four are those of ``timed``
_CHILD = "import sys; sys.path[:] = sys.argv[1:]; from mixlist.runtime.child import serve; serve()"
_DOING = {"load": "loaded"}  # else "ran"
_PATIENCE = 5.0  # seconds for a child to end after its pipes did


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


class Worker:
    """A session in a process that may die, with the methods of ``sessions.Runner``. A context manager.

    ``model`` is a ModelProto, whose external data lies in ``folder``, or the path of a model file. ``limit`` is the
    time in seconds that loading, and each run, may take. The other options are those of ``open_session``.

    Raises what ``open_session`` does, Crashed and TimedOut; after these two a Worker is closed: make another.
    """

    def __init__(
        self,
        model: Any,
        *,
        provider: str = "cpu",
        folder: Path | None = None,
        optimise: bool = True,
        threads: int | None = None,
        limit: float | None = None,
        **others: Any,
    ) -> None:
        self._limit = limit
        self._home = Path(tempfile.mkdtemp(prefix="mixlist-"))
        self._child = _start(self._home)  # it imports while the model is written
        self._end = weakref.finalize(self, _dispose, self._child, self._home)
        try:
            given = isinstance(model, str | os.PathLike)
            self._model = Path(model) if given else write_model(model, self._home, folder)
            options = {"provider": provider, "optimise": optimise, "threads": threads, **others}
            self.names: tuple[str, ...] = self._ask("load", os.fspath(self._model), options)
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """The process that holds the session."""
        return self._child.pid

    def run(self, outputs: Sequence[str] | None, feed: Mapping[str, Any]) -> list[Any]:
        """The outputs named (None: all, in the model's order) for a feed: input name -> array."""
        answer: list[Any] = self._ask("run", None if outputs is None else list(outputs), dict(feed))
        return answer

    def close(self) -> None:
        """End the process; its temporary files go, except those of a crash."""
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, stage: Stage, *request: Any) -> Any:
        """Send a request and wait for its answer; whatever goes wrong, the child and the pipes end with it."""
        if not self._end.alive:
            raise ModelError("the process that ran this model has ended", hint="start another Worker")
        requests, answers = self._child.stdin, self._child.stdout
        assert requests is not None and answers is not None
        with _Alarm(self._limit, self._child) as alarm:
            try:
                wire.send(requests, (stage, *request))
                answer = wire.receive(answers)
            except (EOFError, OSError):
                answer = None
            except BaseException:  # Ctrl-C in the middle of a message
                self.close()
                raise
        if alarm.rang:
            self.close()
            assert self._limit is not None
            raise TimedOut(stage, self._limit)
        if answer is None:
            raise self._crashed(stage, request)
        return value_of(answer)

    def _crashed(self, stage: Stage, request: Sequence[Any]) -> Crashed:
        """What ended the child; the model stays, and the input of a run with it."""
        ended = _ending(self._child)
        lines = (self._home / "stderr").read_text("utf-8", "replace").split("\n")
        said = next((line.strip()[:200] for line in reversed(lines) if line.strip()), "")
        feed = _keep_feed(self._home, request[1]) if stage == "run" else None
        if feed is None and self._model.parent != self._home:
            self.close()
        else:
            self._end.detach()
            _close(self._child)
        return Crashed(ended, stage, self._model, feed, said)


def make_runner(
    proto: Any,
    *,
    isolate: bool = False,
    provider: str = "cpu",
    folder: Path | None = None,
    optimise: bool = True,
    threads: int | None = None,
    limit: float | None = None,
    lean: bool = False,
) -> Runner | Worker:
    """The session of a ModelProto in this process, or with ``isolate`` in one of its own: both run alike.

    ``limit`` holds for a process of its own only. Raises what ``Worker`` does.
    """
    options: dict[str, Any] = {"provider": provider, "optimise": optimise, "threads": threads, "lean": lean}
    if isolate:
        return Worker(proto, folder=folder, limit=limit, **options)
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


def _ending(child: subprocess.Popen[bytes]) -> str:
    try:
        status = child.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        child.kill()
        status = child.wait()
    if status < 0:
        with suppress(ValueError):
            return signal.Signals(-status).name
        return f"signal {-status}"
    return f"exit status {status}" if status < 256 else f"exit status {status:#x}"  # Windows: an NTSTATUS


def _keep_feed(home: Path, feed: Mapping[str, Any]) -> Path | None:
    """The feed as ``.npz``, None where it cannot be kept in that form (sequences)."""
    import numpy as np

    if not all(isinstance(value, np.ndarray) for value in feed.values()):
        return None
    path = home / "feed.npz"
    texts = {name: value.astype(str) if value.dtype == object else value for name, value in feed.items()}
    try:
        np.savez(path, allow_pickle=False, **texts)
    except (OSError, ValueError, TypeError):  # a full disk; a name that savez has taken for itself
        return None
    return path


def _close(child: subprocess.Popen[bytes]) -> None:
    for stream in (child.stdin, child.stdout):
        if stream is not None:
            with suppress(OSError):
                stream.close()


def _dispose(child: subprocess.Popen[bytes], home: Path) -> None:
    """End the child, which ends by itself when its input does, unless it is at work."""
    _close(child)
    try:
        child.wait(0.2)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    shutil.rmtree(home, ignore_errors=True)
