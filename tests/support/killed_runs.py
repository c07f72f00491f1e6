"""Kill commands of mixlist, at a chosen file operation or moment, run them again, and compare what the folders hold."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).parents[2]
Tree = dict[str, tuple[int, bytes]]  # the mode and content of each file, by its path in the folder


@dataclass(frozen=True)
class Run:
    """The end of one command: its exit status (negative: the signal that killed it) and its output."""

    status: int
    operations: int  # that change files; 0 after a kill
    output: str
    seconds: float


@dataclass
class CommandServer:
    """A process with mixlist loaded, which forks a process for each command (tests/support/command_server.py)."""

    environment: Mapping[str, str] = field(default_factory=dict)

    def __enter__(self) -> Self:
        self._numbers = count()
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.support.command_server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.close()
        self._server.wait(60)
        self._server.stdout.close()

    def run(
        self, args: Sequence[object], folder: Path, *, kill_before: int | None = None, kill_after: float | None = None
    ) -> Run:
        """Run one command in a folder; kill it before its n-th file operation, or after some seconds."""
        started = time.monotonic()
        self._send(args, folder, kill_before)
        pid = self._receive()["pid"]
        if kill_after is not None:
            time.sleep(max(0.0, started + kill_after - time.monotonic()))
            with suppress(ProcessLookupError):  # it had ended before
                os.kill(pid, signal.SIGKILL)
        return _run(self._receive(), time.monotonic() - started)

    def run_all(self, commands: Sequence[tuple[Sequence[object], Path]]) -> list[Run]:
        """Run commands at the same time; return their ends in the order of the commands."""
        started = time.monotonic()
        numbers = [self._send(args, folder, None) for args, folder in commands]
        ends: dict[int, Run] = {}
        while len(ends) < len(commands):
            if "status" in (result := self._receive()):
                ends[result["id"]] = _run(result, time.monotonic() - started)
        return [ends[number] for number in numbers]

    def _send(self, args: Sequence[object], folder: Path, kill_before: int | None) -> int:
        assert self._server.stdin is not None
        number = next(self._numbers)
        request = {
            "id": number,
            "args": [str(arg) for arg in args],
            "folder": str(folder),
            "environment": dict(self.environment),
            "kill_before": kill_before,
        }
        self._server.stdin.write(json.dumps(request) + "\n")
        return number

    def _receive(self) -> dict[str, Any]:
        assert self._server.stdout is not None
        result: dict[str, Any] = json.loads(self._server.stdout.readline())
        return result


def _run(result: dict[str, Any], seconds: float) -> Run:
    return Run(result["status"], result["operations"], result["output"], seconds)


def tree(folder: Path) -> Tree:
    """Return the files of a folder and of the folders in it, with mode and content."""
    files = sorted(path for path in folder.rglob("*") if not path.is_dir())
    return {str(path.relative_to(folder)): (path.stat().st_mode, path.read_bytes()) for path in files}


@dataclass
class KillCounts:
    """The numbers of a campaign of kills."""

    killed: int = 0
    finished: int = 0  # before the kill
    leftovers: int = 0  # kills that left a file which neither the start nor the end has, until the next run
    wrong: list[str] = field(default_factory=list)  # what differed from an undisturbed run, and after which kill

    def __str__(self) -> str:
        return (
            f"{self.killed} killed, {self.finished} finished before, {self.leftovers} left files until the next run,"
            f" {len(self.wrong)} wrong"
        )


@dataclass(frozen=True)
class KilledCommand:
    """A command, a way to make the folder that it starts in, and what must hold right after a kill."""

    args: Sequence[object]
    prepare: Callable[[Path], None]
    check_killed: Callable[[Path], str] = lambda folder: ""  # a message if a file is neither old nor new
    again: Sequence[object] | None = None  # the command after a kill, if it is another one


def kill_at_each_operation(server: CommandServer, command: KilledCommand, work: Path) -> KillCounts:
    """Kill a command before each of its file operations in turn, and run it again."""
    start, expected, undisturbed = _undisturbed(server, command, work)
    counts = KillCounts()
    for number in range(1, undisturbed.operations + 1):
        _kill_once(server, command, work, (start, expected), counts, f"operation {number}", {"kill_before": number})
    return counts


def kill_at_random_moments(
    server: CommandServer, command: KilledCommand, work: Path, kills: int, seed: int
) -> KillCounts:
    """Kill a command at random moments of its run, ``kills`` times, and run it again each time."""
    start, expected, undisturbed = _undisturbed(server, command, work)
    counts, rng = KillCounts(), random.Random(seed)
    while counts.killed < kills:
        moment = rng.uniform(0.0, undisturbed.seconds)
        _kill_once(server, command, work, (start, expected), counts, f"{moment:.4f} s", {"kill_after": moment})
    return counts


def _undisturbed(server: CommandServer, command: KilledCommand, work: Path) -> tuple[Tree, Tree, Run]:
    """Return what the folder holds before and after a run that nothing disturbs, and that run (the second of two)."""
    for _ in range(2):  # the first one fills the caches of the system
        folder = _fresh(command, work)
        start = tree(folder)
        run = server.run(command.args, folder)
        assert run.status == 0, run.output
    return start, tree(folder), run


def _fresh(command: KilledCommand, work: Path) -> Path:
    folder = work / "killed"
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    command.prepare(folder)
    return folder


def _kill_once(
    server: CommandServer,
    command: KilledCommand,
    work: Path,
    states: tuple[Tree, Tree],
    counts: KillCounts,
    moment: str,
    kill: Mapping[str, Any],
) -> None:
    start, expected = states
    folder = _fresh(command, work)
    run = server.run(command.args, folder, **kill)
    if run.status != -signal.SIGKILL:
        counts.finished += 1
    else:
        counts.killed += 1
    counts.leftovers += bool(tree(folder).keys() - start.keys() - expected.keys())
    problem = command.check_killed(folder)
    if problem:
        counts.wrong.append(f"killed at {moment}: {problem}")
    run = server.run(command.again or command.args, folder)
    if run.status != 0:
        counts.wrong.append(f"killed at {moment}: the next run ends with {run.status}: {run.output}")
    else:
        counts.wrong += [f"killed at {moment}: {line}" for line in differences(tree(folder), expected)]


def differences(found: Tree, expected: Tree) -> Iterator[str]:
    """Yield a line for each file that differs."""
    for name in sorted(found.keys() | expected.keys()):
        if found.get(name) != expected.get(name):
            state = "is missing" if name not in found else "is left over" if name not in expected else "differs"
            yield f"{name} {state}"
