"""Export the training step of a PyTorch module as an ONNX graph that computes the loss and its gradients."""

from __future__ import annotations

import contextlib
import io
import json
import os
import zipfile
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from mixlist.errors import UsageError
from mixlist.files.atomic_writes import write_atomically
from mixlist.torch_export.step_names import (
    BATCH_AXIS,
    INIT_KEY_PREFIX,
    MOST_SIZES,
    RANDOM_KEY_PREFIX,
    STATE_PREFIX,
    DynamicAxes,
    initial_values_path,
    is_reserved,
)

if TYPE_CHECKING:
    import onnx
    from torch import Tensor
    from torch.nn import Module


def export_step(
    module: Module,
    loss_fn: Callable[..., object],
    example_batch: Mapping[str, Tensor],
    *,
    path: str | os.PathLike[str] | None = None,
    dynamic_batch: bool = True,
    dynamic_axes: DynamicAxes | None = None,
) -> onnx.ModelProto:
    """Return the training-step graph of ``module`` with the loss ``loss_fn``; also write it to ``path``, if given.

    ``loss_fn(module, **batch)`` returns the loss, a float scalar, or a pair: the loss, and a dict of further outputs by
    name, such as ``{"logits": logits}``. ``example_batch`` maps input names to tensors with the batch along the first
    axis. The graph has inputs with these names and types, for every batch size unless ``dynamic_batch`` is False. For
    other symbolic sizes, ``dynamic_axes`` names the axes of each input, as in ``torch.onnx.export``: a graph network
    has ``{"x": {0: "nodes"}, "edge_index": {1: "edges"}}``, and axes with one name have one size. The values of the
    tensors do not matter. The module is not changed. It is exported in its current mode, so call
    ``module.train()`` first.

    Inputs of the graph, in this order:

    - one for each trainable parameter, float32, with its name in the module; tied parameters are one input;
    - one for each buffer that the step changes (running statistics), with its name in the module;
    - the tensors of the batch;
    - ``loss_scale``, a float32 scalar;
    - ``random.<n>``, float32, for each random operator, see `mixlist.torch_export.random_inputs`.

    Outputs of the graph:

    - ``loss``, not scaled;
    - ``grad.<parameter>``: the gradient of loss * loss_scale;
    - ``state.<buffer>``: the value of the buffer after the step;
    - the further outputs of ``loss_fn``;
    - ``eval.loss`` and ``eval.<output>``: the loss and the further outputs with the module in the mode eval(), where
      torch can trace this mode, and where it differs from the mode of the module.

    Parameters with ``requires_grad`` False and buffers that do not change become initializers. The graph does not hold
    the values of trainable parameters: with ``path``, they are written next to it, as ``step.init.npz`` for
    ``step.onnx``, from which ``train`` starts. The metadata of the graph describes how the values were drawn, see
    `mixlist.torch_export.init_metadata`.

    The graph has opset 18 and IR version 8. The same module gives the same bytes. Needs the extra ``torch``.

    Raises UsageError for arguments that cannot be exported, or if torch is missing, and ModelError for a step that ONNX
    cannot express, with the operator and its module.
    """
    _require_torch()
    # Wrong arguments are found before the tracing, whose errors would not name them.
    _check_arguments(module, example_batch)
    dynamic_axes = _choose_dynamic_axes(example_batch, dynamic_batch, dynamic_axes)
    model = _export_with_evaluation(module, loss_fn, example_batch, dynamic_axes)
    if path is not None:
        write_atomically(initial_values_path(path), _module_values(module, model))
        write_atomically(path, model.SerializeToString(deterministic=True))
    return model


def _require_torch() -> None:
    """Raise UsageError if PyTorch or the exporter that it uses is missing."""
    try:
        import onnxscript  # noqa: F401  (torch's exporter needs onnxscript, and would fail only after the tracing)
        import torch  # noqa: F401
    except ImportError as error:
        raise UsageError(
            f"export_step needs PyTorch and onnxscript: {error.name} is not installed",
            hint="pip install 'mixlist[torch]'",
        ) from None


def _export_with_evaluation(
    module: Module, loss_fn: Callable[..., object], batch: Mapping[str, Tensor], dynamic_axes: DynamicAxes
) -> onnx.ModelProto:
    """Return the model, with the outputs of the mode eval() if it can be exported and is not the module's mode."""
    if any(part.training for part in module.modules()):
        # The mode eval() may need what torch cannot trace, or return no loss. The step is exported without it then.
        with contextlib.suppress(Exception):
            return _export(module, loss_fn, batch, dynamic_axes, with_evaluation=True)
    return _export(module, loss_fn, batch, dynamic_axes)


