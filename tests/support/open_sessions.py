"""Record which sessions of this process are open."""

from __future__ import annotations

from typing import Any

import pytest

from mixlist.runtime.local_session import LocalSession


def record_open_sessions(monkeypatch: pytest.MonkeyPatch) -> set[LocalSession]:
    """Return a set that holds every session that is made from now on, until it is closed."""
    open_sessions: set[LocalSession] = set()
    make, close = LocalSession.__init__, LocalSession.close

    def record(session: LocalSession, *arguments: Any) -> None:
        make(session, *arguments)
        open_sessions.add(session)

    def forget(session: LocalSession) -> None:
        close(session)
        open_sessions.discard(session)

    monkeypatch.setattr(LocalSession, "__init__", record)
    monkeypatch.setattr(LocalSession, "close", forget)
    return open_sessions
