"""The type of an ONNX value, as small as the solver needs it.

A tensor's type is its element type, an int of ``onnx.TensorProto.DataType``; a container's type is
a pair of its kind and its content's type, ``("seq", FLOAT)`` or ``("optional", ("seq", FLOAT))``.
``UNKNOWN`` (0) is a type that nobody told.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import TypeProto

Type = int | tuple[str, "Type"]

UNKNOWN, FLOAT, FLOAT16, DOUBLE, BFLOAT16 = 0, 1, 10, 11, 16
ELEMENT = {"float32": FLOAT, "float16": FLOAT16, "bfloat16": BFLOAT16, "float64": DOUBLE}
LISTED = frozenset({FLOAT, FLOAT16, BFLOAT16})  # the types that lists move between
FLOATS = frozenset({FLOAT, FLOAT16, BFLOAT16, DOUBLE})
_CONTAINERS = {"seq": "seq", "optional": "optional", "sparse_tensor": "sparse", "map": "map"}


def element(value_type: Type) -> int:
    """The element type inside any container."""
    while isinstance(value_type, tuple):
        value_type = value_type[1]
    return value_type


def with_element(value_type: Type, new: int) -> Type:
    """The same container around another element type."""
    if isinstance(value_type, tuple):
        return (value_type[0], with_element(value_type[1], new))
    return new


def type_name(value_type: Type) -> str:
    """The type in words: ``float16``, ``int64``, ``seq(float16)``, ``unknown``."""
    if isinstance(value_type, tuple):
        return f"{value_type[0]}({type_name(value_type[1])})"
    return _ELEMENT_NAMES.get(value_type) or _other_name(value_type)


_ELEMENT_NAMES = {0: "unknown", 1: "float32", 10: "float16", 11: "float64", 16: "bfloat16", 7: "int64", 9: "bool"}


def _other_name(elem: int) -> str:
    from onnx import TensorProto

    return str(TensorProto.DataType.Name(elem)).lower() if elem in elements() else f"type {elem}"


@cache
def elements() -> frozenset[int]:
    """The element types that the installed onnx knows, UNKNOWN among them."""
    from onnx import TensorProto

    return frozenset(TensorProto.DataType.values())


def from_proto(proto: TypeProto) -> Type:
    """The Type of a ``TypeProto``; UNKNOWN where it says nothing."""
    kind = proto.WhichOneof("value")
    if kind == "tensor_type":
        return int(proto.tensor_type.elem_type)
    if kind == "sequence_type":
        return ("seq", from_proto(proto.sequence_type.elem_type))
    if kind == "optional_type":
        return ("optional", from_proto(proto.optional_type.elem_type))
    if kind == "sparse_tensor_type":
        return ("sparse", int(proto.sparse_tensor_type.elem_type))
    if kind == "map_type":
        return ("map", from_proto(proto.map_type.value_type))
    return UNKNOWN


def set_proto(proto: TypeProto, value_type: Type) -> None:
    """Write the element type into a ``TypeProto``, making the container where there is none; shapes stay."""
    if not isinstance(value_type, tuple):
        proto.tensor_type.elem_type = value_type
    elif value_type[0] == "seq":
        set_proto(proto.sequence_type.elem_type, value_type[1])
    elif value_type[0] == "optional":
        set_proto(proto.optional_type.elem_type, value_type[1])
    elif value_type[0] == "sparse":
        proto.sparse_tensor_type.elem_type = element(value_type)
    elif value_type[0] == "map":
        set_proto(proto.map_type.value_type, value_type[1])


def parse_name(name: str) -> Type:
    """The Type of a name that ``type_name`` gives: ``float16``, ``int64``, ``seq(float32)``; raises UsageError."""
    from onnx import TensorProto

    from mixlist.errors import UsageError

    head, _, rest = name.partition("(")
    if rest and head in ("seq", "optional"):
        return (head, parse_name(rest.removesuffix(")")))
    elem = ELEMENT.get(name) or dict(TensorProto.DataType.items()).get(name.upper(), UNKNOWN)
    if elem == UNKNOWN:
        raise UsageError(f"{name!r} is no tensor type", hint="use float32, float16, int64, seq(float32), ...")
    return int(elem)


def parse(text: str) -> Type:
    """The Type of a schema's type string such as ``tensor(float)`` or ``optional(seq(tensor(float)))``."""
    head, _, rest = text.partition("(")
    inner = rest[:-1]
    if head == "tensor":
        return _SCHEMA_ELEMENTS.get(inner, UNKNOWN)
    if head == "map":
        return ("map", parse(inner.partition(",")[2].strip()))
    if head in _CONTAINERS:
        content = parse(inner) if "(" in inner else _SCHEMA_ELEMENTS.get(inner, UNKNOWN)
        return (_CONTAINERS[head], content)
    return UNKNOWN


_SCHEMA_ELEMENTS = {
    "float": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7, "string": 8,
    "bool": 9, "float16": 10, "double": 11, "uint32": 12, "uint64": 13, "complex64": 14, "complex128": 15,
    "bfloat16": 16, "float8e4m3fn": 17, "float8e4m3fnuz": 18, "float8e5m2": 19, "float8e5m2fnuz": 20,
    "uint4": 21, "int4": 22, "float4e2m1": 23, "float8e8m0": 24, "uint2": 25, "int2": 26,
}  # fmt: skip
