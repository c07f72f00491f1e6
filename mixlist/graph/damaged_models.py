"""Refusing what a valid protobuf message can hold and an ONNX model cannot: names, versions, types, dimensions."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING

from mixlist.errors import ModelError
from mixlist.graph.traversal import is_graph, tensors_in_attribute, walk_messages
from mixlist.graph.weights import MIXLIST_KEYS, external_entries
from mixlist.ops import types

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, OperatorSetIdProto, TensorProto

    from mixlist.graph.proto_types import ScopeProto

_NEWEST = 2**31 - 1  # a version is read as a 32-bit integer by onnx


def refuse_damaged_model(model: ModelProto, what: str) -> None:
    """Raise ModelError for names that are not UTF-8, for versions, element types and dimensions that cannot be.

    protobuf hands a text that is not UTF-8 out as bytes. ``what`` names the model in the message.
    """
    from onnx import defs

    newest = defs.onnx_opset_version()
    for opset in _opset_imports(model):
        if not 1 <= opset.version <= _NEWEST:
            raise ModelError(f"{what} is damaged: opset version {opset.version} of domain {opset.domain!r}")
        if opset.domain in ("", "ai.onnx") and opset.version > newest:
            raise ModelError(
                f"{what} is written in opset {opset.version}; the installed onnx ends at {newest}",
                hint="install a newer onnx, or export the model at an older opset",
            )
    for text in _texts(model):
        if type(text) is bytes:
            raise ModelError(
                f"{what} is damaged: the name {text!r} is not UTF-8", hint="check that the file was copied whole"
            )


def _opset_imports(model: ModelProto) -> Iterator[OperatorSetIdProto]:
    return chain(model.opset_import, *(function.opset_import for function in model.functions))


def _checked(tensor: TensorProto) -> str | bytes:
    """The tensor's name; raises ModelError for an element type or a dimension that no tensor has."""
    if tensor.data_type not in types.known_elements() or not tensor.data_type:
        raise ModelError(f"tensor {tensor.name!r} has element type {tensor.data_type}, which ONNX does not know")
    if min(tensor.dims, default=0) < 0:
        raise ModelError(f"tensor {tensor.name!r} has the shape {list(tensor.dims)}")
    _refuse_entries(tensor)
    return tensor.name


def _refuse_entries(tensor: TensorProto) -> None:
    """Raise ModelError if an external tensor has a key twice, or one that only mixlist writes, in memory."""
    if tensor.external_data:
        for key in external_entries(tensor):
            if key.startswith(MIXLIST_KEYS):
                raise ModelError(
                    f"external tensor {tensor.name!r} has the key {key!r}, which no file may have",
                    hint="write the model again without it",
                )


def _texts(model: ModelProto) -> Iterator[str | bytes]:
    """Yield every name that mixlist reads; raise ModelError for tensors that cannot be."""
    from onnx import AttributeProto, NodeProto

    yield from (opset.domain for opset in _opset_imports(model))
    for message in walk_messages(model.graph, *model.functions):
        if isinstance(message, NodeProto):
            _refuse_repeated_attributes(message)
            yield from (message.name, message.op_type, message.domain, message.overload)
            yield from message.input
            yield from message.output
        elif isinstance(message, AttributeProto):
            yield from (message.name, message.ref_attr_name)
            for tensor in tensors_in_attribute(message):
                _refuse_entries(tensor)
        else:
            yield message.name
            yield from _declared(message)


def _refuse_repeated_attributes(node: NodeProto) -> None:
    """Raise ModelError for two attributes of one name: which of them counts differs from reader to reader."""
    names = [attribute.name for attribute in node.attribute]
    if len(set(names)) < len(names):
        repeated = next(name for name in names if names.count(name) > 1)
        called = f"node {node.name!r}" if node.name else "an unnamed node"
        raise ModelError(f"{called} ({node.op_type}) has {names.count(repeated)} attributes named {repeated!r}")


def _declared(scope: ScopeProto) -> Iterator[str | bytes]:
    """Yield the names that a scope declares; raise ModelError for tensors that cannot be."""
    if is_graph(scope):
        yield from map(_checked, scope.initializer)
        for sparse in scope.sparse_initializer:
            yield _checked(sparse.values)
            _refuse_entries(sparse.indices)
        infos = [*scope.input, *scope.output, *scope.value_info]
    else:
        yield from (scope.domain, scope.overload, *scope.input, *scope.output, *scope.attribute)
        infos = [*scope.value_info]
    for info in infos:
        yield info.name
        yield from (dimension.dim_param for dimension in info.type.tensor_type.shape.dim)
