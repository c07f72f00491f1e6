"""Measure how far the mixed model's outputs are from the reference (Rules S8.15 to S8.19, S8.33 and S8.34).

Outputs are compared batch by batch, in sums of float64. No array is kept.

- A value that is NaN in the reference is ignored, with a warning (``OutputAccuracy.warnings``).
- An infinity of the reference agrees with the same infinity of the mixed model.
- Any other difference between two values of which one is not finite is an infinite error.
- Integers and bools are compared twice: by the share of values that differ, and by the same measures as floats.
- Strings have such measures too: each counts as a unit vector, and two that differ are at right angles.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from mixlist.checker.collapsed_values import CollapseFinder
from mixlist.checker.limits import MEASURES, Limits, find_failed_limits
from mixlist.checker.result import IndexFinding, LargestDifference, OutputFinding
from mixlist.diagnostics import Diagnostic, warning
from mixlist.model import dtypes

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from mixlist.run.session import Array


BLOCK_SIZE = 2**15  # values compared at a time: float64 copies of this size stay in the processor's cache
_STRING_KINDS = "OSTU"  # numpy kinds; tensors of strings come as objects
_INTEGER_KINDS = "biu"


class OutputAccuracy:
    """The measures of one output over all batches.

    Largest errors, normalized error, cosine and SNR are those of the worst batch, so that many good batches do not hide
    a bad one. The shares (mismatches) are over all batches. NaN keeps no limit.

    ``limits``: only the measures that these limits bound are needed, None for all measures. Leaving out the other
    measures saves up to two thirds of the work. ``saturated_magnitude``: the magnitude that the mixed model gives to
    values out of range, infinity if it does not saturate. ``low``: the low type of the mixed model. ``quantity``: the
    output holds integers that are quantities (Rule S8.34). ``id_columns``: the indices of the last axis at which a
    float output holds ids, () if it holds nothing else, None if it holds none. ``per_index``: measure each index of
    this axis, too.
    """

    def __init__(
        self,
        name: str,
        limits: Limits | None = None,
        saturated_magnitude: float = math.inf,
        *,
        low: int = dtypes.FLOAT16,
        quantity: bool = False,
        id_columns: tuple[int, ...] | None = None,
        per_index: int | None = None,
    ) -> None:
        self.name, self._quantity, self._per_index = name, quantity, per_index
        self._id_columns = id_columns
        self._collapse_finder = CollapseFinder(low)
        self._at_index: dict[int, OutputAccuracy] = {}  # the measures of each index of the axis ``per_index``
        self._limits, self._saturated_magnitude = limits, saturated_magnitude
        self._measured_limits = frozenset(MEASURES if limits is None else limits.enabled())
        self._max_abs = self._max_rel = self._normalized = 0.0
        self._cosine = 1.0
        self._reference_squares = 0.0  # sum over all batches
        self._zero_reference_squares = 0.0  # largest sum of squares of a difference from a batch of zeros
        self._differing, self._same_argmax = _ShareCounter(), _ShareCounter()
        self._values = 0  # the following counts are parts of this one
        self._nan_values = 0  # NaN in the reference
        self._nan_batch_values = 0  # values of batches that hold nothing but NaN (Rule S8.28)
        self._lost_nan_values = 0  # NaN in the reference, and not in the mixed model
        self._lost_infinities = 0  # infinite in the reference, and not the same infinity in the mixed model
        self._largest_difference: LargestDifference | None = None
        self._incomparable_reason = ""  # why a pair of values cannot be compared (the first such pair), or ""

    def add(self, reference: object, mixed: object, batch: int | None = None) -> None:
        """Add one batch. A value is an array, a sequence of values, a map of values by key, or None (absent).

        ``batch``: its index, which the place of the largest difference names; without it, no place is kept.
        """
        # A sequence or a map holds several arrays. Those of both models are compared if they have the same paths in it.
        sums = _Sums()
        reference_arrays, mixed_arrays = dict(nested_arrays(reference)), dict(nested_arrays(mixed))
        if reference_arrays.keys() != mixed_arrays.keys():
            counts = f"{len(reference_arrays)} in the reference, {len(mixed_arrays)} in the mixed model"
            self._add_incomparable(f"it holds other tensors ({counts})", sums)
        else:
            for path, array in reference_arrays.items():
                self._add_array(array, mixed_arrays[path], sums, None if path else batch)
        self._end_batch(sums)

    def ignore(self, reference: object) -> None:
        """Count a batch whose float inputs hold nothing but NaN; its values are not compared (Rule S8.28)."""
        count = sum(array.size for _, array in nested_arrays(reference))
        self._values += count
        self._nan_batch_values += count

    def merge(self, other: OutputAccuracy) -> None:
        """Add the batches of another object for the same output. The order of merges makes no difference."""
        # The worst batch is the worst of both sides, and counts add up. The cosine is a minimum that a NaN decides.
        for name in ("_max_abs", "_max_rel", "_normalized", "_zero_reference_squares"):
            setattr(self, name, max(getattr(self, name), getattr(other, name)))
        counts = ("_values", "_nan_values", "_nan_batch_values", "_lost_nan_values", "_lost_infinities")
        for name in ("_reference_squares", *counts):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self._cosine = _smaller_or_nan(self._cosine, other._cosine)
        self._collapse_finder.merge(other._collapse_finder)
        for index, accuracy in other._at_index.items():
            self._accuracy_at(index).merge(accuracy)
        self._differing.merge(other._differing)
        self._same_argmax.merge(other._same_argmax)
        self._incomparable_reason = self._incomparable_reason or other._incomparable_reason

    def cannot_pass(self, limits: Limits) -> bool:
        """Return True if a limit is broken whatever the next batches are: shares may recover, largest errors cannot."""
        if (
            self._differing.share is not None and not self._id_columns
        ):  # an integer output may still pass by the share of its mismatches
            return bool(self._incomparable_reason)
        final_limits = {"shape", "max_abs", "max_rel"}
        # If the reference of a batch is all zeros, the normalized error depends on the next batches, see ``_measures``.
        final_limits |= set() if self._zero_reference_squares else {"normalized", "cosine", "snr"}
        if not final_limits.isdisjoint(find_failed_limits(self._measures(), limits)):
            return True
        return any(accuracy.cannot_pass(limits) for accuracy in self._at_index.values())

    @property
    def ignored_share(self) -> float:
        """Return the share of values that are NaN in the reference or come from NaN alone; 1 if there are no values."""
        # If the shapes differ, no value was counted. That is a failure, and no lack of evidence.
        if not self._values:
            return float(not self._incomparable_reason)
        return (self._nan_values + self._nan_batch_values) / self._values

    def finding(self, limits: Limits, max_ignored: float = 1.0, broken_reference: str = "") -> OutputFinding:
        """Return the measures so far, with the limits that they break; ``max_ignored`` as in ``find_failed_limits``.

        If nothing was compared, the measures are None. ``broken_reference``: see ``OutputFinding``.
        """
        finding, worst = replace(self._measures(), broken_reference=broken_reference), self._worst_index(limits)
        if limits.normalized is not None and finding.normalized_error is not None:
            finding = replace(finding, collapses=self._collapse_finder.collapses(limits.normalized))
        failed = find_failed_limits(finding, limits, max_ignored)
        if worst is not None:
            failed = (*failed, *(name for name in worst.failed_limits if name not in failed))
        return replace(finding, passed=not failed, failed_limits=failed, worst_index=worst)

    def _worst_index(self, limits: Limits) -> IndexFinding | None:
        """Return the measures of the worst index of the axis ``per_index``; None if no index was compared."""
        findings = [(index, accuracy.finding(limits)) for index, accuracy in sorted(self._at_index.items())]
        # Measures are None where nothing was compared. An index that breaks a limit comes before all others.
        compared = [(index, f) for index, f in findings if f.normalized_error is not None]
        if not compared:
            return None
        index, worst = max(compared, key=lambda entry: (not entry[1].passed, entry[1].normalized_error))
        measures = {name: getattr(worst, name) for name in MEASURES.values()}
        return IndexFinding(self._per_index or 0, index, failed_limits=worst.failed_limits, **measures)

    def _accuracy_at(self, index: int) -> OutputAccuracy:
        """Return the measures of one index of the axis ``per_index``."""
        if index not in self._at_index:
            self._at_index[index] = OutputAccuracy(
                self.name, self._limits, self._saturated_magnitude, quantity=self._quantity
            )
        return self._at_index[index]

    def _add_indices(self, reference: Array, mixed: Array) -> None:
        """Add each index of the axis ``per_index``, if the arrays of a batch have this axis."""
        import numpy as np

        axis = self._per_index
        if axis is not None and -reference.ndim <= axis < reference.ndim:
            parts = (np.moveaxis(array, axis, 0) for array in (reference, mixed))
            for index, (reference_part, mixed_part) in enumerate(zip(*parts, strict=True)):
                self._accuracy_at(index).add(reference_part, mixed_part)

    def _measures(self) -> OutputFinding:
        """Return the measures so far, before any limit but ``shape`` is applied."""
        if self.ignored_share == 1 and not self._incomparable_reason:
            return _nothing_compared(self.name)
        normalized = self._normalized
        if self._zero_reference_squares:
            # A batch whose reference is all zeros has no norm to divide by: take that of all batches.
            normalized = max(normalized, root_of_ratio(self._zero_reference_squares, self._reference_squares))
        return OutputFinding(
            name=self.name,
            max_abs_error=self._max_abs,
            max_rel_error=self._max_rel,
            normalized_error=normalized,
            cosine=self._cosine,
            snr_db=-20 * math.log10(normalized) if normalized else math.inf,
            mismatches=self._differing.share,
            top1=self._same_argmax.share,
            passed=True,
            failed_limits=("shape",) if self._incomparable_reason else (),
            ignored_share=self.ignored_share,
            quantity=self._quantity,
            id_columns=self._id_columns or (),
            largest_difference=self._largest_difference,
        )

    def warnings(self) -> tuple[Diagnostic, ...]:
        """Return a warning (ML603) for each kind of values that the measures leave out."""
        messages = []
        if self._incomparable_reason:
            messages.append(f"{self.name!r} cannot be compared: {self._incomparable_reason}")
        values = f"of {self._values} values of {self.name!r}"
        if self._nan_values:
            lost = f"; {self._lost_nan_values} of them are not NaN in the mixed model" if self._lost_nan_values else ""
            messages.append(f"{self._nan_values} {values} are NaN in the reference and do not count{lost}")
        if self._nan_batch_values:
            ignored = f"{self._nan_batch_values} {values} do not count"
            messages.append(f"{ignored}: all float inputs of their batches are NaN")
        if self._lost_infinities:
            differ = "are infinite in the reference and not the same infinity in the mixed model"
            messages.append(f"{self._lost_infinities} {values} {differ}")
        return tuple(warning("ML603", message) for message in messages)

    def _add_array(self, reference: Array, mixed: Array, sums: _Sums, batch: int | None = None) -> None:
        """Add one array of a batch in both models to the sums of the batch."""
        largest_before = self._max_abs
        is_string = reference.dtype.kind in _STRING_KINDS
        if reference.shape != mixed.shape:
            self._add_incomparable(f"shape {list(reference.shape)} became {list(mixed.shape)}", sums)
            return
        if is_string != (mixed.dtype.kind in _STRING_KINDS):
            self._add_incomparable(f"type {reference.dtype} became {mixed.dtype}", sums)
            return
        self._values += reference.size
        self._add_indices(reference, mixed)
        if self._id_columns and reference.ndim and reference.shape[-1] > max(self._id_columns):
            reference, mixed = self._count_ids(reference, mixed)
        is_exact = is_string or (reference.dtype.kind in _INTEGER_KINDS and mixed.dtype.kind in _INTEGER_KINDS)
        is_exact |= self._id_columns == ()
        if is_exact:
            self._differing.add(0, 0)  # an empty array has a share of mismatches too
        elif reference.dtype.kind == mixed.dtype.kind == "f":
            self._collapse_finder.add(reference, mixed)
        if not is_exact and self._limits is None and has_classes(reference):
            self._same_argmax.add(*count_same_argmax(reference, mixed))  # needs whole rows, so not in the blocks below
        flat_reference, flat_mixed = reference.reshape(-1), mixed.reshape(-1)
        for start in range(0, flat_reference.size, BLOCK_SIZE):
            block, mixed_block = flat_reference[start : start + BLOCK_SIZE], flat_mixed[start : start + BLOCK_SIZE]
            differing = _count_differing(block, mixed_block) if is_exact else 0
            if is_exact:
                self._differing.add(differing, block.size)
            if is_string:
                self._add_strings(differing, block.size, sums)
            else:
                self._add_numbers(block, mixed_block, sums)
        if batch is not None and not is_string and self._max_abs > largest_before:
            self._largest_difference = find_largest_difference(reference, mixed, self._saturated_magnitude, batch)

    def _count_ids(self, reference: Array, mixed: Array) -> tuple[Array, Array]:
        """Count the ids that differ in the columns of ids; return copies in which these columns are zero."""
        columns = list(self._id_columns or ())
        ids = reference[..., columns]
        self._differing.add(_count_differing(ids, mixed[..., columns]), ids.size)
        reference, mixed = reference.copy(), mixed.copy()
        reference[..., columns] = mixed[..., columns] = 0
        return reference, mixed

    def _add_strings(self, differing: int, count: int, sums: _Sums) -> None:
        """Add ``count`` strings, of which some differ: unit vectors, whose difference has a square of 2."""
        if differing:
            self._max_abs = self._max_rel = 1.0
        sums.difference += 2 * differing
        sums.reference += count
        sums.mixed += count
        sums.product += count - differing

    def _add_numbers(self, reference: Array, mixed: Array, sums: _Sums) -> None:
        """Add a block of numbers; only the measures that are needed are computed."""
        import numpy as np

        a, b = reference.astype(np.float64), mixed.astype(np.float64)
        with np.errstate(all="ignore"):  # doubles beyond 1e154 have infinite squares, which make an infinite error
            # The sum of squares is needed in any case, and it shows whether a value may not be finite. So arrays of
            # finite values are tested without another pass.
            squares = dot(a, a)
            if not math.isfinite(squares):  # the reference may hold infinities and NaN
                a, b = self._finite_in_reference(a, b, sums)
                squares = dot(a, a)
            if "cosine" in self._measured_limits:
                sums.mixed += dot(b, b)
                sums.product += dot(a, b)
            difference = np.subtract(b, a, out=b)  # in place: ``b`` is not needed any more
            difference_squares = dot(difference, difference)
            sums.reference += squares
            sums.difference += difference_squares
            # The squares of large finite differences are infinite too. Only a difference that is not finite itself
            # shows that the mixed model has an infinity or a NaN.
            if not math.isfinite(difference_squares) and not np.isfinite(difference).all():
                self._add_infinite_error(sums)
            elif a.size and not self._measured_limits.isdisjoint(("max_abs", "max_rel")):
                np.abs(difference, out=difference)
                self._max_abs = max(self._max_abs, float(difference.max()))
                if "max_rel" in self._measured_limits:
                    relative_error = largest_relative_error(difference, np.abs(a, out=a))
                    self._max_rel = max(self._max_rel, relative_error)

    def _finite_in_reference(self, reference: Doubles, mixed: Doubles, sums: _Sums) -> tuple[Doubles, Doubles]:
        """Return the values that are finite in the reference; judge its infinities, ignore its NaN (Rule S8.19)."""
        import numpy as np

        is_nan, is_infinite = np.isnan(reference), np.isinf(reference)
        # Rule S8.19: where the model saturates, the largest finite value agrees with an infinity. A still larger value
        # does not: a float32 node computed it from a saturated one.
        agrees = (mixed == reference) | (mixed == np.copysign(self._saturated_magnitude, reference))
        self._nan_values += int(is_nan.sum())
        self._lost_nan_values += int((is_nan & ~np.isnan(mixed)).sum())
        lost_infinities = int((is_infinite & ~agrees).sum())
        self._lost_infinities += lost_infinities
        if lost_infinities:
            self._add_infinite_error(sums)
        # An infinity or NaN of the mixed model alone stays in the result, where its difference is an infinite error.
        is_finite = ~(is_nan | is_infinite)
        return reference[is_finite], mixed[is_finite]

    def _add_incomparable(self, reason: str, sums: _Sums) -> None:
        """Add a pair of values whose shapes or types differ, so that they cannot be compared."""
        self._incomparable_reason = self._incomparable_reason or reason
        self._add_infinite_error(sums)

    def _add_infinite_error(self, sums: _Sums) -> None:
        self._max_abs = self._max_rel = math.inf
        sums.has_infinite_error = True

    def _end_batch(self, sums: _Sums) -> None:
        """Add the sums of a whole batch to the measures of the worst batch."""
        # No later batch improves this. Shapes may differ, so the sums of this batch may lack values: they
        # do not count.
        if sums.has_infinite_error:
            self._normalized, self._cosine = math.inf, math.nan
            return
        self._reference_squares += sums.reference
        # Without a difference the batch is perfect, and cannot be the worst one.
        if sums.difference and sums.reference:
            self._normalized = max(self._normalized, root_of_ratio(sums.difference, sums.reference))
            if "cosine" in self._measured_limits:
                self._cosine = _smaller_or_nan(self._cosine, sums.cosine())
        elif sums.difference:  # the reference is all zeros
            self._zero_reference_squares = max(self._zero_reference_squares, sums.difference)


def _nothing_compared(name: str) -> OutputFinding:
    """Return the finding of an output of which no value was compared (Rule S8.19)."""
    return OutputFinding(name, None, None, None, None, None, None, None, passed=True, ignored_share=1.0)


@dataclass
class _Sums:
    """The sums over one batch: squares of the difference and of both models' values, and products of these values."""

    difference: float = 0.0
    reference: float = 0.0
    mixed: float = 0.0
    product: float = 0.0
    has_infinite_error: bool = False

    def cosine(self) -> float:
        """Return the cosine similarity; 0 if one side is all zeros, NaN if a square overflowed."""
        # One root for each sum, because their product may overflow. Rounding may give a cosine a little beyond 1.
        norms = math.sqrt(self.reference) * math.sqrt(self.mixed)
        if not math.isfinite(norms):
            return math.nan
        return max(-1.0, min(1.0, self.product / norms)) if norms else 0.0


