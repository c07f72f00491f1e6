"""Refusing what a valid protobuf message can hold and an ONNX model cannot: names, versions, types, dimensions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mixlist.errors import ModelError
from mixlist.ops import types

_NEWEST = 2**31 - 1  # a version is read as a 32-bit integer by onnx


def refuse_damage(model: Any, what: str) -> None:
    """Raise ModelError for names that are not UTF-8, for versions, element types and dimensions that cannot be.

    protobuf hands a text that is not UTF-8 out as bytes. ``what`` names the model in the message.
    """
    from onnx import defs

    newest = defs.onnx_opset_version()
    for message in (model, *model.functions):
        for opset in message.opset_import:
            if isinstance(opset.domain, bytes):
                raise _bad_text(opset.domain, what)
            if not 1 <= opset.version <= _NEWEST:
                raise ModelError(f"{what} is damaged: opset version {opset.version} of domain {opset.domain!r}")
            if opset.domain in ("", "ai.onnx") and opset.version > newest:
                raise ModelError(
                    f"{what} is written in opset {opset.version}; the installed onnx ends at {newest}",
                    hint="install a newer onnx, or export the model at an older opset",
                )
    for text in _texts(model):
        if type(text) is bytes:
            raise _bad_text(text, what)


def _bad_text(text: bytes, what: str) -> ModelError:
    return ModelError(f"{what} is damaged: the name {text!r} is not UTF-8", hint="check that the file was copied whole")


def _checked(tensor: Any) -> str | bytes:
    """The tensor's name; raises ModelError for an element type or a dimension that no tensor has."""
    if tensor.data_type not in types.elements() or not tensor.data_type:
        raise ModelError(f"tensor {tensor.name!r} has element type {tensor.data_type}, which ONNX does not know")
    if min(tensor.dims, default=0) < 0:
        raise ModelError(f"tensor {tensor.name!r} has the shape {list(tensor.dims)}")
    name: str | bytes = tensor.name
    return name


def _texts(model: Any) -> Iterator[str | bytes]:
    """Every name that mixlist reads; raises ModelError for tensors that cannot be."""
    waiting = [model.graph, *model.functions]
    while waiting:
        graph = waiting.pop()
        yield graph.name
        if graph.DESCRIPTOR.name == "FunctionProto":
            yield from (graph.domain, graph.overload, *graph.input, *graph.output, *graph.attribute)
            infos = graph.value_info
        else:
            yield from map(_checked, graph.initializer)
            yield from (_checked(tensor.values) for tensor in graph.sparse_initializer)
            infos = (*graph.input, *graph.output, *graph.value_info)
        for info in infos:
            yield info.name
            yield from _dimensions(info.type)
        for node in graph.node:
            yield from (node.name, node.op_type, node.domain, node.overload, *node.input, *node.output)
            for attribute in node.attribute:
                yield attribute.name
                yield attribute.ref_attr_name
                if attribute.HasField("g"):
                    waiting.append(attribute.g)
                waiting.extend(attribute.graphs)


def _dimensions(kind: Any) -> Iterator[str | bytes]:
    """The symbolic dimensions of a tensor type."""
    if kind.HasField("tensor_type"):
        yield from (dimension.dim_param for dimension in kind.tensor_type.shape.dim)
