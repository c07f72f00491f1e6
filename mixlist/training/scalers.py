"""Scale the loss by the exact rule of each framework (Rules S10.5 to S10.12).

A step is *good* if all gradients are finite, else *bad*. ``Scaler.update`` takes that and returns what to do with the
step: ``step`` (apply the update), ``skip`` (leave the parameters as they are) or ``retry`` (the same batch once more,
with the new scale). Classes, parameters and defaults have the names and values that the frameworks' sources give them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Annotated, ClassVar, Literal, NamedTuple, SupportsFloat, get_type_hints

from mixlist.errors import MixlistError, UsageError

Action = Literal["step", "skip", "retry"]
FLOAT32_MAX = 3.4e38  # as the Ascend sources write it


class ScalerError(MixlistError):
    """The error with which the framework itself ends a training."""


class Range(NamedTuple):
    """The values that a parameter may have; ``text`` says so in messages."""

    text: str
    contains: Callable[[float], bool]


_AT_LEAST_1 = Range("is at least 1 and finite", lambda value: 1 <= value < math.inf)
Count = Annotated[int, _AT_LEAST_1]
Scale = Annotated[float, _AT_LEAST_1]
Positive = Annotated[float, Range("is above 0 and finite", lambda value: 0 < value < math.inf)]
Factor = Annotated[float, Range("is above 1 and finite", lambda value: 1 < value < math.inf)]
Fraction = Annotated[float, Range("lies between 0 and 1", lambda value: 0 < value < 1)]


@dataclass
class Scaler(ABC):
    """A loss scaler. ``scale`` is the factor of the next step's loss.

    The fields that ``__init__`` takes are the framework's parameters, the others are state. ``INITIAL`` names the
    parameter that is the first scale, ``GROWTH`` the one that says after how many good steps the scale grows.
    """

    NAME: ClassVar[str]
    INITIAL_SCALE_PARAMETER: ClassVar[str] = ""
    GROWTH_PARAMETER: ClassVar[str] = ""
    scale: float = field(default=1.0, init=False)

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(type(self), include_extras=True).items():
            for limits in getattr(hint, "__metadata__", ()):
                value = getattr(self, name)
                if not limits.contains(value):
                    raise UsageError(f"{name}={value:g}: it {limits.text}")
        if self.INITIAL_SCALE_PARAMETER:
            self.scale = getattr(self, self.INITIAL_SCALE_PARAMETER)

    @abstractmethod
    def update(self, finite: bool) -> Action:
        """Take note of a step whose gradients are all finite, or not; return what to do with it."""


@dataclass
class FixedLossScaleManager(Scaler):
    """Keep the scale; skip bad steps if ``enable_overflow_check``, else apply them (Rule S10.5).

    Source: TensorFlow on Ascend, ``FixedLossScaleManager``.
    """

    NAME = "fixed"
    INITIAL_SCALE_PARAMETER = "loss_scale"
    loss_scale: Scale
    enable_overflow_check: bool = True

    def update(self, finite: bool) -> Action:
        return "step" if finite or not self.enable_overflow_check else "skip"


@dataclass
class MindSporeFixedLossScaleManager(Scaler):
    """Keep the scale; skip bad steps if ``drop_overflow_update``, else apply them (Rule S10.9).

    Source: MindSpore, ``FixedLossScaleManager``.
    """

    NAME = "mindspore-fixed"
    INITIAL_SCALE_PARAMETER = "loss_scale"
    loss_scale: Scale = 128.0
    drop_overflow_update: bool = True

    def update(self, finite: bool) -> Action:
        return "step" if finite or not self.drop_overflow_update else "skip"


@dataclass
class ExponentialUpdateLossScaleManager(Scaler):
    """Grow after good steps in a row, shrink after bad steps that add up over good ones (Rule S10.6).

    Source: TensorFlow on Ascend, ``ExponentialUpdateLossScaleManager``.
    """

    NAME = "npu"
    INITIAL_SCALE_PARAMETER = "init_loss_scale"
    GROWTH_PARAMETER = "incr_every_n_steps"
    init_loss_scale: Scale
    incr_every_n_steps: Count
    decr_every_n_nan_or_inf: Count = 2
    incr_ratio: Factor = 2.0
    decr_ratio: Fraction = 0.8
    good: int = field(default=0, init=False)
    bad: int = field(default=0, init=False)

    def update(self, finite: bool) -> Action:
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
            self.bad = 0
        return "skip"


@dataclass
class NpuLossScaleOptimizer(Scaler):
    """Multiply the scale after ``dynamic_growth_steps`` good steps in a row, divide it after each bad one (Rule S10.7).

    Source: TensorFlow 2 on Ascend, ``NpuLossScaleOptimizer``, in the style of Keras.
    """

    NAME = "npu-tf2"
    INITIAL_SCALE_PARAMETER = "initial_scale"
    GROWTH_PARAMETER = "dynamic_growth_steps"
    initial_scale: Scale = 2.0**15
    dynamic_growth_steps: Count = 2000
    multiplier: Factor = 2.0
    counter: int = field(default=0, init=False)

    def update(self, finite: bool) -> Action:
        if not finite:
            self.scale, self.counter = max(1.0, self.scale / self.multiplier), 0
            return "skip"
        self.counter += 1
        if self.counter >= self.dynamic_growth_steps:
            self.scale, self.counter = self.scale * self.multiplier, 0
        return "step"


@dataclass
class DynamicLossScaleManager(Scaler):
    """Multiply the scale at every ``scale_window``-th step since the last bad one, divide it at bad ones (Rule S10.8).

    More than 1000 bad steps in a row raise ScalerError. Source: MindSpore, ``DynamicLossScaleManager``.
    """

    NAME = "mindspore"
    INITIAL_SCALE_PARAMETER = "init_loss_scale"
    GROWTH_PARAMETER = "scale_window"
    MAX_BAD_STEPS: ClassVar[int] = 1000
    init_loss_scale: Scale = 2.0**24
    scale_factor: Factor = 2.0
    scale_window: Count = 2000
    steps: int = field(default=0, init=False)
    last_overflow: int = field(default=0, init=False)
    bad: int = field(default=0, init=False)

    def update(self, finite: bool) -> Action:
        self.steps += 1
        if finite:
            self.bad = 0
            if (self.steps - self.last_overflow) % self.scale_window == 0:
                self.scale *= self.scale_factor
            return "step"
        self.bad += 1
        if self.bad > self.MAX_BAD_STEPS:
            raise ScalerError(
                f"more than {self.MAX_BAD_STEPS} steps in a row overflow: MindSpore ends the training here",
                hint="the network overflows at any scale: look for the node with --trace-overflow",
            )
        self.scale, self.last_overflow = max(self.scale / self.scale_factor, 1.0), self.steps
        return "skip"


@dataclass
class GradScaler(Scaler):
    """Multiply the scale after ``growth_interval`` good steps in a row, and by less than 1 at bad ones (Rule S10.10).

    Source: PyTorch, ``torch.amp.GradScaler``; that of torch_npu has the same rule.
    """

    NAME = "torch"
    INITIAL_SCALE_PARAMETER = "init_scale"
    GROWTH_PARAMETER = "growth_interval"
    init_scale: Positive = 2.0**16
    growth_factor: Factor = 2.0
    backoff_factor: Fraction = 0.5
    growth_interval: Count = 2000
    tracker: int = field(default=0, init=False)

    def update(self, finite: bool) -> Action:
        if not finite:
            self.scale, self.tracker = self.scale * self.backoff_factor, 0
            return "skip"
        self.tracker += 1
        if self.tracker == self.growth_interval:
            self.scale, self.tracker = self.scale * self.growth_factor, 0
        return "step"


@dataclass
class DynamicLossScalingUpdater(Scaler):
    """Divide the scale and try a bad step again, up to 100 times; multiply it after N good steps (Rule S10.11).

    The counter is compared before it is raised, so the first growth comes at good step N + 2 and then every N + 1.
    Source: nnabla, ``DynamicLossScalingUpdater``.
    """

    NAME = "nnabla"
    INITIAL_SCALE_PARAMETER = "scale"
    GROWTH_PARAMETER = "N"
    MAX_RETRIES: ClassVar[int] = 100
    scale: Positive = 8.0
    scaling_factor: Factor = 2.0
    N: Count = 2000
    counter: int = field(default=0, init=False)
    tries: int = field(default=0, init=False)

    def update(self, finite: bool) -> Action:
        if not finite:
            self.scale, self.counter = self.scale / self.scaling_factor, 0
            self.tries = (self.tries + 1) % (self.MAX_RETRIES + 1)
            return "retry" if self.tries else "skip"
        self.tries = 0
        if self.counter > self.N:
            self.scale, self.counter = self.scale * self.scaling_factor, 0
        self.counter += 1
        return "step"


@dataclass
class NoScaling(Scaler):
    """Keep the scale at 1 and skip bad steps (Rule S10.12). Source: the comparison without loss scaling."""

    NAME = "none"

    def update(self, finite: bool) -> Action:
        return "step" if finite else "skip"


SCALERS: dict[str, type[Scaler]] = {
    scaler.NAME: scaler
    for scaler in (
        FixedLossScaleManager,
        ExponentialUpdateLossScaleManager,
        NpuLossScaleOptimizer,
        DynamicLossScaleManager,
        MindSporeFixedLossScaleManager,
        GradScaler,
        DynamicLossScalingUpdater,
        NoScaling,
    )
}


def make_scaler(name: str, **parameters: object) -> Scaler:
    """Return the scaler of a framework: ``scale`` is the factor of the next loss, ``update(finite)`` notes a step.

    ``parameters`` have the framework's own names (``parameters_of``); texts are read as numbers or yes/no. Raises
    UsageError for an unknown name, for parameters that are unknown, missing or out of range.
    """
    if name not in SCALERS:
        raise UsageError(f"there is no loss scaler {name!r}", hint=f"it is one of {', '.join(SCALERS)}")
    scaler: Callable[..., Scaler] = SCALERS[name]
    defaults = parameter_defaults(name)
    for parameter in parameters:
        if parameter not in defaults:
            hint = f"it has {', '.join(defaults) or 'no parameters'}"
            raise UsageError(f"the loss scaler {name} has no parameter {parameter!r}", hint=hint)
    for parameter, default in defaults.items():
        if default is MISSING and parameter not in parameters:
            hint = f"give --scaler-arg {parameter}=VALUE"
            raise UsageError(f"the loss scaler {name} needs {parameter}", hint=hint)
    types = get_type_hints(SCALERS[name])
    return scaler(**{each: _read(name, each, types[each], value) for each, value in parameters.items()})


def parameter_defaults(name: str) -> dict[str, object]:
    """Return the parameters of a scaler and their defaults, ``dataclasses.MISSING`` where there is none."""
    return {each.name: each.default for each in fields(SCALERS[name]) if each.init}


def describe_scaler(scaler: Scaler) -> dict[str, object]:
    """Return name and parameters of a scaler, those with their defaults included."""
    return {"name": scaler.NAME, **{name: getattr(scaler, name) for name in parameter_defaults(scaler.NAME)}}


def scaler_state(scaler: Scaler) -> dict[str, object]:
    """Return everything that ``restored`` needs, as plain numbers."""
    return {"name": scaler.NAME, **asdict(scaler)}


def restore_scaler(state: Mapping[str, object]) -> Scaler:
    """Return a scaler in the state that ``state_of`` gave."""
    values = dict(state)
    scaler = object.__new__(SCALERS[str(values.pop("name"))])  # without checks: bad steps bring some scales to 0
    vars(scaler).update(values)
    return scaler


def _read(scaler: str, name: str, kind: type, value: object) -> float:
    """Return a parameter as its type; command lines give texts."""
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    try:
        if kind is bool:
            return words[str(value).lower()]
        if not isinstance(value, str | SupportsFloat):
            raise TypeError
        number = float(value)
        if kind is int and not number.is_integer():
            raise ValueError
        return int(number) if kind is int else number
    except (KeyError, ValueError, TypeError, OverflowError):
        wanted = {bool: "true or false", int: "a whole number"}.get(kind, "a number")
        raise UsageError(f"{name}={value} of the loss scaler {scaler}: it takes {wanted}") from None
