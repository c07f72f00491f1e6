"""Test prefetching: the same pieces in the same order, errors at their piece, and no thread that stays."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from mixlist.model.weights import prefetch


def test_the_pieces_come_in_order() -> None:
    assert list(prefetch(iter(range(100)))) == list(range(100))
    assert list(prefetch(iter(()))) == []


def test_an_error_is_raised_at_its_piece() -> None:
    before = threading.active_count()

    def broken() -> Iterator[int]:
        yield 1
        raise OSError("gone")

    pieces = prefetch(broken())
    assert next(pieces) == 1
    with pytest.raises(OSError, match="gone"):
        next(pieces)
    assert threading.active_count() == before


def test_stopping_early_leaves_no_thread() -> None:
    before = threading.active_count()
    for piece in prefetch(iter(range(10))):
        if piece == 3:
            break
    assert threading.active_count() == before
