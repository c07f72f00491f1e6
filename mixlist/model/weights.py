"""Read the numbers of constants in pieces: from the model, from an attribute, or from external data.

A location of external data that leaves the model's folder is refused. Only the text of the location counts: a symbolic
link in the folder is followed, because model hubs store weight files behind links.

An external tensor can have a *pending conversion*: the model declares the new element type, but the bytes in the data
file still have the old one, and are converted when the model is saved. The tensor then has the entry STORED_TYPE_KEY in
``external_data``. Such entries exist only in memory.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable, Iterator
from functools import cache
from math import prod
from pathlib import Path
from posixpath import normpath
from typing import TYPE_CHECKING, TypeGuard, TypeVar

from mixlist.errors import FileError, ModelError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from onnx import TensorProto

    from mixlist.model.protos import ConstantProto

PieceT = TypeVar("PieceT")
# The size of one piece: small enough to stay in the cache of a core.
PIECE_BYTES = 3 * 2**19
EXTERNAL = 1  # TensorProto.DataLocation.EXTERNAL
# The bits of an element of the packed types: UINT4, INT4, FLOAT4E2M1, UINT2, INT2, FLOAT6E2M3 and FLOAT6E3M2. Elements
# share bytes: four elements of 6 bits fill three bytes, so PIECE_BYTES is a multiple of 3.
PACKED_BITS = {21: 4, 22: 4, 23: 4, 25: 2, 26: 2, 27: 6, 28: 6}
# The external_data keys that mixlist adds in memory start with this prefix. They are never written to a file.
MIXLIST_KEY_PREFIX = "pkg.mixlist."
# The external_data key for the element type of the bytes, if a conversion is pending.
STORED_TYPE_KEY = "pkg.mixlist.from"
# The external_data key that marks a pending conversion which changes no number.
LOSSLESS_KEY = "pkg.mixlist.exact"


def is_external(constant: ConstantProto) -> TypeGuard[TensorProto]:
    """Return True if the bytes of a constant are in another file."""
    return getattr(constant, "data_location", None) == EXTERNAL  # only a TensorProto has one


def stored_type(tensor: TensorProto) -> int:
    """Return the element type of the stored bytes. It differs from the declared one if a conversion is pending."""
    entries = tensor.external_data if is_external(tensor) else ()
    return next((int(entry.value) for entry in entries if entry.key == STORED_TYPE_KEY), tensor.data_type)


def cancel_lossless_conversion(tensor: TensorProto, elem: int) -> bool:
    """Cancel a pending conversion of an external tensor, if the stored type is ``elem`` and the conversion is lossless.

    The tensor then declares its stored type, with the same numbers. Return True if the conversion was cancelled.
    """
    if stored_type(tensor) != elem or all(entry.key != LOSSLESS_KEY for entry in tensor.external_data):
        return False
    for entry in [entry for entry in tensor.external_data if entry.key in (STORED_TYPE_KEY, LOSSLESS_KEY)]:
        tensor.external_data.remove(entry)
    tensor.data_type = elem
    return True


def external_entries(tensor: TensorProto) -> dict[str, str]:
    """Return the ``external_data`` entries of a tensor, by key.

    Raises ModelError for a key that is there twice: ONNX Runtime refuses it, and other readers take the first or the
    last one. The code that protects data files from being overwritten and the code that reads them both call this
    function, so that both refer to the same files.
    """
    entries: dict[str, str] = {}
    for entry in tensor.external_data:
        if entry.key in entries:
            values = f"{entries[entry.key]!r} and {entry.value!r}"
            raise ModelError(
                f"external tensor {tensor.name!r} has the key {entry.key!r} twice: {values}",
                hint="write the model again, with each key once",
            )
        entries[entry.key] = entry.value
    return entries


def locate_external_data(tensor: TensorProto, folder: Path | None) -> tuple[Path, int, int]:
    """Return the data file of an external tensor, and the offset and the number of its bytes in that file.

    ``folder``: the folder of the model, None if it is unknown. Raises ModelError for an invalid location or range, and
    FileError for a data file that is missing or too short.
    """
    entries = external_entries(tensor)
    location = entries.get("location", "")
    if not location:
        raise ModelError(f"external tensor {tensor.name!r} names no location")
    if folder is None:
        raise ModelError(
            f"the data of tensor {tensor.name!r} is in the file {location!r}, but the model has no path",
            hint="pass the path of the model",
        )
    if leaves_folder(location):
        raise ModelError(
            f"external tensor {tensor.name!r} points out of the model's folder: {location!r}",
            hint="external data must lie in the model's folder or below",
        )
    # Check the file before its content is read, so that the message names the tensor.
    path = folder / location
    try:
        status = path.stat()
    except OSError as error:
        raise FileError(
            f"external data of tensor {tensor.name!r} is missing: {path} ({error.strerror})",
            hint="copy the data file to this path",
        ) from None
    if not stat.S_ISREG(status.st_mode):
        raise FileError(f"external data of tensor {tensor.name!r} is not a file: {path}")
    size = status.st_size
    try:
        # Both entries are optional: the data starts at 0, and the type and the shape give its length.
        offset = int(entries.get("offset") or 0)
        length = int(entries["length"]) if entries.get("length") else stored_byte_size(tensor)
    except ValueError:
        raise ModelError(f"external tensor {tensor.name!r} has an offset or length that is not a number") from None
    if offset < 0 or length < 0 or offset + length > size:
        raise FileError(
            f"{path} is truncated: tensor {tensor.name!r} needs bytes {offset} to {offset + length} of {size}"
        )
    if length != stored_byte_size(tensor):
        raise ModelError(
            f"external tensor {tensor.name!r} has {length} bytes, its shape needs {stored_byte_size(tensor)}"
        )
    return path, offset, length


def leaves_folder(location: str) -> bool:
    """Return True for a location that leaves the folder: an absolute path, a drive, ``..``, or no valid path."""
    # Backslashes count on all systems: a model must not read other files on Windows than on Linux.
    first = normpath(location.replace("\\", "/")).partition("/")[0]  # "" for an absolute path
    return first in ("..", "") or location[1:2] == ":" or "\0" in location


def stored_element_count(constant: ConstantProto) -> int:
    """Return the number of elements that a constant stores; a sparse tensor stores only some of its elements."""
    from onnx import AttributeProto, SparseTensorProto

    if isinstance(constant, AttributeProto):
        return len(constant.floats) if constant.name == "value_floats" else 1
    if isinstance(constant, SparseTensorProto):
        constant = constant.values
    return prod(constant.dims)


def stores_all_elements(constant: ConstantProto) -> bool:
    """Return True if a constant stores all of its elements. A sparse tensor can leave out zeros."""
    from onnx import SparseTensorProto

    return not isinstance(constant, SparseTensorProto) or prod(constant.dims) == prod(constant.values.dims)


def stored_byte_size(tensor: TensorProto) -> int:
    """Return the number of bytes of a dense tensor as stored now."""
    return _byte_size(tensor, stored_type(tensor))


def measure_raw_data(tensor: TensorProto, data: bytes) -> int:
    """Return the number of bytes of a dense tensor as stored now; raise ModelError if its ``raw_data`` has another one.

    ``data``: the raw_data, of which each access to the message makes a copy.
    """
    size = stored_byte_size(tensor)
    if len(data) != size:
        raise ModelError(f"tensor {tensor.name!r} has {len(data)} bytes, its shape needs {size}")
    return size


def declared_byte_size(tensor: TensorProto) -> int:
    """Return the number of bytes of a dense tensor in the type that the model declares."""
    return _byte_size(tensor, tensor.data_type)


def _byte_size(tensor: TensorProto, elem: int) -> int:
    """Return the number of bytes of a dense tensor in the element type ``elem``."""
    bits = PACKED_BITS.get(elem) or 8 * _numpy_type(tensor, elem).itemsize
    return (prod(tensor.dims) * bits + 7) // 8


def read_pieces(constant: ConstantProto, folder: Path | None) -> Iterator[NDArray[np.generic]]:
    """Yield the numbers of a constant as flat arrays, each of at most PIECE_BYTES as stored.

    The dtype is that of the stored type; bfloat16 and packed types have dtypes of ml_dtypes. Numbers outside of
    ``raw_data``, such as ``float_data``, come as one array. Of a sparse tensor only the stored values come.
    """
    import numpy as np
    from onnx import AttributeProto, SparseTensorProto

    if isinstance(constant, SparseTensorProto):
        yield from read_pieces(constant.values, folder)
    elif isinstance(constant, AttributeProto):
        yield np.array(constant.floats if constant.name == "value_floats" else [constant.f], np.float32)
    elif is_external(constant):
        pieces = _read_external(constant, folder)
        # A tensor of one piece has no next piece to prefetch.
        yield from _as_arrays(constant, prefetch(pieces) if stored_byte_size(constant) > PIECE_BYTES else pieces)
    elif constant.HasField("raw_data"):
        data = constant.raw_data
        measure_raw_data(constant, data)
        # A view of the bytes: slices of it copy nothing.
        view = memoryview(data)
        yield from _as_arrays(constant, (view[at : at + PIECE_BYTES] for at in range(0, len(data), PIECE_BYTES)))
    else:
        yield embedded_array(constant).reshape(-1)


def _as_arrays(tensor: TensorProto, pieces: Iterable[bytes | memoryview]) -> Iterator[NDArray[np.generic]]:
    """Yield the stored bytes of a dense tensor as arrays."""
    import numpy as np

    elem = stored_type(tensor)
    bits = PACKED_BITS.get(elem)
    if bits is None:
        dtype = _numpy_type(tensor, elem)
        yield from (np.frombuffer(data, dtype) for data in pieces)
        return
    from onnx import TensorProto, numpy_helper

    left = prod(tensor.dims)
    for data in pieces:
        # The last byte can have bits that belong to no element.
        count = min(left, len(data) * 8 // bits)
        left -= count
        yield numpy_helper.to_array(TensorProto(data_type=elem, dims=[count], raw_data=bytes(data)))


def read_raw_pieces(tensor: TensorProto, folder: Path | None) -> Iterator[bytes]:
    """Yield the stored bytes of a tensor; those of external data in pieces of at most PIECE_BYTES."""
    if is_external(tensor):
        yield from _read_external(tensor, folder)
    elif tensor.HasField("raw_data"):
        yield tensor.raw_data
    else:
        from onnx import numpy_helper

        yield numpy_helper.from_array(embedded_array(tensor)).raw_data


def embedded_array(tensor: TensorProto) -> NDArray[np.generic]:
    """Return the numbers of a tensor that is not external; raise ModelError if they do not fit its type and shape."""
    from onnx import numpy_helper

    try:
        return numpy_helper.to_array(tensor)  # type: ignore[no-any-return, unused-ignore]
    except (ValueError, TypeError, KeyError) as error:
        raise ModelError(f"tensor {tensor.name!r} is damaged: {error}") from None


def prefetch(pieces: Iterator[PieceT]) -> Iterator[PieceT]:
    """Yield the same pieces, while another thread computes the next one.

    This is faster because reading, numpy, ONNX Runtime and writing release Python's global lock. If computing a piece
    fails, the error is raised when the caller asks for that piece.
    """
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as worker:
        # next() returns None at the end. At most one piece is waiting, so the memory stays bounded.
        next_piece = worker.submit(next, pieces, None)
        while (piece := next_piece.result()) is not None:
            next_piece = worker.submit(next, pieces, None)
            yield piece


def _read_external(tensor: TensorProto, folder: Path | None) -> Iterator[bytes]:
    """Yield the stored bytes of an external tensor in pieces of at most PIECE_BYTES."""
    path, offset, length = locate_external_data(tensor, folder)
    try:
        data_file = path.open("rb")
    except OSError as error:
        raise FileError(f"cannot read the data of tensor {tensor.name!r} in {path}: {error.strerror}") from None
    with data_file as file:
        file.seek(offset)
        # The size was checked before, but another program may change the file while it is read.
        for start in range(0, length, PIECE_BYTES):
            size = min(length - start, PIECE_BYTES)
            data = file.read(size)
            if len(data) < size:
                raise FileError(
                    f"{path} ended while tensor {tensor.name!r} was read: another program shortened the file"
                )
            yield data


def _numpy_type(tensor: TensorProto, elem: int) -> np.dtype[np.generic]:
    """Return the little-endian dtype of an element type; raise ModelError if ONNX does not know the type."""
    try:
        return _find_numpy_type(elem)
    except KeyError:
        raise ModelError(f"tensor {tensor.name!r} has element type {elem}, which ONNX does not know") from None


@cache
def _find_numpy_type(elem: int) -> np.dtype[np.generic]:
    from onnx import helper

    return helper.tensor_dtype_to_np_dtype(elem).newbyteorder("<")  # type: ignore[no-any-return, unused-ignore]
