"""Loss scalers: the exact rule of each framework, as pure objects.

A step is *good* when all gradients are finite, else *bad*. ``update`` takes that and says what to do with the step:
``step`` (apply the update), ``skip`` (leave the parameters as they are) or ``retry`` (the same batch once more, with
the new scale). Facts read from each project's source; the names of parameters are the frameworks' own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, ClassVar, Literal

from mixlist.errors import MixlistError, UsageError

Action = Literal["step", "skip", "retry"]
FLOAT32_MAX = 3.4e38  # as the Ascend sources write it


class ScalerError(MixlistError):
    """What the framework itself ends a training with."""


class _Unchanging:
    """A scale that stays: at least 1."""

    INITIAL: ClassVar[str] = "loss_scale"
    loss_scale: float

    def __post_init__(self) -> None:
        _at_least("loss_scale", self.loss_scale, 1)

    @property
    def scale(self) -> float:
        """The factor of the next step's loss."""
        return self.loss_scale


@dataclass
class Fixed(_Unchanging):
    """Ascend TensorFlow ``FixedLossScaleManager``: the scale never changes; bad steps are skipped where checked.

    ``loss_scale`` is at least 1. Without ``enable_overflow_check`` bad steps are applied too.
    """

    loss_scale: float
    enable_overflow_check: bool = True

    def update(self, finite: bool) -> Action:
        """Take note of a step."""
        return "step" if finite or not self.enable_overflow_check else "skip"


@dataclass
class MindsporeFixed(_Unchanging):
    """MindSpore ``FixedLossScaleManager``; without ``drop_overflow_update`` bad steps are applied too."""

    loss_scale: float = 128.0
    drop_overflow_update: bool = True

    def update(self, finite: bool) -> Action:
        """Take note of a step."""
        return "step" if finite or not self.drop_overflow_update else "skip"


@dataclass
class Npu:
    """Ascend TensorFlow ``ExponentialUpdateLossScaleManager``.

    Bad steps add up, also when good ones stand between them: only growth and decrease clear their count.
    """

    INITIAL: ClassVar[str] = "init_loss_scale"
    init_loss_scale: float
    incr_every_n_steps: int
    decr_every_n_nan_or_inf: int = 2
    incr_ratio: float = 2.0
    decr_ratio: float = 0.8
    scale: float = 0.0
    good: int = 0
    bad: int = 0

    def __post_init__(self) -> None:
        _at_least("init_loss_scale", self.init_loss_scale, 1)
        _at_least("incr_every_n_steps", self.incr_every_n_steps, 1)
        _at_least("decr_every_n_nan_or_inf", self.decr_every_n_nan_or_inf, 1)
        _above("incr_ratio", self.incr_ratio, 1)
        _between("decr_ratio", self.decr_ratio)
        self.scale = self.scale or self.init_loss_scale

    def update(self, finite: bool) -> Action:
        """Take note of a step."""
        if finite:
            self.good += 1
            if self.good == self.incr_every_n_steps:
                if self.scale < FLOAT32_MAX / self.incr_ratio:
                    self.scale *= self.incr_ratio
                self.good = self.bad = 0
            return "step"
        self.good, self.bad = 0, self.bad + 1
        if self.bad == self.decr_every_n_nan_or_inf:
            self.scale = max(1.0, self.scale * self.decr_ratio)
            self.good = self.bad = 0
        return "skip"


@dataclass
class NpuTf2:
    """Ascend TensorFlow 2 ``NpuLossScaleOptimizer``, in the style of Keras."""

    INITIAL: ClassVar[str] = "initial_scale"
    initial_scale: float = 2.0**15
    dynamic_growth_steps: int = 2000
    multiplier: float = 2.0
    scale: float = 0.0
    counter: int = 0

    def __post_init__(self) -> None:
        _at_least("initial_scale", self.initial_scale, 1)
        _at_least("dynamic_growth_steps", self.dynamic_growth_steps, 1)
        _above("multiplier", self.multiplier, 1)
        self.scale = self.scale or self.initial_scale

    def update(self, finite: bool) -> Action:
        """Take note of a step."""
        if not finite:
            self.scale, self.counter = max(1.0, self.scale / self.multiplier), 0
            return "skip"
        if self.counter + 1 >= self.dynamic_growth_steps:
            self.scale, self.counter = self.scale * self.multiplier, 0
        else:
            self.counter += 1
        return "step"


