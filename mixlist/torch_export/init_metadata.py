"""Describe initial values in the model's metadata instead of storing them: ``pkg.mixlist.init.<input>`` is JSON.

``{"kind": "zeros"}``, ``{"kind": "ones"}``, ``{"kind": "constant", "value": v}``, ``{"kind": "uniform", "bound": b}``
(drawn from [-b, b], or from ``mean`` - b to ``mean`` + b), ``{"kind": "normal", "std": s}`` (around 0, or ``mean``),
``{"kind": "values", "values": [...]}`` for a small tensor with a pattern (state alone).

The kinds are read off the values of an untrained module. torch draws weights from two families: a sample whose
largest distance from the middle is less than twice its deviation is uniform (exactly 1.73 times for many values), a
wider one is normal (a truncated normal is drawn as the normal of its measured deviation). For a trained module these
are its statistics, not its weights: keep those in a file of their own, as NAME -> array, for ``--init``.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from mixlist.errors import ModelError

MOST_VALUES = 4096  # of state written out in metadata
Description = dict[str, object]


def describe_parameter(values: NDArray[np.float32]) -> Description:
    """Estimate the distribution that a parameter's values come from; any shape, at least one value."""
    same = _describe_constant(values)
    if same is not None:
        return same
    flat = values.astype(np.float64).ravel()
    mean, deviation = float(flat.mean()), float(flat.std())
    if abs(mean) < 4 * deviation / math.sqrt(flat.size):  # within the error of a sample around zero
        mean = 0.0
    spread = float(np.abs(flat - mean).max())
    around = {"mean": _short(mean)} if mean else {}
    if spread < 2 * deviation or flat.size < 8:
        return {"kind": "uniform", "bound": _short(spread * (flat.size + 1) / flat.size), **around}
    return {"kind": "normal", "std": _short(deviation), **around}


def describe_state(name: str, values: NDArray[np.generic]) -> Description:
    """Return the exact initial value of a buffer. Raises ModelError for a large one that is not constant."""
    same = _describe_constant(values)
    if same is not None:
        return same
    if values.size > MOST_VALUES:
        raise ModelError(
            f"the buffer {name} starts with {values.size} different values, more than the {MOST_VALUES} metadata takes",
            hint="start it from a constant, or make it a batch input",
        )
    return {"kind": "values", "values": values.ravel().tolist()}


def _describe_constant(values: NDArray[np.generic]) -> Description | None:
    first = values.ravel()[0].item() if values.size else 0
    if values.size and not bool((values == first).all()):
        return None
    kinds = {0: "zeros", 1: "ones"}
    return {"kind": kinds[first]} if first in kinds else {"kind": "constant", "value": first}


def _short(value: float) -> float:
    return float(f"{value:.6g}")
