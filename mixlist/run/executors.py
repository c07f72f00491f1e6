"""Run tasks in processes of this machine, on a Dask cluster, or in any ``concurrent.futures.Executor``.

``open_process`` opens one process, ``open_workers`` several workers. ``Workers.send_file`` sends them a file, which a
task reads with ``read_sent_file``. ``wait_for`` returns the result of a task.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from mixlist.errors import UsageError
from mixlist.installed_runtime import require_onnxruntime
from mixlist.option_spelling import spell
from mixlist.worker_processes import ProcessPool, WorkerDied, start_helper

T = TypeVar("T")
MAX_RESENDS = 3  # times that a task is sent again after a cluster has lost its data
_RUNTIME = "onnxruntime"  # the module that a process imports while this process prepares the first model
# Names of the errors that Dask and the standard library raise if the worker of a task dies. Names and not classes,
# because Dask is not always installed.
_DEAD_WORKER_ERRORS = ("KilledWorker", "BrokenProcessPool")


@dataclass(frozen=True)
class Workers:
    """An executor of ``count`` workers with ``threads`` threads each (None: ONNX Runtime's default).

    ``send_file`` takes the path of a file and returns the argument to give to tasks: the path if the workers share the
    disk, else the bytes of the file, which are sent once.
    ``reports_crashes``: if the only worker dies, a copy of the model is saved, so that the user can report the crash.
    """

    executor: Executor
    count: int
    threads: int | None
    send_file: Callable[[str], str | bytes]
    reports_crashes: bool = False

    @property
    def shares_files(self) -> bool:
        """Return True if the workers are on this machine, so that they can read its files."""
        return self.send_file is str

    @property
    def is_one_process(self) -> bool:
        """Return True if one process of this machine does all tasks: it can load a session ahead, and drop it."""
        return self.count == 1 and self.shares_files

    @property
    def batches_ahead(self) -> int:
        """Return how many batches to start before the results of the first one are needed.

        So no worker waits for this process. A single process gets none, because each batch in progress takes memory.
        """
        return 0 if self.is_one_process else self.count


def start_process() -> None:
    """Start the process of ``open_process``, which imports ONNX Runtime while this process continues.

    Raises UsageError if ONNX Runtime is not installed.
    """
    require_onnxruntime()
    start_helper(_RUNTIME)


@contextmanager
def open_process(*, is_helper: bool = True) -> Iterator[Workers]:
    """Open one process for sessions: the helper of this program, which is kept, or a new one, which is ended.

    Raises UsageError if ONNX Runtime is not installed.
    """
    require_onnxruntime()
    pool = ProcessPool(1, modules=[_RUNTIME], attempts=1, uses_helper=is_helper)
    if not is_helper:
        pool.submit(os.getpid)  # starts the process while this one prepares the model
    try:
        yield Workers(pool, 1, None, str, reports_crashes=True)
    finally:
        # Sessions that were closed are being dropped. After that the helper can be kept.
        if is_helper:
            pool.drain()
        pool.shutdown(wait=False, cancel_futures=True)


def read_sent_file(path_or_bytes: str | bytes) -> bytes:
    """Return the bytes of a file that ``Workers.send_file`` has sent to this task."""
    return path_or_bytes if isinstance(path_or_bytes, bytes) else Path(path_or_bytes).read_bytes()


@contextmanager
def open_workers(
    jobs: int | None, scheduler: str | None, executor: Executor | None, max_default: int
) -> Iterator[Workers]:
    """Open workers, and close them at the end of the ``with``.

    jobs: the number of processes on this machine; None for one per core, but at most ``max_default`` processes.
    scheduler: the address of a Dask scheduler, whose workers are used instead.
    executor: an executor of the caller, which is used instead and stays open.

    Raises UsageError if the scheduler cannot be reached.
    """
    cores = os.cpu_count() or 1
    if executor is not None:
        from concurrent.futures import ProcessPoolExecutor  # imports multiprocessing, which nothing else here needs

        # The interface Executor has no number of workers. The executors of the standard library have this attribute.
        count = int(getattr(executor, "_max_workers", 1))
        # These run on this machine, so their tasks can read a file. Other executors get the bytes.
        is_local = isinstance(executor, ThreadPoolExecutor | ProcessPoolExecutor | ProcessPool)
        yield Workers(executor, count, max(1, cores // count), str if is_local else read_sent_file)
    elif scheduler is not None:
        with _connect_to_dask(scheduler) as workers:
            yield workers
    else:
        count = count_local_workers(jobs, scheduler, executor, max_default)
        # All workers together have one thread per core: more threads would only wait for each other.
        threads = max(1, cores // count)
        require_onnxruntime()
        with ProcessPool(count, modules=[_RUNTIME]) as pool:
            yield Workers(pool, count, threads, str)


def count_local_workers(jobs: int | None, scheduler: str | None, executor: Executor | None, max_default: int) -> int:
    """Return the number of processes that ``open_workers`` starts on this machine: 0 if it uses other workers."""
    if executor is not None or scheduler is not None:
        return 0
    return jobs if jobs is not None else max(1, min(os.cpu_count() or 1, max_default))


@contextmanager
def _connect_to_dask(scheduler: str) -> Iterator[Workers]:
    try:
        from distributed import Client
    except ImportError:
        raise UsageError(f"{spell('scheduler')} needs Dask", hint="pip install distributed") from None
    try:
        client = Client(scheduler, timeout=10)
    except (OSError, ValueError, TimeoutError) as error:
        raise UsageError(
            f"the scheduler {scheduler} cannot be reached: {error}", hint="start one with: dask scheduler"
        ) from None

    def send_file(path: str) -> bytes:
        # ``scatter`` returns a future. It is declared as bytes, because Dask replaces a future that is an argument of a
        # task by its data.
        data: bytes = client.scatter(read_sent_file(path), broadcast=True)
        return data

    with client:
        cores = client.nthreads()
        if not cores:
            raise UsageError(f"the scheduler {scheduler} has no workers", hint=f"start some: dask worker {scheduler}")
        # pure=False: Dask must not return the result of an earlier call with equal arguments.
        # One thread per session, because Dask runs one task per core at the same time.
        yield Workers(client.get_executor(pure=False), sum(cores.values()), 1, send_file)


def wait_for(future: Future[T], resend: Callable[[], Future[T]]) -> T:
    """Return the result of a task. Raises WorkerDied if the task kills its workers, or its data is lost too often.

    This process never cancels the task itself. A cluster cancels a task if it loses the data of the task: a worker died
    before the other workers had the data. ``resend`` sends the data again, starts the task again, and returns its
    future.
    """
    resends = 0
    while True:
        try:
            return future.result()
        except CancelledError:
            if resends == MAX_RESENDS:
                message = f"the cluster has lost the data of a task {MAX_RESENDS + 1} times"
                raise WorkerDied(message, hint="the logs of its workers say why they end") from None
            future, resends = resend(), resends + 1
        except Exception as error:
            if type(error).__name__ in _DEAD_WORKER_ERRORS:
                message = f"the workers die while they run this model: {error}"
                raise WorkerDied(message, hint="ONNX Runtime crashes on it") from None
            raise
