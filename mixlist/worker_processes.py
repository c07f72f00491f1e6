"""Call functions in other processes, which may crash, take too long or take too much memory without harm to this one.

``WorkerProcess.call`` sends a function with its arguments and waits for the result. Three things use such processes:

- ``helper_process`` lends the helper of this program. It starts at the first call, or with ``start_helper``, and is
  kept for the next one until the program ends. ONNX's tools run there, and the sessions of a check. Only shape
  inference bounds the memory of its call.
- A ``ProcessPool`` is an executor of several processes, for the batches and trials of ``--jobs``.
- A pool of one process that is not kept runs one of the two models of ``bench``.

A process is a new Python interpreter that executes ``serve`` and is connected by pipes. ``multiprocessing`` cannot be
used, because a process that it spawns runs the caller's main module again. A start takes 0.05 s (measured on two
cores), and the import of numpy and ONNX Runtime a further 0.15 s. This process continues during that time.

A request is a callable without arguments, mostly a ``functools.partial`` of a function of a module, with the bytes that
it may take and the working folder of this process. The answer is the pair ``(True, value)`` or ``(False, exception)``.
A message has three parts:

    int64 number of blocks | int64 size of each block | the blocks: the pickle, then the bytes of each array

The arrays are outside the pickle (pickle protocol 5), so that their bytes are copied only once. Measured on two cores:
2 GB/s to the worker for arrays of 10 to 400 MB, 0.06 ms for a call that does nothing. Shared memory reached 1.1 GB/s,
because the system must provide new pages for each message. A larger pipe made no difference.
"""

from __future__ import annotations

import os
import pickle
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Executor, Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for_futures
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import IO, Any, ParamSpec, TypeVar

from mixlist.errors import MixlistError, ModelError
from mixlist.files.scratch_folder import temporary_folder

P = ParamSpec("P")
T = TypeVar("T")

# The worker gets the ``sys.path`` of this process, so that it finds the modules whose functions this process sends.
_COMMAND = "import sys; sys.path[:] = sys.argv[2:]; from mixlist.worker_processes import serve; serve(sys.argv[1])"
# The most seconds from the end of the pipes to the end of the process. A process that takes longer is killed.
_EXIT_TIMEOUT = 5.0
# The helper is not kept if it holds more bytes than this after its use: memory that ONNX Runtime has freed stays with
# the process. A process in which ONNX Runtime is loaded holds 60 MB.
KEPT_BYTES = 300 << 20
# The most seconds that the end of a pool waits for its helper. A helper that is busy for longer is ended.
_KEEP_TIMEOUT = 0.2


class WorkerDied(ModelError):  # noqa: N818 - it names the event
    """A worker process ended during a call.

    signal: the name of the signal (SIGSEGV), or the exit status if there was no signal.
    last_line: the last line that the process wrote to its standard error during the call.
    """

    def __init__(self, message: str, *, hint: str | None = None, signal: str = "", last_line: str = "") -> None:
        super().__init__(message, hint=hint)
        self.signal = signal
        self.last_line = last_line


# --- a process ---