@dataclass
class _ShareCounter:
    """A count as a share of a total. The share is None until ``add`` is called, and 0 for a total of 0."""

    count: int = 0
    total: int | None = None

    def add(self, count: int, total: int) -> None:
        self.count += count
        self.total = (self.total or 0) + total

    def merge(self, other: _ShareCounter) -> None:
        if other.total is not None:
            self.add(other.count, other.total)

    @property
    def share(self) -> float | None:
        return None if self.total is None else self.count / max(self.total, 1)


def _count_differing(reference: Array, mixed: Array) -> int:
    """Return the number of elements that differ; NaN of the reference do not count (Rule S8.18)."""
    differing = reference != mixed
    return int((differing & (reference == reference)).sum() if reference.dtype.kind == "f" else differing.sum())


def _smaller_or_nan(a: float, b: float) -> float:
    """Return the smaller number, NaN if one is NaN."""
    return math.nan if math.isnan(a) or math.isnan(b) else min(a, b)


Doubles: TypeAlias = "NDArray[np.float64]"


def dot(a: Doubles, b: Doubles) -> float:
    """Return the dot product of two vectors.

    ``np.dot`` is not used: the threads of BLAS cost more than the product here, and change the order of the sum.
    """
    import numpy as np

    return float(np.einsum("i,i->", a, b))


