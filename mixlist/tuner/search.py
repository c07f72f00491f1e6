"""Find minimal sets of edits: what must be in a set so that a test passes, in few tests (Rules S9.4 and S9.5).

The test is taken to be monotone: what passes, passes with more edits too. Where it is not, the answer still
passes, and ``tighten`` leaves no edit in it that could go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")
Passes = Callable[[frozenset[T]], bool]
Lookahead = Callable[[int], list[frozenset[T]]]  # so many of the tests to come, if this one and they all fail


def minimal(ordered: Sequence[T], passes: Passes[T]) -> frozenset[T] | None:
    """Return a minimal set of ``ordered`` that passes, of its first elements as far as possible; None if all fail.

    Takes at most 2 log2(n) + 2 tests to find the shortest beginning that passes, j elements long, and about
    2 k log2(j / k) + 2 k more for a minimal set of k (QuickXplain, Junker 2004). An order with the causes first
    makes j near k.
    """
    if passes(frozenset()):
        return frozenset()
    length = _shortest(ordered, passes)
    if length is None:
        return None
    last = frozenset([ordered[length - 1]])
    return last | _quickxplain(last, True, ordered[: length - 1], passes)


def tighten(edits: frozenset[T], order: Sequence[T], passes: Passes[T]) -> frozenset[T]:
    """Remove what can go, the last ones of ``order`` first: then no single element can be left out."""
    changed = True
    while changed:
        changed = False
        for element in reversed([e for e in order if e in edits]):
            if passes(edits - {element}):
                edits, changed = edits - {element}, True
    return edits


class _Stop(Exception):  # noqa: N818 - no error
    """As many tests as were wanted are known."""


def with_lookahead(search: Callable[[Passes[T]], R], passes: Callable[[frozenset[T], Lookahead[T]], bool]) -> R:
    """Run ``search`` with a test that can also ask which tests will come next.

    A search does nothing but test, so it can be run again from its start with the answers so far. Most tests of a
    search for few causes fail.
    """
    answers: list[bool] = []

    def test(edits: frozenset[T]) -> bool:
        answer = passes(edits, lambda count: _next_tests(search, [*answers, False], count))
        answers.append(answer)
        return answer

    return search(test)


def _next_tests(search: Callable[[Passes[T]], R], answers: list[bool], count: int) -> list[frozenset[T]]:
    """Return the ``count`` tests that come after so many answers, as long as they fail."""
    known, tests = iter(answers), list[frozenset[T]]()

    def test(edits: frozenset[T]) -> bool:
        answer = next(known, None)
        if answer is not None:
            return answer
        if len(tests) == count:
            raise _Stop
        tests.append(edits)
        return False

    with suppress(_Stop):
        search(test)
    return tests


def _shortest(ordered: Sequence[T], passes: Passes[T]) -> int | None:
    """Return the length of the shortest beginning that passes: doubled until one does, then halved."""
    short, long = 0, 1
    while long < len(ordered) and not passes(frozenset(ordered[:long])):
        short, long = long, 2 * long
    if long >= len(ordered):
        long = len(ordered)
        if long == short or not passes(frozenset(ordered)):
            return None
    while long - short > 1:
        middle = (short + long) // 2
        if passes(frozenset(ordered[:middle])):
            long = middle
        else:
            short = middle
    return long


def _quickxplain(edits: frozenset[T], grown: bool, rest: Sequence[T], passes: Passes[T]) -> frozenset[T]:
    """Return what of ``rest`` must join ``edits``; ``grown``: whether these have grown since they were last tested."""
    if not rest or (grown and passes(edits)):
        return frozenset()
    if len(rest) == 1:
        return frozenset(rest)
    middle = (len(rest) + 1) // 2
    first, second = rest[:middle], rest[middle:]
    later = _quickxplain(edits | frozenset(first), True, second, passes)
    return later | _quickxplain(edits | later, bool(later), first, passes)
