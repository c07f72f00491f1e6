"""Test that the garbage collector pauses, and is restored after an error."""

from __future__ import annotations

import gc

import pytest

from mixlist.model.graph import pause_gc


@pytest.mark.parametrize("enabled", [True, False])
def test_the_state_of_the_collector_is_restored(enabled: bool) -> None:
    was_enabled = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        with pytest.raises(KeyError), pause_gc():
            assert not gc.isenabled()
            raise KeyError
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if was_enabled else gc.disable)()
