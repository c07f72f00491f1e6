"""Kill commands of mixlist, at a chosen file operation or moment, run them again, and compare what the folders hold."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).parents[2]
# The names of what ONNX Runtime and PyTorch keep in the folder of temporary files start with these.
OF_LIBRARIES = (".ses", "torchinductor_")
TEMPORARY_FILE = re.compile(r"\.mixlist-[0-9a-f]{8}\.tmp")  # what a killed command leaves
Tree = dict[str, tuple[int, str]]  # the mode and checksum of each file, by its path in the folder


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
    """Return the files of a folder and of the folders in it, with mode and checksum of the content."""
    files = sorted(path for path in folder.rglob("*") if not path.is_dir())
    return {str(path.relative_to(folder)): (path.stat().st_mode, _checksum(path)) for path in files}


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass
class KillCounts:
    """The numbers of a campaign of kills."""

    name: str
    killed: int = 0
    finished: int = 0  # before the kill
    leftovers: int = 0  # kills that left a temporary file
    wrong: list[str] = field(default_factory=list)  # what differed from an undisturbed run, and after which kill

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.killed} killed, {self.finished} finished before, {self.leftovers} left a temporary"
            f" file, {len(self.wrong)} wrong"
        )


@dataclass(frozen=True)
class KilledCommand:
    """A command, a way to make the folder that it starts in, and what must hold right after a kill."""

    name: str
    args: Sequence[object]
    prepare: Callable[[Path], None]
    check_killed: Callable[[Path], str] = lambda folder: ""  # a message about files that do not belong together
    ignored: Container[str] = ()  # files that may differ in every run
    growing: Container[str] = ()  # files that are replaced many times in a run


class KillCampaign:
    """Kill a command, look at the folder, run the command again, and compare the folder with an undisturbed run's."""

    def __init__(self, command: KilledCommand, work: Path) -> None:
        self.command = command
        self.counts = KillCounts(command.name)
        self._folder = work / "folder"
        self._temporary = work / "temporary"
        self._temporary.mkdir(parents=True)
        self._server = CommandServer({"TMPDIR": str(self._temporary)})

    def kill_at_each_operation(self) -> KillCounts:
        """Kill the command before each of its file operations in turn."""
        with self._server:
            self._run_undisturbed()
            for number in range(1, self._undisturbed.operations + 1):
                self._kill(f"operation {number}", kill_before=number)
        return self.counts

    def kill_at_random_moments(self, kills: int, seed: int = 0) -> KillCounts:
        """Kill the command at random moments of its run, ``kills`` times."""
        rng = random.Random(seed)
        with self._server:
            self._run_undisturbed()
            while self.counts.killed < kills:
                moment = rng.uniform(0.0, self._undisturbed.seconds)
                self._kill(f"{moment:.4f} s", kill_after=moment)
                assert self.counts.finished < 20 * (kills + 5), "nearly all runs ended before they were killed"
        return self.counts

    def _run_undisturbed(self) -> None:
        for _ in range(2):  # the first run fills the caches of the system
            self._start()
            self._undisturbed = self._server.run(self.command.args, self._folder)
            assert self._undisturbed.status in (0, 1), self._undisturbed.output
        self._expected = self._tree()

    def _start(self) -> None:
        if self._folder.exists():
            shutil.rmtree(self._folder)
        self._folder.mkdir(parents=True)
        self.command.prepare(self._folder)
        self._before = self._tree()

    def _tree(self) -> Tree:
        return {name: state for name, state in tree(self._folder).items() if name not in self.command.ignored}

    def _kill(self, moment: str, *, kill_before: int | None = None, kill_after: float | None = None) -> None:
        self._start()
        run = self._server.run(self.command.args, self._folder, kill_before=kill_before, kill_after=kill_after)
        is_killed = run.status == -signal.SIGKILL
        self.counts.killed += is_killed
        self.counts.finished += not is_killed
        problems = list(self._problems_after_kill())
        run = self._server.run(self.command.args, self._folder)
        if run.status != self._undisturbed.status:
            problems.append(f"the next run ends with {run.status}: {run.output}")
        now = {name: state for name, state in self._tree().items() if not TEMPORARY_FILE.fullmatch(Path(name).name)}
        problems += differences(now, self._expected)
        names = [path.name for path in self._temporary.iterdir()]
        problems += [f"{name} is left over" for name in names if not name.startswith((*OF_LIBRARIES, "mixlist-"))]
        self.counts.wrong += [f"killed at {moment}: {problem}" for problem in problems]

    def _problems_after_kill(self) -> Iterator[str]:
        """Yield what a user, or an engine, sees of a killed run: each file is as before or as after, none is new."""
        now, hidden = self._tree(), 0
        for name, state in now.items():
            if name not in self.command.growing and state not in (self._before.get(name), self._expected.get(name)):
                hidden += (is_temporary := bool(TEMPORARY_FILE.fullmatch(Path(name).name)))
                if not is_temporary:
                    yield f"{name} is neither as before nor as after"
        self.counts.leftovers += bool(hidden)
        if problem := self.command.check_killed(self._folder):
            yield problem


def differences(actual: Tree, expected: Tree) -> Iterator[str]:
    """Yield a line for each file that differs."""
    for name in sorted(actual.keys() | expected.keys()):
        if actual.get(name) != expected.get(name):
            state = "is missing" if name not in actual else "is left over" if name not in expected else "differs"
            yield f"{name} {state}"
