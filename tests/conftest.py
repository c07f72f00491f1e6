"""Settings of all tests."""

from __future__ import annotations

import os
import sys

import pytest
from hypothesis import HealthCheck, settings

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
