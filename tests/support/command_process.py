"""Run commands of mixlist one after the other in a process of their own, each within limits of memory, size and time.

A command that dies by a signal, or does not end, takes this process with it and not the test; the next command gets a
new one. ``python -m tests.support.command_process`` is the process: one JSON object per line on standard input for each
command, one with its exit status and output on standard output when it ends.
"""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

ROOT = Path(__file__).parents[2]
MEMORY = 6_000_000 * 1024  # bytes of address space, as by ``ulimit -v 6000000``
_COMMANDS = 500  # until a new process is started: what they leave in memory must not add up
_TRACEBACK = "Traceback (most recent"


@dataclass(frozen=True)
class End:
    """The end of one command: its exit status (negative: the signal that ended it) and its output."""

    status: int
    out: str
    err: str
    seconds: float

    @property
    def problem(self) -> str:
        """The fault of mixlist that the end shows, such as a signal or a traceback; "" if it shows none."""
        if self.status not in (0, 1, 2):
            return f"status {self.status} after {self.seconds:.0f} s: {self.err[-500:]}"
        if _TRACEBACK in self.err:
            return self.err[self.err.index(_TRACEBACK) :][:1000]
        return "an error without a message" if self.status == 2 and "error" not in self.err.lower() else ""


class CommandProcess:
    """A process that runs commands in ``folder``. Each is ended by SIGALRM if it takes longer than ``seconds``."""

    def __init__(self, folder: Path, seconds: int, environment: Mapping[str, str] | None = None) -> None:
        self._folder, self._seconds = folder, seconds
        self._environment = {**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})}
        self._process: subprocess.Popen[str] | None = None
        self._left = 0  # commands until a new process is started

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop()

    def run(self, *args: object, limits: Mapping[str, int] | None = None) -> End:
        """Run one command; ``limits``: for this command alone, by their names in ``resource``."""
        if self._process is None or self._left == 0:
            self._stop()
            self._process = self._start()
        started = time.monotonic()
        assert self._process.stdin is not None and self._process.stdout is not None
        request = {"args": [str(arg) for arg in args], "seconds": self._seconds, "limits": limits or {}}
        self._process.stdin.write(json.dumps(request) + "\n")
        answer = self._process.stdout.readline()
        seconds = time.monotonic() - started
        self._left -= 1
        if not answer:
            return End(self._stop(), "", "the process ended", seconds)
        return End(seconds=seconds, **json.loads(answer))

    def _start(self) -> subprocess.Popen[str]:
        self._left = _COMMANDS
        return subprocess.Popen(
            [sys.executable, "-m", "tests.support.command_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            cwd=self._folder,
            env=self._environment,
            start_new_session=True,
        )

    def _stop(self) -> int:
        """End the process and its worker processes; return its exit status."""
        process, self._process = self._process, None
        if process is None:
            return 0
        assert process.stdin is not None and process.stdout is not None
        with suppress(BrokenPipeError):
            process.stdin.close()
        status = process.wait(60)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.stdout.close()
        return status


def serve() -> None:
    """Run the commands that standard input names."""
    requests, answers = os.fdopen(os.dup(0)), os.dup(1)
    import resource  # Windows lacks it, and imports this module too

    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for line in requests:
        request = json.loads(line)
        signal.alarm(request["seconds"])
        with _limited(request["limits"]):
            end = _run(request["args"])
        signal.alarm(0)
        with os.fdopen(os.dup(answers), "w") as answer:
            answer.write(json.dumps(end) + "\n")


@contextmanager
def _limited(limits: Mapping[str, int]) -> Iterator[None]:
    """Set limits of ``resource`` by their names, and set the earlier ones again."""
    import resource

    before = {name: resource.getrlimit(getattr(resource, name)) for name in limits}
    for name, limit in limits.items():
        resource.setrlimit(getattr(resource, name), (limit, before[name][1]))
    try:
        yield
    finally:
        for name, limit_pair in before.items():
            resource.setrlimit(getattr(resource, name), limit_pair)


def _run(args: list[str]) -> dict[str, int | str]:
    """Run one command; return its exit status and output."""
    from mixlist.cli import main

    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(2))
    with redirect_stdout(out), redirect_stderr(err):
        status = main(args)
    texts = []
    for stream in (out, err):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode())
    return {"status": status, "out": texts[0], "err": texts[1]}


if __name__ == "__main__":
    serve()
