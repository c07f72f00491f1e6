"""Read the data of a training part by part, so that the memory holds two parts at most (Rule S10.26).

A part is a *shard*, whose arrays have samples along the first axis, or a *whole batch*. The arrays of a whole batch may
differ in length, as those of a graph network do: a batch has other numbers of nodes than of edges.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mixlist.errors import UsageError
from mixlist.runtime.batch_files import BatchSource, load_arrays, sorted_entries
from mixlist.runtime.feeds import digest
from mixlist.runtime.lru_cache import LruCache
from mixlist.runtime.stored_batches import store_batches
from mixlist.training.dataset import Dataset, read_arrays
from mixlist.training.step_graph import StepGraph

if TYPE_CHECKING:
    from mixlist.runtime.session import Array
    from mixlist.training.dataset import Indices
    from mixlist.training.options import DataSource

PARTS_IN_MEMORY = 2  # a batch may have samples of two shards


class StreamedDataset:
    """Shards or whole batches, with the methods of ``Dataset``.

    All parts are read once here, so that an error in one of them comes before the training. ``count`` is the number of
    samples, or of whole batches. Raises the errors of ``Dataset``.
    """

    def __init__(
        self, graph: StepGraph, sources: Sequence[BatchSource], source_name: str, *, has_whole_batches: bool
    ) -> None:
        self.source_name, self.has_whole_batches = source_name, has_whole_batches
        self._graph, self._sources = graph, sources
        self._parts: LruCache[Dataset] = LruCache(PARTS_IN_MEMORY)
        self.cast_losses: dict[str, str] = {}
        self._largest: dict[str, float] = {}
        counts, digests = [], {}
        for index, source in enumerate(sources):
            part = self._read(index)
            counts.append(part.count)
            digests[str(index)] = np.array(part.digest)
            self.cast_losses |= {name: f"{text} ({source.name})" for name, text in part.cast_losses.items()}
            for name in part.arrays:
                self._largest[name] = max(self._largest.get(name, -np.inf), part.largest_value(name))
        self._starts = np.cumsum([0, *counts])  # of each part, in samples
        self.count = int(self._starts[-1])
        self.digest = digest([digests])

    def batch(self, rows: slice | Indices) -> dict[str, Array]:
        """Return the samples with these indices, or the whole batch with the first of them, by input name."""
        indices = np.arange(self.count)[rows] if isinstance(rows, slice) else rows
        parts = np.searchsorted(self._starts, indices, side="right") - 1
        if self.has_whole_batches:
            return self._part(int(parts[0])).arrays
        # Each run of samples of one shard is read together.
        ends = [*(np.flatnonzero(np.diff(parts)) + 1), len(parts)]
        pieces, start = [], 0
        for end in ends:
            index = int(parts[start])
            pieces.append(self._part(index).batch(indices[start:end] - self._starts[index]))
            start = end
        return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}

    def permutation(self, generator: np.random.Generator) -> Indices:
        """Return the indices of all samples in a new order: the shards in a new order, and the samples of each."""
        order = generator.permutation(len(self._sources))
        return np.concatenate(
            [self._starts[part] + generator.permutation(self._starts[part + 1] - self._starts[part]) for part in order]
        )

    def largest_value(self, name: str) -> float:
        """Return the largest value of an input."""
        return self._largest[name]

    def _part(self, index: int) -> Dataset:
        return self._parts.get_or_make(index, partial(self._read, index))

    def _read(self, index: int) -> Dataset:
        source = self._sources[index]
        return Dataset(self._graph, source.read(), source.name, is_batch=self.has_whole_batches)


def read_dataset(graph: StepGraph, source: DataSource, name: str) -> Dataset | StreamedDataset:
    """Return the data of a training.

    Arrays by name, a ``.npz`` file and a directory of ``.npy`` files are samples in memory. A directory of several
    ``.npz`` files has shards, or whole batches if the arrays of a file differ in length. Any other iterable yields
    whole batches. Messages name a file by its path, and other data by the text ``name``. Raises FileError for a file
    that cannot be read, UsageError for arrays that do not fit the graph.
    """
    if isinstance(source, Mapping):
        return Dataset(graph, source, name)
    if not isinstance(source, str | os.PathLike):
        return _streamed(graph, store_batches(_iterate(source, name)), name, has_whole_batches=True)
    folder = Path(source)
    paths = [path for path in sorted_entries(folder) if path.suffix == ".npz"] if folder.is_dir() else []
    if paths and any(path.suffix == ".npy" for path in sorted_entries(folder)):
        raise UsageError(f"{folder} contains .npz files and .npy files", hint="only one of these forms can be the data")
    if not paths:
        return Dataset(graph, *read_arrays(source, name))
    sources = [BatchSource(str(path), partial(_read_file, path), (path,)) for path in paths]
    return _streamed(graph, sources, str(source), has_whole_batches=not all(_holds_samples(path) for path in paths))


def _iterate(source: Iterable[Mapping[str, object]], name: str) -> Iterator[Mapping[str, object]]:
    try:
        return iter(source)
    except TypeError:
        hint = "give arrays by name, a path, or an iterable of batches"
        raise UsageError(f"{name}: an object of the type {type(source).__name__} holds no data", hint=hint) from None


def _streamed(
    graph: StepGraph, sources: Sequence[BatchSource], name: str, *, has_whole_batches: bool
) -> StreamedDataset:
    if not sources:
        raise UsageError(f"{name} holds no batch", hint="a generator can be read only once: make a new one each time")
    return StreamedDataset(graph, sources, name, has_whole_batches=has_whole_batches)


def _read_file(path: Path) -> dict[str, Array]:
    arrays = load_arrays(path)
    if not isinstance(arrays, dict):
        raise UsageError(f"{path} holds one array", hint="give .npz files with one array for each input, by name")
    return arrays


def _holds_samples(path: Path) -> bool:
    """Return True if all arrays of a file have the same length."""
    return len({array.shape[:1] for array in _read_file(path).values()}) == 1
