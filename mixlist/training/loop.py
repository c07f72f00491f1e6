"""One training: the steps of one network from one seed, in float32 or mixed.

The order within a step is MindSpore's: parameters are kept in float32, the forward pass casts them for low operators,
the loss is multiplied by the scale before the backward pass, gradients come back as float32, are divided by the scale,
and only then looked at: a bad step skips the update, and what it made of the buffers. The global step, which the
learning rate follows, and Adam's count stand still on a skipped step unless ``advance_on_skip``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mixlist.training.dataset import Data, Order
from mixlist.training.optimizers import Optimizer, Settings
from mixlist.training.sampling import initial, noise
from mixlist.training.scalers import NoScaling, Scaler, restored, state_of
from mixlist.training.step_session import Flat, Machine
from mixlist.training.stepgraph import SCALE, StepGraph

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mixlist.training.gradient_underflow import Sampler

    Array = NDArray[Any]


@dataclass
class History:
    """What happened step by step. ``scale``: that of each step; ``skipped``: steps whose update was left out;
    ``exceptions``: steps where a gradient was not finite; ``tries``: extra runs of batches that were tried again;
    ``bad``: by parameter, how many steps had a gradient of it that was not finite."""

    loss: list[float] = field(default_factory=list)
    scale: list[float] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)
    exceptions: list[int] = field(default_factory=list)
    tries: int = 0
    bad: dict[str, int] = field(default_factory=dict)


class Training:
    """The state of one training; ``run`` goes on to a step."""

    def __init__(
        self,
        graph: StepGraph,
        machine: Machine,
        data: Data,
        settings: Settings,
        *,
        batch_size: int,
        steps: int,
        seed: int,
        scaler: Scaler | None = None,
        given: Mapping[str, Array] | None = None,
        advance_on_skip: bool = False,
    ) -> None:
        self.graph, self.machine, self.data, self.settings = graph, machine, data, settings
        self.order = Order(data.count, batch_size, seed)
        self.steps, self.seed = steps, seed
        self.scaler: Scaler = scaler if scaler is not None else NoScaling()
        self.advance_on_skip = advance_on_skip
        known = given or {}
        drawn = {
            each.name: known[each.name] if each.name in known else initial(each, seed, index)
            for index, each in enumerate((*graph.parameters, *graph.buffers))
        }
        self.parameters = Flat(graph.parameters)
        for name, view in self.parameters.views.items():
            view[...] = drawn[name]
        self.buffers = {each.name: drawn[each.name] for each in graph.buffers}
        self.optimizer = Optimizer(settings, self.parameters.data.size)
        self.history = History()
        self.sampler: Sampler | None = None
        self.first_bad: dict[str, Array] | None = None  # what the first bad step read, with its scale
        self.step = 0  # batches done
        self.global_step = 0  # updates that the learning rate counts

    @property
    def done(self) -> bool:
        """Whether all steps are made."""
        return self.step >= self.steps

    def feed(self, step: int) -> dict[str, Any]:
        """What a step reads, but for the scale."""
        rows = self.order.batch(step)
        batch = self.data.rows(rows)
        return {**self.parameters.views, **self.buffers, **batch, **noise(self.graph, self.seed, step, len(rows))}

    def run(self, until: int, told: Callable[[Training], None] | None = None) -> None:
        """Make steps up to ``until``, or to the end."""
        while self.step < min(until, self.steps):
            self._one()
            if told is not None:
                told(self)

    def _one(self) -> None:
        import numpy as np

        feed = self.feed(self.step)
        exception = False
        while True:
            scale = self.scaler.scale
            made = self.machine.step(feed, scale)
            gradient = made.gradient
            if self.sampler is not None and not exception and self.sampler.wants(self.step):
                self.sampler.look(feed, gradient, scale)
            if scale != 1:
                with np.errstate(over="ignore", invalid="ignore"):
                    gradient /= np.float32(scale)
            finite = all_finite(gradient)
            if not finite:
                if not exception:
                    self._note_bad(feed, scale)
                exception = True
            action = self.scaler.update(finite)
            if action != "retry":
                break
            self.history.tries += 1
        self.history.loss.append(made.loss)
        self.history.scale.append(scale)
        if exception:
            self.history.exceptions.append(self.step)
        if action == "step":
            rate = self.settings.rate(self.global_step, self.steps)
            with np.errstate(all="ignore"):  # an unchecked bad step is applied too: that is the experiment
                self.optimizer.apply(self.parameters.data, gradient, rate)
            self.buffers = made.state
            self.global_step += 1
        else:
            self.history.skipped.append(self.step)
            if self.advance_on_skip:
                self.optimizer.skip()
                self.global_step += 1
        self.step += 1

    def _note_bad(self, feed: Mapping[str, Any], scale: float) -> None:
        import numpy as np

        if self.first_bad is None:
            self.first_bad = {name: np.array(value) for name, value in feed.items()}
            self.first_bad[SCALE] = self.machine.scale(scale)
        for name, view in self.machine.gradient.views.items():
            if not np.isfinite(view).all():
                self.history.bad[name] = self.history.bad.get(name, 0) + 1

    # --- to be gone on with ---

    def state(self) -> dict[str, Any]:
        """Everything that ``restore`` needs; arrays, numbers and lists."""
        history = {
            name: getattr(self.history, name) for name in ("loss", "scale", "skipped", "exceptions", "tries", "bad")
        }
        return {
            "parameters": self.parameters.data,
            "buffers": self.buffers,
            "optimizer": self.optimizer.state(),
            "scaler": state_of(self.scaler),
            "step": self.step,
            "global_step": self.global_step,
            "first_bad": self.first_bad or {},
            "history": history,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state`` was taken."""
        self.parameters.data[...] = state["parameters"]
        self.buffers = state["buffers"]
        self.optimizer.restore(state["optimizer"])
        self.scaler = restored(state["scaler"])
        self.step, self.global_step = int(state["step"]), int(state["global_step"])
        self.first_bad = state["first_bad"] or None
        self.history = History(**state["history"])


def all_finite(values: Array) -> bool:
    """Whether every value is finite: NaN passes through largest and smallest, so two passes and no new array do."""
    return not values.size or (math.isfinite(float(values.max())) and math.isfinite(float(values.min())))