class WorkerProcess:
    """A process that answers one call after the other, until it dies or is closed.

    modules: modules that the process imports before the first call, while this process continues.

    The process ends when this object is garbage-collected. Only one thread may use this object at a time.
    """

    def __init__(self, modules: Sequence[str] = ()) -> None:
        # A file and not a pipe: standard error is read only after the process has ended, and a full pipe would block
        # it.
        self._stderr_file = tempfile.TemporaryFile(dir=temporary_folder())  # noqa: SIM115 - ``_end_process`` closes it
        self._stderr_start = 0  # the bytes of the file that earlier calls have written
        command = [sys.executable, "-c", _COMMAND, ",".join(modules), *sys.path]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self._stderr_file, bufsize=0)
        self.pid = self._process.pid
        self._is_busy = False
        self._finalizer = weakref.finalize(self, _end_process, self._process, self._stderr_file)
        _processes.add(self)

    @property
    def is_closed(self) -> bool:
        """Return True after ``close``, and after a call that raised WorkerDied."""
        return not self._finalizer.alive

    @property
    def alive(self) -> bool:
        """Return True if the process runs and was not closed."""
        return not self.is_closed and self._process.poll() is None

    @property
    def is_reusable(self) -> bool:
        """Return True if the process runs, answers no call, and holds little memory."""
        return self.alive and not self._is_busy and _resident_bytes(self.pid) <= KEPT_BYTES

    def call(self, request: Callable[[], T], *, seconds: float | None = None, memory: int | None = None) -> T:
        """Execute ``request`` in the process, and return its value or raise its error.

        seconds: the most time that the call may take; None for no limit. Then the process is killed.
        memory: the most bytes that the call may take in addition to those that the process has; None for no limit.
            Windows and macOS have no such limit.

        Raises ModelError if the memory does not suffice, WorkerDied if the process ends during the call, CancelledError
        if it is closed, and the error of pickle for a request that cannot be pickled.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        # The size and not the position: the process writes at the position that both share.
        self._stderr_start = 0 if self.is_closed else os.fstat(self._stderr_file.fileno()).st_size
        timer = threading.Timer(seconds, self._process.kill) if seconds is not None else None
        self._is_busy = True
        try:
            if timer is not None:
                timer.start()
            _send(self._process.stdin, (request, memory, _working_folder()))
            succeeded, value = _receive(self._process.stdout)
        except EOFError:
            raise self._close_and_explain() from None
        except (pickle.PicklingError, AttributeError, TypeError):  # the request, of which nothing was sent
            self._is_busy = False
            raise
        finally:
            if timer is not None:
                timer.cancel()
        # After an interrupt this line is not reached: the next call would read the rest of this answer as its own.
        self._is_busy = False
        if not succeeded:
            raise value
        result: T = value
        return result

    def _close_and_explain(self) -> Exception:
        """Return the error to raise after the pipes have ended.

        The error is CancelledError if ``close`` was called. Otherwise the process died: close this object, and return
        WorkerDied with the cause.
        """
        if self.is_closed:  # ``close`` was called, perhaps by another thread
            return CancelledError("the worker process was closed")
        # Read the reason before ``close``, which closes the file.
        cause = _describe_exit(self._process)
        self._stderr_file.seek(self._stderr_start)
        lines = [line.strip() for line in self._stderr_file.read().decode("utf-8", "replace").split("\n")]
        self.close()
        last_line = next((line[:200] for line in reversed(lines) if line), "")
        return WorkerDied(f"a worker process died with {cause}", signal=cause, last_line=last_line)

    def close(self) -> None:
        """End the process at once."""
        self._finalizer()

    def forget(self) -> None:
        """Leave the process to the parent of this process, which was forked."""
        self._finalizer.detach()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


def _working_folder() -> str:
    """Return the working folder of this process; "" if it was removed."""
    with suppress(OSError):
        return os.getcwd()  # noqa: PTH109
    return ""


_processes: weakref.WeakSet[WorkerProcess] = weakref.WeakSet()


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


def _resident_bytes(pid: int) -> int:
    """Return the memory that a process holds; 0 if the system does not show it (it is not Linux)."""
    with suppress(OSError, ValueError, AttributeError):  # Windows has neither the file nor ``sysconf``
        return int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


# --- the helper of this program ---

_helper: WorkerProcess | None = None  # None before its first use, and while it is lent
_helper_lock = threading.Lock()


def start_helper(*modules: str) -> None:
    """Start the helper, which imports ``modules`` while this program prepares the first call."""
    global _helper
    with _helper_lock:
        if _helper is None or not _helper.alive:
            _helper = WorkerProcess(modules)


@contextmanager
def helper_process() -> Iterator[WorkerProcess]:
    """Lend the helper. Another process takes its place if the helper is lent already."""
    worker = _take_helper()
    try:
        yield worker
    finally:
        _give_back_helper(worker)


def _take_helper(modules: Sequence[str] = ()) -> WorkerProcess:
    return _take_idle_helper() or WorkerProcess(modules)


def _take_idle_helper() -> WorkerProcess | None:
    global _helper
    with _helper_lock:
        worker, _helper = _helper, None
    return worker if worker is not None and worker.alive else None


def _give_back_helper(worker: WorkerProcess) -> None:
    """Keep a process as the helper if it is fit for the next call and there is no other one; else end it."""
    global _helper
    if worker.is_reusable:
        with _helper_lock:
            if _helper is None:
                _helper = worker
                return
    worker.close()


def _forget_processes() -> None:
    """Forget all processes in a forked child: they answer to its parent."""
    global _helper
    _helper = None
    for worker in tuple(_processes):
        worker.forget()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_forget_processes)


# --- several processes ---


class ProcessPool(Executor):
    """``count`` worker processes with the interface of ``concurrent.futures.Executor``.

    modules: modules that each process imports first.
    attempts: how often a task is tried if its process dies. 2 by default, because a process can also die without a
        fault of the task, for example if the memory is full.
    uses_helper: the first process is the helper of this program, which is kept.

    For each worker process, a thread of this process waits for the answers. A worker process that dies is replaced. The
    standard ``ProcessPoolExecutor`` cannot be used here: its processes run the caller's main module again, and one dead
    process breaks the whole pool. A task is a function of a module, and its arguments must be picklable. The future of
    a task raises the MixlistError that the task raises, and WorkerDied if the last attempt dies.
    """

    def __init__(
        self,
        count: int,
        *,
        modules: Sequence[str] = (),
        attempts: int = 2,
        uses_helper: bool = False,
    ) -> None:
        self._modules, self._attempts, self._uses_helper = modules, attempts, uses_helper
        self._waiting_threads = ThreadPoolExecutor(count, thread_name_prefix="mixlist")
        self._workers: dict[int, WorkerProcess] = {}  # by the identity of the thread that waits for it
        self._unfinished: set[Future[Any]] = set()
        self._closed = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Start ``fn(*args, **kwargs)`` in one of the processes, and return the future of its result."""
        future = self._waiting_threads.submit(self._call, partial(fn, *args, **kwargs))
        self._unfinished.add(future)
        future.add_done_callback(self._unfinished.discard)
        return future

    def _call(self, request: Callable[[], T]) -> T:
        for _ in range(self._attempts):
            try:
                return self._get_worker().call(request)
            except WorkerDied as death:
                last_death = death
        if self._attempts == 1:
            raise last_death
        hint = "ONNX Runtime crashes on this model, or the memory is not sufficient"
        message = "two worker processes died while they ran the same task"
        raise WorkerDied(message, hint=hint, signal=last_death.signal)

    def _get_worker(self) -> WorkerProcess:
        """Return the process of this thread. Start one if there is none, or if it has died."""
        thread = threading.get_ident()
        worker = self._workers.get(thread)
        # If tasks are tried only once, the death of an idle process is an error too: its next task may need its
        # sessions.
        if worker is None or worker.is_closed or (self._attempts > 1 and not worker.alive):
            worker = _take_helper(self._modules) if self._uses_helper else WorkerProcess(self._modules)
            self._workers[thread] = worker
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

    def drain(self) -> None:
        """Wait a moment for the tasks that are not finished, so that the helper can be kept."""
        wait_for_futures(tuple(self._unfinished), _KEEP_TIMEOUT)

    def _close(self) -> None:
        self._closed = True
        workers = tuple(self._workers.values())
        self._workers.clear()
        for worker in workers:
            if self._uses_helper:
                _give_back_helper(worker)
            else:
                worker.close()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """End the processes after all tasks.

        After an error, end them at once: Ctrl-C must not wait for a run that hangs.
        """
        self.shutdown(wait=kind is None, cancel_futures=kind is not None)


