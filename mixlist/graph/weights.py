"""Reading the numbers of a constant, piece by piece, wherever they are: in the model, in an attribute, beside it.

External data is judged by the text of its path: one that climbs out of the model's folder is refused. A
symbolic link is followed, since model hubs lay weight files that way.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from math import prod
from pathlib import Path
from posixpath import normpath
from typing import TYPE_CHECKING, TypeGuard, TypeVar

from mixlist.errors import FileError, ModelError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from onnx import TensorProto

    from mixlist.graph.proto_types import ConstantProto

PieceT = TypeVar("PieceT")
PIECE_BYTES = 2 * 2**20  # bytes held at a time: what a core can keep in its cache from one step to the next
EXTERNAL = 1  # TensorProto.DataLocation.EXTERNAL
MIXLIST_KEY_PREFIX = (
    "pkg.mixlist."  # begins the external_data keys that mixlist adds to models in memory, never to files
)
STORED_TYPE = "pkg.mixlist.from"  # external_data key: the bytes still lie there in this element type, to be converted
LOSSLESS = "pkg.mixlist.exact"  # external_data key beside PENDING: the conversion changes no number


def is_external(constant: ConstantProto) -> TypeGuard[TensorProto]:
    """Return whether the bytes of a constant lie in another file."""
    return getattr(constant, "data_location", None) == EXTERNAL  # only a TensorProto has one


def stored_type(tensor: TensorProto) -> int:
    """The element type of the bytes as they lie: the declared one unless a conversion is pending."""
    entries = tensor.external_data if is_external(tensor) else ()
    return next((int(entry.value) for entry in entries if entry.key == STORED_TYPE), tensor.data_type)


def declare_stored_type(tensor: TensorProto, elem: int) -> bool:
    """Declare an external tensor as the type in which its numbers lie, if that is ``elem`` and they are the same."""
    if stored_type(tensor) != elem or all(entry.key != LOSSLESS for entry in tensor.external_data):
        return False
    for entry in [entry for entry in tensor.external_data if entry.key in (STORED_TYPE, LOSSLESS)]:
        tensor.external_data.remove(entry)
    tensor.data_type = elem
    return True


def external_entries(tensor: TensorProto) -> dict[str, str]:
    """Return the ``external_data`` entries of a tensor, by key.

    Raises ModelError for a key that is there twice: ONNX Runtime refuses it, and other readers take the first or the
    last. The guard of a model's data files and their reader both call this function, so they use the same files.
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
    """Return the data file of an external tensor, and the offset and number of its bytes in the file.

    Raises ModelError or FileError naming the tensor and the path.
    """
    entries = external_entries(tensor)
    location = entries.get("location", "")
    if not location:
        raise ModelError(f"external tensor {tensor.name!r} names no location")
    if folder is None:
        raise ModelError(
            f"tensor {tensor.name!r} lies in {location!r}, beside a model that has no path",
            hint="give the model as a path",
        )
    if leaves_folder(location):
        raise ModelError(
            f"external tensor {tensor.name!r} points out of the model's folder: {location!r}",
            hint="external data must lie in the model's folder or below",
        )
    path = folder / location
    try:
        status = path.stat()
    except OSError as problem:
        raise FileError(
            f"external data of tensor {tensor.name!r} is missing: {path} ({problem.strerror})",
            hint="copy the data file beside the model",
        ) from None
    if not stat.S_ISREG(status.st_mode):
        raise FileError(f"external data of tensor {tensor.name!r} is no file: {path}")
    size = status.st_size
    try:
        offset = int(entries.get("offset") or 0)
        length = int(entries["length"]) if entries.get("length") else stored_byte_size(tensor)
    except ValueError:
        raise ModelError(f"external tensor {tensor.name!r} has an offset or length that is no number") from None
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
    """Return True if a location leaves the folder (absolute, with a drive, or through ``..``), or is no path at all."""
    first = normpath(location.replace("\\", "/")).partition("/")[0]  # "" for an absolute path
    return first in ("..", "") or location[1:2] == ":" or "\0" in location


def stored_element_count(constant: ConstantProto) -> int:
    """Return the number of elements that a TensorProto, a Constant's attribute or a sparse tensor stores."""
    from onnx import AttributeProto, SparseTensorProto

    if isinstance(constant, AttributeProto):
        return len(constant.floats) if constant.name == "value_floats" else 1
    if isinstance(constant, SparseTensorProto):
        constant = constant.values
    return prod(constant.dims)


