"""Load a model from a path, an onnx.ModelProto or an onnx_ir.Model, and refuse damaged models.

protobuf reads some models without an error that are no valid ONNX: their names, versions, types and shapes are checked.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from itertools import chain
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from mixlist.errors import FileError, ModelError
from mixlist.files.regular_files import open_regular
from mixlist.lists.op_catalog import canonical_domain, is_standard_domain
from mixlist.model import dtypes
from mixlist.model.protos import bodies_of, copy_message, nodes_in, scopes_in, tensors_in_attribute
from mixlist.model.weights import MIXLIST_KEY_PREFIX, PACKED_BITS, external_entries

if TYPE_CHECKING:
    import onnx_ir
    from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, ValueInfoProto

    from mixlist.model.protos import ModelSource, RootProto

    Model: TypeAlias = "ModelSource | LoadedModel"  # what the public functions take

MAX_FILE_BYTES = 2**31 - 1  # protobuf reads no larger file


class TypeCorrection(NamedTuple):
    """A Cast of ``tensor`` to the type ``to`` that was inserted or changed, because of the clash ``why``.

    ``kind`` declaration: not a Cast, but the declared types of inner tensors are wrong, the first one that of
    ``tensor``. They are right in a written model (Rule S4.12).
    """

    tensor: str
    to: str
    why: str
    kind: Literal["cast", "declaration"] = "cast"


class LoadedModel(NamedTuple):
    """A model as protobuf messages. External data is not read yet.

    ``name``: the path, or the name of the graph. ``path``: None for a model that did not come from a file.
    ``folder``: the folder to which the locations of external data are relative, None if it is unknown.
    ``file_stamp``: the device, inode, size and time of change of the file when it was read; () without a path.
    ``may_be_external``: False if no tensor of the file has its numbers in another file. ``corrections``: what is
    corrected of a file whose types clash (Rule S4.52); only ``repair`` makes any.
    """

    proto: ModelProto
    name: str
    path: Path | None
    folder: Path | None
    file_stamp: tuple[int, ...] = ()
    may_be_external: bool = True
    corrections: tuple[TypeCorrection, ...] = ()


def load_model(model: ModelSource | LoadedModel) -> LoadedModel:
    """Load a model from a path, an ``onnx.ModelProto`` or an ``onnx_ir.Model``.

    A LoadedModel is returned as it is. Raises FileError if the file cannot be read, and ModelError if it is no ONNX
    model or is damaged.
    """
    if isinstance(model, LoadedModel):
        return model
    if isinstance(model, str | os.PathLike):
        return _load_path(Path(model))
    from onnx import ModelProto

    if isinstance(model, ModelProto):
        _refuse_damaged_model(model, "the model")
        return LoadedModel(model, model.graph.name or "model", None, None)
    # By the name of the module, so that other models need no import of onnx_ir.
    if type(model).__module__.startswith("onnx_ir"):
        return _load_ir(model)
    raise ModelError(f"a model is a path, an onnx.ModelProto or an onnx_ir.Model, not {type(model).__name__}")


def is_unchanged(model: ModelSource | LoadedModel, loaded: LoadedModel) -> bool:
    """Return True if ``model`` is the path from which ``loaded`` was read, and the file has not changed since then."""
    if not loaded.file_stamp or not isinstance(model, str | os.PathLike) or Path(model) != loaded.path:
        return False
    try:
        return _file_stamp(Path(model).stat()) == loaded.file_stamp
    except OSError:
        return False


def _file_stamp(status: os.stat_result) -> tuple[int, ...]:
    """Return the numbers that differ if another file, or another content, is at the same path."""
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def _load_path(path: Path) -> LoadedModel:
    """Load a model file; raise FileError or ModelError."""
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped, unused-ignore]
    from onnx import ModelProto

    try:
        with open_regular(path) as file:
            status = os.fstat(file.fileno())
            if status.st_size > MAX_FILE_BYTES:
                raise ModelError(
                    f"{path} has {status.st_size / 2**30:.1f} GiB; protobuf reads models up to 2 GiB",
                    hint="export the model with its weights as external data",
                )
            # From the open file, so that the stamp belongs to the bytes that are read.
            file_stamp, data = _file_stamp(status), file.read()
    except OSError as error:
        # Tested here, because on Windows the error for a directory is a missing permission.
        if path.is_dir():
            raise FileError(f"{path} is a directory, not an ONNX model") from None
        raise FileError(f"cannot read the model {path}: {error.strerror}", hint="check the path") from None
    model = ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError:
        raise ModelError(
            f"{path} is not an ONNX model, or it is truncated",
            # Three messages for each body: NodeProto, AttributeProto and GraphProto. protobuf reads 100 nested ones.
            hint="check that the file was copied whole, and nests at most 33 bodies of If, Loop or Scan",
        ) from None
    # protobuf reads some files of other formats, and an empty file, as a model without content.
    if not model.graph.node and not model.graph.output:
        raise ModelError(f"{path} is not an ONNX model: it holds no graph")
    _refuse_damaged_model(model, str(path))
    # External data have an entry with this key, and a search in the bytes is faster than a walk over all tensors.
    return LoadedModel(model, str(path), path, path.parent, file_stamp, b"location" in data)


def _load_ir(model: onnx_ir.Model) -> LoadedModel:
    """Convert an onnx_ir.Model; the folder is that of its first external tensor."""
    import onnx_ir

    # onnx_ir stores a folder with each external tensor, and none for the model.
    constants = [value.const_value for value in model.graph.initializers.values()]
    folders = [Path(c.base_dir) for c in constants if isinstance(c, onnx_ir.ExternalTensor)]
    folder = folders[0] if folders else None
    return LoadedModel(onnx_ir.to_proto(model), model.graph.name or "model", None, folder)


# --- type hints of the user ---


def add_type_hints(loaded: LoadedModel, type_hints: Mapping[str, str] | None) -> LoadedModel:
    """Return a copy of a model that declares the types of ``type_hints`` where it declares no type yet.

    The hints are for tensors that custom operators make: ONNX cannot infer their types. ``build_graph`` also reads
    hints without a change of the model. A check needs them in the model, from which it builds several others.

    ``type_hints`` has a type, such as ``float32``, by tensor name. A name means the node output of that name in every
    scope. Without hints the result is ``loaded`` itself. Raises UsageError for a text that is no type.
    """
    if not type_hints:
        return loaded
    hints = {name: dtypes.parse_name(text) for name, text in type_hints.items()}
    proto = copy_message(loaded.proto)
    for scope in scopes_in(proto.graph):
        _declare(scope, hints)
    return loaded._replace(proto=proto)


def _declare(scope: GraphProto, hints: Mapping[str, dtypes.Type]) -> None:
    """Add a value_info for each hinted tensor of one scope that has no declaration; skip the bodies in the scope."""
    # A value_info without a type does not count, as in build.py.
    declared = {info.name for info in (*scope.output, *scope.value_info) if info.type.WhichOneof("value")}
    for node in scope.node:
        for name in node.output:
            if name in hints and name not in declared:
                dtypes.write_type(scope.value_info.add(name=name).type, hints[name])
                declared.add(name)


# --- content that ONNX does not allow ---


_MAX_VERSION = 2**31 - 1  # onnx reads a version as a 32-bit integer
# The fields of an AttributeProto that are not called after the type of their value.
_FIELDS_OF_ONE = {"float": "f", "int": "i", "string": "s", "tensor": "t", "graph": "g", "type_proto": "tp"}
_COMPLEX = frozenset({14, 15})  # these store two numbers for an element
_NO_VALUES = frozenset({"name", "ref_attr_name", "doc_string", "type"})


def _refuse_damaged_model(model: ModelProto, model_name: str) -> None:
    """Raise ModelError for content that ONNX does not allow.

    This is: names that are not UTF-8, invalid versions, element types and shapes, inputs without type,
    attributes with another value than their type says, repeated attributes, and invalid entries of external data.
    ``model_name`` starts the messages on names and versions.
    """
    from onnx import IR_VERSION, defs

    if not model.HasField("ir_version") or model.ir_version > IR_VERSION:
        version = f"IR version {model.ir_version}" if model.HasField("ir_version") else "no IR version"
        raise ModelError(
            f"{model_name} has {version}; the installed onnx ends at {IR_VERSION}",
            hint="install a newer onnx, or export the model for an older one",
        )
    untyped = next((info.name for info in model.graph.input if not info.type.WhichOneof("value")), None)
    if untyped is not None:
        raise ModelError(f"{model_name} is damaged: the input {untyped!r} of the graph has no type")
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
    for names in _check_and_yield_names(model):
        if bytes in map(type, names):
            name = next(filter(_is_not_utf8, names))
            raise ModelError(
                f"{model_name} is damaged: the name {name!r} is not UTF-8", hint="check that the file was copied whole"
            )


def _is_not_utf8(text: str | bytes) -> bool:
    # protobuf returns bytes instead of str for a text that is not UTF-8.
    return type(text) is bytes


def _opset_imports(model: ModelProto) -> Iterator[OperatorSetIdProto]:
    """Yield the opset imports of a model and of its functions."""
    return chain(model.opset_import, *(function.opset_import for function in model.functions))


def _refuse_unknown_type(tensor: str, elem: int) -> None:
    """Raise ModelError for an invalid element type."""
    # The second test is for UNDEFINED (0), which is among the element types that onnx knows.
    if elem not in dtypes.known_element_types() or not elem:
        raise ModelError(f"tensor {tensor!r} has element type {elem}, which ONNX does not know")


def _refuse_invalid_type(info: ValueInfoProto) -> None:
    """Raise ModelError for a declaration of an invalid element type, or of a container without one."""
    declared = info.type
    while not declared.HasField("tensor_type"):  # most declarations are of tensors
        kind = declared.WhichOneof("value")
        if kind is None and declared is not info.type:
            raise ModelError(f"tensor {info.name!r} is declared without the type of its elements")
        if kind == "map_type":
            _refuse_unknown_type(info.name, declared.map_type.key_type)
            declared = declared.map_type.value_type
        elif kind in ("sequence_type", "optional_type"):
            declared = getattr(declared, kind).elem_type
        else:  # no type, a sparse tensor or an opaque type
            return
    _refuse_unknown_type(info.name, declared.tensor_type.elem_type)


def _refuse_invalid_initializer(tensor: TensorProto) -> None:
    """Raise ModelError for an invalid element type, dimension or entry of external data."""
    _refuse_unknown_type(tensor.name, tensor.data_type)
    if min(tensor.dims, default=0) < 0:
        raise ModelError(f"tensor {tensor.name!r} has the shape {list(tensor.dims)}, with a negative dimension")
    _refuse_invalid_external_entries(tensor)
    if not (tensor.external_data or tensor.HasField("raw_data")):
        _refuse_wrong_count(tensor)


def _refuse_wrong_count(tensor: TensorProto) -> None:
    """Raise ModelError if a tensor without ``raw_data`` has another number of elements than its shape."""
    from onnx import helper

    size = prod(tensor.dims) * (2 if tensor.data_type in _COMPLEX else 1)
    count = len(getattr(tensor, helper.tensor_dtype_to_field(tensor.data_type)))
    # Elements of less than a byte share one: onnx reads these.
    if count != size and tensor.data_type not in PACKED_BITS:
        raise ModelError(f"tensor {tensor.name!r} is damaged: it has {count} numbers, its shape needs {size}")


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


def _check_and_yield_names(model: ModelProto) -> Iterator[list[str | bytes]]:
    """Yield every name that mixlist reads, in lists; raise ModelError for invalid nodes and tensors on the way."""
    yield [opset.domain for opset in _opset_imports(model)]
    imported = {canonical_domain(opset.domain) for opset in _opset_imports(model)}
    for node in nodes_in(model.graph, *model.functions):
        if node.domain and canonical_domain(node.domain) not in imported:
            raise ModelError(f"the model imports no opset of domain {node.domain!r}, which {node.op_type} has")
        yield [node.name, node.op_type, node.domain, node.overload, *node.input, *node.output]
        if node.attribute:
            _refuse_repeated_attributes(node)
            yield [name for attribute in node.attribute for name in (attribute.name, attribute.ref_attr_name)]
            for attribute in node.attribute:
                _refuse_second_value(attribute, node)
                for tensor in tensors_in_attribute(attribute):
                    _refuse_invalid_external_entries(tensor)
    bodies = (body for function in model.functions for node in function.node for body in bodies_of(node))
    roots: list[RootProto] = [*model.functions, *scopes_in(model.graph, *bodies)]
    for root in roots:
        yield [root.name, *_check_and_yield_declared_names(root)]


def _refuse_repeated_attributes(node: NodeProto) -> None:
    """Raise ModelError for two attributes of the same name: some readers take the first one, others the last one."""
    names = [attribute.name for attribute in node.attribute]
    if len(set(names)) < len(names):
        repeated = next(name for name in names if names.count(name) > 1)
        node_text = f"node {node.name!r}" if node.name else "an unnamed node"
        raise ModelError(f"{node_text} ({node.op_type}) has {names.count(repeated)} attributes named {repeated!r}")


def _refuse_second_value(attribute: AttributeProto, node: NodeProto) -> None:
    """Raise ModelError for an attribute without type, or with a value of another type."""
    declared = attribute.AttributeType.Name(attribute.type).lower()
    fields = {field.name for field, _ in attribute.ListFields()} - _NO_VALUES
    if not attribute.type or fields - {_FIELDS_OF_ONE.get(declared, declared)}:
        node_text = f"node {node.name!r}" if node.name else "an unnamed node"
        reason = f"a value that is no {declared}" if attribute.type else "no type"
        raise ModelError(f"attribute {attribute.name!r} of {node_text} ({node.op_type}) has {reason}")


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
        _refuse_invalid_type(info)
        yield from (dimension.dim_param for dimension in info.type.tensor_type.shape.dim)
