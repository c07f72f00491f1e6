"""Put large weights into a file of their own, written once, for all sessions of a check to map.

A check instruments, raises and copies its models several times, and sends them to another process: with their weights
inside, each step would copy these again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from typing import IO, TYPE_CHECKING

from mixlist.files.scratch_folder import ScratchFolder, report_write_errors
from mixlist.graph.load import LoadedModel
from mixlist.graph.proto_edits import copy_fields
from mixlist.graph.save import set_external
from mixlist.graph.weights import LOSSLESS, STORED_TYPE, declared_byte_size, is_external, stored_byte_size, stored_type
from mixlist.ops import types
from mixlist.ops.low_precision import LOW_TYPES
from mixlist.rewriter.tensor_conversion import inline_external_data, numpy_type, stream_tensor

if TYPE_CHECKING:
    from onnx import TensorProto

_STRING = 8  # TensorProto.STRING
LARGE = 2**14  # bytes: smaller ones stay in the model, where ONNX Runtime may read them while it infers shapes
_PAGE = 4096  # where a tensor starts, so that it can be mapped


class SharedWeights:
    """A temporary folder of weights, which is removed with this object."""

    def __init__(self) -> None:
        self._scratch = ScratchFolder()
        self.folder = self._scratch.path
        self._numbers = count(1)  # of the files

    def share(self, loaded: LoadedModel, raised: bool, clamp: bool = False) -> LoadedModel:
        """Return the model with its large initializers in this folder, and no data elsewhere.

        Pending conversions are done (``clamp``: into the finite range). With ``raised``, weights of a low type are
        written as the same numbers in float32, so that an emulation raises them to float32 at no cost.
        """
        proto = loaded.proto
        slim = type(proto)()
        copy_fields(proto, slim, "graph")
        copy_fields(proto.graph, slim.graph, "initializer")
        inline_external_data(slim, loaded.folder, clamp)  # the weights in attributes and bodies
        path = self.folder / f"weights_{next(self._numbers)}"
        with report_write_errors(path), path.open("wb") as file:
            for tensor in proto.graph.initializer:
                made = slim.graph.initializer.add()
                if self._stays(tensor, loaded):
                    made.CopyFrom(tensor)
                    continue
                made.name, made.data_type = tensor.name, tensor.data_type
                made.dims.extend(tensor.dims)
                data = stream_tensor(tensor, loaded.folder, clamp, {})
                if declared_byte_size(tensor) < LARGE:
                    made.raw_data = b"".join(data)
                else:
                    _put(made, data, file, path.name, raised and tensor.data_type in LOW_TYPES)
        return replace(loaded, proto=slim, folder=self.folder)

    def _stays(self, tensor: TensorProto, loaded: LoadedModel) -> bool:
        """Return whether a tensor is small, or in this folder already in the type that it is declared with."""
        if is_external(tensor):
            return loaded.folder == self.folder and stored_type(tensor) == tensor.data_type
        return tensor.data_type == _STRING or stored_byte_size(tensor) < LARGE


def _put(made: TensorProto, data: Iterator[bytes], file: IO[bytes], location: str, raised: bool) -> None:
    """Write the bytes of a tensor from the start of a page on; ``raised``: the same numbers in float32."""
    import numpy as np

    start = -(-file.tell() // _PAGE) * _PAGE
    file.seek(start)
    for piece in data:
        file.write(np.frombuffer(piece, numpy_type(made.data_type)).astype(np.float32).data if raised else piece)
    set_external(made, location, start, file.tell() - start)
    if raised:
        made.external_data.add(key=STORED_TYPE, value=str(types.FLOAT))
        made.external_data.add(key=LOSSLESS, value="1")
