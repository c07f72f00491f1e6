"""Compute the metric of a network on evaluation data (Rule S10.14)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mixlist.errors import UsageError
from mixlist.torch_export.step_names import EVALUATION_PREFIX, LOSS
from mixlist.training.dataset import Dataset
from mixlist.training.random_values import draw_random_inputs, neutral_random_inputs
from mixlist.training.step_graph import StepGraph
from mixlist.training.step_session import StepSession
from mixlist.training.streamed_data import StreamedDataset

if TYPE_CHECKING:
    from mixlist.runtime.session import Array

EVALUATION_DRAWS = 8
ACCURACY = "accuracy"
LOGITS, LABELS = "logits", "y"  # the output and the input that the accuracy compares
_INTEGER_TYPES = frozenset({2, 3, 4, 5, 6, 7, 12, 13})  # uint8 to uint64 in TensorProto.DataType
_LOWER_IS_BETTER = ("loss", "error", "perplexity")  # words in the name of a metric


@dataclass(frozen=True)
class Metric:
    """A metric: ``accuracy`` (of ``logits`` against the labels ``y``), or the mean of the output called ``name``."""

    name: str
    higher_is_better: bool


def choose_metric(graph: StepGraph, name: str | None) -> Metric:
    """Return the metric of this name.

    Without a name, the metric is the accuracy if the graph has logits and integer labels, else the loss. A metric whose
    name holds ``loss``, ``error`` or ``perplexity`` is better when lower. Raises UsageError if the graph has no output
    of this name.
    """
    # Labels of a float type are targets of a regression, not class numbers.
    has_labels = any(value.name == LABELS and value.type in _INTEGER_TYPES for value in graph.batch_inputs)
    has_accuracy = has_labels and LOGITS in graph.metrics
    if name is None:
        name = ACCURACY if has_accuracy else LOSS
    names = (LOSS, *graph.metrics, *((ACCURACY,) if has_accuracy else ()))
    if name not in names:
        raise UsageError(f"{graph.name} has no output {name!r} to measure", hint=f"give one of {', '.join(names)}")
    return Metric(name, not any(word in name.lower() for word in _LOWER_IS_BETTER))


def evaluate(
    session: StepSession,
    parameters_and_buffers: Mapping[str, Array],
    dataset: Dataset | StreamedDataset,
    metric: Metric,
    batch_size: int,
    max_batches: int | None = None,
) -> float:
    """Return the metric over all samples, or over the samples of the first ``max_batches`` batches.

    ``parameters_and_buffers`` holds their values by name. The mode eval() of the module runs if the step graph has it.
    Else the forward pass of the training step runs, with random inputs switched off: batch normalization uses the
    statistics of each batch. A smaller last batch counts too, unless the graph has a fixed batch size. Whole batches
    weigh the same. Raises UsageError for labels that do not fit the logits.
    """
    graph = session.graph
    output = LOGITS if metric.name == ACCURACY else metric.name
    if graph.has_evaluation:
        output = EVALUATION_PREFIX + output
    total, count = 0.0, 0  # the sum of the metric, and the number of samples or labels in the sum
    if dataset.has_whole_batches:
        batch_size = 1
    for start in range(0, dataset.count, batch_size)[:max_batches]:
        batch = dataset.batch(slice(start, start + batch_size))
        rows = min(batch_size, dataset.count - start)
        if graph.fixed_batch_size is not None and rows < graph.fixed_batch_size and not dataset.has_whole_batches:
            break
        for random_inputs in _evaluation_draws(graph, start, batch):
            (values,) = session.run_forward({**parameters_and_buffers, **batch, **random_inputs}, [output])
            if metric.name == ACCURACY:
                # Once, at the first batch: every batch has the same number of classes, and the check reads the labels
                # of the whole dataset.
                if not start:
                    _check_labels(dataset, values)
                batch_correct, batch_labels = _count_correct(values, batch[LABELS])
                total, count = total + batch_correct, count + batch_labels
            else:
                # A smaller last batch must weigh less in the mean over all samples.
                total, count = total + float(values.astype(np.float64).mean()) * rows, count + rows
    return total / max(count, 1)


def _evaluation_draws(graph: StepGraph, start: int, batch: Mapping[str, Array]) -> Iterator[dict[str, Array]]:
    """Yield the random inputs of each evaluation of the batch that begins with the sample ``start``.

    A step graph with the module's mode eval() draws random numbers there only where the module does not check
    ``self.training``. ``off`` could be any value for such a draw, so there are several draws, which depend on the batch
    alone. Other step graphs get the values that switch the random inputs off.
    """
    if not (graph.has_evaluation and graph.evaluation_is_random):
        yield neutral_random_inputs(graph, batch)
        return
    for number in range(EVALUATION_DRAWS):
        yield draw_random_inputs(graph, number, start, batch)


def describe_evaluation(graph: StepGraph) -> str:
    """Return which graph computes the metric, as a sentence for the report (Rule S10.24)."""
    if not graph.has_evaluation:
        return "the metric is computed by the graph of the step"
    text = "the metric is computed by the eval() graph of the module"
    draws = f", as the mean of {EVALUATION_DRAWS} draws, because this graph draws random numbers too"
    return text + draws if graph.evaluation_is_random else text


def _check_labels(dataset: Dataset | StreamedDataset, logits: Array) -> None:
    """Raise UsageError if a label is not below the number of classes, or if every label is negative."""
    largest_label, classes = dataset.largest_value(LABELS), logits.shape[-1] if logits.ndim else 0
    if largest_label >= classes:
        raise UsageError(
            f"{dataset.source_name}: the largest label in {LABELS!r} is {largest_label:.0f}, and the logits have"
            f" {classes} classes",
            hint=f"labels are class numbers from 0 to {classes - 1}; a negative label is left out",
        )
    if largest_label < 0:
        raise UsageError(
            f"{dataset.source_name}: every label in {LABELS!r} is negative, so that none counts",
            hint="give labels from 0 on, or name another output with --metric",
        )


def _count_correct(logits: Array, labels: Array) -> tuple[int, int]:
    """Return the number of correct predictions and of labels. Negative labels (padding) do not count.

    ``logits`` has one axis more than ``labels``: the classes. A row with a NaN is never correct. Raises UsageError if
    the other axes differ.
    """
    if logits.shape[:-1] != labels.shape:
        raise UsageError(
            f"logits {list(logits.shape)} and labels y {list(labels.shape)} do not fit",
            hint="accuracy needs one label for each row of logits; name another output with --metric",
        )
    # For a row with a NaN, argmax returns the index of the NaN, which may equal the label by chance. Such a row gets
    # the prediction -1 instead, which equals no label that counts.
    predictions = np.where(np.isnan(logits).any(axis=-1), -1, logits.argmax(axis=-1))
    counted = np.greater_equal(labels, 0)
    return int(((predictions == labels) & counted).sum()), int(counted.sum())
