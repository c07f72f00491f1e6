"""One process that works for this one: ``WorkerProcess.call`` sends it a function and waits for what that returns.

The process is a new interpreter that runs ``worker_server`` and is reached over pipes, since ONNX Runtime dies of some
models instead of raising an error. (Not ``multiprocessing``: the processes that it spawns run the caller's main module
again.) To start one costs 0.15 s, measured on two cores, nearly all of it the imports of numpy and ONNX Runtime, during
which this process goes on.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import IO, TypeVar

from mixlist.errors import ModelError
from mixlist.runtime import pipe_protocol

T = TypeVar("T")

_COMMAND = (
    "import sys; sys.path[:] = sys.argv[2:]; from mixlist.runtime.worker_server import serve; serve(int(sys.argv[1]))"
)
_PATIENCE = 5.0  # seconds that a process may take to end after its pipes


class WorkerDied(ModelError):  # noqa: N818 - it names the event
    """A worker process ended during a call.

    ``signal``: name of the signal (SIGSEGV), or the exit status where there was none. ``last_line``: the last line that
    the process wrote to its standard error.
    """

    def __init__(self, message: str, *, hint: str | None = None, signal: str = "", last_line: str = "") -> None:
        super().__init__(message, hint=hint)
        self.signal = signal
        self.last_line = last_line


class WorkerProcess:
    """A process that answers one call after the other, until it dies or is closed.

    ``threads``: of one pool for all sessions of ONNX Runtime in it; None for each session's own. A WorkerProcess that
    is not used any more ends by itself. It serves one thread at a time.
    """

    def __init__(self, threads: int | None = None) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - ``_end`` closes it
        command = [sys.executable, "-c", _COMMAND, str(threads or 0), *sys.path]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self._errors, bufsize=0)
        self.pid = self._process.pid
        self._end = weakref.finalize(self, _end, self._process, self._errors)

    @property
    def alive(self) -> bool:
        """Return True if the process runs and was not closed."""
        return self._end.alive and self._process.poll() is None

    def call(self, request: Callable[[], T]) -> T:
        """Run ``request`` (see ``pipe_protocol``) in the process; return its value, raise its error.

        Raises WorkerDied where the process ends meanwhile, CancelledError where it is closed, and what pickle raises
        for a request that cannot be sent.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            pipe_protocol.send(self._process.stdin, request)
            succeeded, value = pipe_protocol.receive(self._process.stdout)
        except EOFError:
            raise self._death() from None
        if not succeeded:
            raise value
        result: T = value
        return result

    def _death(self) -> Exception:
        """Explain why the pipes have ended, and close what is left."""
        if not self._end.alive:
            return CancelledError("the worker process was closed")
        ended = _ending(self._process)
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors.read().decode("utf-8", "replace").split("\n")]
        self.close()
        last_line = next((line[:200] for line in reversed(lines) if line), "")
        return WorkerDied(f"a worker process died with {ended}", signal=ended, last_line=last_line)

    def close(self) -> None:
        """End the process at once."""
        self._end()


def _ending(process: subprocess.Popen[bytes]) -> str:
    """Return how a process ended: the name of the signal, or its exit status."""
    try:
        status = process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        status = process.wait()
    if status < 0:
        with suppress(ValueError):
            return signal.Signals(-status).name
        return f"signal {-status}"
    return f"exit status {status}" if status < 256 else f"exit status {status:#x}"  # Windows: an NTSTATUS


def _end(process: subprocess.Popen[bytes], errors: IO[bytes]) -> None:
    """Kill a process: it holds nothing that others need, and waiting for its own end takes time."""
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout, errors):
        if stream is not None:
            with suppress(OSError):
                stream.close()