def _export(
    module: Module,
    loss_fn: Callable[..., object],
    batch: Mapping[str, Tensor],
    dynamic_axes: DynamicAxes,
    *,
    with_evaluation: bool = False,
) -> onnx.ModelProto:
    """Trace, simplify and convert the step; return the model with its metadata. The arguments are checked already."""
    import onnx
    import onnx_ir as ir

    from mixlist.torch_export import fx_cleanup, init_metadata, initialization, onnx_conversion, random_inputs, tracing

    # PyTorch module -> graph of ATen operators -> simplified graph -> random operators become inputs -> ONNX
    step = tracing.trace_step(module, loss_fn, batch, dynamic_axes=dynamic_axes, with_evaluation=with_evaluation)
    changed_buffers = fx_cleanup.simplify_graph(step)
    distributions = random_inputs.lift_random_operators(step.graph_module.graph, step.mode, step.sizes.values())
    buffers = dict(module.named_buffers())
    constants = tracing.frozen_parameters(module)
    constants |= {name: value for name, value in buffers.items() if name not in changed_buffers}
    inputs = [*step.inputs, *distributions]
    # simplify_graph has removed the outputs of unchanged buffers from the graph, and step.outputs still names them.
    outputs = [
        name
        for name in step.outputs
        if not name.startswith(STATE_PREFIX) or name.removeprefix(STATE_PREFIX) in changed_buffers
    ]
    model = onnx_conversion.convert_to_onnx(step.graph_module, inputs, outputs, constants, step.sizes)

    # The metadata: how the trainer draws initial values and random inputs.
    drawn = initialization.describe_initialization(module)
    metadata: dict[str, Mapping[str, object]] = {
        INIT_KEY_PREFIX + name: drawn.get(name) or init_metadata.describe_parameter(value.detach().cpu().numpy())
        for name, value in tracing.trainable_parameters(module).items()
    }
    for name, value in buffers.items():
        if name in changed_buffers:
            metadata[INIT_KEY_PREFIX + name] = init_metadata.describe_buffer(name, value.cpu().numpy())
    metadata |= {RANDOM_KEY_PREFIX + name: distribution for name, distribution in distributions.items()}
    model.metadata_props.update((key, json.dumps(description)) for key, description in metadata.items())
    proto: onnx.ModelProto = ir.to_proto(model)
    # full_check infers the shapes too: an inconsistent shape would be an error of this exporter.
    onnx.checker.check_model(proto, full_check=True)
    return proto


def _module_values(module: Module, model: onnx.ModelProto) -> bytes:
    """Return the parameters and buffers of ``module`` that are inputs of ``model``, as a ``.npz`` file."""
    import numpy as np

    inputs = {value.name for value in model.graph.input}
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:  # not np.savez, which takes no tensor with the name "file"
        for name in sorted(inputs & tensors.keys()):
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, tensors[name].detach().cpu().numpy())
    return stream.getvalue()


def _check_arguments(module: Module, batch: Mapping[str, Tensor]) -> None:
    """Raise UsageError for a module or a batch that cannot be exported."""
    import torch

    if not isinstance(module, torch.nn.Module):
        raise UsageError(f"module is a {type(module).__name__}", hint="pass a torch.nn.Module")
    trainable = [(name, value) for name, value in module.named_parameters() if value.requires_grad]
    if not trainable:
        raise UsageError(
            "the module has no trainable parameter", hint="call requires_grad_() on the parameters to train"
        )
    for name, value in trainable:
        if value.dtype != torch.float32:
            raise UsageError(
                f"parameter {name} is {str(value.dtype).removeprefix('torch.')}",
                hint="call module.float(): a step graph has float32 parameters, and the lists decide what is low",
            )
        if not value.numel():
            raise UsageError(f"parameter {name} has no values (shape {list(value.shape)})", hint="freeze or remove it")
    if not isinstance(batch, Mapping) or not batch:
        raise UsageError("example_batch must be a dict of named tensors", hint="for example {'x': x, 'y': y}")
    for name, value in batch.items():
        if not isinstance(name, str) or not isinstance(value, torch.Tensor):
            raise UsageError(
                f"example_batch[{name!r}] is a {type(value).__name__}", hint="use strings as keys and tensors as values"
            )
    _check_names(module, batch)


def _choose_dynamic_axes(
    batch: Mapping[str, Tensor], dynamic_batch: bool, dynamic_axes: DynamicAxes | None
) -> DynamicAxes:
    """Return the symbolic axes: those that are given, or the first axis of every input.

    Raises UsageError for an input or an axis that the batch does not have, and for inputs that differ in their rows.
    """
    if dynamic_axes is None:
        _check_rows(batch)
        return {name: {0: BATCH_AXIS} for name, value in batch.items() if dynamic_batch and value.ndim}
    for name, axes in dynamic_axes.items():
        if name not in batch:
            raise UsageError(
                f"dynamic_axes has {name!r}, which is not in the batch", hint=f"the batch has {', '.join(batch)}"
            )
        for axis in axes:
            if not 0 <= axis < batch[name].ndim:
                raise UsageError(f"dynamic_axes has axis {axis} of {name}, which has {batch[name].ndim} axes")
    size_names = {size_name for axes in dynamic_axes.values() for size_name in axes.values()}
    if len(size_names) > MOST_SIZES:
        raise UsageError(f"dynamic_axes has {len(size_names)} different names", hint=f"give at most {MOST_SIZES}")
    return dynamic_axes


def _check_rows(batch: Mapping[str, Tensor]) -> None:
    """Raise UsageError if the inputs of a batch differ in their number of rows."""
    # A tensor of rank 0 has no batch axis, and may be a value that all rows share.
    row_counts = {name: len(value) if value.ndim else None for name, value in batch.items()}
    if len({count for count in row_counts.values() if count is not None}) > 1:
        counts_text = ", ".join(f"{name} {count}" for name, count in row_counts.items())
        raise UsageError(
            f"the batch inputs differ in their number of rows: {counts_text}",
            hint="the first axis of every input is the batch; keep tensors without this axis in the module, or name the"
            " axes with dynamic_axes",
        )


def _check_names(module: Module, batch: Mapping[str, Tensor]) -> None:
    """Raise UsageError for a name that is reserved, or that both the batch and the module have.

    Each name is the name of an input of the graph, so two tensors cannot share one.
    """
    module_names = {name for name, _ in (*module.named_parameters(), *module.named_buffers())}
    for name in (*batch, *module_names):
        is_shared = name in batch and name in module_names
        if is_shared or is_reserved(name):
            problem = "is both in the batch and in the module" if is_shared else "has a meaning in every step graph"
            raise UsageError(f"the name {name!r} {problem}", hint="rename the batch input or the module's attribute")
