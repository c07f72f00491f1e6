"""What a user may ask for before the lists apply: functions inlined, the model in a newer opset."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mixlist.errors import ModelError, UsageError
from mixlist.graph.io import Loaded


def inline_functions(loaded: Loaded) -> Loaded:
    """The model without model-local functions, every call replaced by the body (onnx's own inliner)."""
    if not loaded.proto.functions:
        return loaded
    from onnx import inliner

    try:
        return replace(loaded, proto=inliner.inline_local_functions(loaded.proto))
    except Exception as problem:  # the inliner raises its own RuntimeErrors
        raise ModelError(f"the functions of {loaded.name} cannot be inlined: {problem}") from None


def convert_opset(loaded: Loaded, version: int) -> Loaded:
    """The model in opset ``version`` of the standard domain, by onnx's version converter.

    Raises UsageError where the converter would lose something without a word (functions, node metadata,
    quantisation annotations, ...) and ModelError where it fails.
    """
    from onnx import defs, version_converter

    now = next((o.version for o in loaded.proto.opset_import if o.domain in ("", "ai.onnx")), 0)
    if version == now:
        return loaded
    if not 1 <= version <= defs.onnx_opset_version():
        raise UsageError(f"--opset {version}: onnx knows the opsets 1 to {defs.onnx_opset_version()}")
    lost = _losses(loaded.proto)
    if lost:
        raise UsageError(
            f"onnx's version converter would drop {lost} of {loaded.name}",
            hint="convert the model where it was exported, or use --inline-functions for functions",
        )
    try:
        proto = version_converter.convert_version(loaded.proto, version)
    except Exception as problem:  # it raises ConvertError, RuntimeError and others, by operator
        raise ModelError(f"{loaded.name} cannot be converted from opset {now} to {version}: {problem}") from None
    return replace(loaded, proto=proto)


def _losses(model: Any) -> str:
    """What the model holds that onnx's converter does not carry; measured on onnx 1.23."""
    found = []
    if model.functions:
        found.append("the model-local functions")
    if model.training_info:
        found.append("the training info")
    if model.graph.quantization_annotation:
        found.append("the quantisation annotations")
    if model.graph.sparse_initializer:
        found.append("the sparse initializers")
    if model.graph.metadata_props or any(n.metadata_props for n in model.graph.node):
        found.append("the metadata of graph or nodes")
    return " and ".join(found)
