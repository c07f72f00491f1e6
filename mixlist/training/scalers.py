"""Scale the loss by the exact rule of each framework.

A step is *good* if all its gradients are finite, else *bad*: it is an exception.
``Scaler.update`` changes the scale after each step, good or bad, and returns an action: "step" (apply the update),
"skip" (leave the parameters as they are) or "retry" (leave them as they are, and try the update again with the next
batch and the new scale).

The names of the classes and parameters, and the default values, are those of the frameworks' sources.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from typing import Annotated, ClassVar, Literal, NamedTuple, SupportsFloat, get_type_hints

import numpy as np

from mixlist.errors import UsageError
from mixlist.option_spelling import Verbatim, spell

Action = Literal["step", "skip", "retry"]
FLOAT32_MAX = 3.4e38  # a little below the largest float32 number; the sources for Ascend have this value
LARGEST_FLOAT32 = (2 - 2.0**-23) * 2.0**127


class ParameterRange(NamedTuple):
    """The range of a parameter of a scaler. ``text`` describes it in messages, ``contains`` tests a value."""

    text: str
    contains: Callable[[float], bool]


# The types of parameters: the class of the value, and its range. ``Scaler.__post_init__`` checks the ranges.
_AT_LEAST_1 = ParameterRange("must be at least 1 and finite", lambda value: 1 <= value < math.inf)
Count = Annotated[int, _AT_LEAST_1]
LossScale = Annotated[float, _AT_LEAST_1]
Positive = Annotated[float, ParameterRange("must be above 0 and finite", lambda value: 0 < value < math.inf)]
Factor = Annotated[float, ParameterRange("must be above 1 and finite", lambda value: 1 < value < math.inf)]
Fraction = Annotated[float, ParameterRange("must lie between 0 and 1", lambda value: 0 < value < 1)]


@dataclass
class Scaler:
    """A loss scaler. ``scale`` is the factor of the loss in the next step.

    The dataclass fields that ``__init__`` takes are the parameters of the framework. The others are state.
    ``NAME`` is the value of ``--loss-scaler``. ``INITIAL_SCALE_PARAMETER`` is the name of the parameter for the initial
    scale. ``GROWTH_PARAMETER`` is the name of the parameter for the growth interval, the number of good steps after
    which the scale grows. ``SKIP_PARAMETER`` is the name of the parameter that skips bad steps. Each is "" if there is
    no such parameter. ``READS_FLOAT_STATUS``: the framework reads a status of the accelerator that any node can set.
    """

    NAME: ClassVar[str]
    INITIAL_SCALE_PARAMETER: ClassVar[str] = ""
    GROWTH_PARAMETER: ClassVar[str] = ""
    SKIP_PARAMETER: ClassVar[str] = ""
    READS_FLOAT_STATUS: ClassVar[bool] = False
    scale: float = field(default=1.0, init=False)

    @property
    def steps_to_growth(self) -> int:
        """Return the growth interval; 0 if the scale stays as it is."""
        return getattr(self, self.GROWTH_PARAMETER) if self.GROWTH_PARAMETER else 0

    @property
    def skips_bad_steps(self) -> bool:
        """Return False if the scaler applies a bad step, too: ``update`` then always returns "step"."""
        return not self.SKIP_PARAMETER or bool(getattr(self, self.SKIP_PARAMETER))

    def __post_init__(self) -> None:
        # include_extras keeps the Annotated types, whose ``__metadata__`` has the ranges.
        for name, hint in get_type_hints(type(self), include_extras=True).items():
            for valid_range in getattr(hint, "__metadata__", ()):
                value = getattr(self, name)
                if not valid_range.contains(value):
                    raise UsageError(f"{name}={value:g}: it {valid_range.text}")
        if self.INITIAL_SCALE_PARAMETER:
            self.scale = getattr(self, self.INITIAL_SCALE_PARAMETER)

    def update(self, finite: bool) -> Action:
        """Change the scale after a step, and return what to do with the step. Here the scale stays as it is.

        ``finite`` is True if all gradients of the step are finite.
        """
        return "step" if finite or not self.skips_bad_steps else "skip"


@dataclass
class FixedLossScaleManager(Scaler):
    """Keep the scale; skip bad steps if ``enable_overflow_check``, else apply them.

    Source: TensorFlow on Ascend, ``FixedLossScaleManager``.
    """

    NAME = "fixed"
    INITIAL_SCALE_PARAMETER = "loss_scale"
    SKIP_PARAMETER = "enable_overflow_check"
    loss_scale: LossScale
    enable_overflow_check: bool = True


@dataclass
class MindSporeFixedLossScaleManager(Scaler):
    """Keep the scale; skip bad steps if ``drop_overflow_update``, else apply them.

    Source: MindSpore, ``FixedLossScaleManager``.
    """

    NAME = "mindspore-fixed"
    INITIAL_SCALE_PARAMETER = "loss_scale"
    SKIP_PARAMETER = "drop_overflow_update"
    loss_scale: LossScale = 128.0
    drop_overflow_update: bool = True


@dataclass
class ExponentialUpdateLossScaleManager(Scaler):
    """Raise the scale after good steps in a row; lower it after bad steps, in a row or not.

    Source: TensorFlow on Ascend, ``ExponentialUpdateLossScaleManager``.
    """

    NAME = "npu"
    READS_FLOAT_STATUS = True
    INITIAL_SCALE_PARAMETER = "init_loss_scale"
    GROWTH_PARAMETER = "incr_every_n_steps"
    init_loss_scale: LossScale
    incr_every_n_steps: Count
    decr_every_n_nan_or_inf: Count = 2
    incr_ratio: Factor = 2.0
    decr_ratio: Fraction = 0.8
    good: int = field(default=0, init=False)  # good steps in a row
    bad: int = field(default=0, init=False)  # bad steps since the scale changed

    def update(self, finite: bool) -> Action:
        if finite:
            self.good += 1
            if self.good == self.incr_every_n_steps:
                # The scale must stay a finite float32 number, so it does not grow above the bound.
                if self.scale < FLOAT32_MAX / self.incr_ratio:
                    self.scale *= self.incr_ratio
                self.good = self.bad = 0
            return "step"
        # A good step resets ``bad`` only when the scale grows. So bad steps are counted with good steps between them.
        self.good, self.bad = 0, self.bad + 1
        if self.bad == self.decr_every_n_nan_or_inf:
            self.scale = max(1.0, self.scale * self.decr_ratio)
            self.bad = 0
        return "skip"


@dataclass
class NpuLossScaleOptimizer(Scaler):
    """Raise the scale after ``dynamic_growth_steps`` good steps in a row; lower it after each bad step.

    Without ``dynamic``, keep ``initial_scale``, which must then be given. Source: TensorFlow 2 on Ascend,
    ``NpuLossScaleOptimizer``, whose constructor is that of Keras: growth and fall are by 2.
    """

    NAME = "npu-tf2"
    READS_FLOAT_STATUS = True
    INITIAL_SCALE_PARAMETER = "initial_scale"
    GROWTH_PARAMETER = "dynamic_growth_steps"
    dynamic: bool = True
    initial_scale: LossScale = 2.0**15
    dynamic_growth_steps: Count = 2000
    counter: int = field(default=0, init=False)  # good steps since the scale changed

    @property
    def steps_to_growth(self) -> int:
        return self.dynamic_growth_steps if self.dynamic else 0

    def update(self, finite: bool) -> Action:
        if not self.dynamic:
            return super().update(finite)
        if not finite:
            self.scale, self.counter = max(1.0, self.scale / 2), 0
            return "skip"
        self.counter += 1
        if self.counter >= self.dynamic_growth_steps:
            if self.scale < FLOAT32_MAX / 2:
                self.scale *= 2
            self.counter = 0
        return "step"


@dataclass
class DynamicLossScaleManager(Scaler):
    """Multiply the scale every ``scale_window`` steps after the last bad step; divide it at a bad step.

    Source: MindSpore, ``DynamicLossScaleManager`` with its ``DynamicLossScaleUpdateCell``, which ends no training.
    """

    NAME = "mindspore"
    INITIAL_SCALE_PARAMETER = "init_loss_scale"
    GROWTH_PARAMETER = "scale_window"
    init_loss_scale: LossScale = 2.0**24
    scale_factor: Factor = 2.0
    scale_window: Count = 2000
    steps: int = field(default=0, init=False)  # all steps, good and bad
    last_overflow: int = field(default=0, init=False)  # the value of ``steps`` at the last bad step

    def update(self, finite: bool) -> Action:
        self.steps += 1
        if finite:
            # Windows are counted from the last bad step, so the scale grows after each full window of good steps.
            if (self.steps - self.last_overflow) % self.scale_window == 0:
                self.scale *= self.scale_factor
            return "step"
        self.scale, self.last_overflow = max(self.scale / self.scale_factor, 1.0), self.steps
        return "skip"


@dataclass
class GradScaler(Scaler):
    """Raise the scale after ``growth_interval`` good steps in a row; lower it at each bad step.

    The scale is a float32 number, and may fall to 0, unlike those of TensorFlow and MindSpore. Source: PyTorch,
    ``torch.amp.GradScaler``; the GradScaler of torch_npu has the same rule.
    """

    NAME = "torch"
    INITIAL_SCALE_PARAMETER = "init_scale"
    GROWTH_PARAMETER = "growth_interval"
    init_scale: Positive = 2.0**16
    growth_factor: Factor = 2.0
    backoff_factor: Fraction = 0.5
    growth_interval: Count = 2000
    tracker: int = field(default=0, init=False)  # good steps since the scale changed

    def update(self, finite: bool) -> Action:
        if not finite:
            self.scale, self.tracker = float(np.float32(self.scale * self.backoff_factor)), 0
            return "skip"
        self.tracker += 1
        if self.tracker == self.growth_interval:
            product, self.tracker = self.scale * self.growth_factor, 0
            if product <= LARGEST_FLOAT32:  # else the scale stays
                self.scale = float(np.float32(product))
        return "step"


@dataclass
class DynamicLossScalingUpdater(Scaler):
    """Divide the scale at a bad step and try the next batch; multiply the scale after N good steps.

    Source: nnabla, ``DynamicLossScalingUpdater``, whose loop goes on after its last try.
    """

    NAME = "nnabla"
    INITIAL_SCALE_PARAMETER = "scale"
    GROWTH_PARAMETER = "N"
    scale: Positive = 8.0
    scaling_factor: Factor = 2.0
    N: Count = 2000
    counter: int = field(default=0, init=False)  # see ``update``

    def update(self, finite: bool) -> Action:
        if not finite:
            self.scale, self.counter = self.scale / self.scaling_factor, 0
            return "retry"
        # nnabla compares the counter before it counts the step. So the scale first grows at good step N + 2, and then
        # after every N + 1 good steps.
        if self.counter > self.N:
            self.scale, self.counter = self.scale * self.scaling_factor, 0
        self.counter += 1
        return "step"


@dataclass
class NoScaling(Scaler):
    """Keep the scale at 1, and skip bad steps, to show whether a training needs loss scaling."""

    NAME = "none"


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
    """Return the loss scaler with this name, a key of ``SCALERS``.

    The attribute ``scale`` of the scaler is the factor of the next loss. Call its ``update(finite)`` after each step.
    ``parameters`` have the names of the framework, see ``parameter_defaults``. A text is read as a number or a truth
    value. Raises UsageError for an unknown name, and for parameters that are unknown, missing or out of range.
    """
    if name not in SCALERS:
        raise UsageError(f"there is no loss scaler {name!r}", hint=f"give one of {', '.join(SCALERS)}")
    scaler: Callable[..., Scaler] = SCALERS[name]
    defaults = parameter_defaults(name)
    for parameter in parameters:
        if parameter not in defaults:
            hint = f"it has {', '.join(defaults) or 'no parameters'}"
            raise UsageError(f"the loss scaler {name} has no parameter {parameter!r}", hint=hint)
    needed = [parameter for parameter, default in defaults.items() if default is MISSING]
    # Without include_extras, the types are bool, int and float.
    types = get_type_hints(SCALERS[name])
    values = {key: _read_parameter(name, key, types[key], value) for key, value in parameters.items()}
    if values.get("dynamic") is False:  # as Keras has it
        needed.append("initial_scale")
        if "dynamic_growth_steps" in values:
            message = f"the loss scaler {name} with dynamic=False does not grow, and has no dynamic_growth_steps"
            raise UsageError(message, hint="leave dynamic_growth_steps out")
    for parameter in needed:
        if parameter not in parameters:
            is_scale = parameter == SCALERS[name].INITIAL_SCALE_PARAMETER
            given = ("loss_scale", Verbatim("S")) if is_scale else ("scaler_args", {parameter: Verbatim("VALUE")})
            hint = f"give {spell(*given)}"
            raise UsageError(f"the loss scaler {name} needs {parameter}", hint=hint)
    return scaler(**values)


def parameter_defaults(name: str) -> dict[str, object]:
    """Return the parameters of a scaler with their default values; ``dataclasses.MISSING`` if one has no default."""
    return {parameter.name: parameter.default for parameter in fields(SCALERS[name]) if parameter.init}


def describe_scaler(scaler: Scaler) -> dict[str, object]:
    """Return the name of a scaler and the values of all its parameters, for reports."""
    return {"name": scaler.NAME, **{name: getattr(scaler, name) for name in parameter_defaults(scaler.NAME)}}


def _read_parameter(scaler_name: str, name: str, value_type: type, value: object) -> float:
    """Return the value of a parameter as its type: bool, int or float. The command line gives texts."""
    truth_values = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    try:
        if value_type is bool:
            return truth_values[str(value).lower()]
        if not isinstance(value, str | SupportsFloat):
            raise TypeError
        number = float(value)
        if value_type is int and not number.is_integer():
            raise ValueError
        return int(number) if value_type is int else number
    except (KeyError, ValueError, TypeError, OverflowError):
        expected = {bool: "true or false", int: "a whole number"}.get(value_type, "a number")
        raise UsageError(f"{name}={value} of the loss scaler {scaler_name}: it must be {expected}") from None
