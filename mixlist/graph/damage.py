"""Refusing what a valid protobuf message can hold and an ONNX model cannot: damaged names, impossible versions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mixlist.errors import ModelError

_NEWEST = 2**31 - 1  # a version is read as a 32-bit integer by onnx


def refuse_damage(model: Any, what: str) -> None:
    """Raise ModelError for names that are not UTF-8 and for opset versions that cannot be.

    protobuf hands a text that is not UTF-8 out as bytes. ``what`` names the model in the message.
    """
    for message in (model, *model.functions):
        for opset in message.opset_import:
            if isinstance(opset.domain, bytes):
                raise _bad_text(opset.domain, what)
            if not 1 <= opset.version <= _NEWEST:
                raise ModelError(f"{what} is damaged: opset version {opset.version} of domain {opset.domain!r}")
    for text in _texts(model):
        if type(text) is bytes:
            raise _bad_text(text, what)


def _bad_text(text: bytes, what: str) -> ModelError:
    return ModelError(f"{what} is damaged: the name {text!r} is not UTF-8", hint="check that the file was copied whole")


def _texts(model: Any) -> Iterator[str | bytes]:
    """Every name that mixlist reads."""
    waiting = [model.graph, *model.functions]
    while waiting:
        graph = waiting.pop()
        yield graph.name
        if graph.DESCRIPTOR.name == "FunctionProto":
            yield from (graph.domain, graph.overload, *graph.input, *graph.output, *graph.attribute)
            infos = graph.value_info
        else:
            yield from (tensor.name for tensor in graph.initializer)
            yield from (tensor.values.name for tensor in graph.sparse_initializer)
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
