"""Decide which outputs of a check are compared, and whether that is enough: a verdict needs evidence (Rule S8.21)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mixlist.checker.result import OutputFinding
from mixlist.runtime.feeds import arrays_of

if TYPE_CHECKING:
    from mixlist.runtime.session import Array, Feed

_WHY_NOT = "is NaN in the reference, comes from NaN alone, or has no elements"


def holds_only_nan(feed: Feed) -> bool:
    """Return whether a batch has float inputs with values, and all these values are NaN (Rule S8.28)."""
    floats = [array for array in arrays_of(feed) if array.size and _is_float(array)]
    return bool(floats) and all(_is_nan(array) for array in floats)


def _is_float(array: Array) -> bool:
    return array.dtype.kind == "f" or array.dtype.name == "bfloat16"


def _is_nan(array: Array) -> bool:
    import numpy as np

    first = array.reshape(-1)[:1]  # settles nearly every array
    return bool(np.isnan(first).all() and np.isnan(array).all())


def missing_evidence(outputs: Sequence[OutputFinding], max_ignored: float) -> tuple[str, ...]:
    """Return why nothing can be concluded from the outputs, one sentence each; () where it can.

    ``max_ignored`` is the largest share of an output's values that may be ignored. Even a share of 1 asks for one value
    in all outputs. What is ignored depends on the reference and the data alone, never on the lists.
    """
    if outputs and all(output.ignored_share == 1 for output in outputs):
        return (f"no value was compared: every output {_WHY_NOT}",)
    return tuple(_sentence(output, max_ignored) for output in outputs if output.ignored_share > max_ignored)


def _sentence(output: OutputFinding, limit: float) -> str:
    if output.ignored_share == 1:
        return f"output {output.name!r} was not compared: it {_WHY_NOT}"
    ignored = f"{output.ignored_share:.2%} of output {output.name!r}"
    return f"{ignored} is NaN in the reference or comes from NaN alone, the limit is {limit:.2%}"
