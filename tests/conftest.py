"""Settings of all tests."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# Property tests fail for what they assert, never because the machine is busy.
settings.register_profile("mixlist", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("mixlist")
