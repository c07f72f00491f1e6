"""Run tasks in worker processes of this machine, on a Dask cluster, or in any ``concurrent.futures.Executor``.

``open_workers`` opens the workers. ``Workers.send_file`` sends them a file, which a task reads with
``read_sent_file``. ``wait_for`` returns the result of a task.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from mixlist.errors import UsageError
from mixlist.runtime.process_pool import ProcessPool
from mixlist.runtime.worker_process import WorkerDied

T = TypeVar("T")
MAX_ATTEMPTS = 3  # of a task whose data were lost
_LOSSES = ("KilledWorker", "BrokenProcessPool")  # what Dask and the standard library raise where a worker died


@dataclass(frozen=True)
class Workers:
    """An executor of ``count`` workers with ``threads`` each (None: ONNX Runtime's choice).

    ``send_file`` takes the path of a file and returns the argument to give to tasks: the path if the workers share the
    disk, else the bytes of the file, which are sent once.
    """

    executor: Executor
    count: int
    threads: int | None
    send_file: Callable[[str], str | bytes]


def read_sent_file(sent: str | bytes) -> bytes:
    """Return the bytes of a file that ``Workers.send_file`` has sent to this task."""
    return sent if isinstance(sent, bytes) else Path(sent).read_bytes()


@contextmanager
def open_workers(jobs: int | None, scheduler: str | None, executor: Executor | None, most: int) -> Iterator[Workers]:
    """Open processes here, ``jobs`` or one for each core but ``most``, or a Dask scheduler's workers.

    ``executor`` is used instead where the caller has one. Raises UsageError for a scheduler that cannot be reached.
    """
    cores = os.cpu_count() or 1
    if executor is not None:
        count = int(getattr(executor, "_max_workers", 1))
        here = isinstance(executor, ThreadPoolExecutor | ProcessPoolExecutor | ProcessPool)
        yield Workers(executor, count, max(1, cores // count), str if here else read_sent_file)
    elif scheduler is not None:
        with _dask(scheduler) as workers:
            yield workers
    else:
        count = count_local_workers(jobs, scheduler, executor, most)
        threads = max(1, cores // count)
        with ProcessPool(count, threads) as pool:
            yield Workers(pool, count, threads, str)


def count_local_workers(jobs: int | None, scheduler: str | None, executor: Executor | None, most: int) -> int:
    """Return the number of processes that ``open_workers`` starts on this machine."""
    if executor is not None or scheduler is not None:
        return 0
    return jobs if jobs is not None else max(1, min(os.cpu_count() or 1, most))


@contextmanager
def _dask(scheduler: str) -> Iterator[Workers]:
    try:
        from distributed import Client
    except ImportError:
        raise UsageError("--scheduler needs Dask", hint="pip install 'mixlist[dask]'") from None
    try:
        client = Client(scheduler, timeout=10)
    except (OSError, ValueError, TimeoutError) as problem:
        raise UsageError(
            f"the scheduler {scheduler} cannot be reached: {problem}", hint="start one with: dask scheduler"
        ) from None

    def send_file(path: str) -> bytes:
        data: bytes = client.scatter(
            read_sent_file(path), broadcast=True
        )  # a future of Dask, which tasks get as the bytes
        return data

    with client:
        cores = client.nthreads()
        if not cores:
            raise UsageError(f"the scheduler {scheduler} has no workers", hint=f"start some: dask worker {scheduler}")
        yield Workers(client.get_executor(pure=False), sum(cores.values()), 1, send_file)


def wait_for(future: Future[T], resend: Callable[[], Future[T]]) -> T:
    """Return the result of a task that this process does not cancel; raise WorkerDied where its workers die of it.

    A cluster cancels the tasks whose data it has lost: those of a worker that died before the others had them.
    ``resend`` sends the data anew and starts the task once more.
    """
    for _ in range(MAX_ATTEMPTS):
        try:
            return future.result()
        except CancelledError:
            future = resend()
        except Exception as problem:
            if type(problem).__name__ in _LOSSES:
                message = f"the workers die of this model: {problem}"
                raise WorkerDied(message, hint="ONNX Runtime crashes on it") from None
            raise
    return future.result()
