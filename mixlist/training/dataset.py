"""Hold the samples of a training, and choose the samples of each step.

The choice depends on the seed and the step number alone, so that a training can continue at any step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mixlist.errors import UsageError
from mixlist.runtime.batch_files import load_arrays, load_folder
from mixlist.runtime.feeds import digest
from mixlist.runtime.inputs import Input, make_feed
from mixlist.training.step_graph import StepGraph

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mixlist.runtime.session import Array
    from mixlist.training.options import ArraySource
    from mixlist.training.streamed_data import StreamedDataset

    Indices = NDArray[np.int64]

# The second number of the seed of numpy's generator. It differs for each purpose, so that the order of the samples is
# independent of the draws in ``random_values``, which has 2 and 3.
_ORDER_STREAM = 1


class Dataset:
    """The samples of a training: one array per batch input of the step graph, with the samples along the first axis.

    ``source_name`` names the arrays in messages. ``cast_losses`` has a text for each input whose values changed in the
    cast to the declared type. ``is_batch``: the arrays are those of one batch, which stays as it is. Then they may
    differ in length. Raises UsageError for arrays that do not fit the batch inputs, that differ in length, that are
    empty, or that hold values that are not finite.
    """

    def __init__(
        self, graph: StepGraph, arrays: Mapping[str, object], source_name: str, *, is_batch: bool = False
    ) -> None:
        self.source_name, self.has_whole_batches = source_name, is_batch
        inputs = list(graph.batch_inputs)
        if not is_batch:
            # A dataset may have any number of samples, even if the graph takes batches of one size only.
            inputs = [replace(value, shape=(None, *value.shape[1:])) if value.shape else value for value in inputs]
        missing_names = [value.name for value in inputs if value.name not in arrays and not value.optional]
        if missing_names:
            names = ", ".join(value.name for value in inputs)
            hint = f"give data for {names}; for an input that is a parameter, the graph needs an output grad.<input>"
            raise UsageError(f"{source_name}: no data for input {missing_names[0]!r} of {graph.name}", hint=hint)
        fitted_arrays, self.cast_losses = make_feed(arrays, inputs, source_name)
        self.arrays: dict[str, Array] = fitted_arrays
        if not fitted_arrays:
            raise UsageError(f"{source_name}: {graph.name} has no batch inputs to feed")
        self.count = self._check_batch(inputs) if is_batch else self._check_lengths()
        self._check_finite()

    def _check_batch(self, inputs: Sequence[Input]) -> int:
        """Return 1. Raises UsageError for a batch without values, and for axes of one name that differ in size."""
        if not any(array.size for array in self.arrays.values()):
            raise UsageError(f"{self.source_name} holds no samples")
        first_of: dict[str, tuple[int, str]] = {}  # by symbolic axis: its size, and the first input that has it
        for value in inputs:
            shape = self.arrays[value.name].shape if value.name in self.arrays else ()
            for symbol, size in zip(value.shape or (), shape, strict=False):
                if isinstance(symbol, str):
                    first_size, first_input = first_of.setdefault(symbol, (size, value.name))
                    if size != first_size:
                        sizes = f"{first_size} in {first_input} and {size} in {value.name}"
                        raise UsageError(f"{self.source_name}: the size {symbol!r} is {sizes}, and must be one")
        return 1

    def _check_lengths(self) -> int:
        """Return the number of samples, which every array must have."""
        for name, array in self.arrays.items():
            if not array.ndim:
                raise UsageError(f"{self.source_name}: {name} is a single value", hint="samples run along axis 0")
        count = len(next(iter(self.arrays.values())))
        if any(len(array) != count for array in self.arrays.values()):
            lengths = ", ".join(f"{name} {len(array)}" for name, array in self.arrays.items())
            hint = "samples run along axis 0"
            raise UsageError(f"{self.source_name}: the arrays differ in length: {lengths}", hint=hint)
        if not count:
            raise UsageError(f"{self.source_name} holds no samples")
        return count

    def _check_finite(self) -> None:
        # A step on a sample with a NaN is an exception in every precision. The verdict would count it against the
        # lists.
        for name, array in self.arrays.items():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                row = int(np.argwhere(~np.isfinite(array))[0][0])
                raise UsageError(f"{self.source_name}: {name} holds a value that is not finite, first in row {row}")

    def batch(self, rows: slice | Indices) -> dict[str, Array]:
        """Return the samples with these indices, by input name."""
        return {name: array[rows] for name, array in self.arrays.items()}

    def permutation(self, generator: np.random.Generator) -> Indices:
        """Return the indices of all samples in a new order."""
        return generator.permutation(self.count)

    def largest_value(self, name: str) -> float:
        """Return the largest value of an input; -infinity if it has none."""
        return float(self.arrays[name].max()) if self.arrays[name].size else -np.inf

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the arrays."""
        return digest([self.arrays])


def read_arrays(source: ArraySource, name: str) -> tuple[Mapping[str, object], str]:
    """Return the arrays of a mapping, a ``.npz`` file or a directory of ``.npy`` files, and the name for messages.

    The arrays have the names of the inputs. Messages name a file by its path, and a mapping by the text ``name``.
    """
    if isinstance(source, Mapping):
        return source, name
    path = Path(source)
    arrays = load_folder(path) if path.is_dir() else load_arrays(path)
    if not isinstance(arrays, dict):
        hint = "give a .npz file with one array for each input, by name, or a directory of .npy files with these names"
        raise UsageError(f"{source} holds one array", hint=hint)
    return arrays, str(source)


class BatchOrder:
    """The order of the samples: each epoch has a new permutation of all samples, cut into batches.

    Samples that do not fill a last batch are left out of the epoch. A dataset has at least ``batch_size`` samples.
    Whole batches are permuted as they are.
    """

    def __init__(self, dataset: Dataset | StreamedDataset, batch_size: int, seed: int) -> None:
        self.dataset, self.batch_size, self.seed = dataset, 1 if dataset.has_whole_batches else batch_size, seed
        # The permutation of one epoch is kept: drawing it again for each of its steps would be slow.
        self._epoch = -1
        self._permutation: Indices = np.empty(0, np.int64)

    def indices(self, step: int) -> Indices:
        """Return the indices of the samples of a step; the first step is 0."""
        epoch, batch = divmod(step, self.dataset.count // self.batch_size)
        if epoch != self._epoch:
            generator = np.random.default_rng([self.seed, _ORDER_STREAM, epoch])
            self._epoch, self._permutation = epoch, self.dataset.permutation(generator)
        return self._permutation[batch * self.batch_size : (batch + 1) * self.batch_size]
