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

UNKNOWN, FLOAT, INT64, FLOAT16, DOUBLE, BFLOAT16 = 0, 1, 7, 10, 11, 16
ELEMENT_BY_NAME = {"float32": FLOAT, "float16": FLOAT16, "bfloat16": BFLOAT16, "float64": DOUBLE}
MIXABLE = frozenset({FLOAT, FLOAT16, BFLOAT16})  # the types that lists move between
FLOATS = frozenset({FLOAT, FLOAT16, BFLOAT16, DOUBLE})
INTEGERS = frozenset({2, 3, 4, 5, 6, 7, 12, 13, 21, 22, 25, 26})  # of 2 to 64 bits, signed and unsigned
BOOL = 9
_CONTAINERS = {"seq": "seq", "optional": "optional", "sparse_tensor": "sparse"}  # by the word of a schema
# The field of a TypeProto that holds a container, and in it the field that has the type of the content.
_CONTAINER_FIELDS = {
    "seq": ("sequence_type", "elem_type"),
    "optional": ("optional_type", "elem_type"),
    "map": ("map_type", "value_type"),
}


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
    """Return the type in words: ``float16``, ``int64``, ``seq(float16)``, ``unknown``."""
    if isinstance(value_type, tuple):
        return f"{value_type[0]}({type_name(value_type[1])})"
    return _names().get(value_type) or f"type {value_type}"


@cache
def _onnx_names() -> dict[str, int]:
    """Return the element types of the installed onnx by their names in schemas: ``float``, ``double``, ``int64``."""
    from onnx import TensorProto

    return {name.lower(): elem for name, elem in TensorProto.DataType.items()}


@cache
def _names() -> dict[int, str]:
    """Return the names of element types that messages use: ``float32``, ``float64``, ``int64``."""
    numpy_names = {elem: name for name, elem in ELEMENT_BY_NAME.items()} | {UNKNOWN: "unknown"}
    return {elem: numpy_names.get(elem, name) for name, elem in _onnx_names().items()}


@cache
def known_elements() -> frozenset[int]:
    """Return the element types that the installed onnx knows, UNKNOWN among them."""
    return frozenset(_names())


def from_proto(proto: TypeProto) -> Type:
    """The Type of a ``TypeProto``; UNKNOWN where it says nothing."""
    name = proto.WhichOneof("value")
    if name == "tensor_type":
        return int(proto.tensor_type.elem_type)
    if name == "sparse_tensor_type":
        return ("sparse", int(proto.sparse_tensor_type.elem_type))
    for kind, (container, content) in _CONTAINER_FIELDS.items():
        if container == name:
            return (kind, from_proto(getattr(getattr(proto, container), content)))
    return UNKNOWN


def set_proto(proto: TypeProto, value_type: Type) -> None:
    """Write the element type into a ``TypeProto``, making the container where there is none; shapes stay."""
    if not isinstance(value_type, tuple):
        proto.tensor_type.elem_type = value_type
    elif value_type[0] == "sparse":
        proto.sparse_tensor_type.elem_type = element(value_type)
    else:
        container, content = _CONTAINER_FIELDS[value_type[0]]
        set_proto(getattr(getattr(proto, container), content), value_type[1])


def parse_name(name: str) -> Type:
    """The Type of a name that ``type_name`` gives: ``float16``, ``int64``, ``seq(float32)``; raises UsageError."""
    from mixlist.errors import UsageError

    head, _, rest = name.partition("(")
    if rest and head in ("seq", "optional"):
        return (head, parse_name(rest.removesuffix(")")))
    elem = ELEMENT_BY_NAME.get(name) or _onnx_names().get(name.lower(), UNKNOWN)
    if elem == UNKNOWN:
        raise UsageError(f"{name!r} is no tensor type", hint="use float32, float16, int64, seq(float32), ...")
    return elem


def parse(text: str) -> Type:
    """The Type of a schema's type string such as ``tensor(float)`` or ``optional(seq(tensor(float)))``."""
    head, _, rest = text.partition("(")
    inner = rest[:-1]
    if head == "tensor":
        return _onnx_names().get(inner, UNKNOWN)
    if head == "map":
        return ("map", parse(inner.partition(",")[2].strip()))
    if head in _CONTAINERS:
        return (_CONTAINERS[head], parse(inner) if "(" in inner else _onnx_names().get(inner, UNKNOWN))
    return UNKNOWN
