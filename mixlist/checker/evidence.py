"""Decide whether enough output values were compared for a verdict (Rule S8.21)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mixlist.checker.result import OutputFinding
from mixlist.runtime.feeds import arrays_of

if TYPE_CHECKING:
    from mixlist.runtime.session import Array, Feed

_WHY_NOT_COMPARED = "is NaN in the reference, comes from NaN alone, or has no elements"


def holds_only_nan(feed: Feed) -> bool:
    """Return True if the float inputs of a batch have values, and all of these values are NaN (Rule S8.28)."""
    float_arrays = [array for array in arrays_of(feed) if array.size and _is_float(array)]
    return bool(float_arrays) and all(_is_all_nan(array) for array in float_arrays)


def _is_float(array: Array) -> bool:
    # To numpy, bfloat16 (of the package ml_dtypes) is no kind of float: its kind is "V".
    return array.dtype.kind == "f" or array.dtype.name == "bfloat16"


def _is_all_nan(array: Array) -> bool:
    import numpy as np

    # The first value alone decides nearly every array, so that large inputs are not scanned for each batch.
    first_value = array.reshape(-1)[:1]
    return bool(np.isnan(first_value).all() and np.isnan(array).all())


def missing_evidence(outputs: Sequence[OutputFinding], max_ignored: float) -> tuple[str, ...]:
    """Return the reasons why the outputs allow no verdict, one sentence each; () if they allow one.

    ``max_ignored`` is the largest share of an output's values that may be ignored, from 0 to 1. Even with 1, at least
    one value of one output must have been compared. The ignored share depends on the reference and the data alone,
    never on the lists.
    """
    # Nothing was compared: one reason for all outputs, which holds for every ``max_ignored``.
    if outputs and all(output.ignored_share == 1 for output in outputs):
        return (f"no value was compared: every output {_WHY_NOT_COMPARED}",)
    return tuple(_reason(output, max_ignored) for output in outputs if output.ignored_share > max_ignored)


def _reason(output: OutputFinding, max_ignored: float) -> str:
    if output.ignored_share == 1:
        return f"output {output.name!r} was not compared: it {_WHY_NOT_COMPARED}"
    ignored = f"{output.ignored_share:.2%} of output {output.name!r}"
    return f"{ignored} is NaN in the reference or comes from NaN alone, the limit is {max_ignored:.2%}"
