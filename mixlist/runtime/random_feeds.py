"""Make random data for a model that has none of its own: it shows that a model runs, not what real data would show.

Floats are standard normal; integers are 0 or 1, which is in range wherever an integer is an index, a token number or a
mask; bools are even; strings are short words. ``ranges`` gives an input other bounds, both included: floats are then
uniform. A size that the model leaves open is looked up by ``input.axis``, then by its symbolic name. One that is not
given is 1 if it is the first axis of some input, where a batch is counted, and else an error: a picture or a sentence
of size 1 would check nothing.

An initializer that is also an input keeps its default unless ``ranges`` or ``dims`` name it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mixlist.errors import UsageError
from mixlist.lists.suggestions import did_you_mean
from mixlist.ops import types
from mixlist.runtime.casts import BOOL, STRING, integer_bounds, numpy_type
from mixlist.runtime.inputs import Input

if TYPE_CHECKING:
    import numpy as np

    from mixlist.runtime.session import Array, Feed

_WORDS = ("a", "of", "mixed", "list", "tensor", "graph", "low", "high", "word", "", "Ähre", "7")
_NORMAL = frozenset({types.FLOAT, types.FLOAT16, types.BFLOAT16, types.DOUBLE, 17, 18, 19, 20})  # ..., float8
_COMPLEX = frozenset({14, 15})
_WHOLE = frozenset({2, 3, 4, 5, 6, 7, 12, 13, 21, 22, 25, 26})  # integers of 2 to 64 bits
_OWN = "give data of your own with --data"

Bounds = tuple[float, float]


@dataclass(frozen=True)
class Plan:
    """Inputs with their shapes and bounds; ``notes`` tell what was assumed."""

    entries: tuple[tuple[Input, tuple[int, ...], Bounds | None], ...]
    notes: tuple[str, ...]

    def feed(self, seed: int, batch: int) -> Feed:
        """Return the values of one batch; they do not depend on the other batches."""
        from numpy.random import default_rng

        return {
            each.name: _values(default_rng([seed, batch, at]), types.element(each.type), shape, bounds)
            for at, (each, shape, bounds) in enumerate(self.entries)
        }


def plan(inputs: Sequence[Input], dims: Mapping[str, int], ranges: Mapping[str, Bounds]) -> Plan:
    """Decide every shape and range. Raises UsageError that names all missing sizes, or a name that does not exist."""
    check_names(inputs, dims, ranges)
    named = {key.rpartition(".")[0] for key in dims}
    wanted = [i for i in inputs if not i.optional or i.name in ranges or i.name in named]
    for each in wanted:
        _check_kind(each, ranges.get(each.name))
    first = {each.shape[0] for each in wanted if each.shape}
    entries: list[tuple[Input, tuple[int, ...], Bounds | None]] = []
    missing: list[str] = []
    assumed: list[str] = []
    for each in wanted:
        shape = []
        for axis, size in enumerate(each.shape or ()):
            place = f"{each.name}.{axis}"
            given = size if isinstance(size, int) else dims.get(place, dims.get(size) if size else None)
            if given is None:
                called = str(size or place)
                ones = axis == 0 or (size is not None and size in first)
                (assumed if ones else missing).append(called)
                given = 1
            shape.append(given)
        entries.append((each, tuple(shape), ranges.get(each.name)))
    if missing:
        sizes = list(dict.fromkeys(missing))
        raise UsageError(
            f"the model leaves sizes open that random data needs: {', '.join(sizes)}",
            hint="give them, for example: " + " ".join(f"--dim {size}=16" for size in sizes[:6]),
        )
    return Plan(tuple(entries), tuple(f"size {size} is not given: 1 is used" for size in dict.fromkeys(assumed)))


def check_names(inputs: Sequence[Input], dims: Mapping[str, int], ranges: Mapping[str, Bounds]) -> None:
    """Raises UsageError for a size or an input that the model does not have, and for one that it fixes otherwise."""
    sizes: dict[str, int | str | None] = {}
    for each in inputs:
        for axis, size in enumerate(each.shape or ()):
            sizes[f"{each.name}.{axis}"] = size
            if isinstance(size, str):
                sizes[size] = None
    for name, wanted in dims.items():
        if name not in sizes:
            free = ", ".join(called for called, size in sizes.items() if size is None)
            hint = did_you_mean(name, sizes) or f"sizes are called {free or 'nothing: all are given by the model'}"
            raise UsageError(f"no input has a size called {name!r}", hint=hint)
        fixed = sizes[name]
        if isinstance(fixed, int) and fixed != wanted:
            raise UsageError(f"{name} is {fixed} in the model, not {wanted}", hint=f"leave --dim {name} out")
    names = [each.name for each in inputs]
    for name in ranges:
        if name not in names:
            raise UsageError(f"the model has no input {name!r}", hint=did_you_mean(name, names) or f"it has {names}")


def _check_kind(wanted: Input, bounds: Bounds | None) -> None:
    elem = wanted.type
    if isinstance(elem, tuple) or elem not in _NORMAL | _COMPLEX | _WHOLE | {BOOL, STRING}:
        raise UsageError(f"input {wanted} cannot be made at random", hint=_OWN)
    if wanted.shape is None:
        raise UsageError(f"input {wanted} has no shape to make random data of", hint=_OWN)
    if bounds is None:
        return
    low, high = bounds
    if elem in (STRING, *_COMPLEX):
        raise UsageError(f"input {wanted} has no range: its values are not ordered", hint="leave --range out")
    import numpy as np

    option = f"--range {wanted.name}={low}:{high}"
    if elem in _NORMAL:
        with np.errstate(over="ignore"):
            ends = np.array(bounds, np.float64).astype(numpy_type(elem))
        if not np.isfinite(ends).all():
            raise UsageError(f"{option} goes beyond {types.type_name(elem)}", hint="give bounds that the type can hold")
        return
    least, most = integer_bounds(numpy_type(elem))
    if low != int(low) or high != int(high) or low < least or high > most:
        hint = f"give whole numbers from {least} to {most}"
        raise UsageError(f"{option} does not fit {types.type_name(elem)}", hint=hint)


def _floats(rng: np.random.Generator, shape: tuple[int, ...], bounds: Bounds | None) -> Array:
    if bounds is None:
        return rng.standard_normal(shape)
    part = rng.random(shape)
    return float(bounds[0]) * (1 - part) + float(bounds[1]) * part  # high - low could overflow


def _values(rng: np.random.Generator, elem: int, shape: tuple[int, ...], bounds: Bounds | None) -> Array:
    import numpy as np

    if elem == STRING:
        return np.asarray(np.take(np.array(_WORDS, object), rng.integers(0, len(_WORDS), shape)), object)
    dtype = numpy_type(elem)
    if elem in _NORMAL:
        return np.asarray(_floats(rng, shape, bounds)).astype(dtype)
    if elem in _COMPLEX:
        return np.asarray(rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)
    low, high = (0, 1) if bounds is None else (int(bounds[0]), int(bounds[1]))
    wide = np.uint64 if high > np.iinfo(np.int64).max else np.int64
    return np.asarray(rng.integers(low, high, shape, dtype=wide, endpoint=True)).astype(dtype)
