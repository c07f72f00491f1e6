"""One worker process: ``WorkerProcess.call`` sends it a function, and waits for the result.

The process is a new Python interpreter that executes ``worker_server.serve``. It is connected by pipes. A process of
its own is needed because ONNX Runtime dies on some models instead of raising an error. ``multiprocessing``
cannot be used, because a process that it spawns runs the caller's main module again. A start takes 0.15 s (measured on
two cores), mostly for the import of numpy and ONNX Runtime. This process continues during that time.
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
from mixlist.installed_runtime import require_onnxruntime
from mixlist.runtime import pipe_protocol

T = TypeVar("T")

# The worker gets the ``sys.path`` of this process, so that it finds the modules whose functions this process sends.
_COMMAND = (
    "import sys; sys.path[:] = sys.argv[2:]; from mixlist.runtime.worker_server import serve; serve(int(sys.argv[1]))"
)
# The most seconds from the end of the pipes to the end of the process. A process that takes longer is killed.
_EXIT_TIMEOUT = 5.0


class WorkerDied(ModelError):  # noqa: N818 - it names the event
    """A worker process ended during a call.

    signal: the name of the signal (SIGSEGV), or the exit status if there was no signal.
    last_line: the last line that the process wrote to its standard error.
    """

    def __init__(self, message: str, *, hint: str | None = None, signal: str = "", last_line: str = "") -> None:
        super().__init__(message, hint=hint)
        self.signal = signal
        self.last_line = last_line


class WorkerProcess:
    """A process that answers one call after the other, until it dies or is closed.

    threads: the size of one thread pool for all ONNX Runtime sessions in the process; None if each session has its own.

    The process ends when this object is garbage-collected. Only one thread may use this object at a time. Raises
    UsageError if ONNX Runtime is not installed.
    """

    def __init__(self, threads: int | None = None) -> None:
        require_onnxruntime()
        # A file and not a pipe: standard error is read only after the process has ended, and a full pipe would block
        # it.
        self._stderr_file = tempfile.TemporaryFile()  # noqa: SIM115 - ``_end_process`` closes it
        command = [sys.executable, "-c", _COMMAND, str(threads or 0), *sys.path]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self._stderr_file, bufsize=0)
        self.pid = self._process.pid
        self._finalizer = weakref.finalize(self, _end_process, self._process, self._stderr_file)

    @property
    def alive(self) -> bool:
        """Return True if the process runs and was not closed."""
        return self._finalizer.alive and self._process.poll() is None

    def call(self, request: Callable[[], T]) -> T:
        """Execute ``request`` (see ``pipe_protocol``) in the process, and return its value or raise its error.

        Raises WorkerDied if the process ends during the call, CancelledError if it is closed, and the error of pickle
        for a request that cannot be pickled.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            pipe_protocol.send(self._process.stdin, request)
            succeeded, value = pipe_protocol.receive(self._process.stdout)
        except EOFError:
            raise self._close_and_explain() from None
        if not succeeded:
            raise value
        result: T = value
        return result

    def _close_and_explain(self) -> Exception:
        """Return the error to raise after the pipes have ended.

        The error is CancelledError if ``close`` was called. Otherwise the process died: close this object, and return
        WorkerDied with the cause.
        """
        if not self._finalizer.alive:  # ``close`` was called, perhaps by another thread
            return CancelledError("the worker process was closed")
        # Read the reason before ``close``, which closes the file.
        cause = _describe_exit(self._process)
        self._stderr_file.seek(0)
        lines = [line.strip() for line in self._stderr_file.read().decode("utf-8", "replace").split("\n")]
        self.close()
        last_line = next((line[:200] for line in reversed(lines) if line), "")
        return WorkerDied(f"a worker process died with {cause}", signal=cause, last_line=last_line)

    def close(self) -> None:
        """End the process at once."""
        self._finalizer()


def _describe_exit(process: subprocess.Popen[bytes]) -> str:
    """Return how a process ended: the name of the signal, or its exit status."""
    try:
        status = process.wait(_EXIT_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        status = process.wait()
    if status < 0:  # POSIX: the negative number of the signal
        with suppress(ValueError):
            return signal.Signals(-status).name
        return f"signal {-status}"
    # On Windows a crash has an NTSTATUS code, which is known in its hexadecimal form (0xc0000005).
    return f"exit status {status}" if status < 256 else f"exit status {status:#x}"


def _end_process(process: subprocess.Popen[bytes], stderr_file: IO[bytes]) -> None:
    """Kill a process. It holds nothing that another process needs, and an orderly end would take time."""
    process.kill()
    # Wait, so that no zombie process stays. On Windows, files that the process has open cannot be removed before.
    process.wait()
    for stream in (process.stdin, process.stdout, stderr_file):
        if stream is not None:
            with suppress(OSError):
                stream.close()
