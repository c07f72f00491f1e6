"""Minimal sets of edits: what must be chosen so that a test passes, in few tests.

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
Ahead = Callable[[int], list[frozenset[T]]]  # so many of the tests to come, if this one and they all fail


def minimal(ordered: Sequence[T], passes: Passes[T]) -> frozenset[T] | None:
    """A minimal set of ``ordered`` that passes, made of its first elements as far as possible; None if all fail.

    Takes at most 2 log2(n) + 2 tests to find the shortest beginning that passes, j elements long, and about
    2 k log2(j / k) + 2 k more for a minimal set of k (QuickXplain, Junker 2004). An order with the culprits first
    makes j near k.
    """
    if passes(frozenset()):
        return frozenset()
    length = _shortest(ordered, passes)
    if length is None:
        return None
    last = frozenset([ordered[length - 1]])
    return last | _explain(last, True, ordered[: length - 1], passes)


def tighten(chosen: frozenset[T], order: Sequence[T], passes: Passes[T]) -> frozenset[T]:
    """``chosen`` without what can go: no single element of the answer can be left out. The last ones go first."""
    again = True
    while again:
        again = False
        for element in reversed([e for e in order if e in chosen]):
            if passes(chosen - {element}):
                chosen, again = chosen - {element}, True
    return chosen


class _Enough(Exception):  # noqa: N818 - it is what happened
    """As many tests as were wanted have been asked for."""


def foreseen(search: Callable[[Passes[T]], R], passes: Callable[[frozenset[T], Ahead[T]], bool]) -> R:
    """What ``search`` finds; ``passes`` is also told how to learn which tests will come next.

    A search does nothing but ask, so it can be asked again from its start with the answers that it has got. Most tests
    of a search for few culprits fail.
    """
    answers: list[bool] = []

    def ask(chosen: frozenset[T]) -> bool:
        answer = passes(chosen, lambda count: _next(search, [*answers, False], count))
        answers.append(answer)
        return answer

    return search(ask)


def _next(search: Callable[[Passes[T]], R], answers: list[bool], count: int) -> list[frozenset[T]]:
    """The ``count`` tests that come after so many answers, as long as they fail."""
    given, asked = iter(answers), list[frozenset[T]]()

    def ask(chosen: frozenset[T]) -> bool:
        answer = next(given, None)
        if answer is not None:
            return answer
        if len(asked) == count:
            raise _Enough
        asked.append(chosen)
        return False

    with suppress(_Enough):
        search(ask)
    return asked


def _shortest(ordered: Sequence[T], passes: Passes[T]) -> int | None:
    """Length of the shortest beginning that passes: doubled until one does, then halved; the empty one does not."""
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


def _explain(given: frozenset[T], grown: bool, rest: Sequence[T], passes: Passes[T]) -> frozenset[T]:
    """What of ``rest`` must join ``given``; ``grown``: whether ``given`` has grown since it was last tested."""
    if not rest or (grown and passes(given)):
        return frozenset()
    if len(rest) == 1:
        return frozenset(rest)
    middle = (len(rest) + 1) // 2
    first, second = rest[:middle], rest[middle:]
    later = _explain(given | frozenset(first), True, second, passes)
    return later | _explain(given | later, bool(later), first, passes)
