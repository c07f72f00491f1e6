"""Trace the step as one graph of ATen operators: forward pass, loss, and the backward pass that autograd makes of it.

Two passes. The first runs loss and ``torch.autograd.grad`` under ``make_fx`` with tensors that have shapes and no
values; the module a node came from is noted on it, on the backward nodes too. The second replays that graph without
mutation of its inputs and with the operators of `mixlist.torch_export.decompositions` written out.

The batch's first axis has one symbol for all inputs. A step that looks at its value (``if len(x) > 4``) would hold for
the example's size alone, so it is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from traceback import extract_tb
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.fx.traceback as traceback
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    GuardOnDataDependentSymNode,
    ShapeEnv,
    StatelessSymbolicContext,
)
from torch.nn.attention import SDPBackend, sdpa_kernel

from mixlist.errors import ModelError, UsageError
from mixlist.torch_export.decompositions import in_place_table, table
from mixlist.torch_export.step_format import GRADIENT_PREFIX, LOSS, LOSS_SCALE, STATE_PREFIX, is_reserved

if TYPE_CHECKING:
    from torch import SymInt, Tensor
    from torch.fx import GraphModule
    from torch.nn import Module

    Tensors = dict[str, Tensor]

# Stands for the batch size while tracing: many divisors, so that `x.view(-1, 2, ...)` passes, and no likely other size.
BATCH_HINT = 27720
# The errors that torch raises if Python code needs the value of a tensor: a branch, a size, a boolean index.
_VALUE_ERRORS = (DataDependentOutputException, DynamicOutputShapeException, GuardOnDataDependentSymNode)
LOSS_SCOPE = "loss"
GRAD_SCOPE = "grad"


@dataclass(frozen=True)
class Step:
    """A traced step: ``graph`` has one placeholder per name in ``inputs`` and one result per name in ``outputs``."""

    graph: GraphModule
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    mode: FakeTensorMode  # in which its values live
    batch: SymInt | None  # the batch size; None if it is fixed


class ModuleRun(NamedTuple):
    """One run of a module in the forward pass: the autograd numbers from ``first`` to ``end`` (one past) are its."""

    first: int
    end: int
    name: str


def trainable(module: Module) -> Tensors:
    """Return the parameters that are trained, by name; tied parameters are one."""
    return {name: value for name, value in module.named_parameters() if value.requires_grad}


def frozen(module: Module) -> Tensors:
    """Return the other parameters, by name."""
    return {name: value for name, value in module.named_parameters() if not value.requires_grad}


def trace(module: Module, loss_fn: Callable[..., object], batch: Mapping[str, Tensor], *, dynamic_batch: bool) -> Step:
    """Trace the step of ``module`` on batches like ``batch``.

    Inputs are the trainable parameters, the other parameters and the buffers (under their own names), the batch, and
    ``loss_scale``. Outputs are ``loss``, ``grad.<parameter>``, ``state.<buffer>`` for every buffer, then the metrics.
    """
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    learned, state = trainable(module), dict(module.named_buffers())
    own = {**learned, **frozen(module), **state}
    values = [_fake(mode, value) for value in own.values()]
    rows = [_fake(mode, value, batched=dynamic_batch and value.ndim > 0) for value in batch.values()]
    flat = [*values, *rows, _fake(mode, torch.ones(()))]
    metrics: list[str] = []
    runs: list[ModuleRun] = []

    def step(*flat: Tensor) -> list[Tensor]:
        named = dict(zip(own, flat, strict=False))
        leaves = {name: named[name].detach().requires_grad_() for name in learned}
        fed = dict(zip(batch, flat[len(own) :], strict=False))
        loss, extra, after = _forward(module, loss_fn, {**named, **leaves}, fed, runs)
        _refuse_taken_names(extra, {*own, *batch})
        metrics[:] = extra
        grads = _gradients(loss * flat[-1], leaves, runs)
        results = [loss, *grads, *(after[name] for name in state), *extra.values()]
        return [value.detach() for value in results]

    with mode, _as_traced():
        try:
            joint = make_fx(step, decomposition_table=in_place_table(), _allow_non_fake_inputs=True)(*flat)
        except _VALUE_ERRORS as error:
            raise _refusal(error) from error
        joint.graph.eliminate_dead_code()
        graph = _functional(joint, flat)
    outputs = (LOSS, *(GRADIENT_PREFIX + name for name in learned), *(STATE_PREFIX + name for name in state), *metrics)
    size = next((value.shape[0] for value in rows if value.ndim and not isinstance(value.shape[0], int)), None)
    if size is not None:
        _refuse_fixed_batch(mode.shape_env, size)
    return Step(graph, (*own, *batch, LOSS_SCALE), outputs, mode, size)


def _fake(mode: FakeTensorMode, value: Tensor, *, batched: bool = False) -> Tensor:
    """Return a tensor of the shape and type of ``value``, without values; if ``batched``, of any number of rows."""
    value = value.detach()
    sizes = [DimDynamic.STATIC] * value.ndim
    if batched:
        value = torch.empty((BATCH_HINT, *value.shape[1:]), dtype=value.dtype, device="meta")
        sizes[0] = DimDynamic.DUCK  # equal sizes, one symbol
    fake = mode.from_tensor(value, symbolic_context=StatelessSymbolicContext(dynamic_sizes=sizes))
    if not batched:
        return fake
    with mode:
        return torch.empty(fake.shape, dtype=fake.dtype, device="cpu")


@contextmanager
def _as_traced() -> Iterator[None]:
    """Run plain operators only: no fused attention or MKLDNN kernels, which have no counterpart in ONNX."""
    enabled = torch.backends.mkldnn.enabled
    torch.backends.mkldnn.enabled = False
    with (
        sdpa_kernel(SDPBackend.MATH),
        torch.enable_grad(),
        traceback.preserve_node_meta(),
        enable_python_dispatcher(),  # its kernels keep sizes symbolic where some C++ ones read their value
    ):
        try:
            yield
        finally:
            torch.backends.mkldnn.enabled = enabled


def _forward(
    module: Module, loss_fn: Callable[..., object], values: Tensors, batch: Tensors, runs: list[ModuleRun]
) -> tuple[Tensor, Tensors, Tensors]:
    """Return the loss, the metrics, and the buffers after the forward pass."""
    holder = torch.nn.Module()
    holder.inner = module

    def forward() -> tuple[object, Tensors]:
        with _scopes(module, runs):
            result = loss_fn(module, **batch)
        return result, dict(module.named_buffers())

    holder.forward = forward
    result, after = torch.func.functional_call(holder, {f"inner.{name}": value for name, value in values.items()}, ())
    loss, metrics = result if isinstance(result, tuple) else (result, {})
    _check_result(loss, metrics)
    return loss, {name: value.detach() for name, value in metrics.items()}, after


def _check_result(loss: object, metrics: object) -> None:
    if not isinstance(loss, torch.Tensor) or loss.ndim or not loss.is_floating_point():
        found = f"a tensor of shape {list(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise UsageError(
            f"loss_fn returned {found} as the loss",
            hint="return a float scalar (.mean() of a loss per row), or a pair of it and a dict of named tensors",
        )
    if not isinstance(metrics, dict) or not all(isinstance(value, torch.Tensor) for value in metrics.values()):
        raise UsageError(
            "loss_fn's second result must be a dict of named tensors", hint="return loss, {'logits': logits}"
        )


def _refuse_taken_names(metrics: Iterable[str], taken: Collection[str]) -> None:
    """Raise UsageError for a metric whose name an input has, or that has a meaning in every step graph."""
    for name in metrics:
        if name in taken or is_reserved(name):
            problem = "is the name of an input" if name in taken else "has a meaning here"
            raise UsageError(f"loss_fn calls one of its results {name!r}, which {problem}", hint="give it another name")


def _gradients(scaled: Tensor, leaves: Tensors, runs: list[ModuleRun]) -> list[Tensor]:
    if not scaled.requires_grad:
        raise UsageError("the loss does not depend on any trainable parameter", hint="see that nothing detaches it")
    with _backward_scopes(scaled, runs):
        grads = torch.autograd.grad(scaled, list(leaves.values()), allow_unused=True)
    unused = [name for name, grad in zip(leaves, grads, strict=True) if grad is None]
    if unused:
        raise UsageError(
            f"the loss does not depend on {', '.join(unused)}",
            hint="freeze what is not trained, with requires_grad_(False), or see that nothing detaches it",
        )
    return list(grads)


# Scopes: which module a node comes from. A forward node gets the module that runs, a backward node that of the forward
# node whose autograd function it computes, found by autograd's sequence numbers.


def _enter_scope(name: str, *_: object) -> None:
    """Note a module on the nodes that come next; a hook passes more arguments."""
    traceback.get_current_meta()["nn_module_stack"] = {"scope": (name, "")}


@contextmanager
def _scopes(module: Module, runs: list[ModuleRun]) -> Iterator[None]:
    """Note on each forward node the module that runs; append every run of a module to ``runs``."""
    stack: list[tuple[str, int]] = []

    def before(name: str, *_: object) -> None:
        stack.append((name, torch.autograd._get_sequence_nr()))
        _enter_scope(name)

    def after(*_: object) -> None:
        name, start = stack.pop()
        runs.append(ModuleRun(start, torch.autograd._get_sequence_nr(), name))
        _enter_scope(stack[-1][0] if stack else LOSS_SCOPE)

    _enter_scope(LOSS_SCOPE)
    with ExitStack() as hooks:
        for name, part in module.named_modules():
            hooks.callback(part.register_forward_pre_hook(partial(before, name)).remove)
            hooks.callback(part.register_forward_hook(after).remove)
        yield


@contextmanager
def _backward_scopes(scaled: Tensor, runs: Sequence[ModuleRun]) -> Iterator[None]:
    """Note on each backward node the module whose gradient it computes."""
    _enter_scope(GRAD_SCOPE)
    seen, waiting = {None}, [scaled.grad_fn]
    with ExitStack() as hooks:
        while waiting:
            function = waiting.pop()
            if function in seen:
                continue
            seen.add(function)
            number = function._sequence_nr()
            around = [run for run in runs if run.first <= number < run.end]
            innermost = max(around, key=lambda run: (run.first, -run.end), default=None)
            name = innermost.name if innermost else LOSS_SCOPE
            hooks.callback(function.register_prehook(partial(_enter_scope, f"{GRAD_SCOPE}.{name}")).remove)
            waiting += [after for after, _ in function.next_functions]
        yield


def _functional(joint: GraphModule, flat: Sequence[Tensor]) -> GraphModule:
    """Return the graph without mutations and with our decompositions."""
    replay = torch.func.functionalize(torch.fx.Interpreter(joint).run)
    graph = make_fx(replay, decomposition_table=table(), _allow_non_fake_inputs=True)(*flat)
    for node in list(graph.graph.nodes):  # functionalize writes buffers back at the end: they are outputs here
        if node.target is torch.ops.aten.copy_.default:
            node.replace_all_uses_with(node.args[1])
            graph.graph.erase_node(node)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph


def _refusal(error: BaseException) -> ModelError:
    """Name the line of the user's code: the innermost outside of torch and this package."""
    frames = [frame for frame in extract_tb(error.__traceback__) if "/torch/" not in frame.filename]
    own = [frame for frame in frames if frame.filename != __file__ and not frame.filename.startswith("<")]
    where = f" ({Path(own[-1].filename).name}:{own[-1].lineno}: {own[-1].line})" if own else ""
    return ModelError(
        f"the step depends on the value of a tensor{where}",
        hint="a graph has no Python branches on values: use torch.where, or a mask in place of a boolean index",
    )


def _refuse_fixed_batch(env: ShapeEnv, size: SymInt) -> None:
    expression = env.replace(size.node.expr)
    # The tests of fake_impls choose a memory layout, which the graph does not hold.
    tests = [guard for guard in env.guards
             if size.node.expr in guard.expr.free_symbols and "fake_impls" not in str(guard.sloc)]  # fmt: skip
    if expression.free_symbols and not tests:
        return
    if tests:
        rule = f"{str(tests[0].expr).replace(str(size.node.expr), 'batch')} ({tests[0].sloc})"
    else:
        rule = "its size was read as a number"
    raise ModelError(
        f"the step holds for some batch sizes only: {rule}",
        hint="take sizes as x.shape[0] (len(x) is a fixed number), or export one size with dynamic_batch=False",
    )
