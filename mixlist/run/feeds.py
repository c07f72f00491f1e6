"""Batches of data for a model: read from files, passed as arrays, or random. An iteration reads one batch at a time.

A batch is a *feed*: a dict from input names to arrays of the declared types, in the order of the inputs. The arrays of
bfloat16 have the dtype of ml_dtypes, and strings are arrays of objects.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from mixlist.diagnostics import Diagnostic, warning
from mixlist.errors import UsageError
from mixlist.files.scratch_folder import ScratchFolder, write_scratch
from mixlist.model import dtypes
from mixlist.model.load import load_model
from mixlist.model.low_precision import LOW_TYPES
from mixlist.option_spelling import spell
from mixlist.run import random_feeds
from mixlist.run.available_memory import format_gigabytes
from mixlist.run.batch_files import BatchSource, Shapes, find_batch_paths
from mixlist.run.image_batches import ImageOptions, make_image_sources
from mixlist.run.inputs import Input, cast_array, make_feed, model_inputs, refuse_unknown_inputs

if TYPE_CHECKING:
    from onnx import ModelProto

    from mixlist.model.load import Model
    from mixlist.run.session import Array, Feed

SPARE_BYTES = 10**9  # the least space that stays free in the folder for temporary files


class Batches:
    """The batches of a check or benchmark, in their order. Every iteration reads them again.

    An iteration raises FileError for a file that cannot be read, and UsageError for data that does not fit the model.

    Example::

        batches = mixlist.random_batches("digits.onnx", 2, dims={"batch": 16}, ranges={"pixels": (0, 16)})
        print(batches.names(), [batch["pixels"].shape for batch in batches])
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

    def __add__(self, other: Batches) -> Batches:
        """Return these batches and then those of ``other``, which have the same inputs."""
        return Batches(self.inputs, (*self._sources, *other._sources), dict.fromkeys((*self.warnings, *other.warnings)))

    def select(self, indices: Iterable[int]) -> Batches:
        """Return the batches at these positions."""
        return Batches(self.inputs, [self._sources[index] for index in indices], self._warnings)

    def for_inputs(self, inputs: Sequence[Input]) -> Batches:
        """Return these batches for inputs of other types."""
        return Batches(inputs, self._sources, self._warnings)

    def names(self) -> tuple[str, ...]:
        """Return the names of the batches in messages: the path of the file, ``batch 0``, or ``random 0``."""
        return tuple(source.name for source in self._sources)

    def refusal_hint(self, index: int) -> str | None:
        """Return what to do if the model refuses to run the batch at this position; None if nothing is known."""
        return self._sources[index].refusal_hint

    def files(self) -> tuple[Path, ...]:
        """Return the paths that hold the batches: files, directories and images; () for batches without a file."""
        return tuple(path for source in self._sources for path in source.files)

    @property
    def warnings(self) -> tuple[Diagnostic, ...]:
        """Return the warnings about the data read so far: assumed sizes (ML601), values that casts changed (ML602)."""
        return (*self._warnings, *self._loss_warnings.values())


def _read_paths(
    paths: Sequence[str | os.PathLike[str]],
    inputs: Sequence[Input],
    shapes: Shapes | None = None,
    images: ImageOptions | None = None,
) -> Batches:
    refuse_unknown_inputs("shapes", shapes or (), inputs)
    batch_paths = [batch_path for path in paths for batch_path in find_batch_paths(Path(path), inputs)]
    sources: list[BatchSource] = []
    warnings: list[Diagnostic] = []
    # Images that follow one another fill batches together, also if they come from several paths.
    for form, group in groupby(batch_paths, key=lambda batch_path: batch_path.form):
        if form == "image":
            image_paths = [batch_path.path for batch_path in group]
            image_sources, image_warnings = make_image_sources(image_paths, inputs, images or ImageOptions())
            sources += image_sources
            warnings += image_warnings
        else:
            sources += [batch_path.source(inputs, shapes or {}) for batch_path in group]
    return Batches(inputs, sources, warnings)


