"""Serve requests in a worker process: ``serve`` answers them until its input ends.

It also holds sessions under numbers: requests load one, call a method of it, or drop it.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Concatenate, ParamSpec, TypeVar

from mixlist.files.scratch_folder import remove_left_folders
from mixlist.runtime import pipe_protocol
from mixlist.runtime.local_session import LocalSession
from mixlist.runtime.session import SessionOptions

P = ParamSpec("P")
S = TypeVar("S", bound=LocalSession)
T = TypeVar("T")

_sessions: dict[int, LocalSession] = {}


def serve(threads: int) -> None:
    """Answer the requests on standard input; never return. ``threads``: of all sessions, 0 for each session's own."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group, and the parent decides
    _dump_no_core()
    requests, answers = _streams()
    with suppress(ImportError):  # loading a model will report it
        import onnxruntime  # noqa: F401  while the parent prepares the model
    if threads:
        from mixlist.runtime.inference_session import share_threads

        share_threads(threads)
    while True:
        try:
            pipe_protocol.send(answers, pipe_protocol.answer(pipe_protocol.receive(requests)))
        except EOFError:  # the parent was killed: otherwise it would have ended this process
            _remove_left_folders()
            os._exit(0)


def _streams() -> tuple[IO[bytes], IO[bytes]]:
    requests = os.fdopen(0, "rb", buffering=0)
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # the output of libraries must not get among the answers
    return requests, answers


def _remove_left_folders() -> None:
    """Remove the weights and models that the parent had written, once the system has freed its locks."""
    time.sleep(0.2)
    remove_left_folders(tempfile.gettempdir())


def _dump_no_core() -> None:
    """Switch core dumps off: crashes are expected here and would leave gigabytes behind."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def load_session(
    number: int, kind: type[LocalSession], path: str, options: SessionOptions, folder: Path | None
) -> None:
    """Load a model file under a number."""
    _sessions[number] = kind.open(path, options, folder)


def call_session(number: int, method: Callable[Concatenate[S, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a method of a session."""
    session: S = _sessions[number]  # type: ignore[assignment]  # of the kind that it was loaded as
    return method(session, *args, **kwargs)


def drop_session(number: int) -> None:
    """Let a session go."""
    _sessions.pop(number, None)
