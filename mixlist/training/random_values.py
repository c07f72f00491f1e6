"""Draw the random numbers of a training: initial values of parameters, and the random inputs of each step.

Every draw depends on the seed and the step number (or the index of the parameter) alone, so that a training can
continue at any step. The metadata of a step graph holds a JSON object for each draw, its *distribution*:

- ``{"kind": "uniform", "low": 0, "high": 1}``, or ``{"kind": "uniform", "bound": 1, "mean": 0}`` for mean +- bound
- ``{"kind": "normal", "mean": 0, "std": 1}``
- ``{"kind": "bernoulli", "p": 0.5}``: 1 with probability p, else 0
- ``{"kind": "zeros"}``, ``{"kind": "ones"}``, ``{"kind": "constant", "value": v}``
- ``{"kind": "values", "values": [...]}``: these values, in the order of the flat tensor

A random input may also have ``off``: the value that switches its randomness off.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
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

    FloatArray = NDArray[np.float32 | np.float64]

Value = TypeVar("Value")
# The second number of the seed of numpy's generator. It differs for each purpose, so that random inputs, initial values
# and the order of the samples (1, in ``dataset``) are independent.
_INPUT_STREAM, _INITIAL_STREAM, _TWIN_STREAM = 2, 3, 4
PERTURBATION = np.float32(2.0**-11)  # the largest relative rounding error of float16


def draw_random_inputs(graph: StepGraph, seed: int, step: int, batch: Mapping[str, Array]) -> dict[str, Array]:
    """Return the random inputs of a step for the arrays of a batch, by name, as float32."""
    # One generator for all inputs of a step, in the order of the graph: numpy then draws independent values.
    generator = np.random.default_rng([seed, _INPUT_STREAM, step])
    random_inputs: dict[str, Array] = {}
    sizes = _symbolic_sizes(graph, batch)
    for value, distribution in graph.random_inputs:
        draw = partial(_draw, generator, _shape(value, sizes))
        random_inputs[value.name] = _call_with_distribution(draw, distribution, value.name).astype(
            np.float32, copy=False
        )
    return random_inputs


def neutral_random_inputs(graph: StepGraph, batch: Mapping[str, Array]) -> dict[str, Array]:
    """Return the random inputs that switch dropout and noise off, by name, as float32.

    These are full of ``off`` if the metadata has it, else of the mean. Inputs that are not random have the values of a
    step.
    """
    sizes = _symbolic_sizes(graph, batch)
    return {
        value.name: _call_with_distribution(
            partial(_neutral_values, _shape(value, sizes)), distribution, value.name
        ).astype(np.float32, copy=False)
        for value, distribution in graph.random_inputs
    }


def draw_initial_value(parameter: Parameter, seed: int, index: int) -> Array:
    """Return the initial value of a parameter or buffer, in its own type and shape.

    The distribution of the metadata decides. Without one, the shape does: a vector is 0, or 1 if its name ends in
    ``weight`` (the scale of a normalization); a matrix or filter is uniform from -1/sqrt(n) to 1/sqrt(n), as in
    PyTorch, where n is the product of all sizes after the first. ``index`` is the position of the parameter in the
    graph.
    """
    generator = np.random.default_rng([seed, _INITIAL_STREAM, index])
    if parameter.distribution:
        values = _call_with_distribution(
            partial(_draw, generator, parameter.shape), parameter.distribution, parameter.name
        )
    elif len(parameter.shape) < 2:
        values = np.full(parameter.shape, 1.0 if parameter.name.endswith("weight") else 0.0)
    else:
        # With a size 0, the product is 0, which has no negative power. The tensor is empty then and needs no bound.
        bound = max(1, math.prod(parameter.shape[1:])) ** -0.5
        values = generator.uniform(-bound, bound, parameter.shape)
    return values.astype(numpy_type(parameter.type))


def draw_perturbation(seed: int, size: int) -> FloatArray:
    """Return a factor for each initial parameter of a twin: 1 plus or minus PERTURBATION, as float32 [size]."""
    signs = np.random.default_rng([seed, _TWIN_STREAM]).integers(0, 2, size, np.int8).astype(np.float32)
    return np.float32(1) + PERTURBATION * (2 * signs - 1)


def _symbolic_sizes(graph: StepGraph, batch: Mapping[str, Array]) -> dict[int | str | None, int]:
    """Return the size of each symbolic axis in a batch by its name; None has that of an axis without a name."""
    sizes: dict[int | str | None, int] = {}
    for value in graph.batch_inputs:
        if value.name in batch:
            sizes |= dict(zip(value.shape or (), batch[value.name].shape, strict=False))
    # The first axis of the first array: the number of samples, whatever its name is.
    sizes[None] = next((len(array) for array in batch.values() if array.ndim), 1)
    return sizes


def _shape(value: Input, sizes: Mapping[int | str | None, int]) -> tuple[int, ...]:
    """Return the declared shape of an input, with the sizes of the batch for those that are not fixed."""
    return tuple(size if isinstance(size, int) else sizes.get(size, sizes[None]) for size in value.shape or ())


def _call_with_distribution(function: Callable[[Distribution], Value], distribution: Distribution, name: str) -> Value:
    """Return ``function(distribution)``; raise ModelError with the input's name if the distribution is invalid."""
    try:
        return function(distribution)
    except (KeyError, TypeError, ValueError):
        raise ModelError(
            f"the distribution of {name!r} in the metadata of the step graph is invalid: {dict(distribution)!r:.100}",
            hint="its kind is uniform, normal, bernoulli, zeros, ones, constant or values; its parameters are numbers",
        ) from None


