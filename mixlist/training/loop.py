"""Train one network from one seed, in float32 or mixed (Rules S10.2 to S10.4).

The order within a step is MindSpore's: parameters are kept in float32, the forward pass casts them for low operators,
the loss is multiplied by the scale before the backward pass, gradients come back as float32, are divided by the scale,
and only then examined: a bad step skips the update, and the buffers that it computed. The global step, which the
learning rate follows, and Adam's count stand still on a skipped step unless ``advance_on_skip``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from mixlist.torch_export.step_format import LOSS_SCALE
from mixlist.training.dataset import BatchOrder, Dataset
from mixlist.training.optimizers import Optimizer, Settings
from mixlist.training.random_values import draw_initial_value, draw_random_inputs
from mixlist.training.result import TrainingHistory
from mixlist.training.scalers import Action, NoScaling, Scaler, restore_scaler, scaler_state
from mixlist.training.step_session import FlatArrays, StepSession

if TYPE_CHECKING:
    from mixlist.runtime.session import Array, Feed
    from mixlist.training.gradient_underflow import UnderflowSampler
    from mixlist.training.step_session import Floats


class TrainingState(TypedDict):
    """Everything that ``Training.restore`` needs; arrays, numbers and lists."""

    parameters: Floats
    buffers: dict[str, Array]
    moments: Floats
    updates: int
    scaler: dict[str, object]
    step: int
    global_step: int
    first_bad: dict[str, Array] | None
    history: dict[str, Any]  # the fields of a Curve


class Training:
    """The state of one training; ``run`` goes on to a step."""

    def __init__(
        self,
        session: StepSession,
        data: Dataset,
        settings: Settings,
        *,
        batch_size: int,
        steps: int,
        seed: int,
        scaler: Scaler | None = None,
        first_values: Mapping[str, Array] | None = None,
        advance_on_skip: bool = False,
    ) -> None:
        self.session, self.data, self.settings = session, data, settings
        self.order = BatchOrder(data.count, batch_size, seed)
        self.steps, self.seed = steps, seed
        self.scaler = scaler or NoScaling()
        self.advance_on_skip = advance_on_skip
        graph, values = session.graph, dict(first_values or {})
        for index, each in enumerate((*graph.parameters, *graph.buffers)):
            if each.name not in values:
                values[each.name] = draw_initial_value(each, seed, index)
        self.parameters = FlatArrays(graph.parameters)
        for name, view in self.parameters.views.items():
            view[...] = values[name]
        self.buffers = {each.name: values[each.name] for each in graph.buffers}
        self.optimizer = Optimizer(settings, self.parameters.data.size)
        self.history = TrainingHistory()
        self.sampler: UnderflowSampler | None = None
        self.first_bad: dict[str, Array] | None = None  # the feed of the first bad step, its scale included
        self.step = 0  # batches done
        self.global_step = 0  # updates that the learning rate counts

    @property
    def values(self) -> dict[str, Array]:
        """Parameters and buffers, by name."""
        return {**self.parameters.views, **self.buffers}

    def feed(self, step: int) -> dict[str, Array]:
        """Return what a step reads, but for the scale."""
        rows = self.order.indices(step)
        return {
            **self.values,
            **self.data.rows(rows),
            **draw_random_inputs(self.session.graph, self.seed, step, len(rows)),
        }

    def run(self, until: int) -> None:
        """Make steps up to ``until``, or to the end."""
        while self.step < min(until, self.steps):
            self._run_step()

    def _run_step(self) -> None:
        """Make one step, again as long as the scaler wants (Rule S10.2)."""
        feed = self.feed(self.step)
        exception = False
        action: Action = "retry"
        while action == "retry":
            scale = self.scaler.scale
            result = self.session.step(feed, scale)
            gradient = result.gradient
            if self.sampler is not None and not exception and self.sampler.samples(self.step):
                self.sampler.sample(feed, gradient, scale)
            if scale != 1:
                with np.errstate(over="ignore", invalid="ignore"):
                    gradient /= np.float32(scale)
            finite = all_finite(gradient)
            if not finite and not exception:
                self._note_bad(feed, scale)
                exception = True
            action = self.scaler.update(finite)
            self.history.tries += action == "retry"
        self.history.loss.append(result.loss)
        self.history.scale.append(scale)
        if exception:  # once, however often the step was tried (Rule S10.3)
            self.history.exceptions.append(self.step)
        if action == "step":
            rate = self.settings.rate(self.global_step, self.steps)
            with np.errstate(all="ignore"):  # an unchecked bad step is applied too: that is the experiment
                self.optimizer.apply(self.parameters.data, gradient, rate)
            self.buffers = result.state
            self.global_step += 1
        else:  # a skipped step changes nothing (Rule S10.4)
            self.history.skipped.append(self.step)
            if self.advance_on_skip:
                self.optimizer.updates += 1  # Keras counts it: its ``iterations`` are the global step (Rule S10.4)
                self.global_step += 1
        self.step += 1

    def _note_bad(self, feed: Feed, scale: float) -> None:
        """Note which gradients of a step are not finite, and what the first such step read."""
        if self.first_bad is None:
            self.first_bad = {name: np.array(value) for name, value in feed.items()}
            self.first_bad[LOSS_SCALE] = self.session.scale(scale)
        for name, view in self.session.gradient.views.items():
            if not np.isfinite(view).all():
                self.history.bad[name] = self.history.bad.get(name, 0) + 1

    def state(self) -> TrainingState:
        """Return everything that ``restore`` needs."""
        return {
            "parameters": self.parameters.data,
            "buffers": self.buffers,
            "moments": self.optimizer.moments,
            "updates": self.optimizer.updates,
            "scaler": scaler_state(self.scaler),
            "step": self.step,
            "global_step": self.global_step,
            "first_bad": self.first_bad,
            "history": asdict(self.history),
        }

    def restore(self, state: TrainingState) -> None:
        """Go on where ``state`` was taken."""
        self.parameters.data[...] = state["parameters"]
        self.buffers = state["buffers"]
        self.optimizer.moments, self.optimizer.updates = state["moments"].copy(), state["updates"]
        self.scaler = restore_scaler(state["scaler"])
        self.step, self.global_step = state["step"], state["global_step"]
        self.first_bad = state["first_bad"]
        self.history = TrainingHistory(**state["history"])


def all_finite(values: Floats) -> bool:
    """Return whether every value is finite; NaN passes through largest and smallest, which need no new array."""
    return not values.size or (math.isfinite(float(values.max())) and math.isfinite(float(values.min())))
