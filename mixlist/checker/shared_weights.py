"""Write large weights to a file once, so that all sessions of a check map the same file.

A check copies its models several times: it instruments them, widens them to float32, and sends them to another process.
If the weights were inside the models, each of these steps would copy them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import IO, TYPE_CHECKING

from mixlist.files.scratch_folder import ScratchFolder, translate_write_errors
from mixlist.model import dtypes
from mixlist.model.load import LoadedModel
from mixlist.model.low_precision import LOW_TYPES
from mixlist.model.protos import copy_fields
from mixlist.model.save import set_external
from mixlist.model.weights import (
    LOSSLESS_KEY,
    STORED_TYPE_KEY,
    declared_byte_size,
    is_external,
    stored_byte_size,
    stored_type,
)
from mixlist.write.tensor_conversion import float_dtype, inline_external_data, stream_tensor

if TYPE_CHECKING:
    from onnx import TensorProto

    from mixlist.lists.policy import Clamp

_STRING = 8  # TensorProto.STRING
# The smallest tensor that goes to the file, in bytes. A smaller one stays in the model, because ONNX Runtime may read
# its values while it infers shapes.
MIN_SHARED_BYTES = 2**14
_PAGE = 4096  # bytes; ONNX Runtime maps a tensor that starts at a multiple of this offset


class SharedWeights:
    """A temporary folder of weight files, which is removed together with this object."""

    def __init__(self) -> None:
        self._scratch = ScratchFolder()
        self.folder = self._scratch.path
        self._file_numbers = count(1)

    def share(self, loaded: LoadedModel, widened: bool, clamp: Clamp = "") -> LoadedModel:
        """Return the model with its large initializers in this folder, and all other data inside the model.

        widened: write weights of a low type as the same numbers in float32, so that the emulation need not copy them.
        clamp: limit the values of pending conversions (``model/weights.py``) to the finite range of the low type. This
            method carries out all pending conversions.
        """
        proto = loaded.proto
        slim_proto = type(proto)()
        copy_fields(proto, slim_proto, "graph")
        copy_fields(proto.graph, slim_proto.graph, "initializer")
        inline_external_data(slim_proto, loaded.folder, clamp)  # the weights in attributes and bodies
        path = self.folder / f"weights_{next(self._file_numbers)}"
        with translate_write_errors(path), path.open("wb") as file:
            for tensor in proto.graph.initializer:
                slim_tensor = slim_proto.graph.initializer.add()
                if self._stays_in_place(tensor, loaded):
                    slim_tensor.CopyFrom(tensor)
                    continue
                slim_tensor.name, slim_tensor.data_type = tensor.name, tensor.data_type
                slim_tensor.dims.extend(tensor.dims)
                data = stream_tensor(tensor, loaded.folder, clamp, {})
                if declared_byte_size(tensor) < MIN_SHARED_BYTES:
                    slim_tensor.raw_data = b"".join(data)
                else:
                    _write_tensor(slim_tensor, data, file, path.name, widened and tensor.data_type in LOW_TYPES)
        return loaded._replace(proto=slim_proto, folder=self.folder, may_be_external=True)

    def _stays_in_place(self, tensor: TensorProto, loaded: LoadedModel) -> bool:
        """Return True if the bytes of a tensor need not move.

        An external tensor stays if its data is in this folder, in the type that it declares. A tensor in the model
        stays if it is small or has strings.
        """
        if is_external(tensor):
            return loaded.folder == self.folder and stored_type(tensor) == tensor.data_type
        return tensor.data_type == _STRING or stored_byte_size(tensor) < MIN_SHARED_BYTES


def _write_tensor(tensor: TensorProto, data: Iterator[bytes], file: IO[bytes], location: str, in_float32: bool) -> None:
    """Write the bytes of a tensor at the start of a page, and let ``tensor`` refer to them.

    in_float32: write the same numbers in float32. The tensor still declares its low type, and notes the stored type.
    """
    import numpy as np

    start = -(-file.tell() // _PAGE) * _PAGE  # rounded up
    file.seek(start)
    for piece in data:
        if in_float32:
            file.write(np.frombuffer(piece, float_dtype(tensor.data_type)).astype(np.float32).data)
        else:
            file.write(piece)
    set_external(tensor, location, start, file.tell() - start)
    if in_float32:
        tensor.external_data.add(key=STORED_TYPE_KEY, value=str(dtypes.FLOAT))
        tensor.external_data.add(key=LOSSLESS_KEY, value="1")  # a conversion back to the low type changes no number
