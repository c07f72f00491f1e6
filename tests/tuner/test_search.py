"""``minimal`` and ``tighten`` against brute force, and the number of tests that they need."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import chain, combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mixlist.tuner.search import find_minimal, remove_unneeded, search_with_lookahead

Passes = Callable[[frozenset[int]], bool]


@st.composite
def monotone(draw: st.DrawFn) -> tuple[list[int], Passes]:
    """Up to 8 elements in some order, and a predicate: it passes where all elements of any of some sets are there."""
    count = draw(st.integers(0, 8))
    order = draw(st.permutations(range(count)))
    sets = draw(st.lists(st.frozensets(st.integers(0, max(count - 1, 0)), max_size=count), max_size=5))
    return list(order), lambda chosen: any(needed <= chosen for needed in sets)


def subsets(items: Sequence[int]) -> list[frozenset[int]]:
    return [frozenset(c) for c in chain.from_iterable(combinations(items, k) for k in range(len(items) + 1))]


@settings(max_examples=1000, deadline=None)
@given(monotone())
def test_minimal_is_minimal(problem: tuple[list[int], Passes]) -> None:
    """Rule S9.5: A result is minimal."""
    order, passes = problem
    found = find_minimal(order, passes)
    passing = [s for s in subsets(order) if passes(s)]
    if found is None:
        assert not passing
        return
    assert passes(found)
    assert not any(s < found for s in passing)
    shortest = next(k for k in range(len(order) + 1) if passes(frozenset(order[:k])))
    assert found <= frozenset(order[:shortest]), "made of the first elements as far as possible"


@settings(max_examples=500, deadline=None)
@given(monotone(), st.data())
def test_tighten_leaves_nothing_out_that_could_go(problem: tuple[list[int], Passes], data: st.DataObject) -> None:
    order, passes = problem
    passing = [s for s in subsets(order) if passes(s)]
    if passing:
        start = data.draw(st.sampled_from(passing))
        found = remove_unneeded(start, order, passes)
        assert found <= start and passes(found)
        assert not any(passes(found - {one}) for one in found)


@settings(max_examples=500, deadline=None)
@given(st.integers(1, 10), st.data())
def test_any_predicate_gives_an_answer_that_passes_and_is_tight(count: int, data: st.DataObject) -> None:
    """Not monotone: overflow in one place may hide that in another."""
    verdicts: dict[frozenset[int], bool] = {}

    def passes(chosen: frozenset[int]) -> bool:
        if chosen not in verdicts:
            verdicts[chosen] = data.draw(st.booleans())
        return verdicts[chosen]

    order = list(range(count))
    found = find_minimal(order, passes)
    if found is not None and verdicts.get(found):
        tight = remove_unneeded(found, order, passes)
        assert verdicts[tight]
        assert not any(passes(tight - {one}) for one in tight)


class Counted:
    """A planted set, and the choices that were tested; each is run once, as by ``Trials``."""

    def __init__(self, planted: frozenset[int]) -> None:
        self.planted = planted
        self.tested: set[frozenset[int]] = set()

    def __call__(self, chosen: frozenset[int]) -> bool:
        self.tested.add(chosen)
        return self.planted <= chosen


def search(order: Sequence[int], planted: frozenset[int]) -> int:
    """The tests of a whole search, the last that leaves out one after the other included."""
    counted = Counted(planted)
    found = find_minimal(order, counted)
    assert found == planted
    assert remove_unneeded(found, list(order), counted) == planted
    return len(counted.tested)


@pytest.mark.parametrize("k", range(1, 6))
def test_every_place_of_a_planted_set(k: int) -> None:
    """All sets of k among few, some among many: never more than 4 k log2 n tests."""
    for n in range(max(4, k), 13):
        for places in combinations(range(n), k):
            assert search(range(n), frozenset(places)) <= 4 * k * math.log2(n), (n, places)


@settings(max_examples=1000, deadline=None)
@given(st.integers(4, 5000), st.integers(1, 5), st.data())
def test_a_planted_set_among_many(n: int, k: int, data: st.DataObject) -> None:
    k = min(k, n)
    planted = frozenset(data.draw(st.lists(st.integers(0, n - 1), min_size=k, max_size=k, unique=True)))
    assert search(range(n), planted) <= 4 * k * math.log2(n)


@pytest.mark.parametrize("k", range(1, 6))
def test_culprits_first_are_found_in_a_few_tests(k: int) -> None:
    """However many the others are."""
    assert {search(range(n), frozenset(range(k))) for n in (100, 10_000, 1_000_000)} == {
        search(range(100), frozenset(range(k)))
    }
    assert search(range(100), frozenset(range(k))) <= 4 * k + 2


@settings(max_examples=500, deadline=None)
@given(monotone(), st.integers(1, 4))
def test_a_search_that_looks_ahead_finds_the_same(problem: tuple[list[int], Passes], width: int) -> None:
    """And what it was told would come next, came, whenever a test failed and those after it."""
    order, passes = problem
    asked: list[tuple[frozenset[int], bool, list[frozenset[int]]]] = []

    def ask(chosen: frozenset[int], ahead: Callable[[int], list[frozenset[int]]]) -> bool:
        asked.append((chosen, passes(chosen), ahead(width)))
        return asked[-1][1]

    assert search_with_lookahead(lambda test: find_minimal(order, test), ask) == find_minimal(order, passes)
    for at, (_, passed, likely) in enumerate(asked):
        assert len(likely) <= width
        for chosen, (came, later, _) in zip(likely if not passed else [], asked[at + 1 :], strict=False):
            assert came == chosen
            if later:
                break
