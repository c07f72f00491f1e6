"""Minimal sets of edits: what must be chosen so that a test passes, in few tests.

The test is taken to be monotone: what passes, passes with more edits too. Where it is not, the answer still
passes, and ``tighten`` leaves no edit in it that could go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
Passes = Callable[[frozenset[T]], bool]


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
