"""Trace a training step as one graph of ATen operators: forward pass, loss, and the backward pass of autograd.

The tracing has two passes:

1. ``make_fx`` records the loss and ``torch.autograd.grad``, with fake tensors that have shapes and no values. Each node
   gets the name of its module, the nodes of the backward pass too.
2. The recorded graph runs again under ``make_fx``. Mutations of its inputs become outputs, and the operators of
   `mixlist.torch_export.decompositions` are decomposed.

The batch size is one symbol, the first axis of every batch input. A graph network has several such sizes, and each of
them is a symbol with a name. A step that reads a symbolic size as a number (``if len(x) > 4``) is refused, since its
graph would be right for some sizes only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch._decomp.decompositions as rnn_decompositions
import torch.fx.traceback as traceback
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    StatelessSymbolicContext,
)
from torch.nn.attention import SDPBackend, sdpa_kernel

from mixlist.errors import ModelError, UsageError
from mixlist.torch_export.decompositions import batch_norm_table, decomposition_table
from mixlist.torch_export.function_replacements import (
    PlainFunctions,
    replace_cumulative_normalizations,
    run_recurrent_layers,
)
from mixlist.torch_export.loss_result import check_metric_names, check_result
from mixlist.torch_export.module_state import replace_tensors, unchanged_module
from mixlist.torch_export.step_names import (
    EVALUATION_PREFIX,
    GRADIENT_PREFIX,
    LOSS,
    LOSS_SCALE,
    STATE_PREFIX,
    DynamicAxes,
)
from mixlist.torch_export.trace_errors import (
    TORCH_ERRORS,
    VALUE_ERRORS,
    describe_torch_error,
    describe_value_error,
    is_raised_by_torch,
)

if TYPE_CHECKING:
    from torch import SymInt, Tensor
    from torch.fx import GraphModule
    from torch.nn import Module

    Tensors = dict[str, Tensor]

# The example values of symbolic sizes are 2520 times a prime number. They have many divisors, so that
# ``x.view(-1, 2, ...)`` works. Hardly any other size of a network equals one of them, which matters because torch gives
# equal sizes one symbol.
EXAMPLE_SIZES = tuple(2520 * prime for prime in (11, 13, 17, 19, 23, 29, 31, 37))
LOSS_PATH = "loss"  # the module path of forward nodes outside of all modules
GRADIENT_PATH = "grad"  # the first part of the module path of each backward node


@dataclass(frozen=True)
class TracedStep:
    """A traced step: ``graph_module`` has a placeholder per name in ``inputs`` and a result per name in ``outputs``."""

    graph_module: GraphModule
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    mode: FakeTensorMode  # the mode of the fake tensors in the metadata of its nodes
    sizes: Mapping[str, SymInt]  # the symbolic sizes by name


class ModuleRun(NamedTuple):
    """One run of a module in the forward pass. autograd gives each of its functions a sequence number.

    ``first`` is the first sequence number of the run, ``end`` the number after the last one. ``name`` is the path of
    the module.
    """

    first: int
    end: int
    name: str


def trainable_parameters(module: Module) -> Tensors:
    """Return the parameters that are trained, by name; tied parameters have one name."""
    return {name: value for name, value in module.named_parameters() if value.requires_grad}


def frozen_parameters(module: Module) -> Tensors:
    """Return the parameters that are not trained, by name."""
    return {name: value for name, value in module.named_parameters() if not value.requires_grad}


def trace_step(
    module: Module,
    loss_fn: Callable[..., object],
    batch: Mapping[str, Tensor],
    *,
    dynamic_axes: DynamicAxes,
    with_evaluation: bool = False,
) -> TracedStep:
    """Trace the step of ``module`` for batches with the names, types and shapes of ``batch``.

    The inputs are the trainable parameters, the other parameters and the buffers (with their names in the module), the
    batch, and ``loss_scale``. The outputs are ``loss``, ``grad.<parameter>``, ``state.<buffer>`` for every buffer, and
    the metrics. ``with_evaluation`` adds the loss and the metrics of the mode eval(). The sizes of ``dynamic_axes`` are
    symbolic. Raises UsageError for results of ``loss_fn`` that are no loss, ModelError for a step that depends
    on values of tensors, or that is valid for some sizes only.
    """
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    trained, buffers = trainable_parameters(module), dict(module.named_buffers())
    module_tensors = {**trained, **frozen_parameters(module), **buffers}
    fake_module_tensors = [_make_fake(mode, value) for value in module_tensors.values()]
    fake_batch, sizes = _make_fake_batch(mode, batch, dynamic_axes)
    fake_loss_scale = _make_fake(mode, torch.ones(()))
    step_inputs = [*fake_module_tensors, *fake_batch, fake_loss_scale]
    metric_names: list[str] = []
    module_runs: list[ModuleRun] = []

    def run_step(*arguments: Tensor) -> list[Tensor]:
        """Compute all outputs of the step from all its inputs; ``make_fx`` records the operators of this function."""
        values = dict(zip(module_tensors, arguments, strict=False))  # the batch and the loss scale follow
        # The step changes its buffers in place, and the evaluation reads their values from before the step.
        unchanged = {name: values[name].clone() for name in buffers}
        leaves = {name: values[name].detach().requires_grad_() for name in trained}
        batch_values = dict(zip(batch, arguments[len(module_tensors) :], strict=False))
        loss, metrics, buffers_after = _run_forward(module, loss_fn, {**values, **leaves}, batch_values, module_runs)
        check_metric_names(metrics, {*module_tensors, *batch})
        metric_names[:] = metrics  # a traced function returns tensors only, so the names leave it through this list
        gradients = _compute_gradients(loss * arguments[-1], leaves, module_runs)  # the last argument is the loss scale
        results = [loss, *gradients, *(buffers_after[name] for name in buffers), *metrics.values()]
        if with_evaluation:
            replacements = {**values, **leaves, **unchanged}
            eval_loss, eval_metrics, _ = _run_forward(module, loss_fn, replacements, batch_values, [], evaluation=True)
            results += [eval_loss, *(eval_metrics[name] for name in metrics)]
        return [value.detach() for value in results]

    with mode, _plain_operators_only():
        graph = _trace_graph(run_step, step_inputs)
    outputs = (
        LOSS,
        *(GRADIENT_PREFIX + name for name in trained),
        *(STATE_PREFIX + name for name in buffers),
        *metric_names,
    )
    if with_evaluation:
        outputs += tuple(EVALUATION_PREFIX + name for name in (LOSS, *metric_names))
    for size_name, size in sizes.items():
        _check_every_size(mode.shape_env, size_name, size)
    return TracedStep(graph, (*module_tensors, *batch, LOSS_SCALE), outputs, mode, sizes)


def _make_fake_batch(
    mode: FakeTensorMode, batch: Mapping[str, Tensor], dynamic_axes: DynamicAxes
) -> tuple[list[Tensor], dict[str, SymInt]]:
    """Return the fake tensors of a batch, and the symbolic sizes of ``dynamic_axes`` by name."""
    names = dict.fromkeys(name for axes in dynamic_axes.values() for name in axes.values())
    examples = dict(zip(names, EXAMPLE_SIZES, strict=False))
    fakes: list[Tensor] = []
    sizes: dict[str, SymInt] = {}
    for name, value in batch.items():
        axes = dynamic_axes.get(name, {})
        fakes.append(_make_fake(mode, value, {axis: examples[size_name] for axis, size_name in axes.items()}))
        sizes |= {size_name: fakes[-1].shape[axis] for axis, size_name in axes.items()}
    return fakes, sizes


def _make_fake(mode: FakeTensorMode, value: Tensor, examples: Mapping[int, int] | None = None) -> Tensor:
    """Return a fake tensor with the shape and type of ``value``.

    ``examples``: the axes whose size is a symbol, with the example value of the size.
    """
    value = value.detach()
    sizes = [DimDynamic.STATIC] * value.ndim
    if examples:
        shape = [examples.get(axis, size) for axis, size in enumerate(value.shape)]
        value = torch.empty(shape, dtype=value.dtype, device="meta")
        for axis in examples:
            sizes[axis] = DimDynamic.DUCK  # the same symbol for the same size
    fake = mode.from_tensor(value, symbolic_context=StatelessSymbolicContext(dynamic_sizes=sizes))
    if not examples:
        return fake
    # The meta device needs no memory for a batch of this size. The graph must be traced for the CPU, so the result is a
    # CPU tensor, which is fake and needs no memory either.
    with mode:
        return torch.empty(fake.shape, dtype=fake.dtype, device="cpu")


@contextmanager
def _plain_operators_only() -> Iterator[None]:
    """Make torch use plain operators: its fused attention and MKLDNN kernels have no counterpart in ONNX."""
    mkldnn_enabled, run_layers = torch.backends.mkldnn.enabled, rnn_decompositions._rnn_helper
    torch.backends.mkldnn.enabled = False
    logger = logging.getLogger("torch._subclasses.fake_tensor")  # logs the traceback of an error that is described here
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    # LSTM, GRU and RNN call this function of torch.
    rnn_decompositions._rnn_helper = partial(run_recurrent_layers, run_layers)
    with (
        sdpa_kernel(SDPBackend.MATH),
        torch.enable_grad(),
        traceback.preserve_node_meta(),
        enable_python_dispatcher(),  # its kernels keep the batch size symbolic; some C++ kernels read its value
    ):
        try:
            yield
        finally:
            torch.backends.mkldnn.enabled = mkldnn_enabled
            logger.setLevel(level)
            rnn_decompositions._rnn_helper = run_layers


def _run_forward(
    module: Module,
    loss_fn: Callable[..., object],
    values: Tensors,
    batch: Tensors,
    module_runs: list[ModuleRun],
    *,
    evaluation: bool = False,
) -> tuple[Tensor, Tensors, Tensors]:
    """Return the loss, the metrics, and the buffers after the forward pass.

    ``values`` replaces the parameters and buffers of ``module`` during the call. Each run of a module is appended to
    ``module_runs``. With ``evaluation``, the module is in the mode eval().
    """
    with unchanged_module(module):
        replace_tensors(module, values)
        if evaluation:
            module.eval()
        replace_cumulative_normalizations(module)
        with _record_forward_paths(module, module_runs, EVALUATION_PREFIX if evaluation else ""), PlainFunctions():
            result = loss_fn(module, **batch)
        buffers_after = dict(module.named_buffers())
    loss, metrics = result if isinstance(result, tuple) else (result, {})
    check_result(loss, metrics)
    return loss, {name: value.detach() for name, value in metrics.items()}, buffers_after


def _compute_gradients(scaled_loss: Tensor, leaves: Tensors, module_runs: list[ModuleRun]) -> list[Tensor]:
    """Return the gradients of the scaled loss for all leaves. Raises UsageError if the loss ignores a leaf."""
    if not scaled_loss.requires_grad:
        raise UsageError(
            "the loss does not depend on any trainable parameter",
            hint="compute the loss from the module's output without detach() or no_grad()",
        )
    with _record_backward_paths(scaled_loss, module_runs):
        gradients = torch.autograd.grad(scaled_loss, list(leaves.values()), allow_unused=True)
    unused = [name for name, gradient in zip(leaves, gradients, strict=True) if gradient is None]
    if unused:
        raise UsageError(
            f"the loss does not depend on {', '.join(unused)}",
            hint="freeze these parameters with requires_grad_(False), or compute the loss from them without detach()",
        )
    return list(gradients)


# Module paths: the path of the module that each node comes from. ONNX nodes are named after them.
#
# - A forward node gets the path of the module that runs when the node is recorded. Hooks before and after each module
#   set the path.
# - A backward node gets the path of the module whose forward pass made its autograd function. autograd numbers the
#   functions in the order of the forward pass, so the number of a function is in the range of a ModuleRun.


def _set_module_path(name: str, *_: object) -> None:
    """Make ``name`` the module path of the nodes that are recorded next. Further arguments of hooks are ignored."""
    traceback.get_current_meta()["nn_module_stack"] = {"scope": (name, "")}


@contextmanager
def _record_forward_paths(module: Module, module_runs: list[ModuleRun], prefix: str) -> Iterator[None]:
    """In this context, give each recorded node the path of the running module, after ``prefix``.

    Each run of a module is appended to ``module_runs``.
    """
    running_modules: list[tuple[str, int]] = []  # innermost last: the name, and the first sequence number

    def before_module(name: str, *_: object) -> None:
        running_modules.append((name, torch.autograd._get_sequence_nr()))
        _set_module_path(prefix + name)

    def after_module(*_: object) -> None:
        name, first = running_modules.pop()
        module_runs.append(ModuleRun(first, torch.autograd._get_sequence_nr(), name))
        _set_module_path(prefix + (running_modules[-1][0] if running_modules else LOSS_PATH))

    _set_module_path(prefix + LOSS_PATH)
    with ExitStack() as hooks:
        for name, submodule in module.named_modules():
            hooks.callback(submodule.register_forward_pre_hook(partial(before_module, name)).remove)
            hooks.callback(submodule.register_forward_hook(after_module).remove)
        yield


@contextmanager
def _record_backward_paths(scaled_loss: Tensor, module_runs: Sequence[ModuleRun]) -> Iterator[None]:
    """In this context, give each recorded node the path of the module whose gradient the node computes."""
    _set_module_path(GRADIENT_PATH)
    # A walk over all autograd functions, from the loss back to the parameters; None ends a path.
    visited, pending = {None}, [scaled_loss.grad_fn]
    with ExitStack() as hooks:
        while pending:
            function = pending.pop()
            if function in visited:
                continue
            visited.add(function)
            number = function._sequence_nr()
            enclosing_runs = [run for run in module_runs if run.first <= number < run.end]
            # The innermost run starts last; of runs that start together, it ends first.
            innermost = max(enclosing_runs, key=lambda run: (run.first, -run.end), default=None)
            name = innermost.name if innermost else LOSS_PATH
            hooks.callback(function.register_prehook(partial(_set_module_path, f"{GRADIENT_PATH}.{name}")).remove)
            pending += [next_function for next_function, _ in function.next_functions]
        yield


def _trace_graph(run_step: Callable[..., object], step_inputs: Sequence[Tensor]) -> GraphModule:
    """Trace ``run_step`` in both passes. Raises ModelError for what torch cannot trace."""
    try:
        joint_graph = make_fx(
            run_step,
            decomposition_table=batch_norm_table(),
            _allow_non_fake_inputs=True,
            record_stack_traces=True,  # for messages: the user's line that calls an operator
        )(*step_inputs)
        joint_graph.graph.eliminate_dead_code()
        graph = _run_second_pass(joint_graph, step_inputs)
    except VALUE_ERRORS as error:
        raise describe_value_error(error) from None
    except TORCH_ERRORS as error:
        # An error that the user's own code raises passes, with its traceback.
        if not is_raised_by_torch(error):
            raise
        raise describe_torch_error(error) from None
    return graph


def _run_second_pass(joint_graph: GraphModule, step_inputs: Sequence[Tensor]) -> GraphModule:
    """Run the second pass: return ``joint_graph`` without mutations of its inputs, and with all decompositions."""
    replay = torch.func.functionalize(torch.fx.Interpreter(joint_graph).run)
    graph = make_fx(replay, decomposition_table=decomposition_table(), _allow_non_fake_inputs=True)(*step_inputs)
    # functionalize copies the new value of each buffer back into its input at the end. The new values are outputs here,
    # so the copies are removed.
    for node in list(graph.graph.nodes):
        if node.target is torch.ops.aten.copy_.default:
            node.replace_all_uses_with(node.args[1])
            graph.graph.erase_node(node)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph


def _check_every_size(shape_env: ShapeEnv, name: str, size: SymInt) -> None:
    """Raise ModelError if the traced graph is right for some values of the symbolic ``size`` only."""
    symbol = size.node.expr
    # If Python code read the size as a number, torch has replaced the symbol by that number.
    expression = shape_env.replace(symbol)
    # A guard is a comparison of sizes that the traced code made. torch's own file fake_impls.py makes guards to choose
    # a memory layout. The graph has no memory layouts, so these guards do not restrict the size.
    guards = [
        guard for guard in shape_env.guards if symbol in guard.expr.free_symbols and "fake_impls" not in str(guard.sloc)
    ]
    if expression.free_symbols and not guards:
        return
    if guards:
        condition = f"{str(guards[0].expr).replace(str(symbol), name)} ({guards[0].sloc})"
    else:
        condition = "its size was read as a number"
    raise ModelError(
        f"the step holds for some {name} sizes only: {condition}",
        hint="take sizes as x.shape[0] (len(x) is a fixed number), or export one size with dynamic_batch=False",
    )
