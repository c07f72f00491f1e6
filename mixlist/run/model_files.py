"""Write a ModelProto of any size as files that ONNX Runtime reads.

ONNX Runtime refuses serialized models beyond protobuf's limit of 2 GiB, and external data behind symbolic links. A
model of mixlist can also declare another type than its external data has; ``model/weights.py`` converts such data when
it reads them, but ONNX Runtime does not.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mixlist.files.scratch_folder import write_scratch

if TYPE_CHECKING:
    from onnx import ModelProto, TensorProto


def write_model(proto: ModelProto, target_folder: Path, folder: Path | None) -> Path:
    """Write a model as ``model.onnx`` with its data into ``target_folder``, and return the path.

    The external data of the model is in ``folder``. ``proto`` does not change. Raises FileError and ModelError.
    """
    from mixlist.model.load import LoadedModel
    from mixlist.model.save import SaveOptions, save_model
    from mixlist.write.tensor_conversion import stream_tensor

    path = target_folder / "model.onnx"
    is_large = outgrows_protobuf(proto)
    if is_large or external_tensors(proto):
        loaded = LoadedModel(proto, "model", None, folder, "proto")
        # ``private``: no other process writes to the folder, so no lock is needed.
        options = SaveOptions(external_data="yes" if is_large else "auto", private=True)
        # Data that is stored in another type is converted without clamping, and its report is not needed.
        save_model(proto, path, loaded, lambda tensor: stream_tensor(tensor, folder, False, {}), options)
    else:
        write_scratch(path, proto.SerializeToString())
    return path


def outgrows_protobuf(proto: ModelProto) -> bool:
    """Return True if the weights inside the model are too large for one protobuf message (2 GiB)."""
    from mixlist.model.protos import tensors_in_model
    from mixlist.model.save import INLINE_LIMIT
    from mixlist.model.weights import declared_byte_size, is_external

    inline_sizes = [declared_byte_size(tensor) for tensor in tensors_in_model(proto) if not is_external(tensor)]
    return sum(inline_sizes) > INLINE_LIMIT


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