def _number(distribution: Distribution, key: str, default: float | None = None) -> float:
    """Return a parameter of a distribution as a float. Raises TypeError or ValueError if it is missing or no number."""
    value = distribution.get(key, default)
    if not isinstance(value, int | float | str):
        raise TypeError
    return float(value)


def _neutral_values(shape: tuple[int, ...], distribution: Distribution) -> FloatArray:
    """Return an array of ``off``, or of the mean of a uniform, normal or bernoulli draw.

    The other kinds are not random: the array is the one of a step.
    """
    off, kind = distribution.get("off"), distribution["kind"]
    if isinstance(off, int | float):
        return np.full(shape, off, np.float32)
    # The same default values as in ``_draw``, so that this is the mean of the draws.
    if kind == "bernoulli":
        mean = _number(distribution, "p", 0.5)
    elif kind == "uniform" and "bound" not in distribution:
        mean = (_number(distribution, "low", 0.0) + _number(distribution, "high", 1.0)) / 2
    elif kind in ("uniform", "normal"):
        mean = _number(distribution, "mean", 0.0)
    else:
        return _draw(np.random.default_rng(0), shape, distribution)
    return np.full(shape, mean, np.float32)


def _draw(generator: np.random.Generator, shape: tuple[int, ...], distribution: Distribution) -> FloatArray:
    """Return an array of the shape that is drawn from a distribution, or full of its constant."""
    # Drawn as float32 where numpy can: float64 draws take twice the memory, and the inputs are float32.
    kind, mean = distribution["kind"], _number(distribution, "mean", 0.0)
    if kind == "uniform":
        low, high = _number(distribution, "low", 0.0), _number(distribution, "high", 1.0)
        if "bound" in distribution:
            bound = _number(distribution, "bound")
            low, high = mean - bound, mean + bound
        return generator.random(shape, np.float32) * np.float32(high - low) + np.float32(low)
    if kind == "normal":
        deviation = np.float32(_number(distribution, "std", 1.0))
        return generator.standard_normal(shape, np.float32) * deviation + np.float32(mean)
    if kind == "bernoulli":
        probability = np.float32(_number(distribution, "p", 0.5))
        return (generator.random(shape, np.float32) < probability).astype(np.float32)
    if kind == "values":
        return np.array(distribution["values"], np.float64).reshape(shape)
    constant = _number(distribution, "value") if kind == "constant" else {"zeros": 0.0, "ones": 1.0}[str(kind)]
    return np.full(shape, constant)
