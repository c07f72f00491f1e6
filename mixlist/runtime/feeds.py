"""Batches of data for a model: read from files, passed as arrays, or random. An iteration reads one batch at a time.

A batch is a *feed*: a dict from input names to arrays of the declared types, in the order of the inputs. The value of a
sequence input is a list of arrays. bfloat16 arrays have the dtype of ml_dtypes. Strings are arrays of objects.
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
from mixlist.ops import dtypes
from mixlist.ops.low_precision import LOW_TYPES
from mixlist.runtime import random_feeds
from mixlist.runtime.array_casts import cast_array
from mixlist.runtime.batch_files import BatchSource, find_batch_sources
from mixlist.runtime.inputs import Input, make_feed, model_inputs

if TYPE_CHECKING:
    from onnx import ModelProto

    from mixlist.runtime.session import Array, Feed


class Batches:
    """The batches of a check or benchmark, in their order. Every iteration reads them again.

    An iteration raises FileError for a file that cannot be read, and UsageError for data that does not fit the model.
    """

    def __init__(
        self, inputs: Sequence[Input], sources: Sequence[BatchSource], warnings: Iterable[Diagnostic] = ()
    ) -> None:
        self.inputs = tuple(inputs)
        self._sources = tuple(sources)
        self._warnings = tuple(warnings)
        self._loss_warnings: dict[str, Diagnostic] = {}  # by input name: the first batch whose values a cast changed

    def __len__(self) -> int:
        return len(self._sources)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for source in self._sources:
            # Read one batch at a time: together they may not fit into memory.
            feed, losses = make_feed(source.read(), self.inputs, source.name)
            for name, loss in losses.items():
                message = f"input {name!r}: {loss} (reported once for this input)"
                self._loss_warnings.setdefault(name, warning("ML602", message, path=source.name))
            yield feed

    def select(self, indices: Iterable[int]) -> Batches:
        """Return the batches at these positions."""
        return Batches(self.inputs, [self._sources[index] for index in indices], self._warnings)

    def names(self) -> tuple[str, ...]:
        """Return the names of the batches in messages: the path of the file, ``batch 0``, or ``random 0``."""
        return tuple(source.name for source in self._sources)

    @property
    def warnings(self) -> tuple[Diagnostic, ...]:
        """Return the warnings about the data read so far: assumed sizes (ML601), values that casts changed (ML602)."""
        return (*self._warnings, *self._loss_warnings.values())


def read_batches(paths: Sequence[str | os.PathLike[str]], proto: ModelProto) -> Batches:
    """Return the batches in files and directories, in the order of the paths (see ``batch_files``).

    Raises FileError for a path that is not data.
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
    """Return ``count`` batches of random values (see ``random_feeds``). The same arguments give the same values.

    dims: sizes by symbolic name, ``input.axis``, or pattern.
    ranges: the smallest and the largest value by input name.

    Raises UsageError for a missing size, and for a name that the model does not have.
    """
    plan = random_feeds.plan_random_feeds(proto, dims or {}, ranges or {})
    sources = [BatchSource(f"random {index}", partial(plan.make_feed, seed, index)) for index in range(count)]
    return Batches(model_inputs(proto), sources, plan.warnings)


def as_batches(data: object, proto: ModelProto) -> Batches:
    """Return the batches that a caller of the Python API passed: Batches, or one or several paths or feeds.

    Raises UsageError for data of another type, and for an empty list.
    """
    if isinstance(data, Batches):
        return data
    if isinstance(data, str | os.PathLike | Mapping):
        data = [data]
    # All items must be of one kind. Anything else, also a mix of paths and feeds, is an error.
    items = list(data) if isinstance(data, Iterable) else None
    if items and all(isinstance(item, str | os.PathLike) for item in items):
        return read_batches(items, proto)
    if items and all(isinstance(item, Mapping) for item in items):
        sources = [BatchSource(f"batch {index}", partial(dict, feed)) for index, feed in enumerate(items)]
        return Batches(model_inputs(proto), sources)
    problem = "empty" if items == [] else f"a {type(data).__name__}"
    raise UsageError(f"the data is {problem}", hint="pass paths, or dicts of arrays by input name")


def make_emulation_feed(feed: Feed, inputs: Sequence[Input]) -> Feed:
    """Return the feed for the emulation of a model: values of low-precision inputs are rounded and stored as float32.

    inputs: the inputs of the model itself. The emulation declares the low-precision ones among them as float32.
    """
    low_types = {i.name: dtypes.element(i.type) for i in inputs if dtypes.element(i.type) in LOW_TYPES}
    return {
        name: _round_to_float32(value, low_types[name]) if name in low_types else value for name, value in feed.items()
    }


def _round_to_float32(value: Any, elem: int) -> Any:  # an array, a sequence or None
    import numpy as np

    if value is None or isinstance(value, list | tuple):
        return None if value is None else [_round_to_float32(part, elem) for part in value]
    return cast_array(np.asarray(value), elem)[0].astype(np.float32)


def has_empty_array(feed: Feed) -> bool:
    """Return True if an array of a batch, or an array in a sequence of it, has no elements."""
    return any(array.size == 0 for array in arrays_of(feed))


def arrays_of(feed: Feed) -> Iterator[Array]:
    """Yield the arrays of a batch and those in its sequences."""
    pending: list[Any] = list(feed.values())
    while pending:
        value = pending.pop()
        if isinstance(value, list | tuple):
            pending.extend(value)
        elif value is not None:
            yield value


def digest(feeds: Iterable[Mapping[str, object]]) -> str:
    """Return the SHA-256 of feeds, or of other arrays by name. The order of the names does not count."""
    sha = hashlib.sha256()
    for feed in feeds:
        for name in sorted(feed):
            sha.update(name.encode())
            # Block by block: a batch is never copied as a whole.
            for block in _bytes_of(feed[name]):
                sha.update(block)
    return sha.hexdigest()


def _bytes_of(value: object) -> Iterator[bytes]:
    """Yield bytes that identify a value: its type and shape, then its elements."""
    import numpy as np

    if value is None or isinstance(value, list | tuple):
        yield f"{None if value is None else len(value)}".encode()
        for part in value or ():
            yield from _bytes_of(part)
        return
    array = np.asarray(value)
    yield f"{array.dtype} {array.shape}".encode()
    # The memory of an object array contains addresses, which differ from run to run.
    yield repr(array.tolist()).encode() if array.dtype == object else np.ascontiguousarray(array).tobytes()
