"""Marks of tests for what not every system has."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

IS_WINDOWS = os.name == "nt" or "tests.support.without_posix" in sys.modules  # the plugin
posix_only = pytest.mark.skipif(IS_WINDOWS, reason="Windows has no such files, permissions or signals")
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the memory of a process")
needs_proc = pytest.mark.skipif(
    not Path("/proc/self").exists(), reason="needs /proc, a folder in which no file can be created"
)
