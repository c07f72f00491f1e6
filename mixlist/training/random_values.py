"""Draw random numbers from seed and step alone: first values of parameters, and the random inputs of a step.

A step graph's metadata say what is drawn: ``{"kind": "uniform", "low": 0, "high": 1}`` (or ``bound`` around ``mean``),
``{"kind": "normal", "mean": 0, "std": 1}``, ``{"kind": "bernoulli", "p": 0.5}``, ``zeros``, ``ones``,
``{"kind": "constant", "value": v}`` and ``{"kind": "values", "values": [...]}``; ``off`` is the value that switches a
random input off.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from mixlist.errors import ModelError
from mixlist.runtime.array_casts import numpy_type
from mixlist.training.step_graph import Distribution, Parameter, StepGraph

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mixlist.runtime.inputs import Input
    from mixlist.runtime.session import Array

    Floats = NDArray[np.float32 | np.float64]

Result = TypeVar("Result")
_NOISE, _INIT = 2, 3  # streams that do not meet; the order of batches is stream 1


def draw_random_inputs(graph: StepGraph, seed: int, step: int, rows: int) -> dict[str, Array]:
    """Return the random inputs of a step."""
    random = np.random.default_rng([seed, _NOISE, step])
    return {
        each.name: _read(rule, each.name, partial(_draw, random, _shape(each, rows))).astype(np.float32, copy=False)
        for each, rule in graph.random_inputs
    }


def neutral_random_inputs(graph: StepGraph, rows: int) -> dict[str, Array]:
    """Return the random inputs that switch dropout and noise off, for evaluation: ``off``, else the mean."""
    return {
        each.name: np.full(_shape(each, rows), _read(rule, each.name, _off), np.float32)
        for each, rule in graph.random_inputs
    }


def draw_initial_value(parameter: Parameter, seed: int, index: int) -> Array:
    """Return the first value of a parameter or buffer, in its own type: as its metadata says, else by its shape.

    By shape: 0, or 1 for a vector whose name ends in ``weight``; for matrices and filters uniform in +-1/sqrt(values
    per output), as PyTorch does.
    """
    random = np.random.default_rng([seed, _INIT, index])
    if parameter.init:
        values = _read(parameter.init, parameter.name, partial(_draw, random, parameter.shape))
    elif len(parameter.shape) < 2:
        values = np.full(parameter.shape, 1.0 if parameter.name.endswith("weight") else 0.0)
    else:
        bound = max(1, math.prod(parameter.shape[1:])) ** -0.5
        values = random.uniform(-bound, bound, parameter.shape)
    return values.astype(numpy_type(parameter.type))


def _shape(each: Input, rows: int) -> tuple[int, ...]:
    return tuple(size if isinstance(size, int) else rows for size in each.shape or ())


def _read(rule: Distribution, name: str, reader: Callable[[Distribution], Result]) -> Result:
    """Return what ``reader`` makes of the rule of an input; raises ModelError where it cannot read the rule."""
    try:
        return reader(rule)
    except (KeyError, TypeError, ValueError):
        raise ModelError(
            f"how the step graph's {name!r} is to be drawn cannot be read: {dict(rule)!r:.100}",
            hint="its kind is uniform, normal, bernoulli, zeros, ones, constant or values, with numbers",
        ) from None


def _number(rule: Distribution, name: str, default: float | None = None) -> float:
    value = rule.get(name, default)
    if not isinstance(value, int | float | str):
        raise TypeError
    return float(value)


def _off(rule: Distribution) -> float:
    off, kind = rule.get("off"), rule.get("kind")
    if isinstance(off, int | float):
        return off
    if kind == "uniform" and "bound" not in rule:
        return (_number(rule, "low", 0.0) + _number(rule, "high", 1.0)) / 2
    return _number(rule, "p", 0.5) if kind == "bernoulli" else _number(rule, "mean", 0.0)


def _draw(random: np.random.Generator, shape: tuple[int, ...], rule: Distribution) -> Floats:
    kind, mean = rule["kind"], _number(rule, "mean", 0.0)
    if kind == "uniform":
        low, high = _number(rule, "low", 0.0), _number(rule, "high", 1.0)
        if "bound" in rule:
            low, high = mean - _number(rule, "bound"), mean + _number(rule, "bound")
        return random.random(shape, np.float32) * np.float32(high - low) + np.float32(low)
    if kind == "normal":
        return random.standard_normal(shape, np.float32) * np.float32(_number(rule, "std", 1.0)) + np.float32(mean)
    if kind == "bernoulli":
        return (random.random(shape, np.float32) < np.float32(_number(rule, "p", 0.5))).astype(np.float32)
    if kind == "values":
        return np.array(rule["values"], np.float64).reshape(shape)
    value = _number(rule, "value") if kind == "constant" else {"zeros": 0.0, "ones": 1.0}[str(kind)]
    return np.full(shape, value)
