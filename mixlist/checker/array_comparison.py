"""Compute the numbers that compare two arrays: products, ratios, and the rows with the same largest element."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from mixlist.runtime.session import Array

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
