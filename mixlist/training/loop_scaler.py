"""The scaler of a training: while the loop runs, it answers the calls of every ``torch.amp.GradScaler``.

So the loop, or a library that it calls, makes its own GradScaler, and no line changes. It does not matter when it was
made, whether it is enabled, or which device it is for. Its arguments count for the scaler ``torch``, unless the options
have parameters. All GradScalers of a loop share one loss scale, with the arguments of the first that has some.

``scale`` multiplies the loss before the backward pass. ``step`` (or ``unscale_``) divides the float32 gradients by the
scale, examines them, and then calls the optimizer. In a skipped step it does not call the optimizer and returns None;
all else is the loop's own. With several optimizers, each is skipped for its own gradients. A closure is an error, as
with PyTorch's. A step ends with ``update``. An optimizer that steps before any loss was scaled is an error: that loop
uses no scaler. Without loss scaling (``none``) it is trained as it is: each call of an optimizer is a step that applies
all gradients, and its losses are the tensors of the backward passes before it. A closure runs before the step, once.

In a mixed training, a scaler of ``scalers.py`` decides, and the other trainings of a seed follow the mixed one.
"""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from importlib.util import find_spec
from typing import Any, TypeAlias

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import _disable_current_modes

from mixlist.errors import UsageError
from mixlist.option_spelling import spell
from mixlist.training.result import TrainingHistory
from mixlist.training.rounding_mode import ModuleTracker, RoundingMode, mark_high
from mixlist.training.scalers import Scaler

TWIN_ERROR = 2.0**-11  # the rounding error of float16, by which the parameters of a twin differ at first
NamedParameters: TypeAlias = list[tuple[str, torch.nn.Parameter]]
# Sees the gradients of a step, counted from 0, before they are divided.
GradientObserver: TypeAlias = Callable[[int, NamedParameters], None]
STEP_HINT = "in each step: scaler.scale(loss).backward(), scaler.step(optimizer), scaler.update()"
# The methods of a GradScaler that the scaler of the training answers.
_METHODS = ("scale", "unscale_", "step", "update", "get_scale", "is_enabled", "state_dict", "load_state_dict")


@contextmanager
def answer_grad_scalers(scaler: LoopScaler, note_parameters: Callable[[Mapping[str, object]], None]) -> Iterator[None]:
    """Let ``scaler`` answer the calls of every GradScaler of PyTorch, also of one that was made before.

    ``note_parameters`` is called with the arguments of each GradScaler that the loop makes.
    """
    base = torch.amp.GradScaler
    start, signature = base.__init__, inspect.signature(base.__init__)
    backward = torch.autograd.backward

    def note_start(grad_scaler: Any, *arguments: Any, **keywords: Any) -> None:
        with warnings.catch_warnings(action="ignore"):  # that there is no CUDA for it
            start(grad_scaler, *arguments, **keywords)
        note_parameters(signature.bind(grad_scaler, *arguments, **keywords).arguments)

    def answer(name: str) -> Callable[..., Any]:
        def call(grad_scaler: Any, *arguments: Any, **keywords: Any) -> Any:
            scaler.callers.add(id(grad_scaler))
            return getattr(scaler, name)(*arguments, **keywords)

        return call

    def note_losses(tensors: Any, *arguments: Any, **keywords: Any) -> None:
        if torch._C._current_graph_task_id() == -1:  # a checkpoint calls it inside of a backward pass
            scaler.note_losses(tensors)
        backward(tensors, *arguments, **keywords)

    with ExitStack() as stack:

        def replace(kind: Any, name: str, value: object) -> None:
            stack.callback(setattr, kind, name, vars(kind)[name])
            setattr(kind, name, value)

        replace(base, "__init__", note_start)
        for kind in _grad_scaler_classes(base):
            for name in vars(kind).keys() & set(_METHODS):
                replace(kind, name, answer(name))
        replace(torch.autograd, "backward", note_losses)
        stack.callback(register_optimizer_step_pre_hook(scaler.start_step).remove)
        stack.callback(register_optimizer_step_post_hook(scaler.end_step).remove)
        stack.push(scaler.optimizer_context)  # open if an optimizer raised an error
        if find_spec("accelerate") is not None:
            from accelerate import Accelerator  # type: ignore[import-not-found]

            replace(Accelerator, "__init__", _with_scaler_on_cpu(Accelerator.__init__))
        yield


