"""Read ``.bin`` files: the values of one input in its declared type, little-endian, without a header.

``np.ndarray.tofile``, the dumps of an Ascend device and most programs in C++ write such files.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from mixlist.errors import FileError, UsageError
from mixlist.files.regular_files import open_regular
from mixlist.ops import dtypes
from mixlist.runtime.array_casts import BOOL, STRING, numpy_type
from mixlist.runtime.inputs import Input, describe_type
from mixlist.text_escapes import quote_argument

if TYPE_CHECKING:
    from mixlist.runtime.session import Array

_PACKED_TYPES = frozenset({21, 22, 23, 25, 26})  # of 2 and 4 bits: programs pack several of them into a byte or not


def read_raw(path: Path, model_input: Input, shapes: Mapping[str, tuple[int, ...]]) -> Array:
    """Return the values of a ``.bin`` file for an input. Bools are the uint8 values of the file.

    ``shapes``: the shapes of ``--shape`` by input name. The declared shape is used if it has no open size. Raises
    UsageError for an unknown shape, another number of bytes, and a type without a raw form, and FileError if the file
    cannot be read.
    """
    import numpy as np

    elem, name = model_input.type, model_input.name
    if isinstance(elem, tuple) or elem in (STRING, dtypes.UNKNOWN) or elem in _PACKED_TYPES:
        raise UsageError(
            f"{path}: input {model_input} cannot come from a .bin file",
            hint="numbers of 8 bits or more can; write a .npz file of inputs by name with numpy.savez",
        )
    shape = _choose_shape(path, model_input, shapes)
    dtype = np.dtype(np.uint8) if elem == BOOL else numpy_type(elem)
    if dtype.kind in "iufc":  # the types of ml_dtypes have no other byte order
        dtype = dtype.newbyteorder("<")
    try:
        with open_regular(path) as file:
            content = file.read()
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}") from None
    expected = prod(shape) * dtype.itemsize
    if len(content) != expected:
        raise UsageError(
            f"{path} has {len(content)} bytes, but input {name}: {describe_type(elem, shape)} takes {expected}",
            hint=f"write the values of one batch in {dtypes.type_name(elem)} without a header, and give their shape:"
            f" --shape {name}={_shape_text(shape)}",
        )
    return np.frombuffer(content, dtype).reshape(shape)


def _choose_shape(path: Path, model_input: Input, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    """Return the shape of ``--shape``, or the declared one. Raises UsageError if that has open sizes."""
    name, declared = model_input.name, model_input.shape
    if name in shapes:
        return shapes[name]
    sizes = [size for size in declared or () if isinstance(size, int)]
    if declared is not None and len(sizes) == len(declared):
        return tuple(sizes)
    example = _shape_text([size if isinstance(size, int) else 8 for size in declared or (2, 8)])
    raise UsageError(
        f"{path} has no shape, and input {model_input} leaves sizes open",
        hint=f"give the shape of one batch, for example --shape {quote_argument(f'{name}={example}')}",
    )


def _shape_text(shape: tuple[int, ...] | list[int]) -> str:
    return ",".join(map(str, shape))