# --- the messages ---


def _send(stream: IO[bytes], value: object) -> None:
    """Write a value to an unbuffered stream. Raises EOFError if the other end is closed."""
    buffers: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    arrays = [buffer.raw() for buffer in buffers]
    sizes = [len(pickled), *(array.nbytes for array in arrays)]
    try:
        # The header and the pickle go together: a small message is one call of the system.
        _write(stream, struct.pack(f"<q{len(sizes)}q", len(sizes), *sizes) + pickled)
        for array in arrays:
            _write(stream, array)
    except (OSError, ValueError):  # OSError: the pipe is broken; ValueError: this process has closed the stream
        raise EOFError from None


def _receive(stream: IO[bytes]) -> Any:  # the type is that of the value that the sender sent
    """Read a value from an unbuffered stream. Raises EOFError if the other end is closed."""
    (count,) = struct.unpack("<q", _read(stream, 8))
    sizes = struct.unpack(f"<{count}q", _read(stream, 8 * count))
    pickled, *arrays = [_read(stream, size) for size in sizes]
    return pickle.loads(pickled, buffers=arrays)


def _write(stream: IO[bytes], data: bytes | memoryview) -> None:
    """Write all of ``data``: one call of ``write`` on an unbuffered stream may write only a part."""
    remaining = memoryview(data).cast("B")
    while remaining:
        remaining = remaining[stream.write(remaining) :]


