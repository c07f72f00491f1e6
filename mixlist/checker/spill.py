"""Large weights in a file of their own, written once, for all sessions of a check to map.

A check instruments, raises and copies its models several times, and gives them to another process: with their weights
inside, each step would move them again.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from mixlist.graph.io import Loaded
from mixlist.graph.save import set_external, tensors
from mixlist.graph.weights import EXACT, PENDING, byte_size, is_external, pieces, raw_pieces
from mixlist.ops import types
from mixlist.rewriter.emulate import LOW

LARGE = 2**14  # bytes: smaller ones stay in the model, where ONNX Runtime may read them while it infers shapes
_PAGE = 4096  # where a tensor starts, so that it can be mapped


class Weights:
    """A temporary folder of weights; it lives as long as this object."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="mixlist-"))
        self._end = weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        self._files = 0

    def spill(self, loaded: Loaded, raised: bool) -> Loaded:
        """The model with its large initializers here; as it is where it has external data already.

        With ``raised`` low ones are kept as the same numbers in float32, to which an emulation raises them at no cost.
        """
        proto = loaded.proto
        if any(is_external(tensor) for tensor in tensors(proto)):
            return loaded
        slim = type(proto)()
        for field, value in proto.ListFields():
            if field.name != "graph":
                _copy_field(slim, field.name, value)
        for field, value in proto.graph.ListFields():
            if field.name != "initializer":
                _copy_field(slim.graph, field.name, value)
        self._files += 1
        path = self.folder / f"weights_{self._files}"
        with path.open("wb") as file:
            for tensor in proto.graph.initializer:
                made = slim.graph.initializer.add()
                if tensor.data_type == _STRING or byte_size(tensor) < LARGE:
                    made.CopyFrom(tensor)
                else:
                    self._put(tensor, made, file, path.name, raised and tensor.data_type in LOW)
        return replace(loaded, proto=slim, folder=self.folder)

    def _put(self, tensor: Any, made: Any, file: IO[bytes], location: str, raised: bool) -> None:
        made.name, made.data_type = tensor.name, tensor.data_type
        made.dims.extend(tensor.dims)
        start = -(-file.tell() // _PAGE) * _PAGE
        file.seek(start)
        for piece in _raised(tensor) if raised else raw_pieces(tensor, None):
            file.write(piece)
        set_external(made, location, start, file.tell() - start)
        if raised:
            made.external_data.add(key=PENDING, value=str(types.FLOAT))
            made.external_data.add(key=EXACT, value="1")


_STRING = 8  # TensorProto.STRING


def _raised(tensor: Any) -> Iterator[Any]:
    for piece in pieces(tensor, None):
        yield piece.astype("float32").data


def _copy_field(target: Any, name: str, value: Any) -> None:
    if hasattr(value, "extend"):
        getattr(target, name).extend(value)
    elif hasattr(value, "CopyFrom"):
        getattr(target, name).CopyFrom(value)
    else:
        setattr(target, name, value)
