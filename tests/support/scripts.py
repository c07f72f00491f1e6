"""Scripts in processes of their own, for tests of Ctrl-C and of processes that end with their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def started_script(source: str, folder: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run a script in a process group of its own; yield its process, and the process id that it prints first."""
    script = folder / "script.py"
    script.write_text(source)
    with subprocess.Popen(
        [sys.executable, str(script), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        process_group=0,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # a background job ignores it
    ) as process:
        try:
            assert process.stdout is not None
            yield process, int(process.stdout.readline())
        finally:
            process.kill()


def interrupt(process: subprocess.Popen[str]) -> str:
    """Send Ctrl-C to the whole group of a process, as a terminal does; return its standard error."""
    time.sleep(0.3)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    return errors


def is_gone(pid: int) -> bool:
    """Return True if no process has the id."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False
