"""Test that the installed ONNX Runtime keeps the Casts that round to a low type."""

from __future__ import annotations

from mixlist.run.provider_rounding import start_rounding_tests
from tests.support.local_sessions import make_session
from tests.support.package import LocalSession, SessionOptions


def rounding_defect(provider: str, optimize: bool = True) -> str | None:
    """Return the reason why a provider does not round to the low types, None if it rounds."""
    options = SessionOptions(provider, optimize=optimize, threads=1)
    return start_rounding_tests(provider, lambda proto: LocalSession(make_session(proto, options)))()
