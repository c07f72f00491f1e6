"""Take the metric of a trained network on data that it was not trained on (Rule S10.14)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mixlist.errors import UsageError
from mixlist.torch_export.step_format import LOSS
from mixlist.training.dataset import Dataset
from mixlist.training.random_values import neutral_random_inputs
from mixlist.training.step_graph import StepGraph
from mixlist.training.step_session import StepSession

if TYPE_CHECKING:
    from mixlist.runtime.session import Array

ACCURACY = "accuracy"
LOGITS, LABELS = "logits", "y"
_INTEGERS = frozenset({2, 3, 4, 5, 6, 7, 12, 13})  # uint8 to uint64 in TensorProto.DataType
_LOWER = ("loss", "error", "perplexity")


@dataclass(frozen=True)
class Metric:
    """``accuracy`` (of ``logits`` against ``y``) or the mean of an output; ``higher``: more is better."""

    name: str
    higher: bool


def choose_metric(graph: StepGraph, name: str | None) -> Metric:
    """Return the metric of this name; by default accuracy where the graph has logits and labels, else the loss.

    An output whose name has loss, error or perplexity in it is better when lower. Raises UsageError for no output.
    """
    labeled = LOGITS in graph.metrics and any(
        each.name == LABELS and each.type in _INTEGERS for each in graph.batch_inputs
    )
    if name is None:
        name = ACCURACY if labeled else LOSS
    names = (LOSS, *graph.metrics, *((ACCURACY,) if labeled else ()))
    if name not in names:
        raise UsageError(f"{graph.name} has no output {name!r} to measure", hint=f"it is one of {', '.join(names)}")
    return Metric(name, not any(word in name.lower() for word in _LOWER))


def evaluate(
    session: StepSession,
    parameters: Mapping[str, Array],
    data: Dataset,
    metric: Metric,
    batch_size: int,
    batches: int | None = None,
) -> float:
    """Return the metric over all samples, or those of the first ``batches``; random inputs are switched off.

    The forward pass of the training step computes the metric, so batch normalization uses the statistics of each batch.
    A last batch with fewer samples counts too; if the graph has a fixed batch size, the metric leaves these samples
    out. Raises UsageError for labels that do not fit the logits.
    """
    graph = session.graph
    output = LOGITS if metric.name == ACCURACY else metric.name
    total, count = 0.0, 0
    for start in range(0, data.count, batch_size)[:batches]:
        batch = data.rows(slice(start, start + batch_size))
        rows = min(batch_size, data.count - start)
        if graph.fixed_batch_size is not None and rows < graph.fixed_batch_size:
            break
        (values,) = session.outputs({**parameters, **batch, **neutral_random_inputs(graph, rows)}, [output])
        if metric.name == ACCURACY:
            if not start:
                _check_labels(data, values)
            right, counted = _count_right(values, batch[LABELS])
            total, count = total + right, count + counted
        else:
            total, count = total + float(values.astype(np.float64).mean()) * rows, count + rows
    return total / max(count, 1)


def _check_labels(data: Dataset, logits: Array) -> None:
    """Raise UsageError where a label is of no class, or none counts."""
    largest, classes = int(data.arrays[LABELS].max()), logits.shape[-1] if logits.ndim else 0
    if largest >= classes:
        raise UsageError(
            f"{data.where}: the largest label in {LABELS!r} is {largest}, and the logits have {classes} classes",
            hint=f"labels count classes from 0 to {classes - 1}; a negative label does not count",
        )
    if largest < 0:
        raise UsageError(
            f"{data.where}: every label in {LABELS!r} is negative, so that none counts",
            hint="give labels, or name another output with --metric",
        )


def _count_right(logits: Array, labels: Array) -> tuple[int, int]:
    """Count right answers, and labels: negative ones (padding) do not count. NaN is never right."""
    if logits.shape[:-1] != labels.shape:
        raise UsageError(
            f"logits {list(logits.shape)} and labels y {list(labels.shape)} do not fit",
            hint="accuracy needs one label for each row of logits; name another output with --metric",
        )
    answers = np.where(np.isnan(logits).any(axis=-1), -1, logits.argmax(axis=-1))
    counted = np.greater_equal(labels, 0)
    return int(((answers == labels) & counted).sum()), int(counted.sum())
