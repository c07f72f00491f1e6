"""Batches of data for a model: read from files, given as arrays, or made at random; each is read when it is its turn.

A batch, a *feed*, is a dict of input name -> array of the declared type, in the model's order; a sequence is a list of
arrays. bfloat16 arrays are those of ml_dtypes, strings are arrays of objects.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mixlist.diagnostics import Diagnostic, warning
from mixlist.errors import UsageError
from mixlist.ops import types
from mixlist.ops.low_precision import LOW_TYPES
from mixlist.runtime import random_feeds
from mixlist.runtime.array_casts import cast_array
from mixlist.runtime.batch_files import BatchSource, find_batch_sources
from mixlist.runtime.inputs import Input, make_feed, model_inputs

if TYPE_CHECKING:
    from onnx import ModelProto

    from mixlist.runtime.session import Array, Feed


class Batches:
    """The batches of a check or benchmark, in order; every iteration reads them anew.

    Iterating raises FileError for what cannot be read and UsageError for what does not fit the model.
    """

    def __init__(
        self, inputs: Sequence[Input], sources: Sequence[BatchSource], warnings: Iterable[Diagnostic] = ()
    ) -> None:
        self.inputs = tuple(inputs)
        self._sources = tuple(sources)
        self._warnings = tuple(warnings)
        self._losses: dict[str, Diagnostic] = {}  # the first warning about values that a cast changed, by input

    def __len__(self) -> int:
        return len(self._sources)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for source in self._sources:
            feed, losses = make_feed(source.read(), self.inputs, source.name)
            for name, loss in losses.items():
                message = f"input {name!r}: {loss} (reported once for this input)"
                self._losses.setdefault(name, warning("ML602", message, path=source.name))
            yield feed

    def select(self, indices: Iterable[int]) -> Batches:
        """Return the batches at these positions."""
        return Batches(self.inputs, [self._sources[at] for at in indices], self._warnings)

    def names(self) -> tuple[str, ...]:
        """Return what messages call each batch: its file, or ``random 0``."""
        return tuple(source.name for source in self._sources)

    @property
    def warnings(self) -> tuple[Diagnostic, ...]:
        """Return the warnings about the data read so far: sizes assumed (ML601), values that a cast changed (ML602)."""
        return (*self._warnings, *self._losses.values())


def read_batches(paths: Sequence[str | os.PathLike[str]], proto: ModelProto) -> Batches:
    """Return batches from files and directories in the order given (see ``batch_files``).

    Raises FileError for a path that is no data.
    """
    inputs = model_inputs(proto)
    return Batches(inputs, [source for path in paths for source in find_batch_sources(Path(path), inputs)])


def make_random_batches(
    proto: ModelProto,
    count: int,
    seed: int = 0,
    dims: Mapping[str, int] | None = None,
    ranges: Mapping[str, random_feeds.Bounds] | None = None,
) -> Batches:
    """Return ``count`` batches of random values; the same arguments give the same values. See ``random_feeds``.

    ``dims``: sizes by symbolic name, ``input.axis`` or a pattern; ``ranges``: smallest and largest value by input.
    Raises UsageError for sizes that are missing and names that the model does not have.
    """
    generator = random_feeds.plan_random_feeds(proto, dims or {}, ranges or {})
    batches = [BatchSource(f"random {at}", partial(generator.feed, seed, at)) for at in range(count)]
    return Batches(model_inputs(proto), batches, generator.warnings)


def as_batches(data: object, proto: ModelProto) -> Batches:
    """Return the batches that a caller of the Python API means: Batches, one or several paths, or one or several feeds.

    Raises UsageError for anything else, and for no batches at all.
    """
    if isinstance(data, Batches):
        return data
    if isinstance(data, str | os.PathLike | Mapping):
        data = [data]
    items = list(data) if isinstance(data, Iterable) else None
    if items and all(isinstance(item, str | os.PathLike) for item in items):
        return read_batches(items, proto)
    if items and all(isinstance(item, Mapping) for item in items):
        return Batches(
            model_inputs(proto), [BatchSource(f"batch {at}", partial(dict, feed)) for at, feed in enumerate(items)]
        )
    problem = "empty" if items == [] else f"a {type(data).__name__}"
    raise UsageError(f"the data is {problem}", hint="give paths, or dicts of arrays by input name")


def as_float32(feed: Feed, inputs: Sequence[Input]) -> Feed:
    """Return the feed for a graph whose low-precision inputs are float32 now: rounded to the declared type.

    ``inputs`` are those of the model before it was raised.
    """
    low = {each.name: types.element(each.type) for each in inputs if types.element(each.type) in LOW_TYPES}
    return {name: _raised(value, low[name]) if name in low else value for name, value in feed.items()}


def _raised(value: Any, elem: int) -> Any:  # an array, a sequence or None
    import numpy as np

    if value is None or isinstance(value, list | tuple):
        return None if value is None else [_raised(part, elem) for part in value]
    return cast_array(np.asarray(value), elem)[0].astype(np.float32)


def has_empty_array(feed: Feed) -> bool:
    """Return whether an array of a batch, or of a sequence in it, has no elements."""
    return any(array.size == 0 for array in arrays_of(feed))


def arrays_of(feed: Feed) -> Iterator[Array]:
    """Yield the arrays of a batch, those of sequences too."""
    waiting: list[Any] = list(feed.values())
    while waiting:
        value = waiting.pop()
        if isinstance(value, list | tuple):
            waiting.extend(value)
        elif value is not None:
            yield value


def digest(feeds: Iterable[Mapping[str, object]]) -> str:
    """Return the SHA-256 of feeds, or of other arrays by name. The order of names is ignored."""
    sha = hashlib.sha256()
    for feed in feeds:
        for name in sorted(feed):
            sha.update(name.encode())
            for part in _bytes(feed[name]):
                sha.update(part)
    return sha.hexdigest()


def _bytes(value: object) -> Iterator[bytes]:
    import numpy as np

    if value is None or isinstance(value, list | tuple):
        yield f"{None if value is None else len(value)}".encode()
        for part in value or ():
            yield from _bytes(part)
        return
    array = np.asarray(value)
    yield f"{array.dtype} {array.shape}".encode()
    yield repr(array.tolist()).encode() if array.dtype == object else np.ascontiguousarray(array).tobytes()
