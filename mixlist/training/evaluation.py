"""The metric of a trained network on data that it was not trained on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mixlist.errors import UsageError
from mixlist.training.dataset import Data
from mixlist.training.sampling import no_noise
from mixlist.training.step_session import Machine
from mixlist.training.stepgraph import LOSS, StepGraph

if TYPE_CHECKING:
    from numpy.typing import NDArray

ACCURACY = "accuracy"
LOGITS, LABELS = "logits", "y"
_INTEGERS = frozenset({2, 3, 4, 5, 6, 7, 12, 13})  # uint8 to uint64 in TensorProto.DataType
_LOWER = ("loss", "error", "perplexity")


@dataclass(frozen=True)
class Metric:
    """What is measured: ``accuracy`` (of ``logits`` against ``y``) or an output's mean; ``higher``: more is better."""

    name: str
    higher: bool

    @property
    def output(self) -> str:
        """The output that it is taken from."""
        return LOGITS if self.name == ACCURACY else self.name


def choose(graph: StepGraph, asked: str | None) -> Metric:
    """The metric that was asked for; else accuracy where the graph has logits and labels, else the loss.

    An output whose name has loss, error or perplexity in it is better when lower. Raises UsageError for no output.
    """
    labelled = LOGITS in graph.metrics and any(each.name == LABELS and each.type in _INTEGERS for each in graph.batch)
    if asked is None:
        return Metric(ACCURACY, True) if labelled else Metric(LOSS, False)
    if asked == ACCURACY and labelled:
        return Metric(ACCURACY, True)
    known = (LOSS, *graph.metrics)
    if asked not in known:
        hint = f"it is one of {', '.join(known)}" + (f", {ACCURACY}" if labelled else "")
        raise UsageError(f"{graph.name} has no output {asked!r} to measure", hint=hint)
    return Metric(asked, not any(word in asked.lower() for word in _LOWER))


def evaluate(
    graph: StepGraph,
    machine: Machine,
    parameters: Mapping[str, Any],
    data: Data,
    metric: Metric,
    batch_size: int,
    batches: int | None = None,
) -> float:
    """The metric over all samples, or those of the first ``batches``; random inputs are switched off.

    It is taken from the forward pass of the training step: batch normalisation goes by the batch's own statistics.
    The last batch may be smaller; a graph that was made for one batch size leaves it out. Raises UsageError for labels
    that do not fit the logits.
    """
    total, count = 0.0, 0
    for start in range(0, data.count, batch_size)[:batches]:
        batch = data.rows(slice(start, start + batch_size))
        rows = min(batch_size, data.count - start)
        if graph.fixed_batch is not None and rows < graph.fixed_batch:
            break
        (made,) = machine.outputs({**parameters, **batch, **no_noise(graph, rows)}, [metric.output])
        if metric.name == ACCURACY:
            if not start:
                _check_labels(data, made)
            right, of = _right(made, batch[LABELS])
            total, count = total + right, count + of
        else:
            total, count = total + float(made.astype("float64").mean()) * rows, count + rows
    return total / max(count, 1)


def _check_labels(data: Data, logits: NDArray[Any]) -> None:
    """Raises where a label is of no class, or none counts."""
    labels, classes = data.arrays[LABELS], logits.shape[-1] if logits.ndim else 0
    if int(labels.max()) >= classes:
        raise UsageError(
            f"{data.where}: the largest label in {LABELS!r} is {labels.max()}, and the logits have {classes} classes",
            hint=f"labels count classes from 0 to {classes - 1}; a negative label does not count",
        )
    if int(labels.max()) < 0:
        raise UsageError(
            f"{data.where}: every label in {LABELS!r} is negative, so that none counts",
            hint="give labels, or name another output with --metric",
        )


def _right(logits: NDArray[Any], labels: NDArray[Any]) -> tuple[int, int]:
    """Right answers and labels that count; negative labels (padding) do not. NaN is never right."""
    import numpy as np

    if logits.shape[:-1] != labels.shape:
        raise UsageError(
            f"logits {list(logits.shape)} and labels y {list(labels.shape)} do not fit",
            hint="accuracy needs one label for each row of logits; name another output with --metric",
        )
    answers = np.where(np.isnan(logits).any(axis=-1), -1, logits.argmax(axis=-1))
    counted = labels >= 0
    return int(((answers == labels) & counted).sum()), int(counted.sum())
