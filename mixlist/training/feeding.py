"""What a step is fed: the batch, and random numbers drawn from seed and step alone: a run can go on anywhere."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mixlist.errors import UsageError
from mixlist.runtime.inputs import fit
from mixlist.training.stepgraph import Parameter, StepGraph

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

_SHUFFLE, _NOISE, _INIT = 1, 2, 3  # streams of random numbers that do not meet


class Data:
    """Samples along the first axis of each array, checked against the step graph's batch inputs.

    Raises UsageError for arrays that do not fit the graph, differ in length, are empty or hold values that are not
    finite.
    """

    def __init__(self, graph: StepGraph, arrays: Mapping[str, Any], where: str) -> None:
        import numpy as np

        self.where = where
        fitted, self.notes = fit(arrays, graph.batch, where)
        lengths = {name: len(value) if value.ndim else 0 for name, value in fitted.items()}
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


def read_data(graph: StepGraph, path: str | Path) -> Data:
    """The samples of a ``.npz`` file. Raises FileError and UsageError."""
    from mixlist.runtime.datafiles import load_arrays

    content = load_arrays(Path(path))
    if not isinstance(content, dict):
        raise UsageError(f"{path} holds one array", hint="give a .npz file keyed by the batch inputs' names")
    return Data(graph, content, str(path))


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


def noise(graph: StepGraph, seed: int, step: int, rows: int) -> dict[str, Array]:
    """The random inputs of a step."""
    import numpy as np

    if not graph.random:
        return {}
    random = np.random.default_rng([seed, _NOISE, step])
    found = {}
    for given, what in graph.random:
        shape = tuple(d if isinstance(d, int) else rows for d in given.shape or ())
        found[given.name] = _drawn(random, what, shape, given.name)
    return found


def no_noise(graph: StepGraph, rows: int) -> dict[str, Array]:
    """The random inputs that switch dropout and the like off, for evaluation.

    Raises UsageError for an input that does not say what switches it off.
    """
    import numpy as np

    found = {}
    for given, what in graph.random:
        if "off" not in what:
            raise UsageError(
                f"{graph.name} does not say how its random input {given.name!r} is switched off for evaluation",
                hint='add "off" to its metadata, or leave --eval-data out',
            )
        shape = tuple(d if isinstance(d, int) else rows for d in given.shape or ())
        found[given.name] = np.full(shape, what["off"], np.float32)
    return found


def initial(parameter: Parameter, seed: int, index: int) -> Array:
    """The first value of a parameter or buffer: as its metadata says, else by its shape.

    Without metadata a matrix or kernel is uniform within 1 / sqrt(fan in), a vector is zero, and one whose name ends in
    ``weight`` (a normalisation's) is one.
    """
    import numpy as np

    random = np.random.default_rng([seed, _INIT, index])
    if parameter.init:
        return _drawn(random, parameter.init, parameter.shape, parameter.name)
    if len(parameter.shape) < 2:
        value = 1.0 if parameter.name.endswith("weight") else 0.0
        return np.full(parameter.shape, value, np.float32)
    bound = float(np.prod(parameter.shape[1:])) ** -0.5
    return random.uniform(-bound, bound, parameter.shape).astype(np.float32)


def _drawn(random: Any, what: Mapping[str, Any], shape: tuple[int, ...], name: str) -> Array:
    import numpy as np

    kind = what.get("kind")
    made: Array
    if kind == "uniform":
        bound = float(what.get("bound", 0.0))
        low, high = (-bound, bound) if bound else (float(what.get("low", 0.0)), float(what.get("high", 1.0)))
        made = random.random(shape, np.float32) * np.float32(high - low) + np.float32(low)
    elif kind == "normal":
        made = random.standard_normal(shape, np.float32) * np.float32(what.get("std", 1.0))
        made += np.float32(what.get("mean", 0.0))
    elif kind == "bernoulli":
        made = (random.random(shape, np.float32) < np.float32(what.get("p", 0.5))).astype(np.float32)
    elif kind in ("zeros", "ones"):
        made = np.full(shape, float(kind == "ones"), np.float32)
    else:
        raise UsageError(
            f"the step graph's {name!r} is to be drawn as {kind!r}", hint="uniform, normal, bernoulli, zeros or ones"
        )
    return np.asarray(made, np.float32)
