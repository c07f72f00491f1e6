"""The only place that loads and saves models."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mixlist.errors import FileError, ModelError
from mixlist.files.regular_files import open_regular
from mixlist.graph.damaged_models import refuse_damaged_model
from mixlist.graph.message_nesting import MAX_MESSAGE_DEPTH, nests_too_deeply

if TYPE_CHECKING:
    import onnx_ir
    from onnx import ModelProto

    from mixlist.graph.proto_types import ModelSource


MAX_FILE_BYTES = 2**31 - 1  # bytes of a file that protobuf reads


@dataclass(frozen=True)
class LoadedModel:
    """A model as protobuf; ``folder`` is where its external data lies, None for a model without a path.

    ``kind`` is what the caller gave: a path, a ModelProto or an onnx_ir.Model.
    """

    proto: ModelProto
    name: str
    path: Path | None
    folder: Path | None
    source_kind: str
    file_stamp: tuple[int, ...] = ()  # of the file when it was read, () without a path


def load_model(model: ModelSource | LoadedModel) -> LoadedModel:
    """Take a path, an ``onnx.ModelProto`` or an ``onnx_ir.Model``; weights in other files are not read yet.

    A model that is loaded already comes back as it is.

    Raises FileError where there is no readable file and ModelError where it is no ONNX model.
    """
    if isinstance(model, LoadedModel):
        return model
    if isinstance(model, str | os.PathLike):
        return _load_path(Path(model))
    from onnx import ModelProto

    if isinstance(model, ModelProto):
        refuse_damaged_model(model, "the model")
        return LoadedModel(model, model.graph.name or "model", None, None, "proto")
    if type(model).__module__.startswith("onnx_ir"):
        return _load_ir(model)
    raise ModelError(f"a model is a path, an onnx.ModelProto or an onnx_ir.Model, not {type(model).__name__}")


def is_unchanged(model: ModelSource | LoadedModel, loaded: LoadedModel) -> bool:
    """Return True if ``model`` is the path that ``loaded`` came from, and the file has not changed since."""
    if not loaded.file_stamp or not isinstance(model, str | os.PathLike) or Path(model) != loaded.path:
        return False
    try:
        return _stamp(Path(model).stat()) == loaded.file_stamp
    except OSError:
        return False


def _stamp(status: os.stat_result) -> tuple[int, ...]:
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def _load_path(path: Path) -> LoadedModel:
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
            stamp, data = _stamp(status), file.read()
    except OSError as problem:
        if path.is_dir():  # Windows reports a lack of permission
            raise FileError(f"{path} is a directory, not an ONNX model") from None
        raise FileError(f"cannot read the model {path}: {problem.strerror}", hint="check the path") from None
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
    if not model.graph.node and not model.graph.output:
        raise ModelError(f"{path} is not an ONNX model: it holds no graph")
    refuse_damaged_model(model, str(path))
    return LoadedModel(model, str(path), path, path.parent, "path", stamp)


def _load_ir(model: onnx_ir.Model) -> LoadedModel:
    import onnx_ir

    constants = [value.const_value for value in model.graph.initializers.values()]
    folders = [Path(c.base_dir) for c in constants if isinstance(c, onnx_ir.ExternalTensor)]
    folder = folders[0] if folders else None
    return LoadedModel(onnx_ir.to_proto(model), model.graph.name or "model", None, folder, "ir")
