"""Lay out a ModelProto of any size as files that ONNX Runtime reads.

ONNX Runtime refuses serialized models beyond protobuf's 2 GiB, and external data behind links or still to be converted.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mixlist.files.scratch_folder import write_scratch

if TYPE_CHECKING:
    from onnx import ModelProto, TensorProto


def write_model(proto: ModelProto, home: Path, folder: Path | None) -> Path:
    """Write a model as ``model.onnx`` into the folder ``home``, its data next to it; return the path.

    ``folder`` is where the model's external data lies now. ``proto`` is left as it is. Raises FileError and ModelError.
    """
    from mixlist.graph.load import LoadedModel
    from mixlist.graph.save import SaveOptions, save_model
    from mixlist.rewriter.tensor_conversion import stream_tensor

    path = home / "model.onnx"
    large = outgrows_protobuf(proto)
    if large or external_tensors(proto):
        loaded = LoadedModel(proto, "model", None, folder, "proto")
        options = SaveOptions(external_data="yes" if large else "auto", private=True)
        save_model(proto, path, loaded, lambda tensor: stream_tensor(tensor, folder, False, {}), options)
    else:
        write_scratch(path, proto.SerializeToString())
    return path


def outgrows_protobuf(proto: ModelProto) -> bool:
    """Return True if the weights inside the model are too large for one protobuf message."""
    from mixlist.graph.save import INLINE_LIMIT
    from mixlist.graph.traversal import tensors_in_model
    from mixlist.graph.weights import declared_byte_size, is_external

    return (
        sum(declared_byte_size(tensor) for tensor in tensors_in_model(proto) if not is_external(tensor)) > INLINE_LIMIT
    )


def external_tensors(proto: ModelProto) -> list[TensorProto]:
    """Return the tensors whose data lie in other files."""
    from mixlist.graph.traversal import tensors_in_model
    from mixlist.graph.weights import is_external

    return [tensor for tensor in tensors_in_model(proto) if is_external(tensor)]


def is_readable_in_place(proto: ModelProto, folder: Path | None) -> bool:
    """Return True if ONNX Runtime can read the external data in place: no link leaves the folder, no type is converted.

    Raises FileError for data that are missing or truncated.
    """
    from mixlist.graph.weights import locate_external_data as location
    from mixlist.graph.weights import stored_type

    home = folder.resolve() if folder is not None else None
    for tensor in external_tensors(proto):
        path, _, _ = location(tensor, folder)
        if home is None or not path.resolve().is_relative_to(home) or stored_type(tensor) != tensor.data_type:
            return False
    return True
