"""Compute figures for the comparison of arrays: products, ratios, the rows whose largest element agrees."""

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
    """Return the product of two vectors; not by BLAS, whose threads cost more here and sum in another order."""
    import numpy as np

    return float(np.einsum("i,i->", a, b))


def ratio(difference: float, reference: float) -> float:
    """Return the root of the ratio of two sums of squares; infinite for a reference of zeros or a sum that is infinite.

    NaN counts as infinite.
    """
    if not reference or not math.isfinite(difference + reference):
        return math.inf
    return math.sqrt(difference) / math.sqrt(reference)


def largest_ratio(difference: Doubles, size: Doubles) -> float:
    """Return the largest of difference over size where the size is not zero; 0 where it always is."""
    if size.size and not size.min():
        nonzero = size != 0
        difference, size = difference[nonzero], size[nonzero]
    return float((difference / size).max()) if size.size else 0.0


def leaves(value: object, place: str = "") -> Iterator[tuple[str, Array]]:
    """Yield the arrays of a value with their places in it: of a sequence by position, of a map by key."""
    import numpy as np

    if isinstance(value, Mapping | list | tuple):
        for key, content in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from leaves(content, f"{place}/{key}")
    elif value is not None:
        yield place, np.asarray(value)


def has_classes(array: Array) -> bool:
    """Return whether the last axis may hold classes: (rows, classes) or (batch, position, classes)."""
    return array.ndim in (2, 3) and array.shape[-1] > 1 and array.size > 0


def same_largest(reference: Array, mixed: Array) -> tuple[int, int]:
    """Return the number of rows whose largest element is at the same place, and the number of rows.

    Of equal elements the first is the largest, as for an ArgMax that would follow. A row with NaN in the reference is
    no row; one with NaN in the mixed model disagrees.
    """
    import numpy as np

    a = reference.reshape(-1, reference.shape[-1])
    b = mixed.reshape(a.shape)
    rows = ~np.isnan(a).any(axis=-1)
    same = (a.argmax(axis=-1) == b.argmax(axis=-1)) & ~np.isnan(b).any(axis=-1)
    return int((same & rows).sum()), int(rows.sum())
