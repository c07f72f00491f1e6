"""The inputs of a model, and data made to fit them: names, shapes and types are checked, values cast.

``fit`` takes arrays by name and returns a feed and what its casts lost (see ``casts``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mixlist.errors import UsageError
from mixlist.ops import types
from mixlist.runtime.array_casts import IncompatibleData, cast_array

if TYPE_CHECKING:
    from onnx import ModelProto, TypeProto

    Shape = tuple[int | str | None, ...]

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
    shape: Shape | None
    optional: bool

    def __str__(self) -> str:
        return f"{self.name}: {describe_type(self.type, self.shape)}{' (may be missing)' if self.optional else ''}"


def model_inputs(proto: ModelProto) -> tuple[Input, ...]:
    """Return the inputs of a ModelProto's main graph, in its order."""
    graph = proto.graph
    defaults = {t.name for t in graph.initializer} | {t.values.name for t in graph.sparse_initializer}
    inputs = []
    for value in graph.input:
        kind = types.from_proto(value.type)
        optional = value.name in defaults or (isinstance(kind, tuple) and kind[0] == "optional")
        inputs.append(Input(value.name, kind, declared_shape(value.type), optional))
    return tuple(inputs)


def declared_shape(kind: TypeProto) -> Shape | None:
    """Return the shape of a tensor's type, inside any container; None where it has none."""
    while kind.HasField("sequence_type") or kind.HasField("optional_type"):
        kind = kind.sequence_type.elem_type if kind.HasField("sequence_type") else kind.optional_type.elem_type
    if not kind.tensor_type.HasField("shape"):
        return None
    return tuple(
        d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else d.dim_param or None
        for d in kind.tensor_type.shape.dim
    )


def describe_type(kind: types.Type, shape: Shape | None) -> str:
    """Return a type and shape in words: ``float32[N, 4]``, ``?`` for an unnamed size, ``int64[]`` for a scalar."""
    if isinstance(kind, tuple):
        return f"{kind[0]}({describe_type(kind[1], shape)})"
    sizes = "..." if shape is None else ", ".join("?" if size is None else str(size) for size in shape)
    return f"{types.type_name(kind)}[{sizes}]"


def _value_text(value: Any) -> str:
    """Return the type and shape of some data in the same words."""
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}" + (f", the first {_value_text(value[0])}" if value else "")
    if value is None or not hasattr(value, "dtype"):
        return type(value).__name__
    return f"{value.dtype.name or value.dtype}[{', '.join(map(str, value.shape))}]"


def make_feed(data: Mapping[str, object], inputs: Sequence[Input], where: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the feed that ``data`` makes for a model: arrays of the declared types, in the model's order.

    ``where`` names the data in messages. Also returns what casts lost, by input. Raises UsageError, which shows what
    the model wants and what the data holds.
    """
    names = {i.name for i in inputs}
    missing = [i.name for i in inputs if not i.optional and i.name not in data]
    unknown = [name for name in data if name not in names]
    if missing or unknown:
        raise UsageError(f"{where}: {_names_problem(missing, unknown, names)}", hint=_comparison(data, inputs))
    feed: dict[str, Any] = {}
    losses: dict[str, str] = {}
    for each in inputs:
        if each.name not in data:
            continue
        try:
            feed[each.name], loss = _value(data[each.name], each.type, each.shape)
        except IncompatibleData as problem:
            text = f"{where}: input {each.name!r} is {_value_text(data[each.name])}: {problem}"
            raise UsageError(text, hint=_comparison(data, inputs)) from None
        if loss:
            losses[each.name] = loss
    return feed, losses


def _names_problem(missing: Sequence[str], unknown: Sequence[str], names: set[str]) -> str:
    from mixlist.lists.suggestions import did_you_mean

    problems = []
    if missing:
        problems.append(f"no data for input{'s' * (len(missing) > 1)} {_quoted(missing)}")
    if unknown:
        near = did_you_mean(unknown[0], names) if len(unknown) == 1 else None
        problems.append(f"the model has no input {_quoted(unknown)}" + (f" ({near.rstrip('?')}?)" if near else ""))
    return "; ".join(problems)


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names[:_SHOWN]) + (" ..." if len(names) > _SHOWN else "")


def _comparison(data: Mapping[str, object], inputs: Sequence[Input]) -> str:
    wants = [f"  {each}" for each in inputs[:_SHOWN]] + ["  ..."] * (len(inputs) > _SHOWN)
    holds = [f"  {name}: {_value_text(value)}" for name, value in list(data.items())[:_SHOWN]]
    return "\n".join(["the model wants", *wants, "the data holds", *(holds or ["  nothing"])])


def _value(value: object, kind: types.Type, shape: Shape | None) -> tuple[object, str | None]:
    """Return the data as the runtime takes it for a type, and what a cast lost."""
    import numpy as np

    if not isinstance(kind, tuple):
        try:
            array = np.asarray(value)
        except ValueError:
            raise IncompatibleData("its rows differ in length") from None
        _check_shape(array.shape, shape)
        return cast_array(array, kind)
    if kind[0] == "optional":
        return (None, None) if value is None else _value(value, kind[1], shape)
    if kind[0] != "seq":
        raise IncompatibleData(f"a {kind[0]} cannot be given as data")
    if not isinstance(value, list | tuple):
        raise IncompatibleData("the model wants a sequence, which a test_data_set directory can hold")
    parts = [_value(part, kind[1], shape) for part in value]
    return [part for part, _ in parts], next((loss for _, loss in parts if loss), None)


def _check_shape(shape: tuple[int, ...], declared: Shape | None) -> None:
    if declared is None:
        return
    if len(shape) != len(declared):
        raise IncompatibleData(f"the model wants {len(declared)} axes")
    for axis, (size, wanted) in enumerate(zip(shape, declared, strict=True)):
        if isinstance(wanted, int) and size != wanted:
            raise IncompatibleData(f"the model wants {wanted} along axis {axis}")