def _read(stream: IO[bytes], size: int) -> memoryview:
    """Read exactly ``size`` bytes."""
    # A bytearray is filled with zeros first, at half the speed. But a message without arrays must not import numpy.
    numpy = sys.modules.get("numpy")
    data = memoryview(bytearray(size)) if numpy is None else numpy.empty(size, numpy.uint8).data
    remaining = data
    while remaining:
        try:
            read_size = stream.readinto(remaining)  # type: ignore[attr-defined]
        except (OSError, ValueError):
            raise EOFError from None
        # 0 bytes: the other end has closed the pipe, here in the middle of a message.
        if not read_size:
            raise EOFError
        remaining = remaining[read_size:]
    return data


# --- the code that runs in a worker process ---


def serve(modules: str) -> None:
    """Answer the requests on standard input; never return.

    modules: names of modules to import first, with commas between them.
    """
    # Ctrl-C sends SIGINT to the whole process group. Only the parent decides whether this process ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _disable_core_dumps()
    requests, answers = _open_streams()
    for name in filter(None, modules.split(",")):
        with suppress(ImportError):  # the first request that needs the module reports that it is missing
            import_module(name)
    while True:
        try:
            _send(answers, _execute(*_receive(requests)))
        except EOFError:  # the parent was killed: a parent that ends normally first kills this process
            # End without Python's cleanup: the parent is gone, so nothing needs it.
            os._exit(0)


def _execute(request: Callable[[], object], memory: int | None, folder: str) -> tuple[bool, object]:
    """Execute a request within a limit of memory, in the folder of the parent, and return the answer."""
    with suppress(OSError):
        os.chdir(folder)  # the parent may have changed its folder, and a request may hold relative paths
    try:
        with _limit_memory(memory):
            return True, request()
    except MixlistError as error:
        return False, error
    except MemoryError:
        # The process goes on: the memory of the failed request is free again.
        return False, ModelError("not enough memory for this model and its data")
    except Exception:  # a fault of mixlist: send the traceback as text, because pickle drops it
        return False, RuntimeError(f"in a worker process:\n{traceback.format_exc()}")


@contextmanager
def _limit_memory(memory: int | None) -> Iterator[None]:
    """Let this process take at most ``memory`` further bytes inside the ``with``; None for no limit."""
    if memory is None:
        yield
        return
    try:
        import resource

        used = int(Path("/proc/self/statm").read_text("ascii").split()[0]) * resource.getpagesize()
        earlier = soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        present_limits = [limit for limit in (soft, hard) if limit >= 0]  # a negative number means no limit
        resource.setrlimit(resource.RLIMIT_AS, (min([used + memory, *present_limits]), hard))
    except (ImportError, OSError, ValueError):  # Windows has no such module, and macOS no such limit
        yield
        return
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, earlier)


def _open_streams() -> tuple[IO[bytes], IO[bytes]]:
    """Return the stream of requests and that of answers."""
    requests = os.fdopen(0, "rb", buffering=0)
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    # Libraries print to file descriptor 1. Send that to standard error, so that it does not mix with the answers.
    os.dup2(2, 1)
    return requests, answers


def _disable_core_dumps() -> None:
    """Disable core dumps: crashes are expected in this process, and each dump takes gigabytes."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
