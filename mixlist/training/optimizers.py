"""Update all parameters at once, as one flat float32 array in numpy, and compute the learning rate of each step.

The rules are those of PyTorch's optimizers of the same names (``torch.optim``). ``weight_decay`` is added to the
gradient, except by ``adamw``, which shrinks the parameters instead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from mixlist.errors import UsageError
from mixlist.option_fields import option
from mixlist.training.parameter_groups import ParameterGroup, values_by_element

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from mixlist.training.step_graph import Parameter

    Float32Array = NDArray[np.float32]

OptimizerName = Literal["sgd", "momentum", "adam", "adamw"]
OPTIMIZER_NAMES: tuple[OptimizerName, ...] = ("sgd", "momentum", "adam", "adamw")
SCHEDULES = ("constant", "linear", "cosine", "step")


@dataclass(frozen=True)
class Settings:
    """An optimizer with its parameters, and its learning rate over the steps.

    In the first ``warmup_steps`` the learning rate grows linearly to ``lr``. After them, ``schedule`` decides: the rate
    stays (``constant``), falls until it would be zero one step after the last one (``linear``, ``cosine``), or is
    multiplied by ``decay`` every ``decay_steps`` steps (``step``). ``clip_norm`` and ``clip_value`` limit the gradients
    after the check for infinities. ``accumulate`` batches make one step. ``parameter_groups`` change the learning rate
    and the weight decay of some parameters. Raises UsageError for values out of range.
    """

    name: OptimizerName = option(
        "adam",
        "The optimizer, as PyTorch has it (momentum: SGD with momentum).",
        flag="--optimizer",
        choices=OPTIMIZER_NAMES,
    )
    lr: float = option(1e-3, "The learning rate.", "number")
    momentum: float = option(0.9, "The momentum factor of --optimizer momentum.", "number")
    nesterov: bool = option(False, "Use Nesterov's form of momentum.", "flag")
    beta1: float = option(0.9, "The first decay rate of adam and adamw.", "number")
    beta2: float = option(0.999, "The second decay rate of adam and adamw.", "number")
    eps: float = option(1e-8, "The term that adam and adamw add to the denominator.", "number")
    weight_decay: float = option(
        0.0, "Weight decay: added to the gradient; adamw shrinks the parameters by it.", "number"
    )
    schedule: str = option(
        "constant",
        "The learning rate after the warm-up: constant, falling over all steps to zero after the last one (linear,"
        " cosine), or falling in steps (step).",
        flag="--lr-schedule",
        choices=SCHEDULES,
    )
    warmup_steps: int = option(0, "The steps in which the learning rate grows to --lr.", "integer", minimum=0)
    decay: float = option(0.1, "The factor of the learning rate with --lr-schedule step.", "number", flag="--lr-decay")
    decay_steps: int = option(
        1000,
        "The number of steps between two decays with --lr-schedule step.",
        "integer",
        flag="--lr-decay-steps",
        minimum=1,
    )
    clip_norm: float | None = option(
        None, "Scale the gradients of a step down to this norm, all parameters together.", "number"
    )
    clip_value: float | None = option(None, "Limit each gradient value to this magnitude.", "number")
    accumulate: int = option(
        1, "Add the gradients of this many batches to one step; --steps counts the batches.", "integer", minimum=1
    )
    parameter_groups: tuple[ParameterGroup, ...] = ()

    def __post_init__(self) -> None:
        if self.name not in OPTIMIZER_NAMES:
            raise UsageError(f"there is no optimizer {self.name!r}", hint=f"give one of {', '.join(OPTIMIZER_NAMES)}")
        if self.schedule not in SCHEDULES:
            raise UsageError(f"there is no schedule {self.schedule!r}", hint=f"give one of {', '.join(SCHEDULES)}")
        # Written so that NaN fails too: every comparison with NaN is false.
        if not (0 < self.lr < math.inf and 0 < self.eps < math.inf and 0 <= self.weight_decay < math.inf):
            raise UsageError("lr and eps must be above 0, weight_decay at least 0, and all three finite")
        if not all(0 <= factor < 1 for factor in (self.momentum, self.beta1, self.beta2)):
            raise UsageError("momentum, beta1 and beta2 must be at least 0 and below 1")
        if self.warmup_steps < 0 or self.decay_steps < 1 or not 0 < self.decay <= 1:
            raise UsageError("warmup_steps must be at least 0, decay_steps at least 1, and decay above 0 and at most 1")
        if not all(limit is None or 0 < limit < math.inf for limit in (self.clip_norm, self.clip_value)):
            raise UsageError("clip_norm and clip_value must be above 0 and finite")
        if self.clip_norm is not None and self.clip_value is not None:
            raise UsageError("clip_norm and clip_value both limit the gradients", hint="give one of them")
        if self.accumulate < 1:
            raise UsageError("accumulate must be at least 1")

    def rate(self, step: int, steps: int) -> float:
        """Return the learning rate of step ``step`` (from 0) of a training of ``steps`` steps."""
        if step < self.warmup_steps:
            return self.lr * (step + 1) / self.warmup_steps
        # The share of the steps after the warm-up that are done before this step: 0 at the first one, below 1 at the
        # last.
        share_done = min(1.0, (step - self.warmup_steps) / max(1, steps - self.warmup_steps))
        if self.schedule == "linear":
            return self.lr * (1 - share_done)
        if self.schedule == "cosine":
            return self.lr * (1 + math.cos(math.pi * share_done)) / 2
        if self.schedule == "step":
            return self.lr * self.decay ** ((step - self.warmup_steps) // self.decay_steps)
        return self.lr


class Optimizer:
    """An optimizer and its state, for all values of ``parameters`` in one flat float32 array.

    ``moments`` has one row of float32 per running mean: none for ``sgd``, one for ``momentum``, two for Adam.
    """

    def __init__(self, settings: Settings, parameters: Sequence[Parameter]) -> None:
        # Here and not at the top of the file: ``train --help`` reads the options of Settings and needs no numpy.
        import numpy as np

        self.settings = settings
        self._rate_factor, self._weight_decay = values_by_element(settings, parameters)
        size = sum(math.prod(parameter.shape) for parameter in parameters)
        # The step count of Adam's bias correction. With ``advance_on_skip``, the training adds skipped steps to it.
        self.updates = 0
        moment_count = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2}[settings.name]
        self.moments: Float32Array = np.zeros((moment_count, size), np.float32)
        self._scratch: Float32Array = np.empty(size, np.float32)

    def apply(self, parameters: Float32Array, gradient: Float32Array, rate: float) -> None:
        """Update ``parameters`` in place with the learning rate ``rate``. The values of ``gradient`` are lost."""
        settings = self.settings
        self.updates += 1
        self._clip(gradient)
        rates = rate * self._rate_factor  # a number, or an array if there are parameter groups
        # AdamW decays the weights themselves, so the decay does not pass through the running means.
        has_decay = settings.weight_decay or settings.parameter_groups
        if has_decay and settings.name == "adamw":
            parameters *= 1 - rates * self._weight_decay
        elif has_decay:
            gradient += self._weight_decay * parameters
        if settings.name == "sgd":
            gradient *= rates
            parameters -= gradient
        elif settings.name == "momentum":
            self._apply_momentum(parameters, gradient, rates)
        else:
            self._apply_adam(parameters, gradient, rates)

    def _clip(self, gradient: Float32Array) -> None:
        """Limit the gradients in place, as ``clip_grad_norm_`` and ``clip_grad_value_`` of torch do (Rule S10.23)."""
        import numpy as np

        settings = self.settings
        if settings.clip_norm is not None:
            # torch adds 1e-6, so that a norm of zero does not divide by zero.
            gradient *= np.float32(np.minimum(1.0, settings.clip_norm / (float(np.linalg.norm(gradient)) + 1e-6)))
        elif settings.clip_value is not None:
            np.clip(gradient, -settings.clip_value, settings.clip_value, out=gradient)

    def _apply_momentum(self, parameters: Float32Array, gradient: Float32Array, rate: float | Float32Array) -> None:
        # Nesterov's form applies the momentum a second time: it assumes that the next gradient equals this one.
        (velocity,) = self.moments
        velocity *= self.settings.momentum
        velocity += gradient
        parameters -= rate * (gradient + self.settings.momentum * velocity if self.settings.nesterov else velocity)

    def _apply_adam(self, parameters: Float32Array, gradient: Float32Array, rate: float | Float32Array) -> None:
        import numpy as np

        # Every operation writes into an array that exists: new arrays of this size would take most of the time.
        settings, scratch = self.settings, self._scratch
        first_moment, second_moment = self.moments
        # first_moment = beta1 * first_moment + (1 - beta1) * gradient
        first_moment *= settings.beta1
        np.multiply(gradient, 1 - settings.beta1, out=scratch)
        first_moment += scratch
        # second_moment = beta2 * second_moment + (1 - beta2) * gradient^2
        second_moment *= settings.beta2
        np.multiply(gradient, gradient, out=gradient)
        gradient *= 1 - settings.beta2
        second_moment += gradient
        # parameters -= rate * corrected first moment / (sqrt(corrected second moment) + eps)
        # Both moments start at zero. The corrections, 1 - beta^updates, remove this bias of the first steps.
        np.sqrt(second_moment, out=scratch)
        scratch *= 1 / math.sqrt(1 - settings.beta2**self.updates)
        scratch += settings.eps
        np.divide(first_moment, scratch, out=scratch)
        scratch *= rate / (1 - settings.beta1**self.updates)
        parameters -= scratch
