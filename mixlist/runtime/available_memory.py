"""Find out how much memory this process can still get: from the system, and from the limits of its container.

``gigabytes`` writes an amount of memory in messages.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_OWN_GROUP = Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")


def measure_available_memory() -> int | None:
    """Return the bytes that this process can still get; None where the system does not say.

    Linux counts free memory and the caches that it can drop, within the limit of the control group. macOS gives all the
    memory of the machine, and Windows nothing.
    """
    known = [size for size in (_of_system(), _of_group()) if size is not None]
    return min(known, default=None)


def format_gigabytes(size: int) -> str:
    """Return a number of bytes for messages, as ``1.6 GB``."""
    return f"{size / 10**9:,.1f} GB"


def _of_system() -> int | None:
    with suppress(OSError, ValueError, StopIteration):
        lines = _MEMINFO.read_text("ascii").splitlines()
        return int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1]) << 10
    if sys.platform == "win32":
        return None
    with suppress(OSError, ValueError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def _of_group() -> int | None:
    """Return the bytes that the control group (version 2) may still take; None without a limit."""
    with suppress(OSError, ValueError, StopIteration):
        lines = _OWN_GROUP.read_text("utf-8").splitlines()
        own = next(line for line in lines if line.startswith("0::")).removeprefix("0::/")
        for folder in (_GROUPS / own, _GROUPS):  # in a container the own group is often the root of what it sees
            with suppress(OSError, ValueError):
                most = int((folder / "memory.max").read_text("ascii"))  # ValueError: "max", no limit
                used = int((folder / "memory.current").read_text("ascii"))
                stat = dict(line.split() for line in (folder / "memory.stat").read_text("ascii").splitlines())
                return max(0, most - used + int(stat.get("inactive_file", 0)))
    return None