def read_data(
    model: Model,
    data: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    shapes: Shapes | None = None,
    mean: float | Sequence[float] = (),
    scale: float | Sequence[float] = (),
    resize: str | None = None,
    bgr: bool = False,
    dims: Mapping[str, int] | None = None,
) -> Batches:
    """Return the batches in files and directories, in the order of the paths, for ``check``, ``tune`` and ``bench``.

    - shapes: the shapes of ``.bin`` files by input name.
    - mean, scale: of images, one number for all channels or one for each: value = (pixel - mean) x scale.
    - resize: how images get the model's size: ``stretch``, ``crop`` or ``pad``.
    - bgr: whether the channels of images are blue, green and red.
    - dims: for images, the sizes that the model leaves open.

    Without these keyword arguments, ``check`` reads the same batches from the paths themselves. Raises FileError for a
    path that is not data, UsageError for arguments that do not fit the model, and the errors of ``load_model``.

    Example::

        np.savez("batch.npz", pixels=np.load("digits.npz")["pixels"].astype(np.float32))
        report = mixlist.check("digits.onnx", mixlist.load_policy(), mixlist.read_data("digits.onnx", "batch.npz"))
    """
    paths = [data] if isinstance(data, str | os.PathLike) else data
    means, scales = ((value,) if isinstance(value, int | float) else tuple(value) for value in (mean, scale))
    images = ImageOptions(means, scales, resize, bgr, dims or {})
    return _read_paths(paths, model_inputs(load_model(model).proto), shapes, images)


def random_batches(
    model: Model,
    count: int,
    *,
    seed: int = 0,
    dims: Mapping[str, int] | None = None,
    ranges: Mapping[str, random_feeds.Bounds] | None = None,
) -> Batches:
    """Return ``count`` batches of random values, as ``--random`` makes them. The same arguments give the same values.

    - dims: sizes that the model leaves open, by symbolic name, ``input.axis``, or pattern.
    - ranges: the smallest and the largest value by input name.

    Example: ``mixlist.check(model, policy, mixlist.random_batches(model, 4, dims={"batch": 2}))``.

    Raises UsageError for a missing size and for a name that the model does not have, and the errors of ``load_model``.
    """
    proto = load_model(model).proto
    plan = random_feeds.plan_random_feeds(proto, dims or {}, ranges or {})
    sources = [BatchSource(f"random {index}", partial(plan.make_feed, seed, index)) for index in range(count)]
    return Batches(model_inputs(proto), sources, plan.warnings)


# Data as the public functions take them: Batches, or one or several paths or feeds. A feed has arrays by input name.
Data: TypeAlias = (
    Batches
    | str
    | os.PathLike[str]
    | Mapping[str, Any]
    | Iterable[str | os.PathLike[str]]
    | Iterable[Mapping[str, Any]]
)


def as_batches(data: object, proto: ModelProto, limit: int | None = None) -> Batches:
    """Return the batches that a caller of the Python API passed: Batches, or one or several paths or feeds.

    Feeds of an iterator, such as a generator, are read here once, at most ``limit`` of them, and stored in temporary
    files. Raises UsageError for data of another type, and for no data.
    """
    inputs, kind = model_inputs(proto), type(data).__name__
    if isinstance(data, Batches):
        # A command reads the data for its model, of which it may give the inputs another type (Rule S7.3).
        same_types = [(i.name, i.type) for i in data.inputs] == [(i.name, i.type) for i in inputs]
        return data if same_types else data.for_inputs(inputs)
    if isinstance(data, str | os.PathLike | Mapping):
        data = [data]
    if isinstance(data, Iterable) and not isinstance(data, Sequence):
        iterator = iter(data)
        first = next(iterator, None)
        if first is not None and not isinstance(first, str | os.PathLike):
            # ``store_batches`` names the first item that is no dict of arrays.
            return Batches(inputs, store_batches(chain([first], iterator), limit))
        data = [] if first is None else [first, *iterator]
    # All items must be of one kind. Anything else, also a mix of paths and feeds, is an error.
    items = list(data) if isinstance(data, Iterable) else None
    if items and all(isinstance(item, str | os.PathLike) for item in items):
        return _read_paths(items, inputs)
    if items and all(isinstance(item, Mapping) for item in items):
        sources = [BatchSource(f"batch {index}", partial(dict, feed)) for index, feed in enumerate(items)]
        return Batches(inputs, sources)
    problem = "empty" if items == [] else f"a {kind}"
    raise UsageError(f"the data is {problem}", hint="pass paths, or dicts of arrays by input name")


def make_emulation_feed(feed: Feed, inputs: Sequence[Input]) -> Feed:
    """Return the feed for the emulation of a model: values of low-precision inputs are rounded and stored as float32.

    inputs: the inputs of the model itself. The emulation declares the low-precision ones among them as float32. A mixed
    model can have a float32 input where the feed has the low type of the original's.
    """
    import numpy as np

    float_types = (dtypes.FLOAT, *LOW_TYPES)
    types = {i.name: i.type for i in inputs if isinstance(i.type, int) and i.type in float_types}
    return {
        name: cast_array(value, types[name])[0].astype(np.float32, copy=False) if name in types else value
        for name, value in feed.items()
    }


def has_empty_array(feed: Feed) -> bool:
    """Return True if an array of a batch, or an array in a sequence of it, has no elements."""
    return any(array.size == 0 for array in arrays_of(feed))