@dataclass
class Mindspore:
    """MindSpore ``DynamicLossScaleManager``. More than 1000 bad steps in a row raise ScalerError."""

    INITIAL: ClassVar[str] = "init_loss_scale"
    MOST_BAD: ClassVar[int] = 1000
    init_loss_scale: float = 2.0**24
    scale_factor: float = 2.0
    scale_window: int = 2000
    scale: float = 0.0
    steps: int = 0
    last_overflow: int = 0
    bad: int = 0

    def __post_init__(self) -> None:
        _at_least("init_loss_scale", self.init_loss_scale, 1)
        _above("scale_factor", self.scale_factor, 1)
        _at_least("scale_window", self.scale_window, 1)
        self.scale = self.scale or self.init_loss_scale

    def update(self, finite: bool) -> Action:
        """Take note of a step."""
        self.steps += 1
        if finite:
            self.bad = 0
            if (self.steps - self.last_overflow) % self.scale_window == 0:
                self.scale *= self.scale_factor
            return "step"
        self.bad += 1
        if self.bad > self.MOST_BAD:
            raise ScalerError(
                f"more than {self.MOST_BAD} steps in a row overflow: MindSpore ends the training here",
                hint="the network overflows at any scale: look for the node with --trace-overflow",
            )
        self.scale, self.last_overflow = max(self.scale / self.scale_factor, 1.0), self.steps
        return "skip"


@dataclass
class Torch:
    """PyTorch ``GradScaler`` (torch_npu's is alike)."""

    INITIAL: ClassVar[str] = "init_scale"
    init_scale: float = 2.0**16
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    scale: float = 0.0
    tracker: int = 0

    def __post_init__(self) -> None:
        _above("init_scale", self.init_scale, 0)
        _above("growth_factor", self.growth_factor, 1)
        _between("backoff_factor", self.backoff_factor)
        _at_least("growth_interval", self.growth_interval, 1)
        self.scale = self.scale or self.init_scale

    def update(self, finite: bool) -> Action:
        """Take note of a step."""
        if not finite:
            self.scale, self.tracker = self.scale * self.backoff_factor, 0
            return "skip"
        self.tracker += 1
        if self.tracker == self.growth_interval:
            self.scale, self.tracker = self.scale * self.growth_factor, 0
        return "step"


@dataclass
class Nnabla:
    """NNabla ``DynamicLossScalingUpdater``.

    A bad step is tried again with the smaller scale, up to 100 times, then skipped. The counter is looked at before it
    is raised, so the first growth comes at good step N + 2 and then every N + 1.
    """

    INITIAL: ClassVar[str] = "scale"
    MOST_TRIES: ClassVar[int] = 100
    scale: float = 8.0
    scaling_factor: float = 2.0
    N: int = 2000
    counter: int = 0
    tries: int = 0

    def __post_init__(self) -> None:
        _above("scale", self.scale, 0)
        _above("scaling_factor", self.scaling_factor, 1)
        _at_least("N", self.N, 1)

    def update(self, finite: bool) -> Action:
        """Take note of a step."""
        if not finite:
            self.scale, self.counter = self.scale / self.scaling_factor, 0
            self.tries += 1
            if self.tries <= self.MOST_TRIES:
                return "retry"
            self.tries = 0
            return "skip"
        self.tries = 0
        if self.counter > self.N:
            self.scale, self.counter = self.scale * self.scaling_factor, 0
        self.counter += 1
        return "step"


@dataclass
class NoScaling:
    """No scaling: the scale is 1, bad steps are skipped."""

    INITIAL: ClassVar[str] = ""
    scale: float = 1.0

    def update(self, finite: bool) -> Action:
        """Take note of a step."""
        return "step" if finite else "skip"


