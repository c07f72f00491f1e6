"""Settings of all tests."""

from __future__ import annotations

import sys

import pytest
from hypothesis import HealthCheck, settings

# Property tests fail for what they assert, never because the machine is busy.
settings.register_profile("mixlist", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("mixlist")


@pytest.fixture(autouse=True)
def _seed_of_torch() -> None:
    """Seed torch, as pytest-randomly seeds Python and numpy: torch itself begins with another seed in each process."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)
