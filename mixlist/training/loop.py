"""Train one network from one seed, in float32 or in mixed precision (Rules S10.2 to S10.4).

A step runs in MindSpore's order:

1. The parameters are float32. The forward pass casts them for its low-precision nodes.
2. The loss is multiplied by the loss scale before the backward pass.
3. The gradients leave the graph as float32 and are divided by the scale.
4. Only then are the gradients examined. If one is not finite (or if a node overflows, where all are examined), the
   scaler decides: it skips the step, tries the update again with the next batch and another scale, or applies the
   update with these gradients.

With ``Settings.accumulate``, a step has several batches. Their gradients are added before they are divided and
examined.

A skipped step changes neither the parameters nor the buffers. The global step, which the learning rate follows, and
Adam's step count advance on a skipped step only with ``advance_on_skip``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, TypedDict

import numpy as np

from mixlist.files.strict_json import JsonObject
from mixlist.torch_export.step_names import LOSS_SCALE
from mixlist.training.dataset import BatchOrder, Dataset
from mixlist.training.optimizers import Optimizer, Settings
from mixlist.training.random_values import draw_initial_value, draw_perturbation, draw_random_inputs
from mixlist.training.result import TrainingHistory
from mixlist.training.scalers import NoScaling, Scaler, restore_scaler, scaler_state
from mixlist.training.step_session import FlatArrays, StepResult, StepSession
from mixlist.training.streamed_data import StreamedDataset

if TYPE_CHECKING:
    from mixlist.runtime.session import Array, Feed
    from mixlist.training.gradient_underflow import UnderflowSampler
    from mixlist.training.step_session import Float32Array


class TrainingState(TypedDict):
    """The state that ``Training.restore`` needs, as arrays, numbers and lists. Its keys are in the state file too."""

    parameters: Float32Array
    buffers: dict[str, Array]
    moments: Float32Array
    updates: int
    scaler: dict[str, object]
    step: int
    global_step: int
    first_bad: dict[str, Array] | None
    history: JsonObject  # the fields of a TrainingHistory


class Training:
    """The state of one training; ``run`` advances it.

    ``session``: runs the steps, in float32 or mixed. ``steps``: the length of the training in updates, which the
    learning-rate schedule needs. ``scaler``: None for no loss scaling. ``initial_values``: values of parameters and
    buffers by name; the others are drawn from the seed.
    """

    def __init__(
        self,
        session: StepSession,
        dataset: Dataset | StreamedDataset,
        settings: Settings,
        *,
        batch_size: int,
        steps: int,
        seed: int,
        scaler: Scaler | None = None,
        initial_values: Mapping[str, Array] | None = None,
        advance_on_skip: bool = False,
    ) -> None:
        self.session, self.dataset, self.settings = session, dataset, settings
        self.order = BatchOrder(dataset, batch_size, seed)
        self.steps, self.seed = steps, seed
        self.scaler = scaler or NoScaling()
        self.advance_on_skip = advance_on_skip
        graph, values = session.graph, dict(initial_values or {})
        # The index of a parameter is a part of the seed of its draw. So a value in ``initial_values`` does not change
        # the draws of the other parameters.
        for index, parameter in enumerate((*graph.parameters, *graph.buffers)):
            if parameter.name not in values:
                values[parameter.name] = draw_initial_value(parameter, seed, index)
        self.parameters = FlatArrays(graph.parameters)
        for name, view in self.parameters.views.items():
            view[...] = values[name]
        self.buffers = {buffer.name: values[buffer.name] for buffer in graph.buffers}
        self.optimizer = Optimizer(settings, graph.parameters)
        self.history = TrainingHistory()
        self.sampler: UnderflowSampler | None = None  # set by the caller for a mixed training
        self.first_bad_feed: dict[str, Array] | None = None  # the feed of the first exception, loss scale included
        self.step = 0  # steps that were made, skipped ones included; a step has ``settings.accumulate`` batches
        self.global_step = 0  # the step number that the learning-rate schedule reads

    @property
    def values(self) -> dict[str, Array]:
        """Return the current parameters and buffers, by name."""
        return {**self.parameters.views, **self.buffers}

    def make_twin(self) -> None:
        """Perturb the initial parameters by the rounding error of float16 (Rule S10.1)."""
        self.parameters.flat *= draw_perturbation(self.seed, self.parameters.flat.size)

    def feed(self, batch: int) -> dict[str, Array]:
        """Return every input of a batch, counted from 0, except the loss scale."""
        arrays = self.dataset.batch(self.order.indices(batch))
        return {**self.values, **arrays, **draw_random_inputs(self.session.graph, self.seed, batch, arrays)}

    def run(self, end: int) -> None:
        """Run steps until step ``end`` (not included) or the end of the training."""
        while self.step < min(end, self.steps):
            self._run_step()

    def _run_step(self) -> None:
        """Run the batches of the next step, and apply their gradients if the scaler says so (Rule S10.2)."""
        scale = self.scaler.scale
        result, feed = self._run_batches(scale)
        gradient = result.gradient  # the session's own array, which is changed in place below
        # Division before the check (Rule S10.3): a scale below 1 can make a large gradient infinite.
        if scale != 1:
            with np.errstate(over="ignore", invalid="ignore"):
                gradient /= np.float32(scale)
        finite = all_finite(gradient) and not result.overflows
        self.history.loss.append(result.loss)
        self.history.scale.append(scale)
        if not finite:
            self._record_exception(feed, scale / self.settings.accumulate)
        action = self.scaler.update(finite)
        if action == "step":
            rate = self.settings.rate(self.global_step, self.steps)
            # A scaler without an overflow check applies infinite gradients too: the user asked for that experiment.
            with np.errstate(all="ignore"):
                self.optimizer.apply(self.parameters.flat, gradient, rate)
            self.buffers = result.state
            self.global_step += 1
        else:  # a skipped step changes nothing (Rule S10.4)
            self.history.skipped.append(self.step)
            self.history.tries += action == "retry"
            # nnabla's update is not over when it tries the next batch.
            if self.advance_on_skip and action == "skip":
                # As in Keras, whose optimizer counts skipped steps too: its ``iterations`` are the global step.
                self.optimizer.updates += 1
                self.global_step += 1
        self.step += 1

    def _run_batches(self, scale: float) -> tuple[StepResult, Feed]:
        """Return the mean loss of the batches of a step, their added gradients, the last buffers, and one feed.

        Each batch has its share of the loss scale, so that the sum of the gradients is that of the mean loss. The feed
        is that of the first batch with an exception, or else of the last one.
        """
        count, bad_feed, overflows = self.settings.accumulate, None, False
        losses: list[float] = []
        buffers, share = self.buffers, scale / count
        total = np.zeros_like(self.parameters.flat) if count > 1 else None
        for batch in range(self.step * count, (self.step + 1) * count):
            feed = {**self.feed(batch), **buffers}
            result = self.session.step(feed, share)
            if self.sampler is not None and not losses and self.sampler.is_sampled(self.step):
                self.sampler.sample(feed, result.gradient, share, 1 / count)
            losses.append(result.loss)
            buffers = result.state
            if total is not None:
                overflows = overflows or result.overflows
                if bad_feed is None and (result.overflows or not all_finite(result.gradient)):
                    bad_feed = feed
                with np.errstate(over="ignore", invalid="ignore"):
                    total += result.gradient
        if total is not None:
            result.gradient[...] = total  # also seen by ``session.gradient_arrays``
            result.overflows = overflows
        result.loss = sum(losses) / count
        return result, bad_feed or feed

    def _record_exception(self, feed: Feed, scale: float) -> None:
        """Note the step, count it for each parameter whose gradient is not finite, and keep the first such feed."""
        self.history.exceptions.append(self.step)
        if self.first_bad_feed is None:
            # The next update changes the parameters in place, so the feed is copied.
            self.first_bad_feed = {name: np.array(value) for name, value in feed.items()}
            self.first_bad_feed[LOSS_SCALE] = self.session.loss_scale_input(scale)
        # The views share memory with the gradient that the step has divided by the scale.
        for name, view in self.session.gradient_arrays.views.items():
            if not np.isfinite(view).all():
                self.history.bad[name] = self.history.bad.get(name, 0) + 1

    def state(self) -> TrainingState:
        """Return everything that ``restore`` needs. The arrays are those of the training, not copies."""
        return {
            "parameters": self.parameters.flat,
            "buffers": self.buffers,
            "moments": self.optimizer.moments,
            "updates": self.optimizer.updates,
            "scaler": scaler_state(self.scaler),
            "step": self.step,
            "global_step": self.global_step,
            "first_bad": self.first_bad_feed,
            "history": asdict(self.history),
        }

    def restore(self, state: TrainingState) -> None:
        """Restore the training to the moment when ``state()`` returned ``state``."""
        # The optimizer changes parameters and moments in place, so neither may share memory with ``state``.
        self.parameters.flat[...] = state["parameters"]
        self.buffers = state["buffers"]
        self.optimizer.moments, self.optimizer.updates = state["moments"].copy(), state["updates"]
        self.scaler = restore_scaler(state["scaler"])
        self.step, self.global_step = state["step"], state["global_step"]
        self.first_bad_feed = state["first_bad"]
        self.history = TrainingHistory(**state["history"])


def all_finite(values: Float32Array) -> bool:
    """Return whether every value is finite; True for an empty array."""
    # max and min return NaN if there is one. Unlike np.isfinite, they need no new array as large as all gradients.
    return not values.size or (math.isfinite(float(values.max())) and math.isfinite(float(values.min())))
