"""The inputs of a model, and the conversion of data to feeds for them.

``make_feed`` takes arrays by name. It checks names, shapes and types, and casts the values. A cast that only
rounds values is allowed, and the loss is reported. A cast that would change values in another way (an integer out of
range, a fraction as an integer, a number as text) raises IncompatibleData.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from mixlist.errors import UsageError
from mixlist.lists.suggestions import choices_hint, did_you_mean
from mixlist.model import dtypes
from mixlist.option_spelling import spell

if TYPE_CHECKING:
    from onnx import ModelProto, TypeProto

    Shape = tuple[int | str | None, ...]
    import numpy as np
    from numpy.typing import NDArray

    from mixlist.run.session import Array

_PICTURE_RANK = 4  # of a batch of pictures: [N, C, H, W] or [N, H, W, C]
_MAX_LISTED = 12  # inputs that a message lists
# No real model of the project's collection has a sequence or an optional as an input (Rule S4.29).
ONLY_TENSORS = "and mixlist gives inputs tensors only"
# Groups of types. A type can represent the values of each lower group, but it may round them.
_BOOLS, _INTEGERS, _FLOATS, _COMPLEX = range(4)


class Input(NamedTuple):
    """One input of a model's main graph.

    shape: for each axis a size, a symbolic name, or None; None if the model does not declare the number of axes. The
        shape of a sequence or optional is that of its elements.
    optional: data may omit the input, because an initializer of the same name is its default or because its type is an
        optional.
    """

    name: str
    type: dtypes.Type
    shape: Shape | None
    optional: bool

    def __str__(self) -> str:
        return f"{self.name}: {describe_type(self.type, self.shape)}{' (may be missing)' if self.optional else ''}"


def model_inputs(proto: ModelProto) -> tuple[Input, ...]:
    """Return the inputs of the main graph, in its order."""
    graph = proto.graph
    # An initializer with the name of an input is its default. The values of a sparse initializer hold its name.
    defaults = {t.name for t in graph.initializer} | {t.values.name for t in graph.sparse_initializer}
    inputs = []
    for value in graph.input:
        value_type = dtypes.from_proto(value.type)
        optional = value.name in defaults or (isinstance(value_type, tuple) and value_type[0] == "optional")
        inputs.append(Input(value.name, value_type, declared_shape(value.type), optional))
    return tuple(inputs)


def refuse_unknown_inputs(option: str, names: Iterable[str], inputs: Sequence[Input]) -> None:
    """Raise UsageError if the value of an option names an input that the model does not have."""
    known_names = [model_input.name for model_input in inputs]
    for name in names:
        if name not in known_names:
            hint = choices_hint(name, known_names, "the inputs are")
            raise UsageError(f"{spell(option)}: the model has no input {name!r}", hint=hint)


def declared_shape(type_proto: TypeProto) -> Shape | None:
    """Return the declared shape of a tensor, or of the tensors in a sequence or optional; None if there is none."""
    while type_proto.HasField("sequence_type") or type_proto.HasField("optional_type"):
        is_sequence = type_proto.HasField("sequence_type")
        type_proto = type_proto.sequence_type.elem_type if is_sequence else type_proto.optional_type.elem_type
    if not type_proto.tensor_type.HasField("shape"):
        return None
    return tuple(
        # Some exporters write -1 for an unknown size.
        d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else d.dim_param or None
        for d in type_proto.tensor_type.shape.dim
    )


def describe_type(value_type: dtypes.Type, shape: Shape | None) -> str:
    """Return a type and shape as text: ``float32[N, 4]``, ``float32[?]``, ``int64[]``.

    ``?`` is a size without a name, ``[]`` a scalar, and ``[...]`` an unknown number of axes.
    """
    if isinstance(value_type, tuple):
        return f"{value_type[0]}({describe_type(value_type[1], shape)})"
    sizes = "..." if shape is None else ", ".join("?" if size is None else str(size) for size in shape)
    return f"{dtypes.type_name(value_type)}[{sizes}]"


def _describe_value(value: Any) -> str:
    """Return the type and shape of a value in the data, in the form of ``describe_type``."""
    if isinstance(value, list | tuple):
        return f"a list of length {len(value)}" + (f" that starts with {_describe_value(value[0])}" if value else "")
    if value is None or not hasattr(value, "dtype"):
        return type(value).__name__
    # Not every package names its types as numpy does.
    dtype = getattr(value.dtype, "name", "") or str(value.dtype)
    return f"{dtype}[{', '.join(map(str, value.shape))}]"


def make_feed(
    data: Mapping[str, object], inputs: Sequence[Input], data_name: str
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the feed with the values of ``data``, and a text about each input whose values the cast changed.

    The feed has arrays of the declared types, in the order of the inputs. ``data_name`` identifies the data in
    messages. Raises UsageError, which shows the inputs of the model and the arrays of the data.
    """
    # Check all names first, so that one message shows every wrong name.
    names = {model_input.name for model_input in inputs}
    missing = [model_input.name for model_input in inputs if not model_input.optional and model_input.name not in data]
    unknown = [name for name in data if name not in names]
    if missing or unknown:
        problem = _describe_wrong_names(missing, unknown, names)
        raise UsageError(f"{data_name}: {problem}", hint=_comparison_hint(data, inputs))
    feed: dict[str, Any] = {}
    losses: dict[str, str] = {}
    for model_input in inputs:
        name = model_input.name
        # An optional input without data stays out of the feed: ONNX Runtime uses its default.
        if name not in data:
            continue
        try:
            feed[name], loss = _convert_value(data[name], model_input.type, model_input.shape)
        except IncompatibleData as error:
            text = f"{data_name}: input {name!r} is {_describe_value(data[name])}: {error}"
            raise UsageError(text, hint=_comparison_hint(data, inputs)) from None
        if loss:
            losses[name] = loss
    return feed, losses


