"""Exception rates as text."""

from __future__ import annotations

import pytest

from mixlist.checker.limits import describe_rate, too_many_exceptions


@pytest.mark.parametrize(
    ("exceptions", "total", "text"),
    [(25, 5040, "0.496 %"), (9999, 2000001, "0.49995 %"), (1, 200, "0.5 %"), (1, 300, "0.333 %"), (3, 100, "3 %")],
)
def test_a_rate_below_the_limit_does_not_look_equal_to_it(exceptions: int, total: int, text: str) -> None:
    assert describe_rate(exceptions, total, 0.005) == f"{text}, the limit is 0.5 %"
    assert too_many_exceptions(exceptions, total, 0.005) == (exceptions / total >= 0.005)


def test_without_an_exception_the_rate_keeps_every_limit() -> None:
    """Rule S8.14."""
    assert not too_many_exceptions(0, 10, 0.0) and not too_many_exceptions(0, 0, 0.0)
    assert too_many_exceptions(1, 10, 0.0)
