"""Export a PyTorch module's training step as an ONNX graph: loss and gradients of parameters and batch."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from mixlist.errors import UsageError
from mixlist.files.atomic_writes import write_atomically
from mixlist.torch_export.step_format import INIT_KEY_PREFIX, RANDOM_KEY_PREFIX, STATE_PREFIX, is_reserved

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
) -> onnx.ModelProto:
    """Return the training-step graph of ``module`` under ``loss_fn``; write it to ``path`` too if one is given.

    ``loss_fn(module, **batch)`` computes the loss, a float scalar, or a pair of it and a dict of further outputs by
    name, such as ``{"logits": logits}``. ``example_batch`` maps names to tensors with the batch along the first axis;
    they become inputs of these names and types, of any batch size unless ``dynamic_batch`` is False. Their values do
    not matter, and the module is not changed. It is exported in the mode it is in: call ``module.train()`` first.

    Inputs of the graph, in this order:

    - one per trainable parameter, float32, under the module's name for it; tied parameters are one input.
    - one per buffer that the step changes (running statistics), under the module's name for it.
    - the batch; ``loss_scale``, a float32 scalar; ``random.<n>``, float32, see `mixlist.torch_export.randomness`.

    Outputs: ``loss``, not scaled; ``grad.<parameter>``, the gradient of loss * loss_scale, scaled before the backward
    pass; ``state.<buffer>``, its value after the step; what ``loss_fn`` named.

    Parameters with ``requires_grad`` False and buffers that do not change are initializers. The values that trainable
    parameters have are not in the graph; metadata says how to draw some, see `mixlist.torch_export.init_metadata`.

    Opset 18, IR version 8; the same module gives the same bytes. Needs the extra ``torch``.
    Raises UsageError for arguments that cannot be used (and where torch is missing), ModelError for a step that
    cannot be expressed, which names the operator and its module.
    """
    try:
        import onnxscript  # noqa: F401  (torch's exporter needs it and says so late)
        import torch  # noqa: F401
    except ImportError as error:
        raise UsageError(
            f"export_step needs PyTorch and onnxscript: {error.name} is not installed",
            hint="pip install 'mixlist[torch]'",
        ) from None
    _check_arguments(module, example_batch)
    model = _export(module, loss_fn, example_batch, dynamic_batch)
    if path is not None:
        write_atomically(path, model.SerializeToString(deterministic=True))
    return model


def _export(
    module: Module, loss_fn: Callable[..., object], batch: Mapping[str, Tensor], dynamic_batch: bool
) -> onnx.ModelProto:
    import onnx
    import onnx_ir as ir

    from mixlist.torch_export import fx_cleanup, init_metadata, onnx_export, randomness, tracing

    step = tracing.trace(module, loss_fn, batch, dynamic_batch=dynamic_batch)
    changed = fx_cleanup.tidy(step)
    draws = randomness.lift(step.graph.graph, step.mode, step.batch)
    buffers = dict(module.named_buffers())
    constants = tracing.frozen(module) | {name: value for name, value in buffers.items() if name not in changed}
    inputs = [*step.inputs, *draws]
    outputs = [
        name for name in step.outputs if not name.startswith(STATE_PREFIX) or name.removeprefix(STATE_PREFIX) in changed
    ]
    model = onnx_export.to_onnx(step.graph, inputs, outputs, constants, step.batch)
    metadata: dict[str, Mapping[str, object]] = {
        INIT_KEY_PREFIX + name: init_metadata.describe_parameter(value.detach().cpu().numpy())
        for name, value in tracing.trainable(module).items()
    }
    for name, value in buffers.items():
        if name in changed:
            metadata[INIT_KEY_PREFIX + name] = init_metadata.describe_state(name, value.cpu().numpy())
    metadata |= {RANDOM_KEY_PREFIX + name: distribution for name, distribution in draws.items()}
    model.metadata_props.update((key, json.dumps(description)) for key, description in metadata.items())
    proto: onnx.ModelProto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    return proto


def _check_arguments(module: Module, batch: Mapping[str, Tensor]) -> None:
    """Raise UsageError for a module or a batch that no step can be made of."""
    import torch

    if not isinstance(module, torch.nn.Module):
        raise UsageError(f"module is a {type(module).__name__}", hint="pass a torch.nn.Module")
    trained = [(name, value) for name, value in module.named_parameters() if value.requires_grad]
    if not trained:
        raise UsageError("the module has no trainable parameter", hint="call requires_grad_() on what is to be trained")
    for name, value in trained:
        if value.dtype != torch.float32:
            raise UsageError(
                f"parameter {name} is {str(value.dtype).removeprefix('torch.')}",
                hint="a step holds float32 parameters, which the lists lower: call module.float()",
            )
        if not value.numel():
            raise UsageError(f"parameter {name} has no values (shape {list(value.shape)})", hint="freeze or remove it")
    if not isinstance(batch, Mapping) or not batch:
        raise UsageError("example_batch must be a dict of named tensors", hint="for example {'x': x, 'y': y}")
    for name, value in batch.items():
        if not isinstance(name, str) or not isinstance(value, torch.Tensor):
            raise UsageError(f"example_batch[{name!r}] is a {type(value).__name__}", hint="use names and tensors")
    rows = {name: len(value) if value.ndim else None for name, value in batch.items()}
    if len({count for count in rows.values() if count is not None}) > 1:
        raise UsageError(
            f"the batch inputs differ in their number of rows: {', '.join(f'{k} {v}' for k, v in rows.items())}",
            hint="the first axis of every input is the batch; pass constants to the module instead",
        )
    _check_names(module, batch)


def _check_names(module: Module, batch: Mapping[str, Tensor]) -> None:
    own = {name for name, _ in (*module.named_parameters(), *module.named_buffers())}
    for name in (*batch, *own):
        shared = name in batch and name in own
        if shared or is_reserved(name):
            problem = "is both in the batch and in the module" if shared else "has a meaning here"
            raise UsageError(f"the name {name!r} {problem}", hint="rename the batch input or the module's attribute")
