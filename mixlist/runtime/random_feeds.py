"""Make random data for a model that has none of its own: it shows that a model runs, not what real data would show.

Floats are standard normal; bools are even; strings are short words. ``ranges`` gives an input other bounds, both
included: floats are then uniform. An initializer that is also an input keeps its default unless ``ranges`` or ``dims``
name it.

Rule S8.23: Random integers have the range that the graph shows for their input, and are 0 or 1 where it shows none.

Rule S8.24: A size that the model leaves open comes from ``INPUT.AXIS``, else from its symbolic name, else from the
first pattern that matches the one of these that messages show. A size that is not given is 1 if it is the first axis
of some input, where a batch is counted, and else an error: a picture or a sentence of size 1 would check nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import prod
from typing import TYPE_CHECKING, NoReturn

from mixlist.diagnostics import Diagnostic, warning
from mixlist.errors import UsageError
from mixlist.lists.suggestions import did_you_mean
from mixlist.ops import types
from mixlist.patterns.integer_inputs import IntegerRange, find_integer_ranges
from mixlist.runtime.array_casts import BOOL, STRING, integer_bounds, numpy_type
from mixlist.runtime.available_memory import format_gigabytes
from mixlist.runtime.inputs import Input, model_inputs

if TYPE_CHECKING:
    import numpy as np
    from onnx import ModelProto

    from mixlist.runtime.session import Array, Feed

_WORDS = ("a", "of", "mixed", "list", "tensor", "graph", "low", "high", "word", "", "Ähre", "7")
_NORMAL = frozenset({types.FLOAT, types.FLOAT16, types.BFLOAT16, types.DOUBLE, 17, 18, 19, 20})  # ..., float8
_COMPLEX = frozenset({14, 15})
LARGEST = 10**9  # bytes of one batch; numpy draws floats in float64 first. Real batches take megabytes
_OWN = "give data of your own with --data"
_CHANGE = "--range gives others"

Bounds = tuple[float, float]


@dataclass(frozen=True)
class RandomFeedPlan:
    """The shapes and bounds of inputs; ``warnings`` say what was assumed (ML601)."""

    entries: tuple[tuple[Input, tuple[int, ...], Bounds | None], ...]
    warnings: tuple[Diagnostic, ...]

    def feed(self, seed: int, batch: int) -> Feed:
        """Return the values of one batch; they do not depend on the other batches."""
        from numpy.random import default_rng

        return {
            each.name: _values(default_rng([seed, batch, at]), types.element(each.type), shape, bounds)
            for at, (each, shape, bounds) in enumerate(self.entries)
        }


def plan_random_feeds(proto: ModelProto, dims: Mapping[str, int], ranges: Mapping[str, Bounds]) -> RandomFeedPlan:
    """Decide every shape and range. Raises UsageError that names all missing sizes, or a name that does not exist."""
    inputs = model_inputs(proto)
    dims = expand_sizes(inputs, dims)
    _check_ranges(inputs, ranges)
    named = {key.rpartition(".")[0] for key in dims}
    wanted = [i for i in inputs if not i.optional or i.name in ranges or i.name in named]
    for each in wanted:
        _check_kind(each, ranges.get(each.name))
    shapes, warnings = _shapes(wanted, dims)
    _check_sizes(wanted, shapes)
    bounds = dict(ranges)
    open_integers = [i for i in wanted if i.type in types.INTEGERS and i.name not in ranges]
    if open_integers:
        found = find_integer_ranges(proto, shapes)
        for each in open_integers:
            bounds[each.name], assumption = _integer_bounds(each, found.get(each.name))
            warnings.append(assumption)
    return RandomFeedPlan(tuple([(each, shapes[each.name], bounds.get(each.name)) for each in wanted]), tuple(warnings))


def _shapes(wanted: Sequence[Input], dims: Mapping[str, int]) -> tuple[dict[str, tuple[int, ...]], list[Diagnostic]]:
    """Return the shape of each input, and warnings about assumed sizes. Raises UsageError that names all missing."""
    first = {each.shape[0] for each in wanted if each.shape}
    shapes: dict[str, tuple[int, ...]] = {}
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
        shapes[each.name] = tuple(shape)
    if missing:
        sizes = list(dict.fromkeys(missing))
        raise UsageError(
            f"the model leaves sizes open that random data needs: {', '.join(sizes)}",
            hint="give them, for example: " + " ".join(f"--dim {size}=16" for size in sizes[:6]),
        )
    return shapes, [
        warning("ML601", f"size {size} is not given: 1 is used", hint=f"--dim {size}=N gives it")
        for size in dict.fromkeys(assumed)
    ]


def _integer_bounds(wanted: Input, found: IntegerRange | None) -> tuple[Bounds, Diagnostic]:
    """Return the bounds of random integers that no option gives, and a warning that says why."""
    if found is None:
        message = f"input {wanted.name!r}: integers 0 or 1, because the graph shows no range"
        return (0, 1), warning("ML601", message, hint=_CHANGE)
    least, most = integer_bounds(numpy_type(types.element(wanted.type)))
    low, high = max(found.low, least), min(found.high, most)
    shown = "0 or 1" if (low, high) == (0, 1) else f"from {low} to {high}"
    message = f"input {wanted.name!r}: integers {shown}, because {found.reason}"
    return (low, high), warning("ML601", message, hint=_CHANGE)


def expand_sizes(inputs: Sequence[Input], dims: Mapping[str, int]) -> dict[str, int]:
    """Return the sizes that ``dims`` gives by exact names: a pattern is replaced by the open sizes that it matches.

    An exact name wins over a pattern, and of patterns the first that matches wins. Raises UsageError for a name or a
    pattern that no open size has, and for a size that the model fixes otherwise.
    """
    sizes: dict[str, int | str | None] = {}
    for each in inputs:
        for axis, size in enumerate(each.shape or ()):
            sizes[f"{each.name}.{axis}"] = size
            if isinstance(size, str):
                sizes[size] = None
    is_open = [called for called, size in sizes.items() if size is None]
    given = {name: wanted for name, wanted in dims.items() if name in sizes}
    for name, wanted in dims.items():
        if name not in sizes:
            matches = [called for called in is_open if _matches(name, called)]
            if not matches:
                _refuse_size(name, is_open, sizes)
            given.update({called: wanted for called in matches if called not in given})
        fixed = sizes.get(name)
        if isinstance(fixed, int) and fixed != wanted:
            raise UsageError(f"{name} is {fixed} in the model, not {wanted}", hint=f"leave --dim {name} out")
    return given


def _matches(pattern: str, name: str) -> bool:
    """Return whether a name matches, where only ``*`` and ``?`` have a meaning: other characters occur in names."""
    return fnmatchcase(name, pattern.replace("[", "[[]"))


def _refuse_size(name: str, is_open: Sequence[str], sizes: Iterable[str]) -> NoReturn:
    what = "size that matches" if any(sign in name for sign in "*?") else "size called"
    listed = f"sizes are called {', '.join(is_open) or 'nothing: all are given by the model'}"
    near = did_you_mean(name, sizes) if what == "size called" else None
    raise UsageError(f"no input has a {what} {name!r}", hint=near or listed)


def _check_ranges(inputs: Sequence[Input], ranges: Mapping[str, Bounds]) -> None:
    names = [each.name for each in inputs]
    for name in ranges:
        if name not in names:
            raise UsageError(f"the model has no input {name!r}", hint=did_you_mean(name, names) or f"it has {names}")


def _check_kind(wanted: Input, bounds: Bounds | None) -> None:
    elem = wanted.type
    if isinstance(elem, tuple) or elem not in _NORMAL | _COMPLEX | types.INTEGERS | {BOOL, STRING}:
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


def _check_sizes(wanted: Sequence[Input], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise UsageError, which names the largest input, if one batch takes more than ``LARGEST`` bytes."""
    sizes = {each: prod(shapes[each.name]) * _item_size(types.element(each.type)) for each in wanted}
    total = sum(sizes.values())
    if total > LARGEST:
        largest = max(sizes, key=lambda each: sizes[each])
        others = f" and {format_gigabytes(total)} for all inputs" if total > sizes[largest] else ""
        raise UsageError(
            f"one batch of random data takes {format_gigabytes(sizes[largest])} for input {largest}{others},"
            f" more than the {LARGEST // 10**9} GB that mixlist makes",
            hint=f"{_OWN}, or give open sizes smaller values with --dim",
        )


def _item_size(elem: int) -> int:
    return 8 if elem == STRING else numpy_type(elem).itemsize


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
