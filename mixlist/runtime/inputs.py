"""The inputs of a model, and the conversion of data to feeds for them.

``make_feed`` takes arrays by name. It checks names, shapes and types, and casts the values (see ``array_casts``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mixlist.errors import UsageError
from mixlist.ops import dtypes
from mixlist.runtime.array_casts import IncompatibleData, cast_array

if TYPE_CHECKING:
    from onnx import ModelProto, TypeProto

    Shape = tuple[int | str | None, ...]

_MAX_LISTED = 12  # inputs that a message lists


@dataclass(frozen=True)
class Input:
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
    from mixlist.lists.suggestions import did_you_mean

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


def _convert_value(value: object, value_type: dtypes.Type, shape: Shape | None) -> tuple[object, str | None]:
    """Return a value in the form that ONNX Runtime expects for a type, and a text about the values that changed."""
    import numpy as np

    if not isinstance(value_type, tuple):
        try:
            array = np.asarray(value)
        except ValueError:
            raise IncompatibleData("its rows have different lengths") from None
        _check_shape(array.shape, shape)
        return cast_array(array, value_type)
    if value_type[0] == "optional":
        return (None, None) if value is None else _convert_value(value, value_type[1], shape)
    if value_type[0] != "seq":
        raise IncompatibleData(f"data cannot contain a {value_type[0]}")
    if not isinstance(value, list | tuple):
        raise IncompatibleData("the model expects a sequence, which a test_data_set directory can contain")
    parts = [_convert_value(part, value_type[1], shape) for part in value]
    return [part for part, _ in parts], next((loss for _, loss in parts if loss), None)


def _check_shape(shape: tuple[int, ...], declared: Shape | None) -> None:
    """Raise IncompatibleData if a shape contradicts the declared one."""
    if declared is None:
        return
    if len(shape) != len(declared):
        raise IncompatibleData(f"the model expects {len(declared)} axes")
    for axis, (size, declared_size) in enumerate(zip(shape, declared, strict=True)):
        if isinstance(declared_size, int) and size != declared_size:
            raise IncompatibleData(f"the model expects {declared_size} along axis {axis}")
