"""Task accuracy: how often the model is right about labels, before and after (``check --labels``)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mixlist.checker.result import Task
from mixlist.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Labels = NDArray[np.integer[Any]]


def read_labels(path: str | os.PathLike[str]) -> Labels:
    """The labels of a ``.npy`` file, or of a ``.npz`` file with one array or one named ``labels``: integers.

    The first axis runs over the samples of all batches, in the order of the data. Raises FileError for what cannot be
    read and UsageError for what holds no integers.
    """
    import numpy as np

    from mixlist.runtime.data_files import load_arrays

    shown = os.fspath(path)
    content = load_arrays(Path(path))
    if isinstance(content, dict):
        content = _pick(content, shown)
    if content.dtype.kind not in "biu" or content.ndim == 0:
        raise UsageError(
            f"{shown} holds {content.dtype} values of shape {list(content.shape)}, no labels",
            hint="labels are integers, one per sample (or per position), in the order of the data",
        )
    return np.asarray(content, dtype=np.int64)


def _pick(arrays: Mapping[str, Any], shown: str) -> Any:
    names = list(arrays)
    if "labels" in names or len(names) == 1:
        return arrays["labels" if "labels" in names else names[0]]
    raise UsageError(f"{shown} holds the arrays {', '.join(names) or 'none'}", hint="name one of them 'labels'")


class TaskAccuracy:
    """Counts right answers of both models against labels, batch by batch.

    The answer is the ArgMax over the last axis of the first output whose other axes fit the labels, or an integer
    output of the labels' own shape. Negative labels (padding) do not count.
    """

    def __init__(self, labels: Labels) -> None:
        self._labels = labels
        self._used = 0
        self._output = ""
        self._right = [0, 0]
        self._count = 0

    def add(self, reference: Mapping[str, Any], mixed: Mapping[str, Any]) -> None:
        """Adds one batch: the outputs of both models by name.

        Raises UsageError if no output fits the labels, or if there are fewer labels than samples.
        """
        self._output = self._output or self._fitting(reference)
        ours, theirs = _answers(reference[self._output], self._labels), _answers(mixed[self._output], self._labels)
        labels = self._labels[self._used : self._used + len(ours)]
        if len(labels) < len(ours):
            raise UsageError(
                f"there are labels for {len(self._labels)} samples, and the data has more",
                hint="give one label per sample, in the order of the data",
            )
        if ours.shape != labels.shape or theirs.shape != labels.shape:
            raise UsageError(
                f"output {self._output!r} no longer fits the labels: {list(ours.shape)} answers in a batch"
            )
        self._used += len(labels)
        counted = labels >= 0
        self._count += int(counted.sum())
        for at, answers in enumerate((ours, theirs)):
            self._right[at] += int(((answers == labels) & counted).sum())

    @property
    def used(self) -> int:
        """How many labels have had their samples."""
        return self._used

    def result(self) -> Task:
        """Shares of right answers; of no answers, 0."""
        whole = max(self._count, 1)
        return Task(reference=self._right[0] / whole, mixed=self._right[1] / whole, count=self._count)

    def notes(self) -> tuple[str, ...]:
        """What the figures do not tell, one sentence each."""
        left = len(self._labels) - self._used
        return (f"{left} of {len(self._labels)} labels have no sample in the data",) if left else ()

    def _fitting(self, outputs: Mapping[str, Any]) -> str:
        """The first output that can answer, one with a class for every label before any other."""
        import numpy as np

        arrays = {name: value for name, value in outputs.items() if isinstance(value, np.ndarray)}
        fitting = [name for name, array in arrays.items() if _fits(array, self._labels)]
        largest = int(self._labels.max(initial=0))
        for name in fitting:
            if arrays[name].dtype.kind in "iu" or arrays[name].shape[-1] > largest:
                return name
        if fitting:
            classes = arrays[fitting[0]].shape[-1]
            raise UsageError(
                f"the largest label is {largest}, and output {fitting[0]!r} has {classes} classes",
                hint=f"labels count classes from 0 to {classes - 1}; a negative label does not count",
            )
        shapes = ", ".join(f"{name!r} {list(array.shape)}" for name, array in arrays.items()) or "none"
        raise UsageError(
            f"no output fits labels of shape {list(self._labels.shape)}: the outputs of a batch are {shapes}",
            hint="an output needs the axes of the labels and one more over the classes",
        )


def _fits(array: Any, labels: Labels) -> bool:
    """Whether the array has classes over its last axis, or is an answer itself, beside axes like the labels'."""
    rest = array.shape[1:] if array.dtype.kind in "iu" else array.shape[1:-1]
    enough = array.dtype.kind in "iu" or (array.ndim >= 2 and array.shape[-1] > 1)
    return bool(array.ndim >= 1 and array.dtype.kind not in "bOSTU" and enough and rest == labels.shape[1:])


def _answers(array: Any, labels: Labels) -> Any:
    """The answer of each row; -1, which is never right, where NaN leaves none."""
    import numpy as np

    if array.ndim == labels.ndim:
        return array
    return np.where(np.isnan(array).any(axis=-1), -1, array.argmax(axis=-1))
