"""Inline the functions of a model, or convert the model to another opset, with the tools of the package onnx.

A user asks for this by an option, and it happens before a policy is applied. onnx's version converter drops functions
and quantization annotations without a message. Therefore this module counts such content before and after, and refuses
a conversion that would lose any. The converter drops metadata entries too: these are restored by name.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from mixlist.errors import ModelError, UsageError
from mixlist.model.protos import OLDEST_OPSET, tensors_in_model
from mixlist.model.shape_inference import refuse_large_expansion
from mixlist.model.weights import is_external
from mixlist.option_spelling import spell

if TYPE_CHECKING:
    from google.protobuf.message import Message
    from onnx import GraphProto, ModelProto

# The fields of protobuf messages that a conversion must not lose, with their names in error messages.
_PRESERVED_FIELDS = {
    "functions": "model-local functions",
    "quantization_annotation": "quantization annotations",
    "sparse_initializer": "sparse initializers",
    "denotation": "denotations of types and dimensions",
    "training_info": "training information",
    "device_configurations": "device configurations",
    "configuration": "device configurations",
}
_MODEL_FIELDS = ("functions", "training_info", "configuration")  # preserved fields of ModelProto itself


def inline_functions(model: ModelProto) -> ModelProto:
    """Return a copy of a model in which the nodes of model-local functions replace their calls.

    Raises ModelError for an invalid model, and for a function that imports another opset than the model.
    """
    _refuse_invalid(model)
    inlined = _run_onnx_tool("inliner.inline_local_functions", model, failure="the model's functions cannot be inlined")
    if inlined.functions:  # onnx leaves functions of other opsets
        remaining = ", ".join(f"{function.domain}:{function.name}" for function in inlined.functions)
        raise ModelError(
            f"onnx cannot inline {remaining}: the opset is another one than that of the model",
            hint=f"export the model without functions, or leave out {spell('inline_functions')}: the calls then stay"
            " as authored",
        )
    return inlined


def convert_opset(model: ModelProto, opset: int) -> ModelProto:
    """Return a copy of a model that imports the standard domain at version ``opset``.

    Nodes, values and graphs keep their metadata entries, except nodes that the converter replaces by others.
    Raises UsageError for a version that mixlist or onnx does not handle, and ModelError if onnx cannot convert the
    model without a loss.
    """
    from onnx import defs

    newest = defs.onnx_opset_version()
    if not OLDEST_OPSET <= opset <= newest:
        raise UsageError(f"{spell('opset', opset)}: mixlist handles opsets {OLDEST_OPSET} to {newest}")
    _refuse_invalid(model)
    failure = f"onnx's version converter cannot convert the model to opset {opset}"
    hint = "export the model at that opset"
    converted = _run_onnx_tool("version_converter.convert_version", model, opset, failure=failure, hint=hint)
    before, after = _count_preserved_fields(model), _count_preserved_fields(converted)
    # Compare counts and not contents: a conversion may change a message, but not drop it.
    if lost := [text for name, text in _PRESERVED_FIELDS.items() if after[name] < before[name]]:
        remedy = f"add {spell('inline_functions', True)}, or " if model.functions else ""
        raise ModelError(
            f"{spell('opset', opset)}: onnx's version converter would drop {', '.join(lost)}",
            hint=f"{remedy}{hint}",
        )
    _restore_metadata(model.graph, converted.graph)
    return converted


def _restore_metadata(original: GraphProto, converted: GraphProto) -> None:
    """Copy the metadata entries of a graph, its values and its nodes: values by name, nodes by their outputs."""
    pairs: list[tuple[Any, Any]] = [(original, converted)]
    for kind in ("input", "output", "value_info", "initializer"):
        values = {value.name: value for value in getattr(original, kind)}
        pairs += [(values[value.name], value) for value in getattr(converted, kind) if value.name in values]
    nodes = {tuple(node.output): node for node in original.node}
    for node in converted.node:
        authored = nodes.get(tuple(node.output))
        if authored is None or authored.op_type != node.op_type:
            continue  # the converter made it
        pairs.append((authored, node))
        bodies = {attribute.name: attribute.g for attribute in authored.attribute if attribute.HasField("g")}
        for attribute in node.attribute:
            if attribute.name in bodies:
                _restore_metadata(bodies[attribute.name], attribute.g)
    for source, target in pairs:
        if source.metadata_props and not target.metadata_props:
            target.metadata_props.extend(source.metadata_props)


def _run_onnx_tool(
    function: str, model: ModelProto, *args: object, failure: str, hint: str | None = None
) -> ModelProto:
    """Call a function of onnx with a model in the helper process, and return the resulting model.

    onnx aborts its process on some models, for example where a Slice reads a dimension that is declared as -1. In
    another process, this does not end mixlist. If the call fails, raises a ModelError of ``failure`` with the reason,
    and ``hint``.
    """

    def make_error(reason: str) -> ModelError:
        return ModelError(f"{failure}: {reason}", hint=hint)

    try:
        message = model.SerializeToString()
    except Exception:  # protobuf's own error type differs by implementation
        raise make_error("with its weights, it exceeds the 2 GiB that protobuf allows") from None
    from mixlist.worker_processes import WorkerDied, helper_process  # imports 10 ms of modules

    with helper_process() as process:
        try:
            converted, error = process.call(partial(_call_onnx, function, message, *args))
        except WorkerDied as death:
            raise make_error(f"onnx crashed with {death.signal}") from None
    if error:
        raise make_error(error.rpartition(" failed: ")[2])  # an assertion of onnx begins with its place in C++
    return type(model).FromString(converted)


def _call_onnx(function: str, message: bytes, *args: object) -> tuple[bytes, str]:
    """Return the serialized model that a function of onnx returns, or the first line of its error."""
    from onnx import ModelProto

    module, _, name = function.rpartition(".")
    try:
        converted = getattr(import_module(f"onnx.{module}"), name)(ModelProto.FromString(message), *args)
    except Exception as error:  # RuntimeError, ValueError or onnx's own, by cause
        return b"", (str(error).strip() or type(error).__name__).splitlines()[0]
    return converted.SerializeToString(), ""


def _refuse_invalid(model: ModelProto) -> None:
    """Raise ModelError for a model that onnx's checker refuses, because onnx's tools crash on some of these models.

    A model with external data is not checked: the checker looks for the data in the working directory.
    """
    from onnx import checker

    refuse_large_expansion(model)
    if any(is_external(tensor) for tensor in tensors_in_model(model)):
        return
    try:
        checker.check_model(model)
    except Exception as error:  # ValidationError, or ValueError for a model over 2 GB
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
        reason = first_line.rpartition(" failed: ")[2]  # an assertion of onnx begins with its place in C++
        raise ModelError(f"the model is not valid, so it cannot be converted: {reason}") from None


def _count_preserved_fields(model: ModelProto) -> Counter[str]:
    """Count the elements of the preserved fields in a model and in all messages of its graph."""
    counts = Counter({field.name: len(value) for field, value in model.ListFields() if field.name in _MODEL_FIELDS})
    pending: list[Message] = [model.graph]
    while pending:
        for field, value in pending.pop().ListFields():
            # A repeated field of messages has many elements, a single message is one.
            elements = value if hasattr(value, "__len__") and field.message_type else [value]
            if field.name in _PRESERVED_FIELDS:
                counts[field.name] += len(elements)
            if field.message_type:
                pending.extend(elements)
    return counts