Scaler = Fixed | MindsporeFixed | Npu | NpuTf2 | Mindspore | Torch | Nnabla | NoScaling
SCALERS: dict[str, type[Any]] = {
    "fixed": Fixed,
    "npu": Npu,
    "npu-tf2": NpuTf2,
    "mindspore": Mindspore,
    "mindspore-fixed": MindsporeFixed,
    "torch": Torch,
    "nnabla": Nnabla,
    "none": NoScaling,
}
_STATE = {"npu": 3, "npu-tf2": 2, "mindspore": 4, "torch": 2, "nnabla": 2}  # the last fields are no parameters


def make_scaler(name: str, **parameters: Any) -> Scaler:
    """The scaler of a framework: ``scale`` is the factor of the next loss, ``update(finite)`` takes note of a step.

    ``parameters`` have the framework's own names (``parameters_of``); texts are read as numbers or yes/no. Raises
    UsageError for an unknown name, for parameters that are unknown, missing or out of range.
    """
    if name not in SCALERS:
        raise UsageError(f"there is no loss scaler {name!r}", hint=f"it is one of {', '.join(SCALERS)}")
    known = parameters_of(name)
    unknown = [each for each in parameters if each not in known]
    if unknown:
        has = ", ".join(known) or "no parameters"
        raise UsageError(f"the loss scaler {name} has no parameter {unknown[0]!r}", hint=f"it has {has}")
    missing = [each for each, default in known.items() if default is MISSING and each not in parameters]
    if missing:
        raise UsageError(f"the loss scaler {name} needs {missing[0]}", hint=f"give --scaler-arg {missing[0]}=VALUE")
    kinds = {each.name: str(each.type) for each in fields(SCALERS[name])}
    made: Scaler = SCALERS[name](**{n: _value(name, n, kinds[n], v) for n, v in parameters.items()})
    return made


def initial_parameter(name: str) -> str:
    """The scaler's own name of its first, or fixed, scale; "" where there is none."""
    return str(SCALERS[name].INITIAL)


def parameters_of(name: str) -> dict[str, Any]:
    """The parameters of a scaler and their defaults, ``dataclasses.MISSING`` where there is none."""
    if name == "none":
        return {}
    every = fields(SCALERS[name])
    return {each.name: each.default for each in every[: len(every) - _STATE.get(name, 0)]}


def described(scaler: Scaler) -> dict[str, Any]:
    """Name and parameters of a scaler, those with their defaults included."""
    name = next(name for name, kind in SCALERS.items() if kind is type(scaler))
    return {"name": name, **{each: getattr(scaler, each) for each in parameters_of(name)}}


def state_of(scaler: Scaler) -> dict[str, Any]:
    """Everything that ``restored`` needs, as plain numbers."""
    name = next(name for name, kind in SCALERS.items() if kind is type(scaler))
    return {"name": name, **asdict(scaler)}


def restored(state: Mapping[str, Any]) -> Scaler:
    """A scaler in the state that ``state_of`` gave."""
    values = dict(state)
    made: Scaler = object.__new__(SCALERS[values.pop("name")])  # unchecked: bad steps bring some scales to 0
    vars(made).update(values)
    return made


def _value(scaler: str, name: str, kind: str, value: Any) -> Any:
    """A parameter as its type; command lines give texts."""
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    try:
        if kind == "bool":
            return value if isinstance(value, bool) else words[str(value).lower()]
        number = float(value)
        if kind == "int":
            if number != int(number):
                raise ValueError
            return int(number)
    except (KeyError, ValueError, TypeError, OverflowError):
        wanted = {"bool": "true or false", "int": "a whole number"}.get(kind, "a number")
        raise UsageError(f"{name}={value} of the loss scaler {scaler}: it takes {wanted}") from None
    return number


def _at_least(name: str, value: float, least: float) -> None:
    if not least <= value < math.inf:
        raise UsageError(f"{name}={value:g}: it is at least {least:g} and finite")


def _above(name: str, value: float, bound: float) -> None:
    if not bound < value < math.inf:
        raise UsageError(f"{name}={value:g}: it is above {bound:g} and finite")


def _between(name: str, value: float) -> None:
    if not 0 < value < 1:
        raise UsageError(f"{name}={value:g}: it lies between 0 and 1")