def holds_only_nan(feed: Feed) -> bool:
    """Return True if the float inputs of a batch have values, and all of these values are NaN (Rule S8.28)."""
    float_arrays = [array for array in arrays_of(feed) if array.size and _is_float(array)]
    return bool(float_arrays) and all(_is_all_nan(array) for array in float_arrays)


def find_nonfinite(feed: Feed) -> tuple[bool, bool]:
    """Return whether a float input of a batch has a NaN, and whether one has an infinity."""
    import numpy as np

    arrays = [array.astype(np.float64) for array in arrays_of(feed) if _is_float(array)]
    return any(np.isnan(array).any() for array in arrays), any(np.isinf(array).any() for array in arrays)


def _is_float(array: Array) -> bool:
    # To numpy, bfloat16 (of the package ml_dtypes) is no kind of float: its kind is "V".
    return array.dtype.kind == "f" or array.dtype.name == "bfloat16"


def _is_all_nan(array: Array) -> bool:
    import numpy as np

    # The first value alone decides nearly every array, so that large inputs are not scanned for each batch.
    first_value = array.reshape(-1)[:1]
    return bool(np.isnan(first_value).all() and np.isnan(array).all())


def arrays_of(feed: Feed) -> Iterator[Array]:
    """Yield the arrays of a batch and those in its sequences."""
    pending: list[Any] = list(feed.values())
    while pending:
        value = pending.pop()
        if isinstance(value, list | tuple):
            pending.extend(value)
        elif value is not None:
            yield value


def find_shapes(feed: Feed) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the inputs of a batch by name. A sequence is a list, which has no shape."""
    return {name: tuple(value.shape) for name, value in feed.items() if hasattr(value, "shape")}


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


# --- batches of an iterator ---


def store_batches(batches: Iterable[object], limit: int | None = None) -> list[BatchSource]:
    """Store the batches of an iterator in files, because a check reads all batches several times.

    A generator can be read only once, and the same code may yield other values a second time. So each batch goes to a
    file of a folder for temporary files as it comes, and the memory holds one batch at a time.

    Returns sources of the first ``limit`` batches of an iterator (None: all), which are read here.

    The files are removed when the sources are. Raises UsageError for a batch that is no dict of arrays by input name,
    and if the batches do not fit the disk.
    """
    folder = ScratchFolder()
    sources: list[BatchSource] = []
    total = 0
    for index, batch in enumerate(islice(batches, limit)):
        # The file is read by this process only, so its pickle is as safe as the values in it.
        content = pickle.dumps(_check_batch(batch, index), pickle.HIGHEST_PROTOCOL)
        total += len(content)
        # An iterator may have no end.
        if shutil.disk_usage(folder.path).free < len(content) + SPARE_BYTES:
            raise UsageError(
                f"the first {index + 1} batches take {format_gigabytes(total)}, and {folder.path.parent} has no more"
                " space for temporary files",
                hint=f"end the data earlier, for example with {spell('max_batches')}, or set TMPDIR to another folder",
            )
        write_scratch(folder.path / str(index), content)
        sources.append(BatchSource(f"batch {index}", partial(_read_batch, folder, index)))
    return sources


def _read_batch(folder: ScratchFolder, index: int) -> Mapping[str, object]:
    content: Mapping[str, object] = pickle.loads((folder.path / str(index)).read_bytes())
    return content


def _check_batch(batch: object, index: int) -> dict[str, object]:
    """Return the batch with arrays of numpy. Raises UsageError for anything but a dict of arrays by input name."""
    if not isinstance(batch, Mapping) or not all(isinstance(name, str) for name in batch):
        kind = f"an object of the type {type(batch).__name__}" if not isinstance(batch, Mapping) else "a dict"
        keys = "" if not isinstance(batch, Mapping) else " with keys that are no names of inputs"
        hint = "each batch is a dict of arrays by input name: {'x': array}"
        raise UsageError(f"batch {index} of the data is {kind}{keys}", hint=hint)
    return {name: _to_numpy(value, f"batch {index}: input {name!r}") for name, value in batch.items()}


def _to_numpy(value: object, place: str) -> object:
    """Return a value with arrays of numpy instead of those of other packages; others, such as None, stay."""
    import numpy as np

    if isinstance(value, list | tuple):
        return [_to_numpy(part, place) for part in value]
    if not hasattr(value, "__array__"):
        return value
    try:
        return np.asarray(value)
    except Exception as error:  # each package has its own types of errors, for example for a tensor on a GPU
        message = f"{place} is no array of numpy and cannot become one: {error}"
        raise UsageError(message, hint="yield arrays of numpy: tensor.detach().cpu().numpy()") from None