def stores_all_elements(constant: ConstantProto) -> bool:
    """Return whether a constant stores all of its elements: a sparse tensor leaves out zeros."""
    from onnx import SparseTensorProto

    return not isinstance(constant, SparseTensorProto) or prod(constant.dims) == prod(constant.values.dims)


def stored_byte_size(tensor: TensorProto) -> int:
    """Bytes that the dense values of a tensor take where they lie now."""
    return _bytes_as(tensor, stored_type(tensor))


def declared_byte_size(tensor: TensorProto) -> int:
    """Bytes that the dense values of a tensor take in the type that the model declares."""
    return _bytes_as(tensor, tensor.data_type)


def _bytes_as(tensor: TensorProto, elem: int) -> int:
    bits = {21: 4, 22: 4, 23: 4, 25: 2, 26: 2}.get(elem) or 8 * _numpy_type(tensor, elem).itemsize
    return (stored_element_count(tensor) * bits + 7) // 8


def read_pieces(constant: ConstantProto, folder: Path | None) -> Iterator[NDArray[np.generic]]:
    """Yield the values as flat arrays of at most PIECE bytes, in the constant's own dtype (bfloat16 by ml_dtypes)."""
    import numpy as np
    from onnx import AttributeProto, SparseTensorProto

    if isinstance(constant, SparseTensorProto):
        yield from read_pieces(constant.values, folder)
    elif isinstance(constant, AttributeProto):
        yield np.array(constant.floats if constant.name == "value_floats" else [constant.f], np.float32)
    elif is_external(constant):
        read, dtype = _read(constant, folder), _numpy_type(constant, stored_type(constant))
        for data in prefetch(read) if stored_byte_size(constant) > PIECE_BYTES else read:
            yield np.frombuffer(data, dtype)
    elif constant.HasField("raw_data"):
        data = constant.raw_data
        if len(data) != stored_byte_size(constant):
            raise ModelError(
                f"tensor {constant.name!r} has {len(data)} bytes, its shape needs {stored_byte_size(constant)}"
            )
        flat = np.frombuffer(data, _numpy_type(constant, stored_type(constant)))
        step = max(PIECE_BYTES // flat.itemsize, 1)
        for start in range(0, flat.size, step):
            yield flat[start : start + step]
    else:
        yield embedded_array(constant).reshape(-1)


def read_raw_pieces(tensor: TensorProto, folder: Path | None) -> Iterator[bytes]:
    """The bytes of any TensorProto's values as they lie, at most PIECE at a time."""
    if is_external(tensor):
        yield from _read(tensor, folder)
    elif tensor.HasField("raw_data"):
        yield tensor.raw_data
    else:
        from onnx import numpy_helper

        yield numpy_helper.from_array(embedded_array(tensor)).raw_data


def embedded_array(tensor: TensorProto) -> NDArray[np.generic]:
    """Return the values of a tensor that holds them itself; raises ModelError if they do not fit its type and shape."""
    from onnx import numpy_helper

    try:
        return numpy_helper.to_array(tensor)  # type: ignore[no-any-return, unused-ignore]
    except (ValueError, TypeError, KeyError) as error:
        raise ModelError(f"tensor {tensor.name!r} is damaged: {error}") from None


def prefetch(made: Iterator[PieceT]) -> Iterator[PieceT]:
    """The same pieces, each made by another thread while the one before it is used.

    Reading, numpy, ONNX Runtime and writing all leave the interpreter to others meanwhile. An error comes where
    its piece would have come.
    """
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as worker:
        coming = worker.submit(next, made, None)
        while (piece := coming.result()) is not None:
            coming = worker.submit(next, made, None)
            yield piece


def _read(tensor: TensorProto, folder: Path | None) -> Iterator[bytes]:
    """Yield the bytes of an external tensor as they lie, PIECE at a time."""
    path, offset, length = locate_external_data(tensor, folder)
    try:
        opened = path.open("rb")
    except OSError as problem:
        raise FileError(f"cannot read the data of tensor {tensor.name!r} in {path}: {problem.strerror}") from None
    with opened as file:
        file.seek(offset)
        for start in range(0, length, PIECE_BYTES):
            size = min(length - start, PIECE_BYTES)
            data = file.read(size)
            if len(data) < size:
                raise FileError(f"{path} ended while tensor {tensor.name!r} was read")
            yield data


def _numpy_type(tensor: TensorProto, elem: int) -> np.dtype[np.generic]:
    from onnx import helper

    try:
        return helper.tensor_dtype_to_np_dtype(elem).newbyteorder("<")
    except KeyError:
        raise ModelError(f"tensor {tensor.name!r} has element type {elem}, which ONNX does not know") from None
