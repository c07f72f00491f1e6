"""Run commands of mixlist in processes that are forked from this one, where the packages are loaded already.

A test kills such a process, or runs many at once: each starts in milliseconds. ``tests/support/killed_runs.py`` sends
requests to standard input, one JSON object per line. Each is answered by the process number, and later by the result.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import traceback
from typing import Any

_CHANGES = {"os.rename", "os.link", "os.symlink", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "os.truncate"}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Operations:
    """Count the operations that change files, and kill this process before the one with the given number."""

    def __init__(self, kill_before: int | None) -> None:
        self.count = 0
        self.kill_before = kill_before

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        if event in _CHANGES or (event == "open" and args[2] & _WRITING):
            self.count += 1
            if self.count == self.kill_before:
                os.kill(os.getpid(), signal.SIGKILL)


def _run_command(request: dict[str, Any], counts: int) -> int:
    """Run one command of mixlist in this process; write the number of its file operations to ``counts``."""
    os.chdir(request["folder"])
    os.environ.update(request["environment"])
    tempfile.tempdir = None  # of the server
    operations = Operations(request["kill_before"])
    sys.addaudithook(operations)
    from mixlist.cli import main

    status = main(request["args"])
    sys.stderr.flush()
    operations.kill_before = None
    os.write(counts, str(operations.count).encode())
    return status


def _supervise(request: dict[str, Any]) -> None:
    """Fork the process of a command, wait for its end and report it."""
    reading, writing = os.pipe()
    with tempfile.TemporaryFile() as output:
        pid = os.fork()
        if pid == 0:
            for descriptor in (1, 2):
                os.dup2(output.fileno(), descriptor)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.close(reading)
            try:
                os._exit(_run_command(request, writing))
            except BaseException:
                traceback.print_exc()
                os._exit(99)
        os.close(writing)
        _report({"id": request["id"], "pid": pid})
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        count = os.read(reading, 100)
        output.seek(0)
        text = output.read().decode(errors="replace")
        _report({"id": request["id"], "status": status, "operations": int(count or 0), "output": text[-500:]})


def _report(result: dict[str, Any]) -> None:
    os.write(1, json.dumps(result).encode() + b"\n")  # one write of less than PIPE_BUF bytes is never mixed with others


def serve() -> None:
    """Answer requests until standard input ends."""
    import mixlist.checker.run
    import mixlist.cli.command_group
    import mixlist.lists.ops_info
    import mixlist.model.save
    import mixlist.write  # noqa: F401

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _supervise(json.loads(line))
            os._exit(0)


if __name__ == "__main__":
    serve()