def _with_scaler_on_cpu(start: Callable[..., None]) -> Callable[..., None]:
    """Return ``Accelerator.__init__`` such that float16 has a scaler on a CPU, too, where accelerate makes none."""

    def init(accelerator: Any, *arguments: Any, **keywords: Any) -> None:
        start(accelerator, *arguments, **keywords)
        if accelerator.scaler is None and accelerator.mixed_precision == "fp16" and accelerator.device.type == "cpu":
            handler = accelerator.scaler_handler
            accelerator.scaler = torch.amp.GradScaler("cpu", **(handler.to_kwargs() if handler is not None else {}))
            accelerator.native_amp = True

    return init


def _grad_scaler_classes(kind: type) -> Iterator[type]:
    """Yield a class and its subclasses in PyTorch and torch_npu; a user's own subclass calls them."""
    if kind.__module__.startswith("torch"):
        yield kind
    subclasses: list[type] = kind.__subclasses__()
    for subclass in subclasses:
        yield from _grad_scaler_classes(subclass)


class LoopScaler:
    """Scale the losses of a loop, examine its gradients, and skip its steps, as ``torch.amp.GradScaler`` does.

    - ``deciding_scaler``: decides the scale and the skipped steps; None if the training follows ``leader``, the history
      of the mixed training.
    - ``scales``: False without loss scaling, where the loop needs no GradScaler.
    - ``mode``: rounds the operators; None in float32. If it examines them, an overflow in one is an exception, too.
    - ``replays``: True if steps in which the leader had an exception have the scale 1.
    - ``observe``: is called with the gradients of each optimizer and step.
    - ``twin_seed``: draws the error of a twin's parameters; None for no twin.
    - ``after_update``: is called after each update.

    ``history`` has the losses, scales and exceptions so far, ``updates`` is the number of steps, ``callers`` the
    GradScalers of the loop, by id.
    """

    def __init__(
        self,
        tracker: ModuleTracker,
        deciding_scaler: Scaler | None = None,
        leader: TrainingHistory | None = None,
        *,
        scales: bool = True,
        mode: RoundingMode | None = None,
        replays: bool = False,
        observe: GradientObserver | None = None,
        twin_seed: int | None = None,
        after_update: Callable[[LoopScaler], None] = lambda scaler: None,
    ) -> None:
        self._tracker, self.deciding_scaler, self._mode = tracker, deciding_scaler, mode
        self._leader = leader or TrainingHistory()
        self._unscaled_steps = frozenset(self._leader.exceptions if replays else ())
        self._scales = scales
        self._versions: list[tuple[int, ...]] = []  # before the step of an optimizer with a closure
        self.optimizer_context = ExitStack()  # open while an optimizer of a loop without a GradScaler runs
        self._observe, self._twin_seed, self._after_update = observe, twin_seed, after_update
        self.history = TrainingHistory()
        self.updates = 0
        self.callers: set[int] = set()
        self._stepped: frozenset[int] | None = None  # the optimizers of the last step
        self._optimizers: dict[int, torch.optim.Optimizer] = {}  # all of the loop, by id
        # Since the last update: the losses; for each optimizer whose gradients were divided, whether one was not
        # finite; for each step(), whether the optimizer was applied.
        self._losses: list[torch.Tensor] = []
        self._last_losses: list[torch.Tensor] = []  # of the update before
        self._bad: dict[int, bool] = {}
        # By the id of a gradient, its largest value at the end of the last backward pass. One training of a seed shows
        # whether the loop changes gradients.
        self._largest: dict[int, float] = {}
        self._checks_changes = mode is None and twin_seed is None
        self._applied: list[bool] = []
        self._measure_next_step()

    def is_enabled(self) -> bool:
        """Return True, as a GradScaler that scales does."""
        return True

    def get_scale(self) -> float:
        """Return the loss scale of this step."""
        if self.deciding_scaler is not None:
            return self.deciding_scaler.scale
        scales = self._leader.scale
        scale = scales[self.updates] if self.updates < len(scales) else self._leader.last_scale
        return _ReplayedScale(scale) if self.updates in self._unscaled_steps else scale

    def scale(self, outputs: Any) -> Any:
        """Return a loss, or a list or tuple of losses, multiplied by the loss scale."""
        if isinstance(outputs, list | tuple):
            return type(outputs)([self.scale(output) for output in outputs])
        if torch._C._functorch.is_batchedtensor(outputs):
            raise UsageError(
                "the loop calls scaler.scale() inside of torch.vmap",
                hint="scale the mean of the losses, outside of vmap",
            )
        self._scales = True
        self._note_loss(outputs)
        return _ScaledLoss.apply(outputs, self._factor, self._mode, self._note_gradients)

    def _note_loss(self, loss: torch.Tensor) -> None:
        if self.history.first_loss is None:
            self.history.first_loss = _mean([loss.detach()])
        self._losses.append(loss.detach())

    def note_losses(self, tensors: Any) -> None:
        """Note the tensors of a backward pass as losses, in a loop that uses no GradScaler."""
        for tensor in [] if self._scales else [tensors] if isinstance(tensors, torch.Tensor) else tensors:
            if isinstance(tensor, torch.Tensor):
                self._note_loss(tensor)

    def _note_gradients(self) -> None:
        """Note the largest value of each gradient at the end of a backward pass, in sampled steps of a training."""
        if self._checks_changes and is_sampled(self.updates):
            self._largest = _largest_values(self._tracker.parameters())

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the gradients of an optimizer by the loss scale. ``step`` does so if the loop did not."""
        if id(optimizer) in self._bad:
            raise UsageError(
                "the loop calls unscale_() twice, or after step(), for one optimizer in one step",
                hint="call unscale_(), step() and update() once in each step, in this order",
            )
        parameters = self._parameters(optimizer)
        if self._largest and self.history.changed_gradients is None:
            largest = _largest_values(parameter for _, parameter in parameters)
            if any(math.isfinite(value) and value != self._largest.get(key, value) for key, value in largest.items()):
                self.history.changed_gradients = self.updates
        with self._unrounded(), torch.no_grad():
            if self._observe is not None:
                self._observe(self.updates, parameters)
            self._bad[id(optimizer)] = not _divide_gradients([p for _, p in parameters], self._factor)

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        """Call ``optimizer.step()`` unless the step has an exception; return its result, or None if it is skipped."""
        if any(map(callable, (*args, *kwargs.values()))):
            raise UsageError(
                "the loop calls step() with a closure, whose gradients are not known before the step",
                hint="use an optimizer that needs no closure, as torch.amp.GradScaler asks for",
            )
        self._examine(optimizer)
        if self._is_skipped(optimizer):
            self._applied.append(False)
            return None
        self._applied.append(True)
        with self._unrounded():
            return optimizer.step(*args, **kwargs)

    def _examine(self, optimizer: torch.optim.Optimizer) -> None:
        """Examine the gradients of an optimizer before its step; change the parameters of a twin before its first."""
        if id(optimizer) not in self._bad:
            self.unscale_(optimizer)
        if self._twin_seed is not None and id(optimizer) not in self._optimizers:
            self._perturb(optimizer)
        self._optimizers[id(optimizer)] = optimizer

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        """End a step: change the loss scale by the rule of the framework."""
        if new_scale is not None:
            raise UsageError("the loop sets the loss scale itself", hint="call scaler.update() without a scale")
        if not self._applied and len(self.callers) > 1:
            return  # each of several GradScalers has its update
        if not self._applied or not self._losses:
            missing = "scale(loss)" if self._applied else "step(optimizer)"
            raise UsageError(f"the loop calls scaler.update() without scaler.{missing}", hint=STEP_HINT)
        history, bad = self.history, any(self._bad.values()) or self._overflows
        if self._mode is not None and self._mode.largest_values is not None:
            # A scale of 0, to which that of PyTorch can fall, leaves no gradient.
            factor = self._factor or 1.0
            history.largest[self.updates] = {
                (module, is_gradient): value / factor if is_gradient else value
                for (module, is_gradient), value in self._mode.largest_values.items()
                if not (is_gradient and bad)  # gradients behind an overflow say nothing about a module
            }
        history.loss.append(_mean(self._losses))
        stepped = frozenset(self._bad)
        other_optimizers = self._stepped is not None and stepped != self._stepped
        history.several_losses = history.several_losses or len(self._losses) > 1 or other_optimizers
        self._stepped = stepped
        history.scale.append(self._factor)
        history.applied.append(tuple(self._applied))
        if bad:
            history.exceptions.append(self.updates)
            if self._mode is not None and self._mode.overflow_start is not None:
                history.findings[self.updates] = self._mode.overflow_start
        if not all(self._applied):
            history.skipped.append(self.updates)
        if self.deciding_scaler is not None:
            self.deciding_scaler.update(not bad)
        self.updates += 1
        history.last_scale = self._factor
        self._last_losses, self._losses, self._applied, self._largest = self._losses, [], [], {}
        self._bad.clear()
        if self._mode is not None:
            self._mode.start_update()
            self._measure_next_step()
        self._after_update(self)

    def _measure_next_step(self) -> None:
        """Let the mode collect the largest values of a step that is sampled."""
        if self._mode is not None and self.deciding_scaler is not None:
            self._mode.largest_values = {} if is_sampled(self.updates) else None

    def state_dict(self) -> dict[str, object]:
        """Return the scale and the number of steps, for the checkpoints of the loop."""
        return {"scale": self.get_scale(), "steps": self.updates}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Leave the scale as it is: a training is judged from its beginning."""

    def start_step(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Examine the gradients of an optimizer that steps by itself, in a loop without a GradScaler.

        A closure, which Lightning gives to every optimizer, runs before; return the arguments of the step with its
        result in its place. Raises UsageError if no loss was scaled so far; without loss scaling, if there was no
        backward pass.
        """
        if not self._scales:
            run = partial(self._run_closure, optimizer)
            args, kwargs = tuple(map(run, args)), {name: run(argument) for name, argument in kwargs.items()}
        if self.history.first_loss is None:
            raise UsageError(
                f"{type(optimizer).__name__} steps, and no loss was scaled before: the loop uses no GradScaler",
                hint=f"{STEP_HINT}; or switch it on: fp16=True (transformers), mixed_precision='fp16' (accelerate),"
                f" precision='16-mixed' (Lightning); or judge the loop without one: {spell('loss_scaler', 'none')}",
            )
        if self._scales:
            return args, kwargs
        self._examine(optimizer)
        self._losses = self._losses or self._last_losses  # two optimizers can follow one backward pass
        # The untrained network skips all steps: an optimizer changes no parameter that has no gradient.
        is_skipped = self.deciding_scaler is None and self._is_skipped(optimizer)
        if is_skipped:
            optimizer.zero_grad(set_to_none=True)
        self._applied.append(not is_skipped)
        self._versions = _versions(optimizer)
        self.optimizer_context.enter_context(self._unrounded())
        return args, kwargs

    def _run_closure(self, optimizer: torch.optim.Optimizer, argument: Any) -> Any:
        """Call an argument of a step that is a closure; return one with its result for the optimizer. Else return it.

        The optimizer may call it once, with the parameters and gradients as they are: else the gradients of its step
        are others than those that were examined.
        """
        if not callable(argument) or isinstance(argument, torch.optim.Optimizer):
            return argument
        results = [argument()]

        def closure() -> Any:
            if not results or self._versions != _versions(optimizer):
                raise UsageError(
                    "the optimizer calls its closure again, or after it changed parameters or gradients, so that those"
                    " of the step are not known before it",
                    hint="use an optimizer that needs no closure",
                )
            return results.pop()

        return closure

    def end_step(self, *_: object) -> None:
        """End a step of an optimizer that steps by itself: see ``start_step``."""
        if not self._scales:
            self.optimizer_context.close()
            self.update()

    def parameters_are_finite(self) -> bool:
        """Return whether all parameters of the loop's optimizers are finite."""
        with torch.no_grad():
            return all(
                bool(torch.isfinite(_local(parameter)).all())
                for optimizer in self._optimizers.values()
                for _, parameter in self._parameters(optimizer)
            )

    def device(self) -> str:
        """Return the type of the device that the parameters are on: "cpu", "cuda", ..."""
        parameters = [p for optimizer in self._optimizers.values() for _, p in self._parameters(optimizer)]
        return parameters[0].device.type if parameters else "cpu"

    @property
    def _factor(self) -> float:
        """The factor of the loss in this step."""
        return float(self.get_scale())

    @property
    def _overflows(self) -> bool:
        return self._mode is not None and self._mode.overflows

    def _is_skipped(self, optimizer: torch.optim.Optimizer) -> bool:
        if self.deciding_scaler is not None:
            return (self._bad[id(optimizer)] or self._overflows) and self.deciding_scaler.skips_bad_steps
        applied = self._leader.applied[self.updates] if self.updates < len(self._leader.applied) else ()
        index = len(self._applied)
        return index < len(applied) and not applied[index]

    def _parameters(self, optimizer: torch.optim.Optimizer) -> NamedParameters:
        """Return the parameters of an optimizer with their names in the modules that ran."""
        names = self._tracker.parameter_names()
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        return [(names.get(id(p), f"parameter {index}"), p) for index, p in enumerate(parameters)]

    def _perturb(self, optimizer: torch.optim.Optimizer) -> None:
        """Change the parameters by one rounding error, up or down at random, apart from the loop's random numbers."""
        generator = torch.Generator().manual_seed(self._twin_seed or 0)
        with torch.no_grad():
            for values in (_local(parameter) for _, parameter in self._parameters(optimizer)):
                signs = torch.randint(0, 2, values.shape, generator=generator).to(values) * 2 - 1
                values.mul_(1 + signs * TWIN_ERROR)

    def _unrounded(self) -> AbstractContextManager[object]:
        """Return a context in which operators run as they are, without the cost of the mode."""
        context: AbstractContextManager[object] = nullcontext() if self._mode is None else _disable_current_modes()
        return context


class _ReplayedScale(float):
    """The scale of a step that a replay does not scale: 1 in arithmetic, and ``recorded`` in comparisons.

    A loop that divides by the scale must divide by 1. A loop that compares the scales before and after ``update()``, to
    find out whether the step was skipped, must find what the mixed training found.
    """

    recorded: float

    def __new__(cls, recorded: float) -> _ReplayedScale:
        scale = super().__new__(cls, 1.0)
        scale.recorded = recorded
        return scale

    def __lt__(self, other: float) -> bool:
        return self.recorded < other

    def __le__(self, other: float) -> bool:
        return self.recorded <= other

    def __gt__(self, other: float) -> bool:
        return self.recorded > other

    def __ge__(self, other: float) -> bool:
        return self.recorded >= other


class _ScaledLoss(torch.autograd.Function):  # type: ignore[misc]  # PyTorch is not typed here
    """Multiply a loss, and in the backward pass its gradient, by the loss scale, in float32 under every list."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        loss: torch.Tensor, factor: float, mode: RoundingMode | None, at_end: Callable[[], None]
    ) -> torch.Tensor:
        with nullcontext() if mode is None else mode.paused():
            return loss * factor

    @staticmethod
    def setup_context(context: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        _, context.factor, context.mode, context.at_end = inputs

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> Any:
        # Data-parallel modules write gradients in calls of this kind, which they queue later: so it queues another one.
        queue = torch.autograd.Variable._execution_engine.queue_callback
        queue(partial(queue, context.at_end))
        with nullcontext() if context.mode is None else context.mode.paused():
            return gradients[0] * context.factor, None, None, None


def _versions(optimizer: torch.optim.Optimizer) -> list[tuple[int, ...]]:
    """Return numbers that change if a parameter of the optimizer or its gradient is written or replaced."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return [(p._version, id(p.grad), 0 if p.grad is None else p.grad._version) for p in parameters]


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """Return the part of a tensor that this process has: FSDP2 shards parameters and gradients."""
    part: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part


def gradient_values(parameter: torch.nn.Parameter) -> torch.Tensor | None:
    """Return the values of a gradient, without the zeros of a sparse one; None if the parameter has no gradient."""
    gradient = parameter.grad
    if gradient is not None:
        gradient = _local(gradient)
    if gradient is not None and gradient.is_sparse:
        # Values of one index are added before they are examined.
        parameter.grad = gradient = gradient.coalesce()
        return gradient._values()
    return torch.view_as_real(gradient) if gradient is not None and gradient.is_complex() else gradient


def is_sampled(step: int) -> bool:
    """Return whether the gradients of a step, counted from 0, are examined: the first 8, then 4 in each octave."""
    return step < 8 or step % (1 << (step.bit_length() - 3)) == 0


def _largest_values(parameters: Iterable[torch.nn.Parameter]) -> dict[int, float]:
    """Return the largest magnitude of each gradient, by the id of the gradient."""
    gradients = [(p, values) for p in parameters if (values := gradient_values(p)) is not None and values.numel()]
    if not gradients:
        return {}
    norms = torch._foreach_norm([values.detach() for _, values in gradients], math.inf)
    return {id(parameter.grad): float(norm) for (parameter, _), norm in zip(gradients, norms, strict=True)}


def _divide_gradients(parameters: Iterable[torch.nn.Parameter], factor: float) -> bool:
    """Divide the gradients in place; return whether all of them are finite after that."""
    gradients = [values for p in parameters if (values := gradient_values(p)) is not None]
    if not gradients:
        return True
    for gradient in gradients:
        mark_high(gradient)  # the backward pass may have marked it, and the division changes its values
    if factor != 1:
        torch._foreach_div_(gradients, factor)
    largest = torch._foreach_norm(gradients, math.inf)  # NaN if one value is NaN
    return bool(torch.isfinite(torch.stack([value.float() for value in largest])).all())


def _mean(losses: list[torch.Tensor]) -> float:
    """Return the mean of all losses of a step; NaN if none was scaled."""
    means = [float(loss.double().mean()) for loss in losses]
    return sum(means) / len(means) if means else math.nan
