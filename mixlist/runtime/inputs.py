"""What a model takes, and making data fit it: names, shapes and types checked, values cast to the declared type.

A cast that changes values only by rounding is done and told; one that would make other values of them (an integer out
of range, a fraction as an integer, a number as text) is an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mixlist.errors import UsageError
from mixlist.ops import types

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

STRING, BOOL = 8, 9  # TensorProto.DataType
_SHOWN = 12  # inputs that a message lists


@dataclass(frozen=True)
class Input:
    """One input of a model's main graph.

    ``shape``: a size, a symbolic name, or None for each axis; None if the model does not say how many axes there are.
    Of a sequence or optional it is that of the content. ``optional``: it may be missing, because an initializer of the
    same name is its default or because its type is an optional.
    """

    name: str
    type: types.Type
    shape: tuple[int | str | None, ...] | None
    optional: bool

    def __str__(self) -> str:
        return f"{self.name}: {shown(self.type, self.shape)}{' (may be missing)' if self.optional else ''}"


def model_inputs(proto: Any) -> tuple[Input, ...]:
    """The inputs of a ModelProto's main graph, in its order."""
    graph = proto.graph
    defaults = {t.name for t in graph.initializer} | {t.values.name for t in graph.sparse_initializer}
    found = []
    for value in graph.input:
        kind = types.from_proto(value.type)
        optional = value.name in defaults or (isinstance(kind, tuple) and kind[0] == "optional")
        found.append(Input(value.name, kind, declared_shape(value.type), optional))
    return tuple(found)


def declared_shape(kind: Any) -> tuple[int | str | None, ...] | None:
    """The shape of a TypeProto's tensor, inside any container; None where it is not told."""
    which = kind.WhichOneof("value")
    if which in ("sequence_type", "optional_type"):
        return declared_shape(getattr(kind, which).elem_type)
    if which != "tensor_type" or not kind.tensor_type.HasField("shape"):
        return None
    return tuple(
        d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else d.dim_param or None
        for d in kind.tensor_type.shape.dim
    )


def shown(kind: types.Type, shape: Sequence[int | str | None] | None) -> str:
    """A type and shape in words: ``float32[N, 4]``, ``?`` for a size nobody named, ``int64[]`` for a scalar."""
    if isinstance(kind, tuple):
        return f"{kind[0]}({shown(kind[1], shape)})"
    sizes = "..." if shape is None else ", ".join("?" if size is None else str(size) for size in shape)
    return f"{types.type_name(kind)}[{sizes}]"


def found(value: Any) -> str:
    """What some data is, in the same words."""
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}" + (f", the first {found(value[0])}" if value else "")
    if value is None or not hasattr(value, "dtype"):
        return type(value).__name__
    return f"{value.dtype.name or value.dtype}[{', '.join(map(str, value.shape))}]"


def fit(given: Mapping[str, Any], inputs: Sequence[Input], where: str) -> tuple[dict[str, Any], dict[str, str]]:
    """The feed that ``given`` makes for a model: input name -> array of the declared type, in the model's order.

    ``where`` names the data in messages. Also returns what was lost, by input. Raises UsageError, which shows what the
    model wants and what was found.
    """
    names = {i.name for i in inputs}
    missing = [i.name for i in inputs if not i.optional and i.name not in given]
    unknown = [name for name in given if name not in names]
    if missing or unknown:
        raise UsageError(f"{where}: {_names_problem(missing, unknown, names)}", hint=_comparison(given, inputs))
    feed: dict[str, Any] = {}
    lost: dict[str, str] = {}
    for wanted in inputs:
        if wanted.name not in given:
            continue
        try:
            feed[wanted.name], note = _value(given[wanted.name], wanted.type, wanted.shape)
        except _Misfit as problem:
            text = f"{where}: input {wanted.name!r} is {found(given[wanted.name])}: {problem}"
            raise UsageError(text, hint=_comparison(given, inputs)) from None
        if note:
            lost[wanted.name] = note
    return feed, lost


class _Misfit(Exception):  # noqa: N818 - caught in this module
    """Why data does not fit an input."""


def _names_problem(missing: Sequence[str], unknown: Sequence[str], names: set[str]) -> str:
    from mixlist.lists.suggestions import did_you_mean

    told = []
    if missing:
        told.append(f"no data for input{'s' * (len(missing) > 1)} {_quoted(missing)}")
    if unknown:
        near = did_you_mean(unknown[0], names) if len(unknown) == 1 else None
        told.append(f"the model has no input {_quoted(unknown)}" + (f" ({near.rstrip('?')}?)" if near else ""))
    return "; ".join(told)


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names[:_SHOWN]) + (" ..." if len(names) > _SHOWN else "")


def _comparison(given: Mapping[str, Any], inputs: Sequence[Input]) -> str:
    wants = [f"  {each}" for each in inputs[:_SHOWN]] + ["  ..."] * (len(inputs) > _SHOWN)
    holds = [f"  {name}: {found(value)}" for name, value in list(given.items())[:_SHOWN]]
    return "\n".join(["the model wants", *wants, "the data holds", *(holds or ["  nothing"])])


def _value(value: Any, kind: types.Type, shape: tuple[int | str | None, ...] | None) -> tuple[Any, str | None]:
    """The data as the runtime takes it for a type, and what was lost."""
    import numpy as np

    if not isinstance(kind, tuple):
        try:
            array = np.asarray(value)
        except ValueError:
            raise _Misfit("its rows differ in length") from None
        _check_shape(array.shape, shape)
        return cast(array, kind)
    if kind[0] == "optional":
        return (None, None) if value is None else _value(value, kind[1], shape)
    if kind[0] != "seq":
        raise _Misfit(f"a {kind[0]} cannot be given as data")
    if not isinstance(value, list | tuple):
        raise _Misfit("the model wants a sequence, which a test_data_set directory can hold")
    parts = [_value(part, kind[1], shape) for part in value]
    return [part for part, _ in parts], next((note for _, note in parts if note), None)


