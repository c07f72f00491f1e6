"""A pool of worker processes with the interface of ``concurrent.futures.Executor``.

For each worker process, a thread of this process waits for the answers. A worker process that dies is replaced, and its
task runs once more. The standard ``ProcessPoolExecutor`` cannot be used here: its processes run the caller's main
module again, and one dead process breaks the whole pool.
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
    """``count`` worker processes on this machine.

    threads: the size of the thread pool of each process (see ``WorkerProcess``).

    A task is a function of a module, and its arguments must be picklable. The future of a task raises the MixlistError
    that the task raises, and WorkerDied if the task kills its process twice.
    """

    def __init__(self, count: int, threads: int | None = None) -> None:
        self._threads_per_worker = threads
        self._waiting_threads = ThreadPoolExecutor(count, thread_name_prefix="mixlist")
        self._workers: dict[int, WorkerProcess] = {}  # by the identity of the thread that waits for it
        self._closed = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Start ``fn(*args, **kwargs)`` in one of the processes, and return the future of its result."""
        return self._waiting_threads.submit(self._call, partial(fn, *args, **kwargs))

    def _call(self, request: Callable[[], T]) -> T:
        # Try twice: a process can also die without a fault of the task, for example if the memory is full.
        for _ in range(2):
            try:
                return self._get_worker().call(request)
            except WorkerDied as death:
                cause = death.signal
        hint = "ONNX Runtime crashes on this model, or the memory is not sufficient"
        raise WorkerDied("two worker processes died while they ran the same task", hint=hint, signal=cause)

    def _get_worker(self) -> WorkerProcess:
        """Return the process of this thread. Start one if there is none, or if it has died."""
        thread = threading.get_ident()
        worker = self._workers.get(thread)
        if worker is None or not worker.alive:
            worker = self._workers[thread] = WorkerProcess(self._threads_per_worker)
            # If another thread called ``_close`` between the start and the assignment, the new worker still runs.
            if self._closed:
                worker.close()
                raise CancelledError("the pool was closed")
        return worker

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the processes: after all submitted tasks if ``wait`` is True, otherwise at once."""
        # Without the processes, all waiting threads end at once. So the next call does not block long.
        if not wait:
            self._close()
        self._waiting_threads.shutdown(cancel_futures=cancel_futures)
        self._close()

    def _close(self) -> None:
        self._closed = True
        for worker in tuple(self._workers.values()):
            worker.close()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """End the processes after all tasks.

        After an error, end them at once: Ctrl-C must not wait for a run that hangs.
        """
        self.shutdown(wait=kind is None, cancel_futures=kind is not None)
