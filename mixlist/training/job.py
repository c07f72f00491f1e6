"""Check and hold what all trainings of one command share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mixlist.diagnostics import Diagnostic, warning
from mixlist.errors import UsageError
from mixlist.graph.save import content_digest
from mixlist.lists.policy import Policy
from mixlist.runtime.array_casts import numpy_type
from mixlist.runtime.feeds import digest
from mixlist.training.dataset import Dataset, read_arrays, read_data
from mixlist.training.evaluation import Metric, choose_metric, evaluate
from mixlist.training.loop import Training
from mixlist.training.optimizers import Settings
from mixlist.training.options import EPOCHS, Source, TrainOptions
from mixlist.training.scalers import Scaler, describe_scaler, make_scaler
from mixlist.training.step_graph import StepGraph
from mixlist.training.step_session import StepSession

if TYPE_CHECKING:
    from mixlist.runtime.session import Array


@dataclass(frozen=True)
class TrainingStep:
    """A step that was made, for the ``progress`` callback. ``kind``: float32 or mixed; ``steps``: of one training."""

    seed: int
    kind: str
    step: int
    steps: int
    loss: float
    scale: float


@dataclass
class TrainingJob:
    """The trainings of one command. ``held``: the data to evaluate on; ``steps``: of each training.

    ``first_values``: those of ``init``, by name.
    """

    graph: StepGraph
    policy: Policy
    options: TrainOptions
    settings: Settings
    samples: Dataset
    held: Dataset
    metric: Metric
    steps: int
    first_values: dict[str, Array]

    def new_scaler(self, **changed: object) -> Scaler:
        """Return a scaler at its start; raises UsageError for parameters that it does not have."""
        return make_scaler(self.options.scaler, **{**(self.options.scaler_parameters or {}), **changed})

    def training(self, session: StepSession, seed: int, scaler: Scaler | None) -> Training:
        """Return a training at its start."""
        return Training(
            session,
            self.samples,
            self.settings,
            batch_size=self.options.batch_size,
            steps=self.steps,
            seed=seed,
            scaler=scaler,
            first_values=self.first_values,
            advance_on_skip=self.options.advance_on_skip,
        )

    def measure(self, training: Training, batches: int | None = None) -> float:
        """Return the metric of a training as it is now, over all evaluation data or the first ``batches``."""
        session, batch_size = training.session, self.options.batch_size
        return evaluate(session, training.values, self.held, self.metric, batch_size, batches)

    def data_warnings(self) -> list[Diagnostic]:
        """Return the warnings about the data."""
        warnings, held = [], self.held
        for data in (self.samples, held):
            warnings += [warning("ML602", f"{name}: {loss}", path=data.where) for name, loss in data.losses.items()]
        if held is self.samples:
            message = "there is no evaluation data: the metric is taken on the training data"
            warnings.append(warning("ML609", message, hint="give other data with --eval-data"))
        left_over = held.count % self.options.batch_size if self.graph.fixed_batch_size is not None else 0
        if left_over:
            message = f"{left_over} samples are left out: {self.graph.name} takes whole batches only"
            warnings.append(warning("ML610", message, path=held.where))
        return list(dict.fromkeys(warnings))

    def key(self) -> dict[str, str]:
        """Return what the numbers of a training depend on."""
        import onnxruntime

        from mixlist.version import __version__

        options = self.options
        scaler = describe_scaler(self.new_scaler())
        return {
            "step graph": content_digest(self.graph.loaded),
            "data": digest([self.samples.arrays, self.held.arrays]),
            "lists": self.policy.digest,
            "initial values": digest([self.first_values]),
            "options": f"{self.settings} {options.batch_size} {self.steps} {scaler} {options.advance_on_skip}"
            f" {options.provider} {options.threads} {self.metric}",
            "versions": f"mixlist {__version__}, onnxruntime {onnxruntime.__version__}",
        }


def make_job(graph: StepGraph, policy: Policy, data: Source, options: TrainOptions) -> TrainingJob:
    """Return what all trainings have in common; raises UsageError for what does not fit before the long run."""
    samples = read_data(graph, data, "the training data")
    held = samples
    if options.eval_data is not None:
        held = read_data(graph, options.eval_data, "the evaluation data")
    _refuse_batch(graph, options.batch_size, samples, held)
    job = TrainingJob(
        graph=graph,
        policy=policy,
        options=options,
        settings=options.optimizer or Settings(),
        samples=samples,
        held=held,
        metric=choose_metric(graph, options.metric),
        steps=options.steps or (options.epochs or EPOCHS) * (samples.count // options.batch_size),
        first_values=_first_values(graph, options.init),
    )
    job.new_scaler()
    return job


def _refuse_batch(graph: StepGraph, batch_size: int, samples: Dataset, held: Dataset) -> None:
    fixed = graph.fixed_batch_size
    if fixed is not None and fixed != batch_size:
        raise UsageError(
            f"{graph.name} takes batches of {fixed} samples, not of {batch_size}",
            hint=f"give --batch-size {fixed}, or export the step with a batch size that is free",
        )
    # The last batch of an evaluation may be smaller, unless the graph takes batches of one size only.
    for data in (samples, held):
        if data.count < batch_size and (data is samples or fixed is not None):
            raise UsageError(
                f"a batch of {batch_size} needs as many samples, and {data.where} has {data.count}",
                hint="give a smaller --batch-size, or more data",
            )


def _first_values(graph: StepGraph, init: Source | None) -> dict[str, Array]:
    """Return what ``init`` gives, as arrays of the parameters' types and shapes; raises UsageError."""
    if init is None:
        return {}
    arrays, where = read_arrays(init, "the initial values")
    parameters = {each.name: each for each in (*graph.parameters, *graph.buffers)}
    values = {}
    for name, value in arrays.items():
        if name not in parameters:
            hint = f"it has {', '.join(list(parameters)[:12])}"
            raise UsageError(f"{where}: {name!r} is no parameter of {graph.name}", hint=hint)
        array, parameter = np.asarray(value), parameters[name]
        if array.shape != parameter.shape:
            shapes = f"{list(array.shape)}, and the parameter is {list(parameter.shape)}"
            raise UsageError(f"{where}: {name!r} is {shapes}")
        if array.dtype.kind not in "biuf" or not np.isfinite(array).all():
            raise UsageError(f"{where}: {name!r} holds values that are no finite numbers")
        values[name] = array.astype(numpy_type(parameter.type))
    return values
