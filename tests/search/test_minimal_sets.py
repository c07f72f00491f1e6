"""``find_minimal`` and ``remove_unneeded`` against brute force, and the number of tests that they take."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import chain, combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mixlist.search.minimal_sets import find_minimal, remove_unneeded

Passes = Callable[[frozenset[int]], bool]


@st.composite
def monotone(draw: st.DrawFn) -> tuple[list[int], Passes]:
    """Draw an order of up to 8 elements, and a monotone test: all elements of one of some sets must be there."""
    count = draw(st.integers(0, 8))
    order = draw(st.permutations(range(count)))
    sets = draw(st.lists(st.frozensets(st.integers(0, max(count - 1, 0)), max_size=count), max_size=5))
    return list(order), lambda elements: any(needed <= elements for needed in sets)


def subsets(items: Sequence[int]) -> list[frozenset[int]]:
    return [frozenset(c) for c in chain.from_iterable(combinations(items, k) for k in range(len(items) + 1))]


@settings(max_examples=1000, deadline=None)
@given(monotone())
def test_find_minimal_returns_a_minimal_set(problem: tuple[list[int], Passes]) -> None:
    """A result is minimal."""
    order, passes = problem
    result = find_minimal(order, passes)
    passing_sets = [s for s in subsets(order) if passes(s)]
    if result is None:
        assert not passing_sets
        return
    assert passes(result)
    assert not any(s < result for s in passing_sets)
    shortest = next(k for k in range(len(order) + 1) if passes(frozenset(order[:k])))
    assert result <= frozenset(order[:shortest]), "the result consists of the first elements as far as possible"


@settings(max_examples=500, deadline=None)
@given(monotone(), st.data())
def test_remove_unneeded_leaves_no_element_that_could_go(
    problem: tuple[list[int], Passes], data: st.DataObject
) -> None:
    order, passes = problem
    passing_sets = [s for s in subsets(order) if passes(s)]
    if passing_sets:
        start = data.draw(st.sampled_from(passing_sets))
        result = remove_unneeded(start, order, passes)
        assert result <= start and passes(result)
        assert not any(passes(result - {element}) for element in result)


@settings(max_examples=500, deadline=None)
@given(st.integers(1, 10), st.data())
def test_a_test_that_is_not_monotone_gives_a_result_that_passes_and_is_minimal(count: int, data: st.DataObject) -> None:
    """Tests of a search need not be monotone: an overflow in one node may hide that in another."""
    verdicts: dict[frozenset[int], bool] = {}

    def passes(elements: frozenset[int]) -> bool:
        if elements not in verdicts:
            verdicts[elements] = data.draw(st.booleans())
        return verdicts[elements]

    order = list(range(count))
    result = find_minimal(order, passes)
    if result is not None and verdicts.get(result):
        tightened = remove_unneeded(result, order, passes)
        assert verdicts[tightened]
        assert not any(passes(tightened - {element}) for element in tightened)


class CountedTest:
    """A test that passes if all ``planted`` elements are there. ``tested``: the distinct sets that were tested."""

    def __init__(self, planted: frozenset[int]) -> None:
        self.planted = planted
        self.tested: set[frozenset[int]] = set()

    def __call__(self, elements: frozenset[int]) -> bool:
        self.tested.add(elements)
        return self.planted <= elements


def count_tests(order: Sequence[int], planted: frozenset[int]) -> int:
    """Return the number of distinct tests of a whole search, with those that leave out one element after the other."""
    test = CountedTest(planted)
    result = find_minimal(order, test)
    assert result == planted
    assert remove_unneeded(result, list(order), test) == planted
    return len(test.tested)


@pytest.mark.parametrize("k", range(1, 6))
def test_a_search_for_k_of_few_elements_takes_at_most_4_k_log2_n_tests(k: int) -> None:
    """Try all positions of the k elements."""
    for n in range(max(4, k), 13):
        for positions in combinations(range(n), k):
            assert count_tests(range(n), frozenset(positions)) <= 4 * k * math.log2(n), (n, positions)


@settings(max_examples=1000, deadline=None)
@given(st.integers(4, 5000), st.integers(1, 5), st.data())
def test_a_search_for_k_of_many_elements_takes_at_most_4_k_log2_n_tests(n: int, k: int, data: st.DataObject) -> None:
    k = min(k, n)
    planted = frozenset(data.draw(st.lists(st.integers(0, n - 1), min_size=k, max_size=k, unique=True)))
    assert count_tests(range(n), planted) <= 4 * k * math.log2(n)


@pytest.mark.parametrize("k", range(1, 6))
def test_needed_elements_that_come_first_are_found_in_few_tests(k: int) -> None:
    """The number of tests does not depend on the number of the other elements."""
    assert {count_tests(range(n), frozenset(range(k))) for n in (100, 10_000, 1_000_000)} == {
        count_tests(range(100), frozenset(range(k)))
    }
    assert count_tests(range(100), frozenset(range(k))) <= 4 * k + 2
