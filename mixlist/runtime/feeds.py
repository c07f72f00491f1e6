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
from typing import Any

from mixlist.errors import UsageError
from mixlist.ops import types
from mixlist.ops.low_precision import LOW
from mixlist.runtime import random_feeds
from mixlist.runtime.data_files import Source, sources
from mixlist.runtime.inputs import Input, cast, fit, model_inputs

__all__ = ["Batches", "Feed", "Input", "as_batches", "as_float32", "model_inputs", "random_batches", "read_batches"]

Feed = dict[str, Any]


class Batches:
    """The batches of a check or benchmark, in order; every iteration reads them anew.

    Iterating raises FileError for what cannot be read and UsageError for what does not fit the model.
    """

    def __init__(self, inputs: Sequence[Input], sources: Sequence[Source], notes: Iterable[str] = ()) -> None:
        self.inputs = tuple(inputs)
        self._sources = tuple(sources)
        self._notes = list(notes)
        self._told: set[str] = set()  # inputs of which a loss has been told

    def __len__(self) -> int:
        return len(self._sources)

    def __iter__(self) -> Iterator[Feed]:
        for source in self._sources:
            feed, lost = fit(source.read(), self.inputs, source.name)
            for name, what in lost.items():
                if name not in self._told:
                    self._told.add(name)
                    self._notes.append(f"{source.name}: input {name!r}: {what} (told once for this input)")
            yield feed

    def names(self) -> tuple[str, ...]:
        """What to call each batch in messages: its file, or ``random 0``."""
        return tuple(source.name for source in self._sources)

    @property
    def notes(self) -> tuple[str, ...]:
        """What to know of the data, as far as it has been read: sizes assumed, values that a cast changed."""
        return tuple(self._notes)


def read_batches(paths: Sequence[str | os.PathLike[str]], proto: Any) -> Batches:
    """Batches from files and directories in the order given; their forms are those of ``datafiles.sources``.

    Raises FileError for a path that is no data.
    """
    inputs = model_inputs(proto)
    return Batches(inputs, [source for path in paths for source in sources(Path(path), inputs)])


def random_batches(
    proto: Any,
    count: int,
    seed: int = 0,
    dims: Mapping[str, int] | None = None,
    ranges: Mapping[str, tuple[float, float]] | None = None,
) -> Batches:
    """``count`` batches of random values; the same arguments give the same values. See ``random_feeds``.

    ``dims``: sizes by symbolic name or ``input.axis``; ``ranges``: smallest and largest value by input. Raises
    UsageError for sizes that are missing and names that the model does not have.
    """
    inputs = model_inputs(proto)
    chosen = random_feeds.plan(inputs, dims or {}, ranges or {})
    made = [Source(f"random {at}", partial(chosen.feed, seed, at)) for at in range(count)]
    return Batches(inputs, made, chosen.notes)


def as_batches(data: Any, proto: Any) -> Batches:
    """What a caller of the Python API may give: Batches, a path or several, a feed or several (arrays by input name).

    Raises UsageError for anything else, and for no batches at all.
    """
    if isinstance(data, Batches):
        return data
    if isinstance(data, str | os.PathLike | Mapping):
        data = [data]
    items = list(data) if isinstance(data, Iterable) else None
    paths = [item for item in items or () if isinstance(item, str | os.PathLike)]
    given = [item for item in items or () if isinstance(item, Mapping)]
    if paths and paths == items:
        return read_batches(paths, proto)
    if given and len(given) == len(items or ()):
        return Batches(model_inputs(proto), [_held(at, feed) for at, feed in enumerate(given)])
    what = "empty" if items == [] else f"a {type(data).__name__}"
    raise UsageError(f"the data is {what}", hint="give paths, or dicts of arrays by input name")


def _held(at: int, feed: Mapping[str, Any]) -> Source:
    return Source(f"batch {at}", lambda: feed)


def as_float32(feed: Mapping[str, Any], inputs: Sequence[Input]) -> Feed:
    """The feed for a graph whose low-precision inputs are float32 now: rounded to the declared type and raised again.

    ``inputs`` are those of the model before it was raised.
    """
    low = {each.name: types.element(each.type) for each in inputs if types.element(each.type) in LOW}
    return {name: _raised(value, low[name]) if name in low else value for name, value in feed.items()}


def _raised(value: Any, elem: int) -> Any:
    import numpy as np

    if value is None or isinstance(value, list | tuple):
        return None if value is None else [_raised(part, elem) for part in value]
    return cast(np.asarray(value), elem)[0].astype(np.float32)


def digest(feeds: Iterable[Mapping[str, Any]]) -> str:
    """A SHA-256 of feeds, or of other arrays by name: what results depend on. The order of names does not count."""
    found = hashlib.sha256()
    for feed in feeds:
        for name in sorted(feed):
            found.update(name.encode())
            _add(feed[name], found)
    return found.hexdigest()


def _add(value: Any, found: Any) -> None:
    import numpy as np

    if value is None or isinstance(value, list | tuple):
        found.update(f"{None if value is None else len(value)}".encode())
        for part in value or ():
            _add(part, found)
        return
    array = np.asarray(value)
    found.update(f"{array.dtype} {array.shape}".encode())
    found.update(repr(array.tolist()).encode() if array.dtype == object else np.ascontiguousarray(array).tobytes())