def _check_shape(shape: tuple[int, ...], wanted: tuple[int | str | None, ...] | None) -> None:
    if wanted is None:
        return
    if len(shape) != len(wanted):
        raise _Misfit(f"the model wants {len(wanted)} axes")
    for axis, (size, want) in enumerate(zip(shape, wanted, strict=True)):
        if isinstance(want, int) and size != want:
            raise _Misfit(f"the model wants {want} along axis {axis}")


# --- casting ---


def numpy_type(elem: int) -> Any:
    """The numpy dtype of an element type (ml_dtypes has those that numpy lacks); object for strings."""
    from onnx import helper

    return helper.tensor_dtype_to_np_dtype(elem)


def cast(array: Array, elem: int) -> tuple[Array, str | None]:
    """The values in an element type of ONNX, contiguous and in the machine's byte order; and what was lost.

    Strings become an array of objects, from ``U``, ``S`` (UTF-8) or object arrays. Raw ``V`` values, which is how npy
    files hold the types of ml_dtypes, are taken for bfloat16 (two bytes) or for the type itself (one byte).
    """
    import numpy as np

    if elem == STRING:
        return _texts(array), None
    wanted = numpy_type(elem)
    array = _named(array, wanted)
    if array.dtype.newbyteorder("=") == wanted:
        return np.asarray(array, wanted, order="C"), None
    source, target = _group(array.dtype), _group(wanted)
    if source not in _LOSSLESS[target]:
        return _exactly(array, source, wanted, target), None
    with np.errstate(all="ignore"):
        made = np.asarray(array.astype(wanted), order="C")
        return made, _loss(array, made, wanted)


_LOSSLESS: dict[str, tuple[str, ...]] = {  # which groups a group takes with at most a rounding
    "bool": (),
    "int": ("bool",),
    "float": ("bool", "int", "float"),
    "complex": ("bool", "int", "float", "complex"),
}


def _named(array: Array, wanted: Any) -> Array:
    """The array with a dtype that says what it is; raises for what is no number."""
    import ml_dtypes
    import numpy as np

    raw = array.dtype.kind == "V" and array.dtype.name.startswith("void")
    if raw and array.dtype.itemsize == 2:
        return array.view(np.dtype(ml_dtypes.bfloat16))
    if raw and array.dtype.itemsize == 1 == wanted.itemsize and wanted.kind not in "biuf":
        return array.view(wanted)
    if raw or array.dtype.kind not in "biufcV":
        raise _Misfit("the model wants numbers")
    return array


def _group(dtype: Any) -> str:
    name = str(dtype.name)
    return "bool" if name == "bool" else next((g for g in ("int", "complex") if name.startswith((g, f"u{g}"))), "float")


def _exactly(array: Array, source: str, wanted: Any, target: str) -> Array:
    """To bool or an integer type, which must hold every value as it is."""
    import ml_dtypes
    import numpy as np

    if source == "complex" or target == "float":
        raise _Misfit(f"the model wants {wanted.name}")
    limits: Any = None if target == "bool" else ml_dtypes.iinfo(wanted)  # type: ignore[no-untyped-call]
    low, high = (0, 1) if limits is None else (int(limits.min), int(limits.max))
    wide = _wide(array)
    wrong = ~((wide >= low) & (wide <= high))
    if source == "float":
        # The float next to 2^63 - 1 is 2^63 itself: it is not below the limit, though it compares as equal.
        wrong |= (wide != np.trunc(wide)) | (wide >= float(high) + 1)
    if wrong.any():
        raise _Misfit(f"{wide[wrong].flat[0]} is no {wanted.name}")
    return np.asarray(array.astype(wanted), order="C")


def _wide(array: Array) -> Array:
    """The same values in a type of numpy's own that compares with any number."""
    import numpy as np

    if array.dtype.kind == "V":
        return array.astype(np.float64 if _group(array.dtype) == "float" else np.int8)
    return array.astype(np.float64) if array.dtype.kind == "f" else array


def _loss(array: Array, made: Array, wanted: Any) -> str | None:
    """What a cast to a wider group changed. Rounding float64 to float32 goes without saying."""
    import numpy as np

    if not array.size or _group(array.dtype) == "bool" or _group(wanted) == "complex":
        return None
    infinite = int(np.count_nonzero(np.isfinite(array) & ~np.isfinite(made)))
    if infinite:
        return f"{infinite} of {array.size} values are beyond {wanted.name} and were lost"
    if array.dtype == np.float64 and wanted == np.float32:
        return None
    before, after = _wide(array), made.astype(np.float64)
    rounded = int(np.count_nonzero((before != after) & ~(np.isnan(before) & np.isnan(after))))
    return f"{rounded} of {array.size} values were rounded to {wanted.name}" if rounded else None


def _texts(array: Array) -> Array:
    import numpy as np

    kind = array.dtype.kind
    if kind == "S":
        try:
            array = np.char.decode(array, "utf-8")
        except UnicodeDecodeError:
            raise _Misfit("the model wants strings, and these bytes are not UTF-8") from None
    elif kind == "O" and all(isinstance(text, str) for text in array.flat):
        return np.asarray(array, order="C")
    elif kind not in "UT":
        raise _Misfit("the model wants strings")
    return np.asarray(array.astype(object), order="C")
