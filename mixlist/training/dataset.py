"""Hold the samples, and choose those of each step by seed and step alone, so that a training can go on anywhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mixlist.errors import UsageError
from mixlist.runtime.batch_files import load_arrays
from mixlist.runtime.inputs import make_feed
from mixlist.training.step_graph import StepGraph

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mixlist.runtime.session import Array
    from mixlist.training.options import Source

    Indices = NDArray[np.int64]

_SHUFFLE = 1  # a stream of random numbers that does not meet those of ``sampling``


class Dataset:
    """Samples along the first axis of each array, checked against the step graph's batch inputs.

    Raises UsageError for arrays that do not fit the graph, differ in length, are empty or hold values that are not
    finite.
    """

    def __init__(self, graph: StepGraph, arrays: Mapping[str, object], where: str) -> None:
        self.where = where
        # The number of samples is free, even if the graph takes batches of one size only.
        inputs = [replace(each, shape=(None, *each.shape[1:])) if each.shape else each for each in graph.batch_inputs]
        missing = [each.name for each in inputs if each.name not in arrays and not each.optional]
        if missing:
            names = ", ".join(each.name for each in inputs)
            hint = f"a batch holds {names}; what is trained has an output grad.NAME too"
            raise UsageError(f"{where}: no data for input {missing[0]!r} of {graph.name}", hint=hint)
        fitted, self.losses = make_feed(arrays, inputs, where)
        self.arrays: dict[str, Array] = fitted
        if not fitted:
            raise UsageError(f"{where}: {graph.name} has no batch inputs to feed")
        for name, value in fitted.items():
            if not value.ndim:
                raise UsageError(f"{where}: {name} is a single value", hint="samples run along the first axis")
        self.count = len(next(iter(fitted.values())))
        if any(len(value) != self.count for value in fitted.values()):
            lengths = ", ".join(f"{name} {len(value)}" for name, value in fitted.items())
            raise UsageError(f"{where}: the arrays differ in length: {lengths}", hint="rows run along the first axis")
        if not self.count:
            raise UsageError(f"{where} holds no samples")
        for name, value in fitted.items():
            if value.dtype.kind == "f" and not np.isfinite(value).all():
                row = int(np.argwhere(~np.isfinite(value))[0][0])
                raise UsageError(f"{where}: {name} holds a value that is not finite, first in row {row}")

    def rows(self, rows: slice | Indices) -> dict[str, Array]:
        """Return a batch of these samples."""
        return {name: value[rows] for name, value in self.arrays.items()}


def read_data(graph: StepGraph, source: Source, name: str) -> Dataset:
    """Return the samples of a mapping of arrays, called ``name`` in messages, or of a ``.npz`` file.

    Raises FileError and UsageError.
    """
    return Dataset(graph, *read_arrays(source, name))


def read_arrays(source: Source, name: str) -> tuple[Mapping[str, object], str]:
    """Return a mapping as it is, or the arrays of a ``.npz`` file; and what messages call it."""
    if isinstance(source, Mapping):
        return source, name
    arrays = load_arrays(Path(source))
    if not isinstance(arrays, dict):
        raise UsageError(f"{source} holds one array", hint="give a .npz file keyed by the inputs' names")
    return arrays, str(source)


class BatchOrder:
    """The samples of each step: a new permutation for each epoch; those left over at its end are left out.

    There are at least as many samples as a batch has.
    """

    def __init__(self, count: int, batch_size: int, seed: int) -> None:
        self.count, self.size, self.seed = count, batch_size, seed
        self._epoch = -1
        self._permutation: Indices = np.empty(0, np.int64)

    def indices(self, step: int) -> Indices:
        """Return the indices of the samples of a step (from 0)."""
        epoch, batch = divmod(step, self.count // self.size)
        if epoch != self._epoch:
            random = np.random.default_rng([self.seed, _SHUFFLE, epoch])
            self._epoch, self._permutation = epoch, random.permutation(self.count)
        return self._permutation[batch * self.size : (batch + 1) * self.size]
