"""Find minimal sets of elements that pass a test, in few tests. The elements are edits.

The search assumes that the test is monotone: if a set passes, every larger set passes too. If the test is not monotone,
the result still passes, and ``remove_unneeded`` makes sure that no single element can be left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
Passes = Callable[[frozenset[T]], bool]


def find_minimal(ordered: Sequence[T], passes: Passes[T]) -> frozenset[T] | None:
    """Return a minimal set of elements that passes; None if even all elements fail.

    The search prefers the elements near the start of ``ordered``. Let j be the length of the shortest prefix of
    ``ordered`` that passes. The function takes at most 2 log2(n) + 2 tests to find that prefix among n elements, and
    about 2 k log2(j / k) + 2 k more to find a minimal set of k elements in it (QuickXplain, Junker 2004). An order with
    the causes of the failure first makes j close to k.
    """
    # The search for the prefix relies on it that the empty set fails.
    if passes(frozenset()):
        return frozenset()
    length = _shortest_passing_prefix(ordered, passes)
    if length is None:
        return None
    # The last element of the shortest prefix is needed: the prefix without it fails.
    needed = frozenset([ordered[length - 1]])
    return needed | _quickxplain(needed, True, ordered[: length - 1], passes)


def remove_unneeded(elements: frozenset[T], order: Sequence[T], passes: Passes[T]) -> frozenset[T]:
    """Return ``elements`` without those that the test does not need; the last ones of ``order`` are tried first.

    No single element of the result can be left out, also if the test is not monotone.
    """
    changed = True
    # Repeat until nothing can be removed: if the test is not monotone, an element that was needed may not be needed any
    # more once another one is removed.
    while changed:
        changed = False
        for element in reversed([e for e in order if e in elements]):
            if passes(elements - {element}):
                elements, changed = elements - {element}, True
    return elements


def _shortest_passing_prefix(ordered: Sequence[T], passes: Passes[T]) -> int | None:
    """Return the length of the shortest prefix that passes; None if all elements fail."""
    # Double the length until a prefix passes. In both loops the prefix of length ``failing`` has failed.
    failing, passing = 0, 1
    while passing < len(ordered) and not passes(frozenset(ordered[:passing])):
        failing, passing = passing, 2 * passing
    if passing >= len(ordered):
        passing = len(ordered)
        # Both are 0 if there are no elements. The empty set has failed already.
        if passing == failing or not passes(frozenset(ordered)):
            return None
    # Then find the shortest by bisection between a length that fails and one that passes.
    while passing - failing > 1:
        middle = (failing + passing) // 2
        if passes(frozenset(ordered[:middle])):
            passing = middle
        else:
            failing = middle
    return passing


def _quickxplain(required: frozenset[T], has_grown: bool, optional: Sequence[T], passes: Passes[T]) -> frozenset[T]:
    """Return a minimal set of ``optional`` elements that passes together with ``required``.

    All of ``required`` and ``optional`` together pass. ``has_grown``: True if ``required`` has grown since the last
    test, so that it may pass alone now.
    """
    # If ``required`` has not grown, its test failed before and is not repeated.
    if not optional or (has_grown and passes(required)):
        return frozenset()
    if len(optional) == 1:
        return frozenset(optional)
    # Find what is needed of the second half if the whole first half is there, then what is needed of the first half.
    # This order prefers the first half: an element of the second half stays only if no element before it can do its
    # work.
    middle = (len(optional) + 1) // 2
    first_half, second_half = optional[:middle], optional[middle:]
    from_second = _quickxplain(required | frozenset(first_half), True, second_half, passes)
    return from_second | _quickxplain(required | from_second, bool(from_second), first_half, passes)