def root_of_ratio(difference: float, reference: float) -> float:
    """Return the square root of ``difference / reference``, both of them sums of squares.

    The result is infinite if the reference is zero, or if one of the sums is infinite or NaN.
    """
    if not reference or not math.isfinite(difference + reference):
        return math.inf
    # One root for each, because the quotient of the sums may overflow or underflow although the result does not.
    return math.sqrt(difference) / math.sqrt(reference)


def largest_relative_error(difference: Doubles, magnitude: Doubles) -> float:
    """Return the largest of ``difference / magnitude`` over the elements whose magnitude is not zero; 0 for none."""
    # Most arrays have no zero. They are not copied.
    if magnitude.size and not magnitude.min():
        nonzero = magnitude != 0
        difference, magnitude = difference[nonzero], magnitude[nonzero]
    return float((difference / magnitude).max()) if magnitude.size else 0.0


def find_largest_difference(
    reference: Array, mixed: Array, saturated_magnitude: float, batch: int
) -> LargestDifference:
    """Return the first place of the largest difference between two arrays, by the rules of ``_add_numbers``."""
    import numpy as np

    flat_reference, flat_mixed = reference.reshape(-1), mixed.reshape(-1)
    largest, place = -1.0, 0
    with np.errstate(all="ignore"):
        for start in range(0, flat_reference.size, BLOCK_SIZE):
            a, b = (flat[start : start + BLOCK_SIZE].astype(np.float64) for flat in (flat_reference, flat_mixed))
            agrees = np.isnan(a) | (a == b) | (np.isinf(a) & (b == np.copysign(saturated_magnitude, a)))
            difference = np.where(agrees, 0.0, np.abs(b - a))
            difference[np.isnan(difference)] = math.inf
            at = int(difference.argmax())
            if difference[at] > largest:
                largest, place = float(difference[at]), start + at
    index = tuple(int(at) for at in np.unravel_index(place, reference.shape))
    value = float(flat_mixed[place])
    return LargestDifference(
        batch, index, reference.shape, float(flat_reference[place]), None if math.isnan(value) else value
    )


