"""Measure task accuracy: how often both models are right about labels (``check --labels``)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from mixlist.checker.result import TaskResult
from mixlist.diagnostics import Diagnostic, warning
from mixlist.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from mixlist.runtime.session import Array

Labels: TypeAlias = "NDArray[np.int64]"


def read_labels(path: str | os.PathLike[str]) -> Labels:
    """Read the labels of a ``.npy`` file, or of a ``.npz`` file with one array or one named ``labels``: integers.

    The first axis runs over the samples of all batches, in the order of the data. Raises FileError for what cannot be
    read and UsageError for what holds no integers.
    """
    import numpy as np

    from mixlist.runtime.batch_files import load_arrays

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


def _pick(arrays: Mapping[str, Array], shown: str) -> Array:
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
        self.used = 0  # labels that have had their samples
        self.right = [0, 0]  # right answers of the reference and of the mixed model
        self.count = 0  # labels that count
        self._output = ""

    def add(self, reference: Mapping[str, Array], mixed: Mapping[str, Array]) -> None:
        """Add one batch: the outputs of both models by name.

        Raises UsageError if no output fits the labels, or if there are fewer labels than samples.
        """
        self._output = self._output or self._fitting(reference)
        answers = [_answers(outputs[self._output], self._labels) for outputs in (reference, mixed)]
        labels = self._labels[self.used : self.used + len(answers[0])]
        if len(labels) < len(answers[0]):
            raise UsageError(
                f"there are labels for {len(self._labels)} samples, and the data has more",
                hint="give one label per sample, in the order of the data",
            )
        if any(of_model.shape != labels.shape for of_model in answers):
            shape = list(answers[0].shape)
            raise UsageError(f"output {self._output!r} no longer fits the labels: {shape} answers in a batch")
        self.used += len(labels)
        counted = labels >= 0
        self.count += int(counted.sum())
        for at, of_model in enumerate(answers):
            self.right[at] += int(((of_model == labels) & counted).sum())

    def result(self) -> TaskResult:
        """Return the shares of right answers; 0 where there are no answers."""
        reference, mixed = (right / max(self.count, 1) for right in self.right)
        return TaskResult(reference, mixed, self.count, self.used)

    def warnings(self) -> tuple[Diagnostic, ...]:
        """Return the warning about labels without a sample, if there are any."""
        return warn_unused_labels(self.used, len(self._labels))

    def _fitting(self, outputs: Mapping[str, Array]) -> str:
        """Return the first output that can answer, one with a class for every label before any other."""
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


def warn_unused_labels(used: int, count: int) -> tuple[Diagnostic, ...]:
    """Return the warning that some of ``count`` labels have no sample; () where all are ``used``."""
    if count <= used:
        return ()
    return (warning("ML604", f"{count - used} of {count} labels have no sample in the data"),)


def _fits(array: Array, labels: Labels) -> bool:
    """Return whether the array has classes over its last axis, or is an answer; the other axes must fit."""
    rest = array.shape[1:] if array.dtype.kind in "iu" else array.shape[1:-1]
    enough = array.dtype.kind in "iu" or (array.ndim >= 2 and array.shape[-1] > 1)
    return bool(array.ndim >= 1 and array.dtype.kind not in "bOSTU" and enough and rest == labels.shape[1:])


def _answers(array: Array, labels: Labels) -> Array:
    """Return the answer of each row; -1, which is never right, where there is a NaN."""
    import numpy as np

    if array.ndim == labels.ndim:
        return array
    return np.where(np.isnan(array).any(axis=-1), -1, array.argmax(axis=-1))
