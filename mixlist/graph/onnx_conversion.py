"""Changes that a user asks for before a policy is applied: functions inlined, another opset.

Both are onnx's own tools, held to what they may lose: onnx's version converter drops functions, metadata and
quantisation annotations in silence, so a model that would lose something is refused.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING

from mixlist.errors import ModelError, UsageError
from mixlist.graph.proto_edits import OLDEST_OPSET
from mixlist.graph.traversal import tensors_in_model
from mixlist.graph.weights import is_external
from mixlist.ops.shape_inference import refuse_large_expansion

if TYPE_CHECKING:
    from google.protobuf.message import Message
    from onnx import ModelProto, NodeProto

_TOLD = {
    "functions": "model-local functions",
    "metadata_props": "metadata entries of nodes, values or graphs",
    "quantization_annotation": "quantisation annotations",
    "sparse_initializer": "sparse initializers",
    "denotation": "denotations of types and dimensions",
    "training_info": "training information",
    "device_configurations": "device configurations",
    "configuration": "device configurations",
}
_OWN = ("functions", "training_info", "configuration")  # fields of a model, outside of its graph


def inline_functions(model: ModelProto) -> ModelProto:
    """A new ModelProto without model-local functions; raises ModelError where onnx cannot inline one.

    A function at another opset than the model is converted to that of the model.
    """
    _refuse_invalid(model)
    try:
        flat = _apart("inliner.inline_local_functions(model)", model)
    except _ToolError as error:
        raise ModelError(f"the model's functions cannot be inlined: {error}") from None
    if not flat.functions:
        return flat
    left = ", ".join(f"{function.domain}:{function.name}" for function in flat.functions)
    reason = ""
    try:
        converted = _apart("inliner.inline_local_functions(model, convert_version=True)", flat)
    except _ToolError as error:
        converted, reason = flat, f": {error}"
    if not converted.functions:
        inner = (node for function in flat.functions for node in function.node)
        before, after = _count_told(flat, *inner), _count_told(converted)
        lost = [_TOLD[name] for name in _TOLD if name != "functions" and after[name] < before[name]]
        if not lost:
            return converted
        reason = f": its version converter would drop {', '.join(lost)}"
    versions = [o.version for function in flat.functions for o in function.opset_import if not o.domain]
    raise ModelError(
        f"onnx cannot inline {left}{reason}",
        hint="leave --inline-functions out: lists reach inside functions"
        if min(versions, default=OLDEST_OPSET) >= OLDEST_OPSET
        else f"export the model again, with its functions at opset {OLDEST_OPSET} or later",
    )


def convert_opset(model: ModelProto, opset: int) -> ModelProto:
    """A new ModelProto whose standard domain is at version ``opset``.

    Raises UsageError for a version that onnx does not know, ModelError for a model that its converter
    cannot convert whole.
    """
    from onnx import defs

    newest = defs.onnx_opset_version()
    if not OLDEST_OPSET <= opset <= newest:
        raise UsageError(f"--opset {opset}: mixlist handles opsets {OLDEST_OPSET} to {newest}")
    _refuse_invalid(model)
    try:
        converted = _apart(f"version_converter.convert_version(model, {opset})", model)
    except _ToolError as error:
        raise ModelError(
            f"onnx's version converter cannot bring the model to opset {opset}: {error}",
            hint="export the model at that opset",
        ) from None
    before, after = _count_told(model), _count_told(converted)
    if lost := [_TOLD[name] for name in _TOLD if after[name] < before[name]]:
        remedy = "add --inline-functions, or " if model.functions else ""
        raise ModelError(
            f"--opset {opset}: onnx's version converter would drop {', '.join(lost)}",
            hint=f"{remedy}export the model at that opset",
        )
    return converted


class _ToolError(Exception):
    """A failure of onnx; the message is one line."""


_CHILD = """
import sys
sys.path[:] = sys.argv[1:]
import onnx
from onnx import inliner, version_converter
model = onnx.ModelProto.FromString(sys.stdin.buffer.read())
try:
    made = {call}
except Exception as error:  # RuntimeError, ValueError or onnx's own, by cause
    sys.exit((str(error).strip() or type(error).__name__).splitlines()[0])
sys.stdout.buffer.write(made.SerializeToString())
"""


def _apart(call: str, model: ModelProto) -> ModelProto:
    """Run ``call`` of onnx on the model in a process of its own, because onnx aborts on some dimensions.

    Return the model that onnx makes; raise _ToolError if it fails.
    """
    try:
        data = model.SerializeToString()
    except Exception:  # protobuf's own error type differs by implementation
        raise _ToolError("it is larger than 2 GiB in one piece") from None
    command = [sys.executable, "-c", _CHILD.replace("{call}", call), *sys.path]
    done = subprocess.run(command, input=data, capture_output=True)
    if done.returncode < 0:
        raise _ToolError(f"onnx died with {signal.Signals(-done.returncode).name}")
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines() or [f"it ended with {done.returncode}"]
        raise _ToolError(said[-1].rpartition(" failed: ")[2])
    return type(model).FromString(done.stdout)


def _refuse_invalid(model: ModelProto) -> None:
    """Raise ModelError for a model that onnx's checker refuses: its tools end the process on some of them.

    The checker wants external data beside the working directory, so a model that has some goes unchecked.
    """
    from onnx import checker

    refuse_large_expansion(model)
    if any(is_external(tensor) for tensor in tensors_in_model(model)):
        return
    try:
        checker.check_model(model)
    except Exception as error:  # its own, and ValueError for a model over 2 GB
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
        said = first_line.rpartition(" failed: ")[2]  # without the place in onnx's source of an assertion
        raise ModelError(f"the model is not valid, so it cannot be converted first: {said}") from None


def _count_told(model: ModelProto, *nodes: NodeProto) -> Counter[str]:
    """Count the elements of the fields of ``_TOLD`` in a model, in all messages of its graph, and in ``nodes``."""
    counts = Counter({field.name: len(value) for field, value in model.ListFields() if field.name in _OWN})
    waiting: list[Message] = [model.graph, *nodes]
    while waiting:
        for field, value in waiting.pop().ListFields():
            elements = value if hasattr(value, "__len__") and field.message_type else [value]
            if field.name in _TOLD:
                counts[field.name] += len(elements)
            if field.message_type:
                waiting.extend(elements)
    return counts