def nested_arrays(value: object, path: str = "") -> Iterator[tuple[str, Array]]:
    """Yield every array of a value with its path: ``""`` for an array, ``/0`` in a sequence, ``/key`` in a map.

    None, the value of an absent optional, yields nothing.
    """
    import numpy as np

    if isinstance(value, Mapping | list | tuple):
        for key, content in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from nested_arrays(content, f"{path}/{key}")
    elif value is not None:
        yield path, np.asarray(value)


def has_classes(array: Array) -> bool:
    """Return True if the last axis may hold classes: shape [rows, classes] or [batch, position, classes]."""
    return array.ndim in (2, 3) and array.shape[-1] > 1 and array.size > 0


def count_same_argmax(reference: Array, mixed: Array) -> tuple[int, int]:
    """Return the number of rows whose largest element is at the same place in both arrays, and the number of rows.

    Of equal elements the first is the largest, as ArgMax has it. A row with NaN in the reference does not count. A row
    with NaN in the mixed model alone counts, and its largest element is at another place.
    """
    import numpy as np

    reference_rows = reference.reshape(-1, reference.shape[-1])
    mixed_rows = mixed.reshape(reference_rows.shape)
    # numpy's argmax returns the place of the first NaN, which may be the same in both models.
    counts = ~np.isnan(reference_rows).any(axis=-1)
    same = (reference_rows.argmax(axis=-1) == mixed_rows.argmax(axis=-1)) & ~np.isnan(mixed_rows).any(axis=-1)
    return int((same & counts).sum()), int(counts.sum())
