"""Processes that may die, as a ``concurrent.futures.Executor``.

(Not ``ProcessPoolExecutor``: its spawned children run the caller's main module again, and one that dies breaks the
whole pool.) Each thread of the pool speaks with a process of its own over pipes, as ``isolated.Worker`` does; one that
dies is replaced, and its task tried once more.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

from mixlist.errors import ModelError
from mixlist.runtime import wire
from mixlist.runtime.isolated import value_of

_CHILD = "import sys; sys.path[:] = sys.argv[2:]; from mixlist.runtime.pool import serve; serve(int(sys.argv[1]))"


class WorkerDied(ModelError):  # noqa: N818 - it is what happened
    """A process of the pool died twice while it worked on one task."""


class ProcessPool(Executor):
    """``count`` processes of this machine. A task is a function of a module and arguments that can be pickled.

    ``threads``: of each process, for all sessions of ONNX Runtime in it; None for each session's own.
    MixlistErrors that the function raises arrive as such. Raises WorkerDied for a task that kills its process twice.
    """

    def __init__(self, count: int, threads: int | None = None) -> None:
        self._share = threads or 0
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="mixlist")
        self._local = threading.local()
        self._children: list[subprocess.Popen[bytes]] = []
        self._lock = threading.Lock()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run ``fn(*args, **kwargs)`` in one of the processes."""
        return self._threads.submit(self._call, fn, args, kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the processes; with ``wait`` after the tasks that run."""
        if not wait:
            self._end()
        self._threads.shutdown(wait, cancel_futures=cancel_futures)
        self._end()

    @property
    def pids(self) -> list[int]:
        """The processes that live."""
        with self._lock:
            return [child.pid for child in self._children if child.poll() is None]

    def _call(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        for _ in range(2):
            child = self._child()
            assert child.stdin is not None
            assert child.stdout is not None
            try:
                wire.send(child.stdin, (fn, args, kwargs))
                told = wire.receive(child.stdout)
            except (EOFError, OSError):
                self._local.child = None
                child.kill()
                child.wait()
                continue
            return value_of(told)
        raise WorkerDied(
            "a process died twice over the same work", hint="ONNX Runtime crashes on this model, or memory is short"
        )

    def _child(self) -> subprocess.Popen[bytes]:
        child: subprocess.Popen[bytes] | None = getattr(self._local, "child", None)
        if child is None:
            child = subprocess.Popen(
                [sys.executable, "-c", _CHILD, str(self._share), *sys.path],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
            )
            self._local.child = child
            with self._lock:
                self._children.append(child)
        return child

    def _end(self) -> None:
        with self._lock:
            children, self._children = self._children, []
        for child in children:
            child.kill()
            child.wait()
            for stream in (child.stdin, child.stdout):
                if stream is not None:
                    with suppress(OSError):
                        stream.close()


def serve(threads: int) -> None:
    """Answer the calls on standard input; never returns. ``threads``: for all sessions, 0 for each session's own."""
    from mixlist.runtime.child import answer, be_quiet
    from mixlist.runtime.sessions import share_threads

    requests, answers = be_quiet()
    if threads:
        share_threads(threads)
    while True:
        try:
            fn, args, kwargs = wire.receive(requests)
            wire.send(answers, answer(partial(fn, **kwargs), *args))
        except (EOFError, OSError):  # the parent is gone
            os._exit(0)
