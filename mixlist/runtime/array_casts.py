"""Cast data to the element type that a model declares.

A cast that only rounds values is done, and the loss is reported. One that would change them (an integer out of range, a
fraction as an integer, a number as text) raises Misfit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from mixlist.runtime.session import Array

STRING, BOOL = 8, 9  # TensorProto.DataType
_BOOLS, _INTEGERS, _FLOATS, _COMPLEX = range(4)  # groups of types; the last two take the values of all before them


class IncompatibleData(Exception):  # noqa: N818 - ``inputs.fit`` makes a UsageError of it
    """Data that does not fit an input."""


def numpy_type(elem: int) -> np.dtype[np.generic]:
    """Return the numpy dtype of an element type (ml_dtypes has those that numpy lacks); object for strings."""
    from onnx import helper

    return helper.tensor_dtype_to_np_dtype(elem)


def integer_bounds(dtype: np.dtype[np.generic]) -> tuple[int, int]:
    """Return the smallest and largest value of an integer type or bool."""
    import ml_dtypes

    if dtype.kind == "b":
        return 0, 1
    limits = ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]
    return int(limits.min), int(limits.max)


def cast_array(array: Array, elem: int) -> tuple[Array, str | None]:
    """Return the values in an element type of ONNX, contiguous and in the machine's byte order; and what was lost.

    Strings become an array of objects, from ``U``, ``S`` (UTF-8) or object arrays. Raw ``V`` values, which is how npy
    files hold the types of ml_dtypes, are read as bfloat16 (two bytes) or as the type itself (one byte).
    """
    import numpy as np

    if elem == STRING:
        return _texts(array), None
    try:
        wanted = numpy_type(elem)
    except KeyError:
        raise IncompatibleData("the model declares no type that data can have") from None
    array = _named(array, wanted)
    if array.dtype.newbyteorder("=") == wanted:
        return np.asarray(array, wanted, order="C"), None
    source, target = _group(array.dtype), _group(wanted)
    if source > target or (source == target and target < _FLOATS) or target == _BOOLS:
        return _exactly(array, wanted), None
    with np.errstate(all="ignore"):
        result: Array = np.asarray(array.astype(wanted), order="C")
        return result, _loss(array, result)


def _named(array: Array, wanted: np.dtype[np.generic]) -> Array:
    """Return the array with a dtype that says what it is; raises for what is no number."""
    import ml_dtypes
    import numpy as np

    raw = array.dtype.kind == "V" and array.dtype.name.startswith("void")
    if raw and array.dtype.itemsize == 2:
        return array.view(np.dtype(ml_dtypes.bfloat16))
    if raw and array.dtype.itemsize == 1 == wanted.itemsize and wanted.kind not in "biuf":
        return array.view(wanted)
    if raw or array.dtype.kind not in "biufcV":
        raise IncompatibleData("the model wants numbers")
    return array


def _group(dtype: np.dtype[np.generic]) -> int:
    """Return the group of a type of numpy or ml_dtypes, by its name: ``uint4``, ``float8_e5m2``, ``bfloat16``."""
    if dtype.name == "bool":
        return _BOOLS
    if dtype.name.startswith(("int", "uint")):
        return _INTEGERS
    return _COMPLEX if dtype.name.startswith("complex") else _FLOATS


def _exactly(array: Array, wanted: np.dtype[np.generic]) -> Array:
    """Cast to bool or an integer type, which must hold every value as it is."""
    import numpy as np

    source = _group(array.dtype)
    if source == _COMPLEX or _group(wanted) == _FLOATS:
        raise IncompatibleData(f"the model wants {wanted.name}")
    low, high = integer_bounds(wanted)
    wide = _wide(array)
    wrong = ~((wide >= low) & (wide <= high))
    if source == _FLOATS:
        # The float next to 2^63 - 1 is 2^63 itself: it is not below the limit, though it compares as equal.
        wrong |= (wide != np.trunc(wide)) | (wide >= float(high) + 1)
    if wrong.any():
        raise IncompatibleData(f"{wide[wrong].flat[0]} is no {wanted.name}")
    return np.asarray(array.astype(wanted), order="C")


def _wide(array: Array) -> NDArray[Any]:
    """Return the same values in a type of numpy's own that compares with any number."""
    import numpy as np

    if array.dtype.kind == "V":
        return array.astype(np.float64 if _group(array.dtype) == _FLOATS else np.int8)
    return array.astype(np.float64) if array.dtype.kind == "f" else array


def _loss(array: Array, result: Array) -> str | None:
    """Describe what a cast changed. Rounding float64 to float32 goes without saying."""
    import numpy as np

    dtype = result.dtype
    if not array.size or array.dtype.kind == "b" or _group(dtype) == _COMPLEX:
        return None
    infinite = int(np.count_nonzero(np.isfinite(array) & ~np.isfinite(result)))
    if infinite:
        return f"{infinite} of {array.size} values are beyond {dtype.name} and were lost"
    if array.dtype == np.float64 and dtype == np.float32:
        return None
    before, after = _wide(array), result.astype(np.float64)
    rounded = int(np.count_nonzero((before != after) & ~(np.isnan(before) & np.isnan(after))))
    return f"{rounded} of {array.size} values were rounded to {dtype.name}" if rounded else None


def _texts(array: NDArray[Any]) -> Array:
    import numpy as np

    kind = array.dtype.kind
    if kind == "S":
        try:
            array = np.char.decode(array, "utf-8")
        except UnicodeDecodeError:
            raise IncompatibleData("the model wants strings, and these bytes are not UTF-8") from None
    elif kind == "O" and all(isinstance(text, str) for text in array.flat):
        return np.asarray(array, order="C")
    elif kind not in "UT":
        raise IncompatibleData("the model wants strings")
    return np.asarray(array.astype(object), order="C")
