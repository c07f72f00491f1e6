"""Load a model from a path, an onnx.ModelProto or an onnx_ir.Model."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from mixlist.errors import FileError, ModelError
from mixlist.files.regular_files import open_regular
from mixlist.model.damaged_models import refuse_damaged_model
from mixlist.model.message_nesting import MAX_MESSAGE_DEPTH, nests_too_deeply

if TYPE_CHECKING:
    import onnx_ir
    from onnx import ModelProto

    from mixlist.model.proto_types import ModelSource

    Model: TypeAlias = "ModelSource | LoadedModel"  # what the public functions take

MAX_FILE_BYTES = 2**31 - 1  # protobuf reads no larger file


@dataclass(frozen=True)
class LoadedModel:
    """A model as protobuf messages. External data is not read yet.

    ``name``: the path, or the name of the graph. ``path``: None for a model that did not come from a file.
    ``folder``: the folder to which the locations of external data are relative, None if it is unknown.
    ``source_kind``: "path", "proto" for an onnx.ModelProto, or "ir" for an onnx_ir.Model.
    ``file_stamp``: the device, inode, size and time of change of the file when it was read; () without a path.
    """

    proto: ModelProto
    name: str
    path: Path | None
    folder: Path | None
    source_kind: str
    file_stamp: tuple[int, ...] = ()


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
        refuse_damaged_model(model, "the model")
        return LoadedModel(model, model.graph.name or "model", None, None, "proto")
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
        if nests_too_deeply(data):
            raise ModelError(
                f"{path} nests bodies of If, Loop or Scan too deeply: protobuf reads up to {MAX_MESSAGE_DEPTH} nested"
                f" messages, which are {MAX_MESSAGE_DEPTH // 3} bodies",
                hint="export the model with fewer control-flow nodes inside each other",
            ) from None
        raise ModelError(
            f"{path} is not an ONNX model, or it is truncated", hint="check that the file was copied whole"
        ) from None
    # protobuf reads some files of other formats, and an empty file, as a model without content.
    if not model.graph.node and not model.graph.output:
        raise ModelError(f"{path} is not an ONNX model: it holds no graph")
    refuse_damaged_model(model, str(path))
    return LoadedModel(model, str(path), path, path.parent, "path", file_stamp)


def _load_ir(model: onnx_ir.Model) -> LoadedModel:
    """Convert an onnx_ir.Model; the folder is that of its first external tensor."""
    import onnx_ir

    # onnx_ir stores a folder with each external tensor, and none for the model.
    constants = [value.const_value for value in model.graph.initializers.values()]
    folders = [Path(c.base_dir) for c in constants if isinstance(c, onnx_ir.ExternalTensor)]
    folder = folders[0] if folders else None
    return LoadedModel(onnx_ir.to_proto(model), model.graph.name or "model", None, folder, "ir")
