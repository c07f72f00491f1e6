"""Cast arrays to the element type that a model declares.

A cast that only rounds values is allowed, and the loss is reported. A cast that would change values in another way (an
integer out of range, a fraction as an integer, a number as text) raises IncompatibleData.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from mixlist.runtime.session import Array

STRING, BOOL = 8, 9  # TensorProto.DataType
# Groups of types. A type can represent the values of each lower group, but it may round them.
_BOOLS, _INTEGERS, _FLOATS, _COMPLEX = range(4)


class IncompatibleData(Exception):  # noqa: N818 - ``inputs.make_feed`` turns it into a UsageError
    """Data that an input of a model cannot take."""


def numpy_type(elem: int) -> np.dtype[np.generic]:
    """Return the numpy dtype of any ONNX element type: of ml_dtypes where numpy has none, object for strings."""
    from onnx import helper

    return helper.tensor_dtype_to_np_dtype(elem)


def integer_bounds(dtype: np.dtype[np.generic]) -> tuple[int, int]:
    """Return the smallest and the largest value of an integer type or bool."""
    import ml_dtypes

    if dtype.kind == "b":
        return 0, 1
    limits = ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]
    return int(limits.min), int(limits.max)


def cast_array(array: Array, elem: int) -> tuple[Array, str | None]:
    """Return the array in an ONNX element type, and a text about the values that the cast changed (None if none).

    The result is contiguous and in the byte order of the machine. Strings become an array of objects; they may come
    from ``U``, ``S`` (UTF-8) or object arrays. npy files store the types of ml_dtypes as raw ``V`` values. These are
    read as bfloat16 if they have two bytes, and as the requested type if they have one byte. Raises IncompatibleData.
    """
    import numpy as np

    if elem == STRING:
        return _cast_to_strings(array), None
    try:
        dtype = numpy_type(elem)
    except KeyError:
        raise IncompatibleData("the model declares a type that no data can have") from None
    array = _view_as_numbers(array, dtype)
    # Files may hold the other byte order: compare the types without it. The conversion below changes it.
    if array.dtype.newbyteorder("=") == dtype:
        return np.asarray(array, dtype, order="C"), None
    source, target = _group(array.dtype), _group(dtype)
    # float -> int, int -> another int, and any type -> bool must keep every value. int -> float and float -> float may
    # round. complex -> float is refused.
    if source > target or (source == target and target < _FLOATS) or target == _BOOLS:
        return _cast_exactly(array, dtype), None
    with np.errstate(all="ignore"):
        result: Array = np.asarray(array.astype(dtype), order="C")
        return result, _describe_loss(array, result)


def _view_as_numbers(array: Array, dtype: np.dtype[np.generic]) -> Array:
    """Return the array with a numeric dtype: raw values are viewed as bfloat16 or as ``dtype``.

    Raises IncompatibleData for an array that has no numbers.
    """
    import ml_dtypes
    import numpy as np

    # The types of ml_dtypes have the kind V too, but a name of their own, such as ``bfloat16``.
    is_raw = array.dtype.kind == "V" and array.dtype.name.startswith("void")
    if is_raw and array.dtype.itemsize == 2:
        return array.view(np.dtype(ml_dtypes.bfloat16))
    # Types of numpy (kinds b, i, u, f) are never raw: npy files store only the types of ml_dtypes in this way.
    if is_raw and array.dtype.itemsize == 1 == dtype.itemsize and dtype.kind not in "biuf":
        return array.view(dtype)
    if is_raw or array.dtype.kind not in "biufcV":
        raise IncompatibleData("the model expects numbers")
    return array


def _group(dtype: np.dtype[np.generic]) -> int:
    """Return the group of a dtype of numpy or ml_dtypes by its name: ``uint4``, ``float8_e5m2``, ``bfloat16``."""
    if dtype.name == "bool":
        return _BOOLS
    if dtype.name.startswith(("int", "uint")):
        return _INTEGERS
    return _COMPLEX if dtype.name.startswith("complex") else _FLOATS


def _cast_exactly(array: Array, dtype: np.dtype[np.generic]) -> Array:
    """Return the array as bool or integers. Raises IncompatibleData if a value would change."""
    import numpy as np

    source = _group(array.dtype)
    if source == _COMPLEX or _group(dtype) == _FLOATS:
        raise IncompatibleData(f"the model expects {dtype.name}")
    low, high = integer_bounds(dtype)
    values = _as_comparable(array)
    is_lost = ~((values >= low) & (values <= high))
    if source == _FLOATS:
        # As a float, the largest int64 (2^63 - 1) is rounded to 2^63. So the comparison above accepts the value 2^63,
        # which is beyond int64.
        is_lost |= (values != np.trunc(values)) | (values >= float(high) + 1)
    if is_lost.any():
        raise IncompatibleData(f"{values[is_lost].flat[0]} cannot be represented as {dtype.name}")
    return np.asarray(array.astype(dtype), order="C")


def _as_comparable(array: Array) -> NDArray[Any]:
    """Return the same values in a type of numpy that can be compared with any number; ml_dtypes cannot."""
    import numpy as np

    if array.dtype.kind == "V":
        return array.astype(np.float64 if _group(array.dtype) == _FLOATS else np.int8)
    return array.astype(np.float64) if array.dtype.kind == "f" else array


def _describe_loss(array: Array, result: Array) -> str | None:
    """Return a text about the values that a cast changed.

    Returns None if it changed none, or only rounded float64 to float32.
    """
    import numpy as np

    dtype = result.dtype
    if not array.size or array.dtype.kind == "b" or _group(dtype) == _COMPLEX:
        return None
    # A lost value is reported before rounded ones, because it is worse.
    overflow_count = int(np.count_nonzero(np.isfinite(array) & ~np.isfinite(result)))
    if overflow_count:
        return f"{overflow_count} of {array.size} values are beyond the range of {dtype.name} and were lost"
    # float64 is the default type of numpy, so most data files for float32 models hold it: no reason for a warning.
    if array.dtype == np.float64 and dtype == np.float32:
        return None
    before, after = _as_comparable(array), result.astype(np.float64)
    rounded_count = int(np.count_nonzero((before != after) & ~(np.isnan(before) & np.isnan(after))))
    return f"{rounded_count} of {array.size} values were rounded to {dtype.name}" if rounded_count else None


def _cast_to_strings(array: NDArray[Any]) -> Array:
    import numpy as np

    kind = array.dtype.kind
    if kind == "S":
        try:
            array = np.char.decode(array, "utf-8")
        except UnicodeDecodeError:
            raise IncompatibleData("the model expects strings, and these bytes are not UTF-8") from None
    elif kind == "O" and all(isinstance(text, str) for text in array.flat):
        return np.asarray(array, order="C")
    elif kind not in "UT":
        raise IncompatibleData("the model expects strings")
    return np.asarray(array.astype(object), order="C")
