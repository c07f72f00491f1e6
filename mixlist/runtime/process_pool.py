"""Worker processes as a ``concurrent.futures.Executor``: a thread here waits for each.

(Not ``ProcessPoolExecutor``: its spawned children run the caller's main module again, and one that dies breaks the
whole pool.) A process that dies is replaced, and its task tried once more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Executor, Future, ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from mixlist.runtime.worker_process import WorkerDied, WorkerProcess

P = ParamSpec("P")
T = TypeVar("T")


class ProcessPool(Executor):
    """``count`` processes of this machine, each with ``threads`` for the sessions in it (see ``WorkerProcess``).

    A task is a function of a module with arguments that can be pickled. MixlistErrors that it raises arrive as such;
    WorkerDied is raised for a task that kills its process twice.
    """

    def __init__(self, count: int, threads: int | None = None) -> None:
        self._share = threads
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="mixlist")
        self._workers: dict[int, WorkerProcess] = {}  # by the thread that waits for it
        self._closed = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run ``fn(*args, **kwargs)`` in one of the processes."""
        return self._threads.submit(self._call, partial(fn, *args, **kwargs))

    def _call(self, request: Callable[[], T]) -> T:
        for _ in range(2):
            try:
                return self._worker().call(request)
            except WorkerDied as death:
                ended = death.signal
        hint = "ONNX Runtime crashes on this model, or memory is short"
        raise WorkerDied("a process died twice over the same work", hint=hint, signal=ended)

    def _worker(self) -> WorkerProcess:
        """Return this thread's process, a new one where it has none that lives."""
        thread = threading.get_ident()
        worker = self._workers.get(thread)
        if worker is None or not worker.alive:
            worker = self._workers[thread] = WorkerProcess(self._share)
            if self._closed:  # meanwhile, so that nobody else ends it
                worker.close()
                raise CancelledError("the pool was closed")
        return worker

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the processes; with ``wait`` after the tasks that were submitted."""
        if not wait:
            self._close()
        self._threads.shutdown(cancel_futures=cancel_futures)
        self._close()

    def _close(self) -> None:
        self._closed = True
        for worker in tuple(self._workers.values()):
            worker.close()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Wait for all tasks, but for none after an error: Ctrl-C must not wait for a run that hangs."""
        self.shutdown(wait=kind is None, cancel_futures=kind is not None)
