"""Sessions in the helper process of a test, and helper processes that execute other code first."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import onnx
import pytest

from mixlist import worker_processes
from mixlist.run.executors import open_process
from mixlist.worker_processes import ProcessPool
from tests.support.package import DEFAULT_OPTIONS, RemoteSession, SessionOptions, Workers

DIE = "lambda *a, **k: os.kill(os.getpid(), signal.SIGSEGV)"


@contextmanager
def remote_session(
    model: onnx.ModelProto | str | os.PathLike[str], options: SessionOptions = DEFAULT_OPTIONS, **named: Any
) -> Iterator[RemoteSession]:
    """Open a session in the helper process."""
    with open_process() as workers, RemoteSession(model, options, workers=workers, **named) as session:
        yield session


def pid_of(session: RemoteSession) -> int:
    """Return the process id of the only worker of a session."""
    (pid,) = pids_of(session._workers)
    return pid


def pids_of(workers: Workers) -> list[int]:
    """Return the process ids of the workers that run."""
    assert isinstance(workers.executor, ProcessPool)
    return live_pids(workers.executor)


def live_pids(pool: ProcessPool) -> list[int]:
    """Return the process ids of a pool's workers that are alive."""
    return [worker.pid for worker in tuple(pool._workers.values()) if worker.alive]


def end_helper() -> None:
    """End the helper unless it is lent. The next call starts a new one."""
    worker = worker_processes._take_idle_helper()
    if worker is not None:
        worker.close()


def use_own_helper(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the test start without a helper process. The one that it starts ends with the test."""
    end_helper()
    monkeypatch.setattr(worker_processes, "_helper", None)


def patch_workers(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Let worker processes execute ``code`` before they answer requests."""
    use_own_helper(monkeypatch)
    head = "import sys; sys.path[:] = sys.argv[2:]; import os, signal, time\nfrom mixlist.run import local_session\n"
    serve = "from mixlist.worker_processes import serve\nserve(sys.argv[1])"
    monkeypatch.setattr(worker_processes, "_COMMAND", f"{head}{code}\n{serve}")
