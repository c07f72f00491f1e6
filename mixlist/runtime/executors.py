"""Where trials run: processes of this machine, a Dask cluster, or any other ``concurrent.futures.Executor``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from mixlist.errors import MixlistError, UsageError
from mixlist.runtime.pool import OneProcess, ProcessPool

T = TypeVar("T")
TRIES = 3  # of a task whose data were lost


@dataclass(frozen=True)
class Workers:
    """An executor of ``count`` workers with ``threads`` each (None: ONNX Runtime's choice).

    ``send`` makes of a file what a task gets of it: its path where workers share the disk, else its bytes, sent once.
    """

    executor: Executor
    count: int
    threads: int | None
    send: Callable[[str], Any]


@contextmanager
def open_workers(jobs: int | None, scheduler: str | None, executor: Executor | None, most: int) -> Iterator[Workers]:
    """Processes here, ``jobs`` or one for each core but ``most``, or a Dask scheduler's workers; or the caller's.

    Raises UsageError for a scheduler that cannot be reached.
    """
    cores = os.cpu_count() or 1
    if executor is not None:
        count = int(getattr(executor, "_max_workers", 1))
        here = isinstance(executor, ThreadPoolExecutor | ProcessPoolExecutor | ProcessPool | OneProcess)
        yield Workers(executor, count, max(1, cores // count), str if here else _read)
    elif scheduler is not None:
        with _dask(scheduler) as workers:
            yield workers
    else:
        count = jobs if jobs is not None else max(1, min(cores, most))
        threads = max(1, cores // count)
        with OneProcess(threads) if count == 1 else ProcessPool(count, threads) as pool:
            yield Workers(pool, count, threads, str)


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
    with client:
        cores = client.nthreads()
        if not cores:
            raise UsageError(f"the scheduler {scheduler} has no workers", hint=f"start some: dask worker {scheduler}")
        count = sum(cores.values())
        send: Callable[[str], Any] = lambda path: client.scatter(_read(path), broadcast=True)  # noqa: E731
        yield Workers(client.get_executor(pure=False), count, 1, send)


def _read(path: str) -> bytes:
    return Path(path).read_bytes()


def awaited(future: Future[T], again: Callable[[], Future[T]]) -> T:
    """What a task gave that nobody here cancels; ``again`` sends its data anew and starts it once more.

    A cluster cancels the tasks whose data it has lost: those of a worker that died before the others had got them.
    """
    for _ in range(TRIES):
        try:
            return future.result()
        except CancelledError:
            future = again()
    return future.result()


def is_loss(problem: BaseException) -> bool:
    """Whether a task failed because its worker died, again and again."""
    return not isinstance(problem, MixlistError) and type(problem).__name__ in ("KilledWorker", "BrokenProcessPool")
