"""Refuse models that protobuf reads without an error, but that are no valid ONNX: names, versions, types, shapes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING

from mixlist.errors import ModelError
from mixlist.lists.op_catalog import is_standard_domain
from mixlist.model import dtypes
from mixlist.model.traversal import tensors_in_attribute, walk_messages
from mixlist.model.weights import MIXLIST_KEY_PREFIX, external_entries

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, OperatorSetIdProto, TensorProto

    from mixlist.model.proto_types import RootProto

_MAX_VERSION = 2**31 - 1  # onnx reads a version as a 32-bit integer


def refuse_damaged_model(model: ModelProto, model_name: str) -> None:
    """Raise ModelError for content that ONNX does not allow.

    This is: names that are not UTF-8, invalid opset versions, element types and shapes, repeated attributes, and
    invalid entries of external data. ``model_name`` starts the messages on names and opset versions.
    """
    from onnx import defs

    newest = defs.onnx_opset_version()
    for opset in _opset_imports(model):
        if not 1 <= opset.version <= _MAX_VERSION:
            raise ModelError(f"{model_name} is damaged: opset version {opset.version} of domain {opset.domain!r}")
        # For a later version, onnx would return the newest schema that it knows, which may be the wrong one.
        if is_standard_domain(opset.domain) and opset.version > newest:
            raise ModelError(
                f"{model_name} is written in opset {opset.version}; the installed onnx ends at {newest}",
                hint="install a newer onnx, or export the model at an older opset",
            )
    for name in _check_and_yield_names(model):
        if _is_not_utf8(name):
            raise ModelError(
                f"{model_name} is damaged: the name {name!r} is not UTF-8", hint="check that the file was copied whole"
            )


def _is_not_utf8(text: str | bytes) -> bool:
    # protobuf returns bytes instead of str for a text that is not UTF-8.
    return type(text) is bytes


def _opset_imports(model: ModelProto) -> Iterator[OperatorSetIdProto]:
    """Yield the opset imports of a model and of its functions."""
    return chain(model.opset_import, *(function.opset_import for function in model.functions))


def _refuse_invalid_initializer(tensor: TensorProto) -> None:
    """Raise ModelError for an invalid element type, dimension or entry of external data."""
    # The second test is for UNDEFINED (0), which is among the element types that onnx knows.
    if tensor.data_type not in dtypes.known_element_types() or not tensor.data_type:
        raise ModelError(f"tensor {tensor.name!r} has element type {tensor.data_type}, which ONNX does not know")
    if min(tensor.dims, default=0) < 0:
        raise ModelError(f"tensor {tensor.name!r} has the shape {list(tensor.dims)}, with a negative dimension")
    _refuse_invalid_external_entries(tensor)


def _refuse_invalid_external_entries(tensor: TensorProto) -> None:
    """Raise ModelError if an external tensor has a key twice, a damaged one, or one that is reserved for mixlist."""
    if tensor.external_data:
        for key, value in external_entries(tensor).items():
            if _is_not_utf8(key) or _is_not_utf8(value):
                raise ModelError(
                    f"external tensor {tensor.name!r} is damaged: the entry {key!r}: {value!r} is not UTF-8",
                    hint="check that the file was copied whole",
                )
            if key.startswith(MIXLIST_KEY_PREFIX):
                raise ModelError(
                    f"external tensor {tensor.name!r} has the key {key!r}, which is reserved for mixlist",
                    hint="write the model again without this key",
                )


def _check_and_yield_names(model: ModelProto) -> Iterator[str | bytes]:
    """Yield every name that mixlist reads; raise ModelError for invalid nodes and tensors on the way."""
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
                _refuse_invalid_external_entries(tensor)
        else:
            yield message.name
            yield from _check_and_yield_declared_names(message)


def _refuse_repeated_attributes(node: NodeProto) -> None:
    """Raise ModelError for two attributes of the same name: some readers take the first one, others the last one."""
    names = [attribute.name for attribute in node.attribute]
    if len(set(names)) < len(names):
        repeated = next(name for name in names if names.count(name) > 1)
        node_text = f"node {node.name!r}" if node.name else "an unnamed node"
        raise ModelError(f"{node_text} ({node.op_type}) has {names.count(repeated)} attributes named {repeated!r}")


def _check_and_yield_declared_names(root: RootProto) -> Iterator[str | bytes]:
    """Yield the names that a graph or function declares; raise ModelError for invalid initializers."""
    from onnx import GraphProto

    if isinstance(root, GraphProto):
        for tensor in (*root.initializer, *(sparse.values for sparse in root.sparse_initializer)):
            _refuse_invalid_initializer(tensor)
            yield tensor.name
        for sparse in root.sparse_initializer:
            # The indices are int64 by definition and need no name, so only their external data can be invalid.
            _refuse_invalid_external_entries(sparse.indices)
        infos = [*root.input, *root.output, *root.value_info]
    else:
        yield from (root.domain, root.overload, *root.input, *root.output, *root.attribute)
        infos = [*root.value_info]
    for info in infos:
        yield info.name
        yield from (dimension.dim_param for dimension in info.type.tensor_type.shape.dim)
