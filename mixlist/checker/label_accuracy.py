"""Measure task accuracy: how often the answers of both models agree with labels (``check --labels``)."""

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

    from mixlist.run.session import Array

Labels: TypeAlias = "NDArray[np.int64]"


def read_labels(path: str | os.PathLike[str]) -> Labels:
    """Read integer labels from a ``.npy`` file, or from a ``.npz`` file with one array or one named ``labels``.

    The first axis of the labels runs over the samples of all batches, in the order of the data. Raises FileError if
    the file cannot be read, and UsageError if it holds no integers.
    """
    import numpy as np

    from mixlist.run.batch_files import load_arrays

    path_text = os.fspath(path)
    content = load_arrays(Path(path))
    if isinstance(content, dict):
        content = _choose_array(content, path_text)
    if content.dtype.kind not in "biu" or content.ndim == 0:
        raise UsageError(
            f"{path_text} holds {content.dtype} values of shape {list(content.shape)}, which cannot be labels",
            hint="labels are integers, one per sample (or per position), in the order of the data",
        )
    return np.asarray(content, dtype=np.int64)


def _choose_array(arrays: Mapping[str, Array], path_text: str) -> Array:
    """Return the array ``labels`` of a .npz file, or its only array."""
    names = list(arrays)
    if "labels" in names or len(names) == 1:
        return arrays["labels" if "labels" in names else names[0]]
    raise UsageError(
        f"{path_text} holds the arrays {', '.join(names) or 'none'}", hint="give one of them the name 'labels'"
    )


class TaskAccuracy:
    """The right answers of both models, counted batch by batch.

    An answer is the ArgMax over the last axis of the first output whose other axes fit the labels. An integer output
    of the same shape as the labels holds answers itself. Negative labels (padding) do not count.
    """

    def __init__(self, labels: Labels) -> None:
        self._labels = labels
        self.used = 0  # labels whose samples were in the batches so far
        self.right = [0, 0]  # right answers of the reference, and of the mixed model
        self.count = 0  # used labels that count: those that are not negative
        self._output = ""  # the name of the output with the answers, chosen by the first batch

    def add(self, reference: Mapping[str, Array], mixed: Mapping[str, Array]) -> None:
        """Add one batch: the outputs of both models by name.

        Raises UsageError if no output fits the labels, or if there are fewer labels than samples.
        """
        self._output = self._output or self._choose_output(reference)
        answers = [_answers(outputs[self._output], self._labels) for outputs in (reference, mixed)]
        labels = self._labels[self.used : self.used + len(answers[0])]
        if len(labels) < len(answers[0]):
            raise UsageError(
                f"there are labels for {len(self._labels)} samples, and the data has more",
                hint="give one label per sample, in the order of the data",
            )
        # The output was chosen by the first batch. In this batch its positions may be more or fewer than those of the
        # labels, for example with labels [samples, 128] and answers [8, 64].
        if any(model_answers.shape != labels.shape for model_answers in answers):
            shape = list(answers[0].shape)
            raise UsageError(f"output {self._output!r} no longer fits the labels: {shape} answers in a batch")
        self.used += len(labels)
        # Padding is used, because it has a place in the data, but it is no right or wrong answer.
        is_counted = labels >= 0
        self.count += int(is_counted.sum())
        for index, model_answers in enumerate(answers):
            self.right[index] += int(((model_answers == labels) & is_counted).sum())

    def result(self) -> TaskResult:
        """Return the share of right answers of each model; 0 if no label counts."""
        reference, mixed = (right / max(self.count, 1) for right in self.right)
        return TaskResult(reference, mixed, self.count, self.used)

    def warnings(self) -> tuple[Diagnostic, ...]:
        """Return the warning that some labels have no sample; () if all have one."""
        return warn_unused_labels(self.used, len(self._labels))

    def _choose_output(self, outputs: Mapping[str, Array]) -> str:
        """Return the name of the first output that can hold the answers.

        An output that fits has a class for every label, or holds integers. If an output fits the axes of the labels but
        has too few classes, the labels are wrong. Raises UsageError then, and if no output fits the axes.
        """
        import numpy as np

        # Sequences and absent optionals are no arrays: they cannot hold one answer per sample.
        arrays = {name: value for name, value in outputs.items() if isinstance(value, np.ndarray)}
        fitting = [name for name, array in arrays.items() if _fits_labels(array, self._labels)]
        largest_label = int(self._labels.max(initial=0))
        # An output may fit by chance, such as a pooled vector [batch, 2] before logits [batch, 1000]: with a label of 7
        # it cannot hold the answers.
        for name in fitting:
            if arrays[name].dtype.kind in "iu" or arrays[name].shape[-1] > largest_label:
                return name
        if fitting:
            classes = arrays[fitting[0]].shape[-1]
            raise UsageError(
                f"the largest label is {largest_label}, and output {fitting[0]!r} has {classes} classes",
                hint=f"labels count classes from 0 to {classes - 1}; a negative label does not count",
            )
        shapes = ", ".join(f"{name!r} {list(array.shape)}" for name, array in arrays.items()) or "none"
        raise UsageError(
            f"no output fits labels of shape {list(self._labels.shape)}: the outputs of a batch are {shapes}",
            hint="an output needs the axes of the labels and one more over the classes",
        )


def warn_unused_labels(used: int, count: int) -> tuple[Diagnostic, ...]:
    """Return the warning that some of ``count`` labels have no sample; () if all of them are ``used``."""
    if count <= used:
        return ()
    return (warning("ML604", f"{count - used} of {count} labels have no sample in the data"),)


def _fits_labels(array: Array, labels: Labels) -> bool:
    """Return True if the shape of an output fits the labels, apart from the first axis, which is the batch size.

    Floats need one more axis, over the classes: labels [samples] fit an output [batch, classes]. Integers are answers
    themselves: labels [samples, positions] fit an output [batch, positions].
    """
    is_integer = array.dtype.kind in "iu"
    answer_axes = array.shape[1:] if is_integer else array.shape[1:-1]
    has_answers = is_integer or (array.ndim >= 2 and array.shape[-1] > 1)  # a single class is no choice
    is_numeric = array.dtype.kind not in "bOSTU"  # no bools, objects or strings
    return bool(array.ndim >= 1 and is_numeric and has_answers and answer_axes == labels.shape[1:])


def _answers(array: Array, labels: Labels) -> Array:
    """Return the answer of each row; -1 for a row with a NaN, because no label that counts is negative."""
    import numpy as np

    if array.ndim == labels.ndim:  # integers, which are answers themselves
        return array
    # numpy's argmax would return the place of the NaN.
    return np.where(np.isnan(array).any(axis=-1), -1, array.argmax(axis=-1))
