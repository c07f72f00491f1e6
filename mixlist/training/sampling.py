"""Random numbers from seed and step alone: first values of parameters, and the random inputs of a step.

What a step graph's metadata says is drawn: ``{"kind": "uniform", "low": 0, "high": 1}`` (or ``bound`` around ``mean``),
``{"kind": "normal", "mean": 0, "std": 1}``, ``{"kind": "bernoulli", "p": 0.5}``, ``zeros``, ``ones``,
``{"kind": "constant", "value": v}`` and ``{"kind": "values", "values": [...]}``; ``off`` is the value that switches a
random input off.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mixlist.errors import ModelError
from mixlist.training.stepgraph import Parameter, StepGraph

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mixlist.runtime.inputs import Input

    Array = NDArray[Any]

_NOISE, _INIT = 2, 3  # streams that do not meet; the order of batches is stream 1


def noise(graph: StepGraph, seed: int, step: int, rows: int) -> dict[str, Array]:
    """The random inputs of a step."""
    import numpy as np

    if not graph.random:
        return {}
    random = np.random.default_rng([seed, _NOISE, step])
    drawn = {given.name: _drawn(random, what, _rows(given, rows), given.name) for given, what in graph.random}
    return {name: value.astype(np.float32, copy=False) for name, value in drawn.items()}


def no_noise(graph: StepGraph, rows: int) -> dict[str, Array]:
    """The random inputs that switch dropout and the like off, for evaluation: ``off``, else the mean of the draw."""
    import numpy as np

    found = {}
    for given, what in graph.random:
        off = what.get("off")
        if not isinstance(off, int | float):
            off = _mean(what)
        found[given.name] = np.full(_rows(given, rows), off, np.float32)
    return found


def _mean(what: Mapping[str, Any]) -> float:
    if what.get("kind") == "uniform" and "bound" not in what:
        return (float(what.get("low", 0.0)) + float(what.get("high", 1.0))) / 2
    return float(what.get("p", 0.5) if what.get("kind") == "bernoulli" else what.get("mean", 0.0))


def initial(parameter: Parameter, seed: int, index: int) -> Array:
    """The first value of a parameter or buffer, in its own type: as its metadata says, else by its shape.

    By shape: 0, or 1 for a vector whose name ends in ``weight``; for matrices and filters uniform in +-1/sqrt(values
    per output), as PyTorch does.
    """
    import numpy as np

    from mixlist.runtime.casts import numpy_type

    random = np.random.default_rng([seed, _INIT, index])
    if parameter.init:
        made = _drawn(random, parameter.init, parameter.shape, parameter.name)
    elif len(parameter.shape) < 2:
        made = np.full(parameter.shape, 1.0 if parameter.name.endswith("weight") else 0.0)
    else:
        bound = max(1, math.prod(parameter.shape[1:])) ** -0.5
        made = random.uniform(-bound, bound, parameter.shape)
    return made.astype(numpy_type(parameter.type))


def _rows(given: Input, rows: int) -> tuple[int, ...]:
    return tuple(d if isinstance(d, int) else rows for d in given.shape or ())


def _drawn(random: Any, what: Mapping[str, Any], shape: tuple[int, ...], name: str) -> Array:
    try:
        return _of_kind(random, what, shape)
    except (KeyError, TypeError, ValueError):
        raise ModelError(
            f"how the step graph's {name!r} is to be drawn cannot be read: {dict(what)!r:.100}",
            hint="its kind is uniform, normal, bernoulli, zeros, ones, constant or values, with numbers",
        ) from None


def _of_kind(random: Any, what: Mapping[str, Any], shape: tuple[int, ...]) -> Array:
    import numpy as np

    kind, mean = what["kind"], float(what.get("mean", 0.0))
    made: Array
    if kind == "uniform":
        low, high = float(what.get("low", 0.0)), float(what.get("high", 1.0))
        if "bound" in what:
            low, high = mean - float(what["bound"]), mean + float(what["bound"])
        made = random.random(shape, np.float32) * np.float32(high - low) + np.float32(low)
    elif kind == "normal":
        made = random.standard_normal(shape, np.float32) * np.float32(what.get("std", 1.0)) + np.float32(mean)
    elif kind == "bernoulli":
        made = (random.random(shape, np.float32) < np.float32(what.get("p", 0.5))).astype(np.float32)
    elif kind == "values":
        made = np.array(what["values"], np.float64).reshape(shape)
    else:
        constants: dict[str, Any] = {"zeros": 0.0, "ones": 1.0, "constant": what.get("value")}
        made = np.full(shape, float(constants[kind]))
    return made
