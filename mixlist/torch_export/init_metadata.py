"""Describe initial values in the metadata ``pkg.mixlist.init.<input>`` of a step graph, instead of storing them.

A description is a JSON object:

- ``{"kind": "zeros"}``, ``{"kind": "ones"}``, ``{"kind": "constant", "value": v}``;
- ``{"kind": "uniform", "bound": b}``: drawn from -b to b, or from ``mean`` - b to ``mean`` + b;
- ``{"kind": "normal", "std": s}``: drawn around 0, or around ``mean``;
- ``{"kind": "values", "values": [...]}``: these values; for buffers only.

`mixlist.torch_export.initialization` finds how the module itself draws a parameter. If it does not know, the kind is
estimated from the current values, and the description has ``"estimated": true``. torch draws weights from two families.
The values of a parameter count as uniform if their largest distance from the mean is less than twice their standard
deviation, else as normal. (The ratio is sqrt(3) = 1.73 for many uniform draws, and grows with the number of normal
draws.) A training draws from an estimate only if it does not have the values themselves, which ``export_step`` writes
next to the step graph.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from mixlist.errors import ModelError

MAX_STORED_VALUES = 4096  # of a buffer whose values are written into the metadata
Description = dict[str, object]


def describe_parameter(values: NDArray[np.float32]) -> Description:
    """Describe the distribution of a parameter from its current values alone, as an estimate."""
    return {**describe_draws(values), "estimated": True}


def describe_draws(values: NDArray[np.float32]) -> Description:
    """Return the distribution that values, an array of any shape with at least one value, are drawn from."""
    # Biases and the weights of normalizations start as constants.
    constant = _describe_constant(values)
    if constant is not None:
        return constant
    flat = values.astype(np.float64).ravel()
    mean, deviation = float(flat.mean()), float(flat.std())
    # The mean of n draws has the deviation std / sqrt(n). If the mean is nearer to 0 than four such deviations, the
    # mean of the distribution is assumed to be 0.
    if abs(mean) < 4 * deviation / math.sqrt(flat.size):
        mean = 0.0
    largest_distance = float(np.abs(flat - mean).max())
    mean_entry = {"mean": _round_digits(mean)} if mean else {}
    # Fewer than 8 values are too few to tell the two families apart; they count as uniform.
    if largest_distance < 2 * deviation or flat.size < 8:
        # The largest of n uniform draws falls short of the bound b: it is b * n / (n + 1) on average.
        bound = largest_distance * (flat.size + 1) / flat.size
        return {"kind": "uniform", "bound": _round_digits(bound), **mean_entry}
    return {"kind": "normal", "std": _round_digits(deviation), **mean_entry}


def describe_buffer(name: str, values: NDArray[np.generic]) -> Description:
    """Return the exact initial value of a buffer.

    Raises ModelError for a buffer with more than MAX_STORED_VALUES values that are not all equal.
    """
    constant = _describe_constant(values)
    if constant is not None:
        return constant
    if values.size > MAX_STORED_VALUES:
        raise ModelError(
            f"the buffer {name} starts with {values.size} values that are not all equal, and the metadata can hold"
            f" {MAX_STORED_VALUES}",
            hint="let it start as a constant, or make it a batch input",
        )
    return {"kind": "values", "values": values.ravel().tolist()}


def _describe_constant(values: NDArray[np.generic]) -> Description | None:
    """Return the description of values that are all equal, zeros for an empty array; None for other values."""
    first = values.ravel()[0].item() if values.size else 0
    if values.size and not bool((values == first).all()):
        return None
    kinds = {0: "zeros", 1: "ones"}
    return {"kind": kinds[first]} if first in kinds else {"kind": "constant", "value": first}


def _round_digits(value: float) -> float:
    """Return a number rounded to six significant digits: more would pretend that the estimate is exact."""
    return float(f"{value:.6g}")
