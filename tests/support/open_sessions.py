"""Record which sessions are open."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.package import RemoteSession


def record_open_sessions(monkeypatch: pytest.MonkeyPatch) -> set[RemoteSession]:
    """Return a set that holds every session that is made from now on, until it is closed."""
    open_sessions: set[RemoteSession] = set()
    make, close = RemoteSession.__init__, RemoteSession.close

    def record(session: RemoteSession, *arguments: Any, **named: Any) -> None:
        make(session, *arguments, **named)
        open_sessions.add(session)

    def forget(session: RemoteSession) -> None:
        close(session)
        open_sessions.discard(session)

    monkeypatch.setattr(RemoteSession, "__init__", record)
    monkeypatch.setattr(RemoteSession, "close", forget)
    return open_sessions
