"""Find the parts of a float output whose values all became one value in the mixed model (Rule S8.33).

An output may join several quantities, as boxes in 0..500 and scores in 0..1, and one error for all of them hides what
happened to the small ones. So each index of each axis is examined, and the output as a whole.

- Values of the reference are different if they differ in the low type; below its smallest normal number they count as
  0.
- Without a limit for the normalized error, nothing is a collapse.
- Values that are NaN in the reference and batches that are not judged (S8.18, S8.28) do not count, and neither does a
  part whose one value is infinite.
- Where the size of an axis differs between batches, an index counts in the batches that have it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from mixlist.checker.result import Collapse
from mixlist.model import dtypes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mixlist.run.session import Array

LEAST_DIFFERENT = 8  # different values of the reference that may not become one
MOST_PARTS = 2**16  # of an axis: a longer one is not examined
_BLOCK_SIZE = 2**14  # values examined at a time
_NO_CODE = -1  # of NaN, and of a place in a row that holds no code
# By the low type, the bits of its smallest normal number.
_SMALLEST_NORMAL_BITS = {dtypes.FLOAT16: 0x0400, dtypes.BFLOAT16: 0x0080}
Codes: TypeAlias = "NDArray[np.int32]"  # values of a low type by their bits


@dataclass
class _Parts:
    """The parts of an output along one axis: one for each index, or a single one that is the whole output.

    ``is_one_value``: bool [parts], False for a part that showed two values. ``value``: float64 [parts], the value of
    the part, NaN if it has none yet. ``sums``: float64 [3, parts], the number of values so far, the sum of the squares
    of the reference, and that of the squares of the difference. ``codes``: the different values of the reference, at
    most LEAST_DIFFERENT of them, a row for each part with one value.
    """

    is_one_value: NDArray[np.bool_]
    value: NDArray[np.float64]
    sums: NDArray[np.float64]
    codes: Codes

    @classmethod
    def without_values(cls, parts: int) -> _Parts:
        """Return parts that have no values yet."""
        codes = np.full((parts, 0), _NO_CODE, np.int32)
        return cls(np.ones(parts, bool), np.full(parts, np.nan), np.zeros((3, parts)), codes)

    def __len__(self) -> int:
        return len(self.value)

    def extended(self, parts: int) -> _Parts:
        """Return the same parts, and after them new ones without values until there are ``parts``."""
        new = parts - len(self)
        if new <= 0:
            return self
        return _Parts(
            np.pad(self.is_one_value, (0, new), constant_values=True),
            np.pad(self.value, (0, new), constant_values=np.nan),
            np.pad(self.sums, ((0, 0), (0, new))),
            np.pad(self.codes, ((0, new), (0, 0)), constant_values=_NO_CODE),
        )

    def joined(self, other: _Parts) -> _Parts:
        """Return the parts with the values of both."""
        parts = max(len(self), len(other))
        a, b = self.extended(parts), other.extended(parts)
        has_no_value = np.isnan(a.value) | np.isnan(b.value)
        stays = a.is_one_value & b.is_one_value & ((a.value == b.value) | has_no_value)
        # Only the parts that stay have codes in the result.
        codes = np.concatenate([x.codes[stays[x.is_one_value]] for x in (a, b)], axis=1)
        return _Parts(stays, np.where(np.isnan(a.value), b.value, a.value), a.sums + b.sums, _keep_different(codes))

    def collapsed(self, max_error: float) -> NDArray[np.intp]:
        """Return the indices of the parts that became one finite value with a normalized error above the limit."""
        indices = np.flatnonzero(self.is_one_value)[(self.codes != _NO_CODE).sum(axis=1) >= LEAST_DIFFERENT]
        _, reference, difference = self.sums[:, indices]
        is_error = np.isfinite(self.value[indices]) & (difference > max_error**2 * reference)
        return np.compress(is_error, indices)


@dataclass
class CollapseFinder:
    """The parts of one output over all batches; ``low``: the low type of the mixed model."""

    low: int
    _parts: dict[int | None, _Parts] = field(default_factory=dict)  # by axis, None for the whole output

    def add(self, reference: Array, mixed: Array) -> None:
        """Add the float arrays of one batch, which have one shape."""
        if not reference.size:
            return
        # A value whose reference is NaN does not count. The minimum finds a NaN without another array.
        has_nan = bool(np.isnan(reference.min()))
        whole = self._examine(reference[None], mixed[None], has_nan)
        self._join(None, whole)
        for axis, size in enumerate(reference.shape):
            earlier = self._parts.get(axis)
            if size > MOST_PARTS or (earlier is not None and not earlier.is_one_value.any() and len(earlier) >= size):
                continue  # every part has shown two values
            rows = np.moveaxis(reference, axis, 0), np.moveaxis(mixed, axis, 0)
            self._join(axis, whole if size == 1 else self._examine(*rows, has_nan))

    def merge(self, other: CollapseFinder) -> None:
        """Add the batches of another finder of the same output. The order of merges makes no difference."""
        for axis, parts in other._parts.items():
            self._join(axis, parts)

    def collapses(self, max_error: float) -> tuple[Collapse, ...]:
        """Return what became one value: the output as a whole, or else each index of each axis.

        ``max_error``: a part whose own normalized error is within this limit is no collapse.
        """
        found = []
        for axis, parts in self._parts.items():
            for index in parts.collapsed(max_error):
                place = None if axis is None else int(index)
                found.append(Collapse(axis, place, int(parts.sums[0, index]), float(parts.value[index])))
            # If the whole output is one value, so is each index: the whole comes first, and says it all.
            if found and axis is None:
                break
        return tuple(found)

    def _join(self, axis: int | None, parts: _Parts) -> None:
        earlier = self._parts.get(axis)
        self._parts[axis] = parts if earlier is None else earlier.joined(parts)

    def _examine(self, reference: Array, mixed: Array, has_nan: bool) -> _Parts:
        """Return the parts of one batch: the first axis of the two arrays is that of the parts."""
        parts, size = _Parts.without_values(len(mixed)), mixed[:1].size
        # Most parts show two values at once: compare a few elements of each, and the others only if these are equal.
        places: list[tuple[Any, ...]] = [tuple(n * step // 4 for n in mixed.shape[1:]) for step in range(4)]
        ends: tuple[Any, ...] = (slice(None), *(-1,) * (mixed.ndim - 1))
        equal = [mixed[(slice(None), *place)] == mixed[ends] for place in places]
        is_candidate = np.logical_and.reduce(equal) | has_nan
        parts.is_one_value[:] = is_candidate
        candidates, codes = np.flatnonzero(is_candidate), []
        # Few values at a time, so that little memory is taken.
        step = max(_BLOCK_SIZE // size, 1)
        for start in range(0, len(candidates), step):
            # A slice of one large part is a view, and no copy.
            chosen = candidates[start : start + step] if step > 1 else slice(candidates[start], candidates[start] + 1)
            examined = self._examine_all(reference[chosen].reshape(-1, size), mixed[chosen].reshape(-1, size))
            parts.is_one_value[chosen], parts.value[chosen] = examined.is_one_value, examined.value
            parts.sums[:, chosen] = examined.sums
            codes.append(examined.codes)
        width = max((c.shape[1] for c in codes), default=0)
        padded = [np.pad(c, ((0, 0), (0, width - c.shape[1])), constant_values=_NO_CODE) for c in codes]
        parts.codes = np.concatenate(padded) if padded else np.full((0, 0), _NO_CODE, np.int32)
        return parts

    def _examine_all(self, reference: Array, mixed: Array) -> _Parts:
        """Return the parts of arrays of shape [parts, values]."""
        parts = _Parts.without_values(len(mixed))
        for start in range(0, mixed.shape[1], _BLOCK_SIZE):
            a, b = (x[:, start : start + _BLOCK_SIZE].astype(np.float64) for x in (reference, mixed))
            counts = ~np.isnan(a)
            smallest, largest = b.min(axis=1, initial=np.inf, where=counts), b.max(1, initial=-np.inf, where=counts)
            has_values = counts.any(axis=1)
            is_one_value = (smallest == largest) | ~has_values
            codes = _keep_different(_low_codes(a[is_one_value], self.low))
            with np.errstate(all="ignore"):  # infinities: a part with one is no collapse
                squares = [np.square(x).sum(axis=1, where=counts) for x in (a, np.subtract(a, b, out=b))]
            value = np.where(has_values, smallest, np.nan)
            parts = parts.joined(_Parts(is_one_value, value, np.stack([counts.sum(axis=1), *squares]), codes))
            if not parts.is_one_value.any():
                break
        return parts


def _low_codes(values: Array, low: int) -> Codes:
    """Return the bits of values rounded to a low type; 0 below its smallest normal number, _NO_CODE for NaN."""
    with np.errstate(over="ignore"):
        floats = np.ascontiguousarray(values, np.float32)
        if low == dtypes.FLOAT16:
            bits = floats.astype(np.float16).view(np.uint16).astype(np.int32)
        else:  # round to nearest, ties to even, on the bits of float32
            wide = floats.view(np.uint32).astype(np.int64)
            bits = ((wide + 0x7FFF + (wide >> 16 & 1)) >> 16).astype(np.int32)
    bits[(bits & 0x7FFF) < _SMALLEST_NORMAL_BITS[low]] = 0
    bits[np.isnan(floats)] = _NO_CODE
    return bits


def _keep_different(codes: Codes) -> Codes:
    """Return the different codes of each row, at most LEAST_DIFFERENT; short rows end with _NO_CODE."""
    ordered = np.sort(codes, axis=1)
    is_new = ordered != _NO_CODE
    is_new[:, 1:] &= ordered[:, 1:] != ordered[:, :-1]
    place = np.cumsum(is_new, axis=1) - 1
    is_kept = is_new & (place < LEAST_DIFFERENT)
    width = int(place.max(initial=-1)) + 1
    kept = np.full((len(codes), min(width, LEAST_DIFFERENT)), _NO_CODE, np.int32)
    rows, columns = np.nonzero(is_kept)
    kept[rows, place[rows, columns]] = ordered[rows, columns]
    return kept
