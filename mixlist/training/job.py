"""Prepare the inputs that all trainings of one ``train`` command share, and check them before the long run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from mixlist.diagnostics import Diagnostic, warning
from mixlist.errors import UsageError
from mixlist.graph.save import content_digest
from mixlist.installed_runtime import require_onnxruntime
from mixlist.lists.policy import Policy
from mixlist.runtime.array_casts import numpy_type
from mixlist.runtime.feeds import digest
from mixlist.torch_export.step_names import initial_values_path
from mixlist.training.dataset import Dataset, read_arrays
from mixlist.training.evaluation import Metric, choose_metric, evaluate
from mixlist.training.loop import Training
from mixlist.training.optimizers import Settings
from mixlist.training.options import DEFAULT_EPOCHS, DRAWN, ArraySource, DataSource, TrainOptions
from mixlist.training.parameter_groups import values_by_element
from mixlist.training.scalers import Scaler, describe_scaler, make_scaler
from mixlist.training.step_graph import StepGraph
from mixlist.training.step_session import StepSession
from mixlist.training.streamed_data import StreamedDataset, read_dataset

if TYPE_CHECKING:
    from mixlist.runtime.session import Array


TrainingData: TypeAlias = Dataset | StreamedDataset
SHARED_START = "all seeds share one start: the initial values are given, not drawn"


@dataclass
class TrainingJob:
    """The shared inputs of the trainings of one command.

    ``evaluation_data`` is ``training_data`` if the user gives no evaluation data. ``steps`` is the length of each
    training in updates: ``accumulate`` batches make one. ``initial_values`` are those of the option ``init``, by name.
    """

    graph: StepGraph
    policy: Policy
    options: TrainOptions
    settings: Settings
    training_data: TrainingData
    evaluation_data: TrainingData
    metric: Metric
    steps: int
    initial_values: dict[str, Array]

    def new_scaler(self, **changes: object) -> Scaler:
        """Return a new scaler, with the parameters of the options and ``changes`` to them.

        Raises UsageError for parameters that the scaler does not have.
        """
        return make_scaler(self.options.scaler, **{**(self.options.scaler_parameters or {}), **changes})

    def new_training(self, session: StepSession, seed: int, scaler: Scaler | None) -> Training:
        """Return a training that has made no step yet."""
        return Training(
            session,
            self.training_data,
            self.settings,
            batch_size=self.options.batch_size,
            steps=self.steps,
            seed=seed,
            scaler=scaler,
            initial_values=self.initial_values,
            advance_on_skip=self.options.advance_on_skip,
        )

    @property
    def planned_steps(self) -> int | None:
        """The length of the planned training in updates; None if it is not given."""
        planned = self.options.planned_steps
        return None if planned is None else max(1, planned // self.settings.accumulate)

    @property
    def evaluation_steps(self) -> tuple[int, ...]:
        """The numbers of steps after which the metric is measured: 80, 85, 90, 95 and 100 % (Rule S10.14)."""
        return tuple(sorted({max(1, round(self.steps * part / 20)) for part in range(16, 21)}))

    def measure(self, training: Training, max_batches: int | None = None) -> float:
        """Return the metric with the current parameters, over all evaluation data or the first ``max_batches``."""
        session, batch_size = training.session, self.options.batch_size
        return evaluate(session, training.values, self.evaluation_data, self.metric, batch_size, max_batches)

    def describe_start(self) -> str:
        """Return where the trainings start, as a sentence for the report (Rule S10.22)."""
        parameters = self.graph.parameters
        shared = [parameter for parameter in parameters if parameter.name in self.initial_values]
        if len(shared) == len(parameters):
            return SHARED_START
        estimated = [p.name for p in parameters if p not in shared and p.distribution.get("estimated")]
        text = f"each seed draws {len(parameters) - len(shared)} of {len(parameters)} parameters anew"
        return f"{text}; {len(estimated)} of them from an estimate ({estimated[0]} first)" if estimated else text

    def data_warnings(self) -> list[Diagnostic]:
        """Return the warnings on training and evaluation data.

        They are about values that casts changed, evaluation data that is not given, random numbers in an evaluation,
        and samples that are left out.
        """
        warnings, evaluation_data = [], self.evaluation_data
        for dataset in (self.training_data, evaluation_data):
            source_name = dataset.source_name
            warnings += [
                warning("ML602", f"{name}: {cast_loss}", path=source_name)
                for name, cast_loss in dataset.cast_losses.items()
            ]
        if evaluation_data is self.training_data:
            message = "there is no evaluation data: the metric is measured on the training data"
            warnings.append(warning("ML609", message, hint="give other data with --eval-data"))
        if self.graph.has_evaluation and self.graph.evaluation_is_random:
            message = (
                f"{self.graph.name} draws random numbers in its mode eval(): the metric is the mean of several draws"
            )
            warnings.append(warning("ML615", message, hint="draw them only where self.training is True"))
        # An evaluation skips an incomplete last batch only if the graph cannot take it.
        left_over = evaluation_data.count % self.options.batch_size
        if left_over and self.graph.fixed_batch_size is not None and not evaluation_data.has_whole_batches:
            message = f"{left_over} samples are left out: {self.graph.name} takes whole batches only"
            warnings.append(warning("ML610", message, path=evaluation_data.source_name))
        return list(dict.fromkeys(warnings))  # once, if the same data serves for training and evaluation

    def fingerprint(self) -> dict[str, str]:
        """Return a text for each input that the results of a training depend on.

        A saved state may be continued only if all texts are equal. The number of runs and the limits of the verdict are
        not among the inputs, so a user may change them.
        """
        require_onnxruntime()
        import onnxruntime

        from mixlist.version import __version__

        options = self.options
        scaler = describe_scaler(self.new_scaler())
        return {
            "step graph": content_digest(self.graph.loaded),
            "data": f"{self.training_data.digest} {self.evaluation_data.digest}",
            "lists": self.policy.digest,
            "initial values": digest([self.initial_values]),
            # The number of threads counts too: it decides the order in which ONNX Runtime adds floats.
            "options": f"{self.settings} {options.batch_size} {self.steps} {scaler} {options.advance_on_skip}"
            f" {options.provider} {options.threads} {self.metric}"
            f" {options.overflow_mode} {options.examines_every_node}",
            "versions": f"mixlist {__version__}, onnxruntime {onnxruntime.__version__}",
        }


def make_job(graph: StepGraph, policy: Policy, data: DataSource, options: TrainOptions) -> TrainingJob:
    """Read the data and return the job. Raises UsageError for data and options that do not fit the step graph."""
    training_data = read_dataset(graph, data, "the training data")
    evaluation_data = training_data
    if options.eval_data is not None:
        evaluation_data = read_dataset(graph, options.eval_data, "the evaluation data")
    _check_batch_size(graph, options.batch_size, training_data, evaluation_data)
    settings = options.optimizer or Settings()
    # An epoch has whole batches only, see BatchOrder.
    batch_size = 1 if training_data.has_whole_batches else options.batch_size
    batches = options.steps or (options.epochs or DEFAULT_EPOCHS) * (training_data.count // batch_size)
    if batches < settings.accumulate:
        message = f"a step has {settings.accumulate} batches, and the training has {batches} in all"
        raise UsageError(message, hint="give a smaller --accumulate, or a longer training")
    values_by_element(settings, graph.parameters)  # raises for a group without parameters
    job = TrainingJob(
        graph=graph,
        policy=policy,
        options=options,
        settings=settings,
        training_data=training_data,
        evaluation_data=evaluation_data,
        metric=choose_metric(graph, options.metric),
        steps=batches // settings.accumulate,
        initial_values=_read_initial_values(graph, options.init),
    )
    job.new_scaler()  # raises for wrong parameters now, not after the float32 training
    return job


def _check_batch_size(
    graph: StepGraph, batch_size: int, training_data: TrainingData, evaluation_data: TrainingData
) -> None:
    """Raise UsageError if the graph does not take batches of this size, or if there are too few samples for one."""
    fixed_size = graph.fixed_batch_size
    for dataset in (training_data, evaluation_data):
        if dataset.has_whole_batches:  # each of them was compared with the declared shapes
            continue
        if fixed_size is not None and fixed_size != batch_size:
            raise UsageError(
                f"{graph.name} takes batches of {fixed_size} samples, not of {batch_size}",
                hint=f"give --batch-size {fixed_size}, or export the step graph with a dynamic batch size",
            )
        # The last batch of an evaluation may be smaller, unless the graph takes batches of one size only.
        if dataset.count < batch_size and (dataset is training_data or fixed_size is not None):
            raise UsageError(
                f"a batch has {batch_size} samples, and {dataset.source_name} has {dataset.count} in all",
                hint="give a smaller --batch-size, or more data",
            )


def _read_initial_values(graph: StepGraph, init: ArraySource | None) -> dict[str, Array]:
    """Return the initial values that all seeds share, in the types of the parameters and buffers (Rule S10.22).

    These are the values next to the step graph and those of ``init``. For parameters that are drawn, there are none.
    Raises UsageError for a name or shape that the graph does not have, and for values that are not finite.
    """
    own_path = initial_values_path(graph.loaded.path) if graph.loaded.path is not None else None
    values: dict[str, Array] = {}
    if own_path is not None and own_path.is_file():
        values = _fit_initial_values(graph, own_path)
    if init is None:
        return values
    # A distribution that is an estimate is of no use if the values themselves are there.
    drawn = {p.name for p in graph.parameters if p.distribution and not p.distribution.get("estimated")}
    values = {name: value for name, value in values.items() if name not in drawn}
    return values if init == DRAWN else values | _fit_initial_values(graph, init)


def _fit_initial_values(graph: StepGraph, init: ArraySource) -> dict[str, Array]:
    """Return the arrays of ``init``, cast to the types of the parameters and buffers."""
    arrays, source_name = read_arrays(init, "the initial values")
    parameters = {parameter.name: parameter for parameter in (*graph.parameters, *graph.buffers)}
    values = {}
    for name, value in arrays.items():
        if name not in parameters:
            hint = f"the graph has {', '.join(list(parameters)[:12])}"  # not all: a network can have thousands
            raise UsageError(f"{source_name}: {name!r} is not a parameter of {graph.name}", hint=hint)
        array, parameter = np.asarray(value), parameters[name]
        if array.shape != parameter.shape:
            shapes = f"{list(array.shape)}, and the parameter has the shape {list(parameter.shape)}"
            raise UsageError(f"{source_name}: {name!r} has the shape {shapes}")
        if array.dtype.kind not in "biuf" or not np.isfinite(array).all():
            raise UsageError(f"{source_name}: {name!r} holds values that are not finite numbers")
        values[name] = array.astype(numpy_type(parameter.type))
    return values
