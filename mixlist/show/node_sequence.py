"""Divide a long sequence of nodes into repeated blocks and the segments between them.

The sequence is in topological order, so its parts follow the way from the inputs to the outputs. It is given as two
lists: ``symbols`` has a number for each element, equal for equal operators; ``crossings[i]`` is the number of tensors
that cross from the elements before ``i`` to the others. The work grows linearly with the number of elements.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

# A sequence is divided until it has this number of parts, or until its segments are short.
_TARGET_PARTS = 16
_LONG_SEGMENT = 12
# With the gaps around them, this number of repeats makes at most 23 parts: each of 8 gaps can be 2 loose elements.
_MAX_REPEATS = 7
_SHORT_GAP = 2
# A repeat covers at least this number of elements, and this share of the sequence.
_MIN_REPEAT_LENGTH, _MIN_REPEAT_SHARE = 6, 1 / 30
# Periods are found by the distances between equal runs of elements. Short runs find short blocks. Long runs find blocks
# that contain smaller repeats.
_GRAM_LENGTHS = (3, 12)
_PERIODS_PER_LENGTH = 12


class Part(NamedTuple):
    """The elements from ``start`` to before ``stop``: ``blocks`` equal blocks of operators, or a segment if it is 1."""

    start: int
    stop: int
    blocks: int = 1


def divide(symbols: Sequence[int], crossings: Sequence[int], fixed: Sequence[int] = ()) -> list[Part]:
    """Return the parts of a sequence in order: at most 23, each with at least one element.

    ``fixed``: at most _MAX_REPEATS elements, in order, that are parts of their own. A repeat begins where few tensors
    cross, if several places are possible. Segments are cut where few tensors cross.
    """
    parts: list[Part] = []
    at = 0
    for repeat in [*_choose_repeats(symbols, crossings, fixed), Part(len(symbols), len(symbols))]:
        if repeat.start - at <= _SHORT_GAP:
            parts += [Part(index, index + 1) for index in range(at, repeat.start)]
        else:
            parts.append(Part(at, repeat.start))
        parts.append(repeat)
        at = repeat.stop
    parts.pop()  # the end
    return _cut_segments(parts, crossings)


def _choose_repeats(symbols: Sequence[int], crossings: Sequence[int], fixed: Sequence[int]) -> list[Part]:
    """Return the fixed parts and the repeats that explain most of the sequence, in order. They do not overlap."""
    shortest = max(_MIN_REPEAT_LENGTH, len(symbols) * _MIN_REPEAT_SHARE)
    candidates = [
        (period, start, stop)
        for period in _frequent_distances(symbols)
        for start, stop in _periodic_stretches(symbols, period)
        if (stop - start) // period * period >= shortest
    ]
    candidates.sort(key=lambda candidate: (-_weigh(*candidate), *candidate))
    borders = [-1, *fixed, len(symbols)]
    free = [(before + 1, after) for before, after in pairwise(borders)]
    repeats = [Part(index, index + 1) for index in fixed]
    for period, start, stop in candidates:
        if len(repeats) == _MAX_REPEATS:
            break
        # An earlier repeat may have taken a part of the stretch: use the longest rest.
        rests = [(max(start, first), min(stop, last)) for first, last in free]
        start, stop = max(rests, key=lambda rest: rest[1] - rest[0])
        if (stop - start) // period < 2 or (stop - start) // period * period < shortest:
            continue
        repeat = _place_repeat(start, stop, period, crossings)
        repeats.append(repeat)
        free = [
            piece
            for first, last in free
            for piece in (
                [(first, repeat.start), (repeat.stop, last)] if first <= repeat.start < last else [(first, last)]
            )
        ]
    return sorted(repeats)


def _weigh(period: int, start: int, stop: int) -> float:
    """Return how much a repeat explains: the number of elements that it covers, less if it has few blocks.

    So twelve layers are preferred to two stages of six layers.
    """
    count = (stop - start) // period
    return count * period * (count - 1) / (count + 1)


def _frequent_distances(symbols: Sequence[int]) -> list[int]:
    """Return the most frequent distances between equal runs of elements."""
    distances: dict[int, None] = {}  # an ordered set
    for length in _GRAM_LENGTHS:
        last: dict[tuple[int, ...], int] = {}
        counts: Counter[int] = Counter()
        for index in range(len(symbols) - length + 1):
            gram = tuple(symbols[index : index + length])
            if gram in last:
                counts[index - last[gram]] += 1
            last[gram] = index
        distances |= dict.fromkeys(distance for distance, _ in counts.most_common(_PERIODS_PER_LENGTH))
    return list(distances)


def _periodic_stretches(symbols: Sequence[int], period: int) -> Iterator[tuple[int, int]]:
    """Yield the start and stop of each longest stretch with this period, if it has at least two blocks."""
    start = 0
    for index in range(len(symbols) - period + 1):
        if index == len(symbols) - period or symbols[index] != symbols[index + period]:
            if index - start >= period:
                yield start, index + period
            start = index + 1


def _place_repeat(start: int, stop: int, period: int, crossings: Sequence[int]) -> Part:
    """Return the repeat in a stretch whose blocks begin where the fewest tensors cross."""
    count = (stop - start) // period
    spare = (stop - start) % period

    def crossing(offset: int) -> int:
        return sum(crossings[start + offset : start + offset + count * period + 1 : period])

    first = start + min(range(spare + 1), key=crossing)
    return Part(first, first + count * period, count)


def _cut_segments(parts: list[Part], crossings: Sequence[int]) -> list[Part]:
    """Cut the longest segments, until there are _TARGET_PARTS parts or all segments are short."""
    while len(parts) < _TARGET_PARTS:
        longest = max(
            (part for part in parts if part.blocks == 1), key=lambda part: part.stop - part.start, default=None
        )
        if longest is None or longest.stop - longest.start <= _LONG_SEGMENT:
            break
        quarter, middle = (longest.stop - longest.start) // 4, (longest.start + longest.stop) // 2
        cuts = range(longest.start + quarter, longest.stop - quarter)
        cut = min(cuts, key=lambda index: (crossings[index], abs(index - middle)))
        at = parts.index(longest)
        parts[at : at + 1] = [Part(longest.start, cut), Part(cut, longest.stop)]
    return parts
