"""Settings of all tests."""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support.extras import REASONS

# Tests run in several processes. Threads of torch that wait for each other on busy cores take twenty times as long as
# one thread, and the networks of the tests are too small for several.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Tests start hundreds of processes. An environment that forbids bytecode, as images of containers do, lets each of them
# compile all modules again, which takes two seconds.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Property tests fail for what they assert, never because the machine is busy.
settings.register_profile("mixlist", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("mixlist")


@pytest.fixture(autouse=True)
def _seed_of_torch() -> None:
    """Seed torch, as pytest-randomly seeds Python and numpy: torch itself begins with another seed in each process."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how many tests skip for each reason; ``-rs`` lists their places, too.

    If ``MIXLIST_SKIPPED`` names a file, write the tests that skip without an extra or a browser into it: one node id a
    line, as ``pytest @FILE`` reads them. A module that skips as a whole is one skip, and its id is its path.
    """
    skips = [
        (report.nodeid, report.longrepr[2].removeprefix("Skipped: "))
        for report in terminalreporter.stats.get("skipped", [])
    ]
    if skips:
        terminalreporter.section("skipped tests and modules by reason")
    for reason, count in Counter(reason for _, reason in skips).most_common():
        terminalreporter.write_line(f"{count:5}  {reason}")
    if path := os.environ.get("MIXLIST_SKIPPED"):
        ids = sorted({node_id for node_id, reason in skips if reason in REASONS.values()})
        Path(path).write_text("".join(f"{node_id}\n" for node_id in ids), "utf-8")
