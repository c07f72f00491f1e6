"""The code that runs in a worker process: ``serve`` answers requests until its standard input ends.

The process keeps sessions under numbers. Requests of a ``SessionProcess`` load a session, call a method of it, or drop
it.
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

from mixlist.files.scratch_folder import remove_abandoned_folders
from mixlist.runtime import pipe_protocol
from mixlist.runtime.local_session import LocalSession
from mixlist.runtime.session import SessionOptions

P = ParamSpec("P")
S = TypeVar("S", bound=LocalSession)
T = TypeVar("T")

_sessions: dict[int, LocalSession] = {}


def serve(threads: int) -> None:
    """Answer the requests on standard input; never return.

    threads: the size of one thread pool for all sessions; 0 if each session has its own.
    """
    # Ctrl-C sends SIGINT to the whole process group. Only the parent decides whether this process ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _disable_core_dumps()
    requests, answers = _open_streams()
    with suppress(ImportError):  # the first request that loads a model reports the missing module
        import onnxruntime  # noqa: F401 - loaded now, while the parent prepares the model
    if threads:
        from mixlist.runtime.inference_session import share_threads

        share_threads(threads)
    while True:
        try:
            pipe_protocol.send(answers, pipe_protocol.execute_request(pipe_protocol.receive(requests)))
        except EOFError:  # the parent was killed: a parent that ends normally first kills this process
            _remove_orphaned_folders()
            # End without Python's cleanup: the parent is gone, so nothing needs it.
            os._exit(0)


def _open_streams() -> tuple[IO[bytes], IO[bytes]]:
    """Return the stream of requests and that of answers."""
    requests = os.fdopen(0, "rb", buffering=0)
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    # Libraries print to file descriptor 1. Send that to standard error, so that it does not mix with the answers.
    os.dup2(2, 1)
    return requests, answers


def _remove_orphaned_folders() -> None:
    """Remove the temporary folders of the parent, which was killed."""
    time.sleep(0.2)  # the system frees the locks of the parent a moment after it closes the pipes
    remove_abandoned_folders(tempfile.gettempdir())


def _disable_core_dumps() -> None:
    """Disable core dumps: crashes are expected in this process, and each dump takes gigabytes."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def load_session(
    number: int, session_class: type[LocalSession], path: str, options: SessionOptions, folder: Path | None
) -> None:
    """Load a model file into a session with this number."""
    _sessions[number] = session_class.open(path, options, folder)


def call_session(number: int, method: Callable[Concatenate[S, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a method of a session. The method must belong to the class with which the session was loaded."""
    session: S = _sessions[number]  # type: ignore[assignment]
    return method(session, *args, **kwargs)


def drop_session(number: int) -> None:
    """Release a session."""
    _sessions.pop(number, None)
