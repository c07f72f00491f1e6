"""Processes that may die, as a ``concurrent.futures.Executor``.

(Not ``ProcessPoolExecutor``: its spawned children run the caller's main module again, and one that dies breaks the
whole pool.) Each process is spoken with over pipes, as ``isolated.Worker`` does; one that dies is replaced, and its
task tried once more. A task is a function of a module and arguments that can be pickled. MixlistErrors that it raises
arrive as such; WorkerDied is raised for a task that kills its process twice.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from mixlist.errors import ModelError
from mixlist.runtime import pipe_protocol
from mixlist.runtime.subprocess_session import value_of

_CHILD = "import sys; sys.path[:] = sys.argv[2:]; from mixlist.runtime.pool import serve; serve(int(sys.argv[1]))"

Task = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


class WorkerDied(ModelError):  # noqa: N818 - it is what happened
    """A process of the pool died twice while it worked on one task."""


class ProcessPool(Executor):
    """``count`` processes of this machine, each with a thread here that waits for it.

    ``threads``: of each process, for all sessions of ONNX Runtime in it; None for each session's own.
    """

    def __init__(self, count: int, threads: int | None = None) -> None:
        self._share = threads
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="mixlist")
        self._local = threading.local()
        self._children: list[_Child] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run ``fn(*args, **kwargs)`` in one of the processes."""
        return self._threads.submit(self._call, (fn, args, kwargs))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the processes; with ``wait`` after the tasks that run."""
        if not wait:
            self._end()
        self._threads.shutdown(wait, cancel_futures=cancel_futures)
        self._end()

    @property
    def pids(self) -> list[int]:
        """The processes that live."""
        return [pid for child in tuple(self._children) if (pid := child.pid) is not None]

    def _call(self, task: Task) -> Any:
        if not hasattr(self._local, "child"):
            self._local.child = _Child(self._share)
            self._children.append(self._local.child)
        child: _Child = self._local.child
        child.ask(task)
        return value_of(child.answer(task))

    def _end(self) -> None:
        for child in self._children:
            child.close()


class OneProcess(Executor):
    """One process, and no thread that waits for it: who asks for a result does.

    So nothing is handed from thread to thread: 0.1 to 0.2 ms less, a third of the trials of the smallest models. Only
    ``Future.result`` brings futures to an end, in the order of submission. ``threads`` as for ``ProcessPool``.
    """

    def __init__(self, threads: int | None = None) -> None:
        self._child = _Child(threads)
        self._waiting: deque[_Answer] = deque()  # the first is being worked on
        self._lock = threading.RLock()
        self._closed = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run ``fn(*args, **kwargs)`` in the process."""
        with self._whole():
            if self._closed:
                raise RuntimeError("cannot schedule new futures after shutdown")
            made = _Answer((fn, args, kwargs), self._settle)
            self._waiting.append(made)
            if len(self._waiting) == 1:
                self._begin()
            return made

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the process; with ``wait`` after what was submitted, unless ``cancel_futures``."""
        with self._whole():
            self._closed = True
            while self._waiting and wait and not cancel_futures:
                self._finish()
            self._drop()
            self._child.close()

    @property
    def pids(self) -> list[int]:
        """The process, if it lives."""
        return [self._child.pid] if self._child.pid is not None else []

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """Whoever comes out of this early drops everything: Ctrl-C leaves half a message in a pipe."""
        with self._lock:
            try:
                yield
            except BaseException:
                self._drop()
                raise

    def _settle(self, wanted: _Answer) -> None:
        """Bring everything up to this future to its end."""
        with self._whole():
            while not wanted.done():
                self._finish()

    def _finish(self) -> None:
        """Wait for the answer to the first task, and begin with the next one."""
        first = self._waiting[0]
        try:
            told = self._child.answer(first.task)
        except WorkerDied as problem:
            first.set_exception(problem)
        else:
            first.settle(told)
        self._waiting.popleft()
        self._begin()

    def _begin(self) -> None:
        """Send the first task that nobody has cancelled and that can be sent."""
        while self._waiting:
            first = self._waiting[0]
            if first.set_running_or_notify_cancel():
                try:
                    return self._child.ask(first.task)
                except Exception as problem:  # it cannot be pickled, or no process be started
                    first.set_exception(problem)
            self._waiting.popleft()
        return None

    def _drop(self) -> None:
        self._child.end()
        for each in self._waiting:
            if not each.cancel() and not each.done():
                each.set_exception(CancelledError())
        self._waiting.clear()


class _Answer(Future[Any]):
    """What a task of ``OneProcess`` gives; ``ask`` brings it to its end."""

    def __init__(self, task: Task, ask: Callable[[_Answer], None]) -> None:
        super().__init__()
        self.task, self._ask = task, ask

    def result(self, timeout: float | None = None) -> Any:
        """The value, once it is there; ``timeout`` does not count."""
        self._ask(self)
        return super().result()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What the task raised, None for nothing; ``timeout`` does not count."""
        self._ask(self)
        return super().exception()

    def settle(self, told: tuple[Any, ...]) -> None:
        """Take the process's answer."""
        try:
            self.set_result(value_of(told))
        except Exception as problem:
            self.set_exception(problem)


class _Child:
    """A process that answers one task after the other: started by the first, and again where it has died."""

    def __init__(self, threads: int | None) -> None:
        self._threads = threads
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    @property
    def pid(self) -> int | None:
        """Of the process, if it lives."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def ask(self, task: Task) -> None:
        """Send a task."""
        if self._process is None and not self._closed:
            command = [sys.executable, "-c", _CHILD, str(self._threads or 0), *sys.path]
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, bufsize=0)
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError):  # it is dead: ``answer`` finds that
                pipe_protocol.send(self._process.stdin, task)

    def answer(self, task: Task) -> tuple[Any, ...]:
        """The answer to the task that was sent, as ``value_of`` reads it; raises WorkerDied."""
        for again in (True, False):
            process = self._process
            if process is not None and process.stdout is not None:
                with suppress(EOFError, OSError, ValueError):
                    told: tuple[Any, ...] = pipe_protocol.receive(process.stdout)
                    return told
            self.end()
            if again:
                self.ask(task)
        raise WorkerDied(
            "a process died twice over the same work", hint="ONNX Runtime crashes on this model, or memory is short"
        )

    def end(self) -> None:
        """Kill the process; the next task starts another."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()

    def close(self) -> None:
        """Kill the process for good."""
        self._closed = True
        self.end()


def serve(threads: int) -> None:
    """Answer the calls on standard input; never returns. ``threads``: for all sessions, 0 for each session's own."""
    from mixlist.runtime.sessions import share_threads
    from mixlist.runtime.subprocess_server import answer, be_quiet

    requests, answers = be_quiet()
    if threads:
        share_threads(threads)
    while True:
        try:
            fn, args, kwargs = pipe_protocol.receive(requests)
            pipe_protocol.send(answers, answer(partial(fn, **kwargs), *args))
        except (EOFError, OSError):  # the parent is gone
            os._exit(0)