def _describe_wrong_names(missing: Sequence[str], unknown: Sequence[str], names: set[str]) -> str:
    """Return a text about inputs without data and data without an input; ``names`` are those of all inputs."""
    problems = []
    if missing:
        problems.append(f"no data for input{'s' * (len(missing) > 1)} {_quote_names(missing)}")
    if unknown:
        suggestion = did_you_mean(unknown[0], names) if len(unknown) == 1 else None
        suffix = f" ({suggestion.rstrip('?')}?)" if suggestion else ""
        problems.append(f"the model has no input {_quote_names(unknown)}{suffix}")
    return "; ".join(problems)


def _quote_names(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names[:_MAX_LISTED]) + (" ..." if len(names) > _MAX_LISTED else "")


def _comparison_hint(data: Mapping[str, object], inputs: Sequence[Input]) -> str:
    """Return a hint that lists the inputs of the model and the arrays in the data."""
    expected = [str(model_input) for model_input in inputs[:_MAX_LISTED]] + ["..."] * (len(inputs) > _MAX_LISTED)
    contained = [f"{name}: {_describe_value(value)}" for name, value in list(data.items())[:_MAX_LISTED]]
    return f"the model expects {', '.join(expected)}; the data contains {', '.join(contained) or 'nothing'}"


def _convert_value(value: object, value_type: dtypes.Type, shape: Shape | None) -> tuple[Array, str | None]:
    """Return a value as an array of the type of its input, and a text about values that changed, or else about NaN."""
    import numpy as np

    if isinstance(value_type, tuple):
        raise IncompatibleData(f"the model expects another value, {ONLY_TENSORS}")
    try:
        array = np.asarray(value)
    except ValueError:
        raise IncompatibleData("its rows have different lengths") from None
    _check_shape(array.shape, shape)
    result, loss = cast_array(array, value_type)
    is_float = value_type in dtypes.FLOATS or value_type == dtypes.DOUBLE
    nan_count = int(np.count_nonzero(np.isnan(result))) if is_float else 0
    return result, loss or (f"{nan_count} of {result.size} values are NaN" if nan_count else None)


def _check_shape(shape: tuple[int, ...], declared: Shape | None) -> None:
    """Raise IncompatibleData if a shape contradicts the declared one."""
    if declared is None:
        return
    if len(shape) != len(declared):
        raise IncompatibleData(f"the model expects {len(declared)} axes")
    for axis, (size, declared_size) in enumerate(zip(shape, declared, strict=True)):
        if isinstance(declared_size, int) and size != declared_size:
            raise IncompatibleData(f"the model expects {declared_size} along axis {axis}")


# --- casts ---


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

    if elem == dtypes.STRING:
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

    Returns None if it changed none, or only rounded float64 to float32. Integers that look like pixels have a text:
    they may lack a scale, or have lost their fractions.
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
    if rounded_count:
        return f"{rounded_count} of {array.size} values were rounded to {dtype.name}"
    if array.dtype.kind not in "iu":
        return None
    smallest, largest = array.min(), array.max()
    # Pixels of 0 to 255, where most networks want 0 to 1; smaller numbers can be masks or counts.
    if smallest >= 0 and 127 < largest <= 255:
        return f"the data are {array.dtype.name}, taken as {dtype.name} without a scale"
    # Pixels of -1 to 1 that became integers. Masks have two values, too, but rarely this rank.
    if array.ndim == _PICTURE_RANK and smallest >= -1 and largest <= 1:
        return f"the data are {array.dtype.name} from {smallest} to {largest}: fractions were lost if they are pixels"
    return None


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
