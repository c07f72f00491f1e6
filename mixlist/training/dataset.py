"""What a step is fed: samples, and which of them a step sees, by seed and step alone: a run can go on anywhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mixlist.errors import UsageError
from mixlist.runtime.inputs import fit
from mixlist.training.stepgraph import StepGraph

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

_SHUFFLE = 1  # a stream of random numbers that does not meet those of ``drawing``


class Data:
    """Samples along the first axis of each array, checked against the step graph's batch inputs.

    Raises UsageError for arrays that do not fit the graph, differ in length, are empty or hold values that are not
    finite.
    """

    def __init__(self, graph: StepGraph, arrays: Mapping[str, Any], where: str) -> None:
        import numpy as np

        self.where = where
        # How many samples there are is free, also where the graph takes batches of one size only.
        inputs = [replace(each, shape=(None, *each.shape[1:])) if each.shape else each for each in graph.batch]
        lacking = [each.name for each in inputs if each.name not in arrays and not each.optional]
        if lacking:
            names = ", ".join(each.name for each in inputs)
            hint = f"a batch holds {names}; what is trained has an output grad.NAME too"
            raise UsageError(f"{where}: no data for input {lacking[0]!r} of {graph.name}", hint=hint)
        fitted, self.notes = fit(arrays, inputs, where)
        for name, value in fitted.items():
            if not value.ndim:
                raise UsageError(f"{where}: {name} is a single value", hint="samples run along the first axis")
        lengths = {name: len(value) for name, value in fitted.items()}
        if not lengths:
            raise UsageError(f"{where}: {graph.name} has no batch inputs to feed")
        self.count = next(iter(lengths.values()))
        if len(set(lengths.values())) > 1:
            told = ", ".join(f"{name} {length}" for name, length in lengths.items())
            raise UsageError(f"{where}: the arrays differ in length: {told}", hint="rows run along the first axis")
        if not self.count:
            raise UsageError(f"{where} holds no samples")
        for name, value in fitted.items():
            if value.dtype.kind == "f" and not np.isfinite(value).all():
                row = int(np.argwhere(~np.isfinite(value))[0][0])
                raise UsageError(f"{where}: {name} holds a value that is not finite, first in row {row}")
        self.arrays: dict[str, Array] = fitted

    def rows(self, chosen: Any) -> dict[str, Array]:
        """A batch of the chosen samples."""
        return {name: value[chosen] for name, value in self.arrays.items()}


def read_data(graph: StepGraph, given: Any, what: str) -> Data:
    """The samples of a mapping of arrays, called ``what`` in messages, or of a ``.npz`` file.

    Raises FileError and UsageError.
    """
    arrays, where = read_arrays(given, what)
    return Data(graph, arrays, where)


def read_arrays(given: Any, what: str) -> tuple[Mapping[str, Any], str]:
    """A mapping as it is, or what a ``.npz`` file holds; and what to call it."""
    if isinstance(given, Mapping):
        return given, what
    from mixlist.runtime.data_files import load_arrays

    content = load_arrays(Path(given))
    if not isinstance(content, dict):
        raise UsageError(f"{given} holds one array", hint="give a .npz file keyed by the inputs' names")
    return content, str(given)


class Order:
    """Which samples each step sees: a new permutation for each epoch; what is left over at its end is left out."""

    def __init__(self, count: int, batch_size: int, seed: int) -> None:
        if batch_size > count:
            raise UsageError(f"a batch of {batch_size} needs as many samples, and the data has {count}")
        self.count, self.size, self.seed = count, batch_size, seed
        self.per_epoch = count // batch_size
        self._epoch = -1
        self._permutation: Any = None

    def batch(self, step: int) -> Any:
        """The indices of the samples of a step (from 0)."""
        import numpy as np

        epoch, at = divmod(step, self.per_epoch)
        if epoch != self._epoch:
            random = np.random.default_rng([self.seed, _SHUFFLE, epoch])
            self._epoch, self._permutation = epoch, random.permutation(self.count)
        return self._permutation[at * self.size : (at + 1) * self.size]
