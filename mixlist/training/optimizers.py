"""Update all parameters at once, as one flat float32 array in numpy; learning-rate schedules.

The rules are those of PyTorch's optimizers of the same names (torch.optim): ``weight_decay`` is added to the gradient,
except by ``adamw``, which shrinks the parameters by it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from mixlist.errors import UsageError
from mixlist.option_fields import option

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

Name = Literal["sgd", "momentum", "adam", "adamw"]
NAMES: tuple[Name, ...] = ("sgd", "momentum", "adam", "adamw")
SCHEDULES = ("constant", "linear", "cosine", "step")


@dataclass(frozen=True)
class Settings:
    """An optimizer and its learning rate over the steps.

    ``schedule``: after ``warmup_steps`` of linear growth the rate stays (``constant``), falls to zero at the last step
    (``linear``, ``cosine``), or is multiplied by ``decay`` every ``decay_steps`` (``step``).
    """

    name: Name = option(
        "adam", "As PyTorch's of the same name (momentum: SGD with it).", flag="--optimizer", choices=NAMES
    )
    lr: float = option(1e-3, "The learning rate.", "number")
    momentum: float = option(0.9, "Of the optimizer momentum.", "number")
    nesterov: bool = option(False, "Nesterov's momentum.", "flag")
    beta1: float = option(0.9, "Of adam and adamw.", "number")
    beta2: float = option(0.999, "Of adam and adamw.", "number")
    eps: float = option(1e-8, "Of adam and adamw.", "number")
    weight_decay: float = option(0.0, "Added to the gradient; adamw shrinks the parameters by it.", "number")
    schedule: str = option(
        "constant",
        "The learning rate after the warm-up: constant, to zero at the last step (linear, cosine), or in steps.",
        flag="--lr-schedule",
        choices=SCHEDULES,
    )
    warmup_steps: int = option(0, "Steps in which the learning rate grows to --lr.", "integer", minimum=0)
    decay: float = option(0.1, "Factor of the schedule step.", "number", flag="--lr-decay")
    decay_steps: int = option(1000, "After how many steps it comes.", "integer", flag="--lr-decay-steps", minimum=1)

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise UsageError(f"there is no optimizer {self.name!r}", hint=f"it is one of {', '.join(NAMES)}")
        if self.schedule not in SCHEDULES:
            raise UsageError(f"there is no schedule {self.schedule!r}", hint=f"it is one of {', '.join(SCHEDULES)}")
        if not (0 < self.lr < math.inf and 0 < self.eps < math.inf and 0 <= self.weight_decay < math.inf):
            raise UsageError("lr and eps are above 0, weight_decay is at least 0, all finite")
        if not all(0 <= each < 1 for each in (self.momentum, self.beta1, self.beta2)):
            raise UsageError("momentum, beta1 and beta2 are at least 0 and below 1")
        if self.warmup_steps < 0 or self.decay_steps < 1 or not 0 < self.decay <= 1:
            raise UsageError("warmup_steps is at least 0, decay_steps at least 1, decay above 0 and at most 1")

    def rate(self, step: int, steps: int) -> float:
        """Return the learning rate of a step (from 0) of so many."""
        if step < self.warmup_steps:
            return self.lr * (step + 1) / self.warmup_steps
        done = min(1.0, (step - self.warmup_steps) / max(1, steps - self.warmup_steps))
        if self.schedule == "linear":
            return self.lr * (1 - done)
        if self.schedule == "cosine":
            return self.lr * (1 + math.cos(math.pi * done)) / 2
        if self.schedule == "step":
            return self.lr * self.decay ** ((step - self.warmup_steps) // self.decay_steps)
        return self.lr


class Optimizer:
    """One optimizer's state. Arrays are of the shape of the flat parameters, float32."""

    def __init__(self, settings: Settings, size: int) -> None:
        import numpy as np

        self.settings = settings
        self.updates = 0  # as the bias correction of Adam counts them
        count = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2}[settings.name]
        self.moments: Floats = np.zeros((count, size), np.float32)
        self._work: Floats = np.empty(size, np.float32)

    def apply(self, parameters: Floats, gradient: Floats, rate: float) -> None:
        """Update ``parameters`` in place; ``gradient`` is used up."""
        s = self.settings
        self.updates += 1
        if s.weight_decay and s.name == "adamw":
            parameters *= 1 - rate * s.weight_decay
        elif s.weight_decay:
            gradient += s.weight_decay * parameters
        if s.name == "sgd":
            gradient *= rate
            parameters -= gradient
        elif s.name == "momentum":
            self._momentum(parameters, gradient, rate)
        else:
            self._adam(parameters, gradient, rate)

    def _momentum(self, parameters: Floats, gradient: Floats, rate: float) -> None:
        (velocity,) = self.moments
        velocity *= self.settings.momentum
        velocity += gradient
        parameters -= rate * (gradient + self.settings.momentum * velocity if self.settings.nesterov else velocity)

    def _adam(self, parameters: Floats, gradient: Floats, rate: float) -> None:
        import numpy as np

        s, work = self.settings, self._work
        first, second = self.moments
        first *= s.beta1
        np.multiply(gradient, 1 - s.beta1, out=work)
        first += work
        second *= s.beta2
        np.multiply(gradient, gradient, out=gradient)
        gradient *= 1 - s.beta2
        second += gradient
        np.sqrt(second, out=work)
        work *= 1 / math.sqrt(1 - s.beta2**self.updates)
        work += s.eps
        np.divide(first, work, out=work)
        work *= rate / (1 - s.beta1**self.updates)
        parameters -= work
