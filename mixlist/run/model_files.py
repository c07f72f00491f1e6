"""Write a ModelProto of any size as a file that the sessions of some workers can load.

ONNX Runtime refuses serialized models beyond protobuf's limit of 2 GiB, and external data behind symbolic links. A
model of mixlist can also declare another type than its external data has; ``model/weights.py`` converts such data when
it reads them, but ONNX Runtime does not.

The functions import what writes models only when they are called: a worker imports this module, and writes none.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from mixlist.errors import ModelError
from mixlist.files.scratch_folder import write_scratch

if TYPE_CHECKING:
    from onnx import ModelProto, TensorProto


def write_model_file(
    model: ModelProto | str | os.PathLike[str], target_folder: Path, folder: Path | None, shares_files: bool
) -> tuple[Path, Path | None]:
    """Return the path of a model file, and the folder of its external data if that is not the folder of the file.

    A ModelProto, whose external data is in ``folder``, is written to ``target_folder``. ``shares_files``: whether the
    workers that load the file can read the files of this machine. Raises FileError and ModelError.
    """
    # 1. A file of the user: load it where it is.
    if isinstance(model, str | os.PathLike):
        return Path(model), None
    # 2. Workers on other machines need all data in the message.
    if not shares_files:
        return _write_message(model, target_folder, folder), None
    # 3. A message whose external data ONNX Runtime can read in its folder: write the message without the weights.
    if external_tensors(model) and is_readable_in_place(model, folder):
        path = target_folder / "model.onnx"
        write_scratch(path, model.SerializeToString())
        return path, folder
    # 4. All other messages: write them with their weights.
    return write_model(model, target_folder, folder), None


def write_model(proto: ModelProto, target_folder: Path, folder: Path | None) -> Path:
    """Write a model as ``model.onnx`` with its data into ``target_folder``, and return the path.

    The external data of the model is in ``folder``. ``proto`` does not change. Raises FileError and ModelError.
    """
    from mixlist.model.load import LoadedModel
    from mixlist.model.save import SaveOptions, save_model
    from mixlist.write.tensor_conversion import stream_tensor

    path = target_folder / "model.onnx"
    loaded = LoadedModel(proto, "model", None, folder)
    # ``private``: no other process writes to the folder, so no lock is needed. Data that is stored in another type is
    # converted without clamping, and its report is not needed.
    save_model(proto, path, loaded, lambda tensor: stream_tensor(tensor, folder, "", {}), SaveOptions(private=True))
    return path


def _write_message(model: ModelProto, target_folder: Path, folder: Path | None) -> Path:
    """Write a model as one protobuf message with all its weights, and return the path; ``model`` does not change."""
    from mixlist.model.protos import copy_message
    from mixlist.write.tensor_conversion import inline_external_data

    try:
        if external_tensors(model):
            model = copy_message(model)
            inline_external_data(model, folder)
        message = model.SerializeToString()
    except ValueError as error:
        raise ModelError(f"the model is too large to be sent to other processes: {error}") from None
    path = target_folder / "model.onnx"
    write_scratch(path, message)
    return path


def copy_weights_to_model(model: Path, weights_folder: Path) -> None:
    """Copy the external data of a model file from ``weights_folder`` into the folder of the file.

    The model file is written again, because it must refer to the copy. The weights folder can be a temporary one of a
    check: without the copy, the kept model would lose its weights when that folder is removed.
    """
    from onnx import load

    proto = load(model, load_external_data=False)
    model.unlink()  # ``write_model`` does not overwrite a file
    write_model(proto, model.parent, weights_folder)


def external_tensors(proto: ModelProto) -> list[TensorProto]:
    """Return the tensors whose data is in other files."""
    from mixlist.model.protos import tensors_in_model
    from mixlist.model.weights import is_external

    return [tensor for tensor in tensors_in_model(proto) if is_external(tensor)]


def is_readable_in_place(proto: ModelProto, folder: Path | None) -> bool:
    """Return True if ONNX Runtime can read the external data of a model in ``folder``.

    It cannot if a symbolic link leaves the folder, or if the data is stored in another type than the model declares.
    Raises FileError for data that is missing or truncated.
    """
    from mixlist.model.weights import locate_external_data, stored_type

    resolved_folder = folder.resolve() if folder is not None else None
    for tensor in external_tensors(proto):
        path, _, _ = locate_external_data(tensor, folder)
        if resolved_folder is None or not path.resolve().is_relative_to(resolved_folder):
            return False
        if stored_type(tensor) != tensor.data_type:
            return False
    return True
