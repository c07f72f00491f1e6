"""The type of an ONNX value, as a small Python object instead of a ``TypeProto``.

The type of a tensor is its element type: an int of ``onnx.TensorProto.DataType``. The type of a container is a pair of
its kind and the type of its content, for example ``("seq", FLOAT)`` or ``("optional", ("seq", FLOAT))``. ``UNKNOWN``
(0) is the type of a value if neither the model nor inference gives its type.

Shapes are no part of a Type.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import TypeProto

Type = int | tuple[str, "Type"]

# The numbers of onnx.TensorProto.DataType. They are written out here, because importing onnx takes time.
UNKNOWN, FLOAT, INT64, FLOAT16, DOUBLE, BFLOAT16 = 0, 1, 7, 10, 11, 16
STRING, BOOL = 8, 9
ELEMENT_BY_NAME = {"float32": FLOAT, "float16": FLOAT16, "bfloat16": BFLOAT16, "float64": DOUBLE}
# The types between which lists move a node: all floats but float64.
MIXABLE = frozenset({FLOAT, FLOAT16, BFLOAT16})
FLOATS = frozenset({FLOAT, FLOAT16, BFLOAT16, DOUBLE})
FLOATS_OF_8_BITS = frozenset({17, 18, 19, 20})
COMPLEX = frozenset({14, 15})
INTEGERS = frozenset({2, 3, 4, 5, 6, 7, 12, 13, 21, 22, 25, 26})  # of 2 to 64 bits, signed and unsigned
_CONTAINER_KINDS = {"seq": "seq", "optional": "optional", "sparse_tensor": "sparse"}  # by the word of a schema
# By kind: the field of a TypeProto that holds the container, and in this field the one with the type of the content.
_CONTAINER_FIELDS = {
    "seq": ("sequence_type", "elem_type"),
    "optional": ("optional_type", "elem_type"),
    "map": ("map_type", "value_type"),
}


def element(value_type: Type) -> int:
    """Return the element type inside all containers: FLOAT for ``("optional", ("seq", FLOAT))``."""
    while isinstance(value_type, tuple):
        value_type = value_type[1]
    return value_type


def is_container(value_type: Type) -> bool:
    """Return whether a type is that of a sequence or an optional."""
    return isinstance(value_type, tuple)


def with_element(value_type: Type, new: int) -> Type:
    """Return a type with the same containers and the element type ``new``."""
    if isinstance(value_type, tuple):
        return (value_type[0], with_element(value_type[1], new))
    return new


def type_name(value_type: Type) -> str:
    """Return the name of a type in messages: ``float16``, ``int64``, ``seq(float16)``, ``unknown``."""
    if isinstance(value_type, tuple):
        return f"{value_type[0]}({type_name(value_type[1])})"
    return _message_names().get(value_type) or f"type {value_type}"


@cache
def _elements_by_onnx_name() -> dict[str, int]:
    """Return the element types of the installed onnx by their names in schemas: ``float``, ``double``, ``int64``."""
    from onnx import TensorProto

    return {name.lower(): elem for name, elem in TensorProto.DataType.items()}


def find_unknown_schema_names(text: str) -> list[str]:
    """Return the words of a text that are no element type by onnx's name in schemas, such as ``float`` or ``int64``."""
    return [name for name in text.split() if name not in _elements_by_onnx_name()]


@cache
def _message_names() -> dict[int, str]:
    """Return the names of element types in messages: ``float32``, ``float64``, ``int64``."""
    # onnx calls float32 "float" and float64 "double"; messages use the names of numpy.
    numpy_names = {elem: name for name, elem in ELEMENT_BY_NAME.items()} | {UNKNOWN: "unknown"}
    return {elem: numpy_names.get(elem, name) for name, elem in _elements_by_onnx_name().items()}


@cache
def known_element_types() -> frozenset[int]:
    """Return the element types that the installed onnx knows, UNKNOWN among them."""
    return frozenset(_message_names())


def from_proto(proto: TypeProto) -> Type:
    """Return the Type of a ``TypeProto``; UNKNOWN if the message declares none."""
    name = proto.WhichOneof("value")
    if name == "tensor_type":
        return int(proto.tensor_type.elem_type)
    if name == "sparse_tensor_type":
        return ("sparse", int(proto.sparse_tensor_type.elem_type))
    for kind, (container, content) in _CONTAINER_FIELDS.items():
        if container == name:
            return (kind, from_proto(getattr(getattr(proto, container), content)))
    return UNKNOWN


def write_type(proto: TypeProto, value_type: Type) -> None:
    """Write a Type into a ``TypeProto``. Shapes stay, and missing containers are made."""
    if not isinstance(value_type, tuple):
        proto.tensor_type.elem_type = value_type
    elif value_type[0] == "sparse":
        proto.sparse_tensor_type.elem_type = element(value_type)
    else:
        container, content = _CONTAINER_FIELDS[value_type[0]]
        write_type(getattr(getattr(proto, container), content), value_type[1])


def parse_name(name: str) -> Type:
    """Return the Type of a name that ``type_name`` gives: ``float16``, ``int64``, ``seq(float32)``.

    The names of onnx, such as ``float`` and ``double``, are accepted too. Raises UsageError for every other text.
    """
    from mixlist.errors import UsageError

    kind, _, content = name.partition("(")
    # seq(float16): the kind, and in parentheses the type of the content.
    if content.endswith(")") and kind in ("seq", "optional"):
        return (kind, parse_name(content[:-1]))
    elem = ELEMENT_BY_NAME.get(name) or _elements_by_onnx_name().get(name.lower(), UNKNOWN)
    if elem == UNKNOWN:
        raise UsageError(f"{name!r} is no tensor type", hint="use float32, float16, int64, seq(float32), ...")
    return elem


def parse_schema_type(schema_type: str) -> Type:
    """Return the Type of a schema's type string: ``tensor(float)`` or ``optional(seq(tensor(float)))``.

    A string of another form, or an element type that the installed onnx does not know, gives UNKNOWN.
    """
    kind, _, content = schema_type.partition("(")
    content = content[:-1]  # without the closing parenthesis
    if kind == "tensor":
        return _elements_by_onnx_name().get(content, UNKNOWN)
    if kind == "map":  # map(int64, tensor(float)): the type of the keys is not kept
        return ("map", parse_schema_type(content.partition(",")[2].strip()))
    # seq(tensor(float)) has a type in it, sparse_tensor(float) the name of an element type.
    if kind in _CONTAINER_KINDS:
        return (
            _CONTAINER_KINDS[kind],
            parse_schema_type(content) if "(" in content else _elements_by_onnx_name().get(content, UNKNOWN),
        )
    return UNKNOWN
