"""Measure how much memory this process can still get from the system and within the limits of its container.

``format_gigabytes`` writes an amount of memory in messages.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

# Files of Linux: the memory of the machine, the control group of this process, and the folder of all control groups.
_MEMINFO = Path("/proc/meminfo")
_OWN_GROUP = Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")


def measure_available_memory() -> int | None:
    """Return the bytes that this process can still get; None if the system does not show it.

    On Linux the result counts free memory and the caches that the system can drop, within the limit of the control
    group. On macOS the result is all the memory of the machine, and on Windows None.
    """
    limits = [size for size in (_available_on_machine(), _available_in_control_group()) if size is not None]
    return min(limits, default=None)


def format_gigabytes(size: int) -> str:
    """Return a number of bytes as a text for messages, for example ``1.6 GB``."""
    return f"{size / 10**9:,.1f} GB"


def _available_on_machine() -> int | None:
    with suppress(OSError, ValueError, StopIteration):
        lines = _MEMINFO.read_text("ascii").splitlines()
        # Not MemFree, which leaves out the caches that the system can drop. The line is, for example:
        # MemAvailable:   8000 kB
        return int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1]) << 10
    if sys.platform == "win32":
        return None
    with suppress(OSError, ValueError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def _available_in_control_group() -> int | None:
    """Return the bytes that the control group (version 2) may still take; None without a limit."""
    with suppress(OSError, ValueError, StopIteration):
        lines = _OWN_GROUP.read_text("utf-8").splitlines()
        # The line of version 2 starts with "0::": 0::/user.slice/session-1.scope
        own_path = next(line for line in lines if line.startswith("0::")).removeprefix("0::/")
        # In a container, the path is the one on the host, which may not exist here. Then the group of the container is
        # often the root of the visible groups.
        for folder in (_GROUPS / own_path, _GROUPS):
            with suppress(OSError, ValueError):
                limit = int((folder / "memory.max").read_text("ascii"))  # "max" means no limit: ValueError
                used = int((folder / "memory.current").read_text("ascii"))
                stat = dict(line.split() for line in (folder / "memory.stat").read_text("ascii").splitlines())
                # ``used`` includes cached files, which the system drops before it refuses memory.
                return max(0, limit - used + int(stat.get("inactive_file", 0)))
    return None
